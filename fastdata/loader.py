"""Batches for training: ``fastdata.loader``, the one-line replacement of DataLoader.

`loader` looks at what it is given.  A packed dataset gets a `Loader`, which
works by the batch: order, geometry and memory are planned for a whole batch
at once, and threads decode into it.  Any other torch dataset gets a stock
`torch.utils.data.DataLoader` with the settings that suit this machine.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from fastdata.engine.batches import BatchMaker, PackedData, is_packed
from fastdata.engine.cores import default_workers
from fastdata.engine.job import Request
from fastdata.engine.stock import stock_loader
from fastdata.engine.threads import ThreadRun, run_in_caller
from fastdata.errors import OptionError
from fastdata.sampling import Batches, Order, SamplerOrder, Sequential, Shuffled
from fastdata.transforms.pipeline import Pipeline, Transform
from fastdata.transforms.pixel import ToDtype

__all__ = ["Loader", "LoaderStats", "loader"]


def loader(
    data: Any,
    *,
    batch_size: int = 1,
    shuffle: bool = False,
    drop_last: bool = False,
    seed: int = 0,
    transform: Transform | Sequence[Transform] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    worker_method: Literal["auto", "thread"] = "auto",
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: bool | Literal["auto"] = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    backend: Literal["auto", "cpu"] = "auto",
    sampler: Iterable[int] | None = None,
    rank: int = 0,
    world_size: int = 1,
    **options: Any,
) -> Loader | DataLoader[Any]:
    """Return an iterable of batches over `data`.

    Parameters
    ----------
    data : path, list of paths, Dataset or torch Dataset
        What ``fastdata.open`` takes, or what it returned: the result is a
        `Loader`.  Any other dataset with ``__getitem__`` (or an
        `IterableDataset`): the result is a stock `DataLoader`, and
        `transform`, `device` and `dtype` are not accepted.
    batch_size : int
        Samples a batch (on this rank).
    shuffle : bool
        Whether each epoch has an order of its own, drawn from `seed`.
    drop_last : bool
        Whether an incomplete last batch is left out.
    seed : int
        Of order and random transforms.
    transform : transform or sequence of transforms, optional
        Of `fastdata.transforms`, or any callable on one sample's image, which
        is slower (see `fastdata.transforms.callables`).
    num_workers : int or "auto"
        Threads that decode (worker processes of a stock DataLoader); 0 works
        in the calling thread.  "auto": one a core that this process may use,
        divided by ``LOCAL_WORLD_SIZE``, at most 16.  Batches are the same,
        bit for bit, whatever the number.
    worker_method : {"auto", "thread"}
        How a `Loader` works in parallel.
    prefetch_factor : int
        Batches made ahead of the one that is waited for (of a stock
        DataLoader: for each worker).
    persistent_workers : bool
        Whether the processes of a stock DataLoader outlive an epoch.  Threads
        cost nothing to start and end with their iterator.
    pin_memory : bool or "auto"
        Whether images are put into pinned memory, for fast copies to a GPU.
        "auto": where there is CUDA; without it there is none to pin for.
    device : torch.device or str, optional
        Where batches arrive.  uint8 images are copied and the last pixel
        transforms (`Normalize`, `ToDtype`) run there.
    dtype : torch.dtype, optional
        A floating dtype for images, as by ``ToDtype(dtype)`` after all
        transforms: uint8 values become 0 to 1.
    backend : {"auto", "cpu"}
        What decodes.
    sampler : iterable of int, optional
        Indices of an epoch, in place of `shuffle`, with a length; an
        instance of a torch sampler, say.
    rank, world_size : int
        Which share of each epoch this process takes, of how many.  All ranks
        get the same number of batches: with `drop_last`, what does not divide
        is left out, otherwise the first samples of the epoch are repeated.
    **options
        Further arguments of a stock `DataLoader`: ``collate_fn``, ``timeout``...

    Returns
    -------
    Loader or torch.utils.data.DataLoader

    Raises
    ------
    OptionError
        If an option has a value that cannot be used.
    DatasetNotFoundError, FormatError, ShardCorruptError
        If `data` is a path and there is no sound dataset.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> train = fastdata.loader(                              # doctest: +SKIP
    ...     "train.lmdb", batch_size=256, shuffle=True, drop_last=True,
    ...     transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    ... )
    >>> for images, labels in train: ...                      # doctest: +SKIP
    """
    _check_choice("worker_method", worker_method, ("auto", "thread"))
    _check_choice("backend", backend, ("auto", "cpu"))
    workers = _workers(num_workers)
    _check_int("prefetch_factor", prefetch_factor, 1)
    _check_int("batch_size", batch_size, 1)
    _check_choice("pin_memory", pin_memory, ("auto", True, False))
    pinned = bool(pin_memory) and torch.cuda.is_available()
    if sampler is not None and shuffle:
        raise OptionError("a sampler decides the order: leave out shuffle=True, or the sampler")

    if _is_location(data):
        from fastdata.dataset import open as open_dataset

        data = open_dataset(data)
    if is_packed(data):
        if options:
            names = ", ".join(options)
            raise OptionError(f"{names}: not an option of a loader of packed data")
        return Loader(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            transform=transform,
            num_workers=workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pinned,
            device=device,
            dtype=dtype,
            sampler=sampler,
            rank=rank,
            world_size=world_size,
        )
    if not (hasattr(data, "__getitem__") or isinstance(data, torch.utils.data.IterableDataset)):
        raise OptionError(
            f"a loader takes a path, a fastdata dataset or a torch Dataset, not "
            f"{type(data).__name__}"
        )
    for name, value in (("transform", transform), ("device", device), ("dtype", dtype)):
        if value is not None:
            raise OptionError(
                f"{name} is for packed data, but {type(data).__name__} is a dataset that makes "
                f"samples itself: let it do this, or pack it first (fastdata.pack)"
            )
    return stock_loader(
        data,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        pin_memory=pinned,
        sampler=sampler,
        rank=rank,
        world_size=world_size,
        options=options,
    )


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
    """Batches of a packed dataset; made by `loader`, which describes the parameters.

    A batch is a named tuple of the schema's fields.  Images are uint8 tensors
    [N, C, H, W] in channels-last memory (of another dtype after `Normalize`,
    `ToDtype` or with `dtype`), numbers and fixed-shape arrays tensors, other
    arrays lists of tensors, text and bytes lists.

    Each ``iter(loader)`` is one epoch, beginning with epoch 0 and counting by
    itself; `set_epoch` chooses the next one.  Iterators are independent: two
    at once are two epochs, with threads of their own, which end when their
    iterator is exhausted, dropped or closed.  `state_dict` speaks of the
    iterator that was made last.

    To be used by one thread at a time.  A loader that was forked or pickled
    has to be made anew.
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
        self._maker = BatchMaker(
            dataset,
            self.pipeline,
            seed=seed,
            pieces=max(1, num_workers),
            pinned=pin_memory,
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
        _check_int("epoch", epoch, 0)
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
        _check_int("epoch", state.get("epoch"), 0)
        _check_int("batch", state.get("batch"), 0)
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


def _is_location(data: Any) -> bool:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in data)
    )


def _workers(num_workers: Any) -> int:
    if num_workers == "auto":
        return default_workers()
    _check_int("num_workers", num_workers, 0, '"auto" or ')
    return int(num_workers)


def _check_int(name: str, value: Any, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is {also}an int from {least} up, not {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        accepted = ", ".join(map(repr, choices))
        raise OptionError(f"{name} is one of {accepted}, not {value!r}")
