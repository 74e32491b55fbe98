"""The loader of packed data: an epoch of batches at each ``iter()``, and where it stands.

`Loader` puts the parts together: order (`fastdata.sampling`), batches
(`BatchMaker`), who makes them (`ThreadRun`, or the caller) and where they arrive.
What it adds is bookkeeping: epochs, resuming, statistics, and the end.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.engine.batches import BatchMaker, PackedData
from fastdata.engine.buffers import BufferPool
from fastdata.engine.job import Request
from fastdata.engine.threads import ThreadRun, run_in_caller
from fastdata.errors import OptionError
from fastdata.sampling import Batches, Order, SamplerOrder, Sequential, Shuffled
from fastdata.transforms.pipeline import Pipeline, Transform
from fastdata.transforms.pixel import ToDtype

__all__ = ["Loader", "LoaderStats"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made.

    Attributes
    ----------
    batches, samples : int
        Handed out.
    seconds : float
        From the start of each iteration to its last batch, the time of the
        training loop included.
    wait_seconds : float
        Of these, how long the loop waited for batches.
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Samples handed out over seconds; 0 before the first batch."""
        return self.samples / self.seconds if self.seconds else 0.0


class Loader:
    """Batches of a packed dataset; made by `fastdata.loader`, which describes the parameters.

    A batch is a named tuple of the schema's fields.  Images are uint8 tensors
    [N, C, H, W] in channels-last memory (of another dtype after `Normalize`,
    `ToDtype` or with `dtype`), numbers and fixed-shape arrays tensors, other
    arrays lists of tensors, text and bytes lists.

    Each ``iter(loader)`` is one epoch, beginning with epoch 0 and counting by
    itself; `set_epoch` chooses the next one.  Iterators are independent: two
    at once are two epochs, with threads of their own, which end when their
    iterator is exhausted, dropped or closed.  `state_dict` speaks of the
    iterator that was made last.

    To be used by one thread at a time; cannot be pickled.
    """

    def __init__(
        self,
        dataset: PackedData,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        transform: Transform | Sequence[Transform] | None,
        num_workers: int,
        prefetch_factor: int,
        pin_memory: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        sampler: Iterable[int] | None,
        rank: int,
        world_size: int,
    ) -> None:
        if sampler is not None and world_size > 1:
            raise OptionError(
                "a sampler decides the order: let it yield the samples of its rank, and leave out "
                "rank and world_size"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.seed = seed
        self.device = None if device is None else torch.device(device)
        self.pipeline = _pipeline(transform, dtype, dataset)
        self.batches = Batches(
            _order(dataset, shuffle, seed, sampler),
            batch_size=batch_size,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        elsewhere = self.device is not None and self.device.type != "cpu"
        # Pixel transforms run where the batch arrives.
        self._late = self.pipeline.pixels if elsewhere else None
        images = len(dataset.schema.images)
        self._maker = BatchMaker(
            dataset,
            self.pipeline,
            seed=seed,
            pieces=max(1, num_workers),
            buffers=BufferPool(images * (prefetch_factor + 2), pinned=pin_memory),
            pixels=not elsewhere,
        )
        self._next = _Place(0, 0)
        self._latest = self._next
        self._open: weakref.WeakSet[_Epoch] = weakref.WeakSet()
        self._stats = LoaderStats()
        self._closed = False

    def __len__(self) -> int:
        """Batches of an epoch, on this rank."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise OptionError("this loader is closed; make a new one")
        place = self._next
        self._latest, self._next = place, _Place(place.epoch + 1, 0)
        epoch = _Epoch(self, place)
        self._open.add(epoch)
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterator one of this epoch, from its first batch."""
        _check_count("epoch", epoch)
        self._latest = self._next = _Place(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the iterator that was made last stands, as plain JSON types.

        Batches handed out count as done; those made ahead do not.  After the
        last batch of an epoch the state is the beginning of the next.  It is
        the same on every rank.
        """
        place = self._latest
        if place.batch >= len(self):
            place = _Place(place.epoch + 1, 0)
        return {"version": 1, "epoch": place.epoch, "batch": place.batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iterator continue where `state` was taken.

        It yields exactly the batches that an uninterrupted run would have
        yielded, provided that transforms are the same and callables among
        them draw no random numbers; the number of workers may differ.

        Raises
        ------
        OptionError
            If the state is of another dataset, seed, batch size, order or
            number of ranks, or no state at all.
        """
        if state.get("version") != 1:
            raise OptionError(f"not the state of a loader of this version: {state!r}")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise OptionError(
                    f"the state was taken with {name} {state.get(name)!r}, but this loader has "
                    f"{value!r}; make the loader as it was then, or start without the state"
                )
        for name in ("epoch", "batch"):
            _check_count(name, state.get(name))
        self._latest = self._next = _Place(state["epoch"], state["batch"])

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same for a state to make sense."""
        return {
            "digest": self.dataset.digest,
            "samples": len(self.batches.order),
            "order": type(self.batches.order).__name__,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "drop_last": self.batches.drop_last,
            "world_size": self.batches.world_size,
        }

    def stats(self) -> LoaderStats:
        """Return counts and times over all iterators so far."""
        return self._stats

    def close(self) -> None:
        """End all iterators and their threads.  Idempotent."""
        self._closed = True
        for epoch in list(self._open):
            epoch.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order = type(self.batches.order).__name__.lower()
        return (
            f"Loader({len(self)} batches of {self.batch_size}, {order}, "
            f"{self.num_workers} worker threads)\n{self.dataset!r}"
        )

    def _deliver(self, batch: Any) -> Any:
        """Return the batch on the loader's device."""
        if self.device is None:
            return batch
        moved = [self._move(value) for value in batch]
        if self._late is not None:
            for position, field in enumerate(self.dataset.schema.values()):
                if field.kind == "image" and not getattr(field, "mask", False):
                    moved[position] = self._late(moved[position])
        return type(batch)(*moved)

    def _move(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # Copies out of pinned memory overlap with the training loop.
            return value.to(self.device, non_blocking=value.is_pinned())
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [tensor.to(self.device) for tensor in value]
        return value

    def _count(self, samples: int, seconds: float, wait_seconds: float) -> None:
        old = self._stats
        self._stats = LoaderStats(
            batches=old.batches + 1,
            samples=old.samples + samples,
            seconds=old.seconds + seconds,
            wait_seconds=old.wait_seconds + wait_seconds,
        )


@dataclass(slots=True)
class _Place:
    """A place in training: the next batch of an epoch."""

    epoch: int
    batch: int


class _Epoch(Iterator[Any]):
    """One epoch of a loader: what ``iter(loader)`` returns.

    Parameters
    ----------
    loader : Loader
    place : _Place
        Where to begin; moved on with each batch handed out.
    """

    def __init__(self, loader: Loader, place: _Place) -> None:
        self._loader = loader
        self._place = place
        self._clock = time.perf_counter()
        epoch = place.epoch
        batches = loader.batches.of(epoch)
        requests = (Request(epoch, batches[k]) for k in range(place.batch, len(batches)))
        self._run: Iterator[Any]
        if loader.num_workers == 0:
            self._run = run_in_caller(loader._maker.prepare, requests)
        else:
            self._run = ThreadRun(
                loader._maker.prepare,
                requests,
                num_workers=loader.num_workers,
                ahead=loader.prefetch_factor,
            )

    def __next__(self) -> Any:
        called = time.perf_counter()
        batch = self._loader._deliver(next(self._run))
        now = time.perf_counter()
        cut = self._loader.batches
        samples = min(cut.batch_size, cut.samples - self._place.batch * cut.batch_size)
        self._loader._count(samples, now - self._clock, now - called)
        self._place.batch += 1
        self._clock = now
        return batch

    def close(self) -> None:
        """End this epoch and its threads.  Idempotent."""
        close = getattr(self._run, "close", None)
        if close is not None:
            close()


def _pipeline(
    transform: Transform | Sequence[Transform] | None,
    dtype: torch.dtype | None,
    dataset: PackedData,
) -> Pipeline:
    """Return the checked transforms, `dtype` being one more at the end."""
    pipeline = Pipeline(transform, dataset.schema)
    if dtype is None:
        return pipeline
    return Pipeline((*pipeline.transforms, ToDtype(dtype)), dataset.schema)


def _order(dataset: PackedData, shuffle: bool, seed: int, sampler: Iterable[int] | None) -> Order:
    if sampler is not None:
        return SamplerOrder(sampler, len(dataset))
    return Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"{name} is an int from 0 up, not {value!r}")
