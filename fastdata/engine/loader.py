"""The loader of packed data: an epoch of batches at each pass, and its position.

`Loader` puts two parts together: the order of batches (`fastdata.sampling`) and a `Backend`,
which makes them.  What it adds is bookkeeping: epochs, ranks, resuming, statistics, and the end.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fastdata.bounds import check_int
from fastdata.distributed import accelerate_in_use, agreed_seed
from fastdata.engine.backend import Backend
from fastdata.engine.contracts import BatchOrder, PackedData
from fastdata.engine.description import describe_fields
from fastdata.engine.epoch import LoaderStats, Passes, Position
from fastdata.engine.rank_check import RankCheck
from fastdata.engine.surface import DataLoaderSurface
from fastdata.errors import OptionError
from fastdata.printable import safe_repr
from fastdata.records import RecordFormat
from fastdata.sampling import Batches

if TYPE_CHECKING:
    from fastdata.options import LoaderOptions
    from fastdata.sampling import SamplerEpoch
    from fastdata.transforms.pipeline import Pipeline

log = logging.getLogger("fastdata")

_MOST_RANKS = 1 << 16
"""Numbers of ranks that a message looks through."""

__all__ = ["Assemble", "Loader", "LoaderStats"]

Assemble: TypeAlias = Callable[[int, int, int], tuple[BatchOrder, Backend]]
"""Makes the order and the backend of a loader, of its rank, world size and seed."""


class Loader(DataLoaderSurface):
    """Batches of a packed dataset; made by `fastdata.loader`, which describes the parameters.

    A batch is a named tuple of the schema's fields, or a dict.  Images are uint8 tensors
    [N, C, H, W] (of another dtype after `Normalize`, `ToDtype` or with `dtype`), contiguous unless
    `memory_format` says otherwise, and lists of tensors with `Views`.  Numbers and fixed-shape
    arrays are tensors, other arrays lists of tensors, text and bytes lists.

    Each pass over the loader is one epoch, numbered from 0; `set_epoch` chooses the next one.  An
    epoch begins with its first batch, so ``iter(loader)`` alone changes nothing.  Workers stay from
    one epoch to the next, and start it while the last batches of this one are in use.  They end
    with `close` or with the loader; threads also end with an epoch that is not finished.
    Iterators are independent: two concurrent ones are two epochs with their own workers.
    `state_dict` is about the iterator that began last.

    A loader may be made before the process group: rank and world size are looked up by each pass
    and by `len`.

    ``print(loader)`` lists the batches per epoch, the workers, and the fields of a batch with
    shape, dtype and memory format.  "H" and "W" are sizes that vary.  It reads no pixel and starts
    no worker.

    For one thread at a time.  A loader can be pickled and copied between epochs; the copy has its
    own workers and continues at the same place.

    Parameters
    ----------
    dataset : PackedData
    options : LoaderOptions
    assemble : callable
        See `Assemble`; picklable, if the loader is to be.
    record : RecordFormat
        Of batches.
    seed : int, optional
        By default that of the options, or a random one.

    Attributes
    ----------
    dataset : PackedData
    options : LoaderOptions
        Its options, for making a similar loader.
    """

    def __init__(
        self,
        dataset: PackedData,
        options: LoaderOptions,
        assemble: Assemble,
        record: RecordFormat,
        seed: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._options = options
        self._assemble = assemble
        self._record = record
        self._transform = getattr(dataset, "transform", None)
        self._sources = getattr(dataset, "_source_datasets", (dataset,))
        self._share = options.rank_and_world_size(final=False)
        given = options.seed if seed is None else seed
        # From torch's generator, which `torch.manual_seed` seeds.
        self._seed = int(torch.randint(2**63 - 1, ()).item()) if given is None else given
        self._agreed: tuple[int, int] | None = None
        self._passes = Passes(*assemble(*self._share, self._seed))
        self._adapted = False
        """Whether an integration informs Accelerate."""
        self._rank_check = RankCheck(self)
        _loaders.add(self)

    # -- attributes ----------------------------------------------------------------------

    @property
    def dataset(self) -> PackedData:
        """What is loaded; with ``cache="ram"``, the same data in memory."""
        return self.backend.work.dataset

    @property
    def options(self) -> LoaderOptions:
        """What the loader was made by."""
        return self._options

    @property
    def batches(self) -> BatchOrder:
        """The order of batches, on this rank."""
        return self._passes.batches

    @property
    def backend(self) -> Backend:
        """What makes the batches."""
        return self._passes.backend

    @property
    def pipeline(self) -> Pipeline:
        """The transforms."""
        return self.backend.work.pipeline

    @property
    def seed(self) -> int:
        """Seed of the order and of random transforms."""
        return self._seed

    @property
    def seed_is_final(self) -> bool:
        """Whether no other rank's seed can take the place of this one any more."""
        return self._options.seed is not None or self._agreed is not None

    # -- ranks ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Which share of each epoch this process takes; 0 where a sampler decides on that."""
        self._resolve(final=False)
        return self._share[0]

    @property
    def world_size(self) -> int:
        """Among how many ranks an epoch is divided; 1 where a sampler decides on that."""
        self._resolve(final=False)
        return self._share[1]

    @property
    def padding(self) -> int:
        """Samples that an epoch repeats, over all ranks, so that each rank has as many."""
        self._resolve(final=False)
        return self.batches.padding

    @property
    def samples_per_epoch(self) -> int:
        """Samples of an epoch, on this rank.

        Raises
        ------
        TypeError
            If a batch sampler decides: how many they are shows when it is iterated over.
        """
        self._resolve(final=False)
        if self.batches.samples is None:
            raise TypeError("a batch_sampler does not tell the number of samples of an epoch")
        return self.batches.samples

    def __len__(self) -> int:
        """Batches of an epoch, on this rank."""
        self._resolve(final=False)
        return len(self.batches)

    def _resolve(self, *, final: bool) -> None:
        """Look up rank and world size, and follow where they, or the seed, have changed."""
        share, seed = self._options.rank_and_world_size(final=final), self._seed
        if final and self._options.seed is None and self._agreed != share:
            seed, self._agreed = agreed_seed(seed, share[1]), share
        if share == self._share and seed == self._seed:
            return
        passes = self._passes
        if passes.under_way or (share[1] != self._share[1] and passes.upcoming().batch):
            raise OptionError(
                f"this loader was rank {self._share[0]} of {self._share[1]} when its epoch began "
                f"or its state was loaded, and is {share[0]} of {share[1]} now: make the process "
                "group before you load a state or take a batch"
            )
        self._change(share, seed)

    def _change(self, share: tuple[int, int], seed: int) -> None:
        """Make the order and the backend again."""
        self._passes.end_idle()
        self._passes.replace(*self._assemble(*share, seed))
        self._share, self._seed = share, seed

    # -- epochs --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._passes.closed:
            raise OptionError("this loader is closed; make a new one")
        if any(_other(one, self._transform) for one in self._sources):
            raise OptionError(
                "the transform of the dataset was set after the loader was made, which would keep "
                "the previous one: set it first, or make another loader"
            )
        self._resolve(final=True)
        self._warn_of_accelerate()
        format_batch = None if self._record == RecordFormat() else self._record.format
        return self._passes.open(self._before_first_batch, format_batch)

    def _before_first_batch(self) -> None:
        """Look up the rank, and check that all ranks divide the same data."""
        self._resolve(final=True)
        self._rank_check.run(self._share, self._passes.upcoming)

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next."""
        return self._current().epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch.

        A place in this epoch that was loaded, or skipped to, is kept; another epoch starts at its
        first batch.  An iterator that has given no batch yet is of this epoch too.
        """
        check_int("epoch", epoch)
        position = self._passes.upcoming()
        if epoch != position.epoch:
            position = Position(epoch, 0)
        self._passes.set_next(position, by_user=True)

    def skip(self, batches: int) -> Loader:
        """Skip that many batches of the next pass without reading them; return the loader.

        They count from the place of a loaded state, if there is one.
        """
        check_int("batches", batches)
        position = self._passes.upcoming()
        self._passes.set_next(Position(position.epoch, position.batch + batches))
        return self

    def position_restored(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which iterating does not change the position of the loader."""
        return self._passes.restored()

    def _current(self) -> Position:
        """Return the position of the next batch, of the iterator that began last."""
        self._resolve(final=False)
        return self._passes.current()

    # -- resuming ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iterator that began last, as plain JSON types.

        Batches handed out count as done; those made ahead do not.  After the
        last batch of an epoch the state is the beginning of the next.  It is
        the same on every rank.
        """
        position = self._current()
        return {"version": 1, "epoch": position.epoch, "batch": position.batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """Make the next pass continue where `state` was taken.

        It yields exactly the batches of an uninterrupted run, if the transforms are the same.  The
        number and method of workers may differ, and the number of ranks too if the global batch
        size stays.  A loader made with ``seed=None`` takes the state's seed.  A warning is logged
        for a state within an epoch: the script must not skip these batches itself.

        Parameters
        ----------
        state : dict
            As `state_dict` returns it.
        strict : bool
            If False, another dataset, order or batch size is only a warning, and the pass
            continues behind the same number of samples of the epoch, rounded down to whole batches.

        Raises
        ------
        OptionError
            If the state is invalid, or `strict` and of another dataset, seed, order or global
            batch size; with ``seed=None``, if an epoch is under way with another seed.
        """
        if state.get("version") != 1:
            raise OptionError(f"not the state of a loader of this version: {safe_repr(state):.300}")
        for name in ("epoch", "batch"):
            check_int(name, state.get(name))
        self._resolve(final=False)
        if self._options.seed is None and state.get("seed") != self._seed:
            self._take_seed(state.get("seed"))
        position = Position(state["epoch"], state["batch"])
        changed = [
            f"{name} {safe_repr(state.get(name)):.100}, but this loader has {value!r}"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if changed and strict:
            size = state.get("global_batch_size")
            raise OptionError(
                f"the state was taken with {changed[0]}; make the loader as it was then"
                f"{self._same_batches(size) if isinstance(size, int) else ''}, start without the "
                "state, or load it with strict=False"
            )
        if changed:
            position = self._nearest(position, state)
            warnings.warn(
                f"the state was taken with {'; '.join(changed)}: continuing at batch "
                f"{position.batch} of epoch {position.epoch}, in which some samples may come twice "
                "or not at all",
                stacklevel=2,
            )
        self._passes.set_next(position, by_user=True)
        if position.batch and self._share[0] == 0:
            log.warning(
                "the loader continues at batch %d of epoch %d, where its state was taken: a script "
                "that leaves out these batches itself, as by `if step < first: continue`, loses as "
                "many others",
                position.batch,
                position.epoch,
            )

    def _same_batches(self, size: int) -> str:
        """Return a hint on ranks or batch sizes with the same global batch size."""
        if not isinstance(self.batches, Batches):
            return ""
        ranks = self.batches.world_size
        if size == ranks * self.batches.batch_size:
            return ""
        if size > 0 and size % ranks == 0:
            return f" (batch_size={size // ranks} on {ranks} ranks has the same batches)"
        fitting = [n for n in range(1, min(size, _MOST_RANKS) + 1) if size % n == 0]
        near = sorted(sorted(fitting, key=lambda number: abs(number - ranks))[:2])
        return f" ({' or '.join(map(str, near))} ranks have the same batches, {ranks} cannot)"

    def _take_seed(self, seed: Any) -> None:
        """Take the seed of a state in place of one that was drawn."""
        check_int("seed", seed)
        if self._passes.under_way:
            raise OptionError(
                "the state was taken with another seed than this loader has drawn (seed=None), and "
                "an epoch is under way: load the state before the first batch, after the last, or "
                "when the iterator is deleted"
            )
        self._change(self._share, seed)
        self._agreed = self._share

    def _nearest(self, position: Position, state: dict[str, Any]) -> Position:
        """Return the position with as many samples of its epoch behind it, or just fewer."""
        before, now = _samples_a_batch(state), _samples_a_batch(self.batches.identity)
        if before is not None and now is not None:
            position = Position(position.epoch, position.batch * before // now)
        return self._passes.within_epoch(position)

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same for a state to make sense."""
        return {"digest": self._dataset.digest, "seed": self._seed, **self.batches.identity}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._passes.under_way:
            raise OptionError(
                "a loader cannot be pickled or copied while an epoch is under way: do it before "
                "the first batch or after the last, or move its state_dict()"
            )
        made = (self._dataset, self._options, self._assemble, self._record, self._seed)
        position, sampler_epoch = self._passes.upcoming(), self.batches.sampler_epoch
        return _made_again, (made, Position(position.epoch, position.batch), sampler_epoch)

    # -- figures, and the end --------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Return counts and times over all iterators so far."""
        counts, backend = self._passes.counts, self.backend
        return LoaderStats(
            batches=counts.batches,
            samples=counts.samples,
            seconds=counts.seconds,
            wait_seconds=counts.wait_seconds,
            ready_batches=counts.ready / counts.batches if counts.batches else 0.0,
            buffers_in_use=backend.buffers.in_use,
            skipped_samples=backend.maker.skipped,
            bytes_read=backend.maker.bytes_read,
            cache_bytes=backend.cache_bytes,
            download_wait_seconds=backend.download_wait_seconds,
        )

    def close(self) -> None:
        """End all iterators and their workers.  Idempotent."""
        self._passes.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        count, samples, size = len(self), self.batches.samples, self.batch_size
        cut = f"{count:,} {'batch' if count == 1 else 'batches'}"
        if size is not None and samples is not None:
            cut += f" of {size:,} per epoch, {samples:,} samples"
        parts = [cut, str(self.batches.identity["order"]), str(self.backend)]
        if self._share[1] > 1:
            parts.append(f"rank {self._share[0]} of {self._share[1]}")
        if self._options.target is not None:
            parts.append(f"on {self._options.target}")
        if self._record.batch_format == "dict":
            parts.append("as dicts")
        first = "N" if size is None or samples is None else min(size, samples)
        names = self._record.names or {}
        fields = describe_fields(self.backend.work, first, self.epoch)
        lines = [f"  {names.get(name, name)}: {what}" for name, what in fields]
        of = repr(self._dataset).partition("\n")[0]
        return "\n".join([f"Loader({', '.join(parts)})", *lines, f"  from {of}"])

    # -- Accelerate ------------------------------------------------------------------------

    def adapt_to_accelerate(self) -> None:
        """Note that an integration informs Accelerate, so that no warning is needed."""
        self._adapted = True

    def _warn_of_accelerate(self) -> None:
        """Warn, once, where Accelerate is in use and knows nothing of this loader."""
        if self._adapted or not accelerate_in_use():
            return
        self._adapted = True
        warnings.warn(
            "Accelerate is in use, but this loader was not prepared for it: gather_for_metrics and "
            "accumulate do not see where an epoch ends, and batches are not moved to the device. "
            "Use loader = fastdata.integrations.accelerate.prepare(accelerator, loader)",
            stacklevel=3,
        )


_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
_process = os.getpid()


@atexit.register
def _close_all() -> None:
    """End all workers while Python can still report their errors."""
    if os.getpid() == _process:
        for loader in list(_loaders):
            loader.close()


def _made_again(
    made: tuple[Any, ...], position: Position, sampler_epoch: SamplerEpoch | None
) -> Loader:
    """Return a copy of a loader: what pickle calls."""
    loader = Loader(*made)
    if sampler_epoch is not None and loader.batches.sampler_epoch is not None:
        loader.batches.sampler_epoch.follow(sampler_epoch)
    loader._passes.set_next(position)
    return loader


def _other(dataset: Any, transform: Any) -> bool:
    """Return whether a dataset has another transform than this."""
    found = getattr(dataset, "transform", None)
    return found is not transform and bool(found != transform)


def _samples_a_batch(identity: dict[str, Any]) -> int | None:
    """Return the global batch size of a state."""
    size = identity.get("global_batch_size")
    if size is None:
        return None
    parts = check_int("world_size", identity.get("world_size", 1))
    return check_int("global_batch_size", size) * parts
