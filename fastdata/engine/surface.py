"""The attributes of a `DataLoader` that other libraries read, for a loader of packed data.

A loader has them and is no `torch.utils.data.DataLoader`: libraries that are given one (Accelerate,
Lightning, Fabric) make another of its dataset and sampler, which would silently have neither the
transforms nor the draws of this one.  So its samplers only forward `set_epoch`, and have the class
by which libraries learn whether the order is shuffled; they cannot be iterated over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fastdata.errors import OptionError

if TYPE_CHECKING:
    from fastdata.engine.epoch import Passes
    from fastdata.engine.loader import Loader
    from fastdata.options import LoaderOptions

__all__ = ["DataLoaderSurface"]


class DataLoaderSurface:
    """The attributes of a `DataLoader`, which can be read and not set."""

    _options: LoaderOptions
    _passes: Passes

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank; None where a batch sampler decides."""
        return None if self._options.batch_sampler is not None else self._options.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._options.drop_last

    @property
    def sampler(self) -> Any:
        """The user's own sampler, if it has `set_epoch`; else one that forwards it to the loader.

        The latter is an instance of torch's `SequentialSampler` or `RandomSampler` where the order
        is sequential or shuffled.  It cannot be iterated over.
        """
        options = self._options
        if hasattr(options.sampler, "set_epoch"):
            return options.sampler
        if options.sampler is not None or options.batch_sampler is not None:
            return _sampler(self, "other")
        random = bool(options.shuffle) or options.weights is not None
        return _sampler(self, "random" if random else "sequential")

    @property
    def batch_sampler(self) -> Any:
        """The user's own batch sampler, or one that says how the order is cut into batches."""
        own = self._options.batch_sampler
        loader: Any = self
        return LoaderBatchSampler(loader) if own is None else own

    @property
    def num_workers(self) -> int:
        """Threads or processes that make batches."""
        return self._passes.backend.workers.num_workers

    @property
    def prefetch_factor(self) -> int:
        """Batches made ahead, as tuned where that was left to tuning."""
        return self._passes.backend.workers.prefetch_factor

    @property
    def persistent_workers(self) -> bool:
        """Whether workers outlive an epoch."""
        return self._passes.backend.workers.persistent

    @property
    def pin_memory(self) -> bool:
        """Whether images are put into page-locked memory."""
        return self._options.pinned

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started; None: as `multiprocessing` does by default."""
        return self._options.multiprocessing_context

    collate_fn = None
    """None: batches are made whole, not collated from samples."""

    timeout = 0
    """0: a worker that dies is noticed at once, and no other limit is set."""

    in_order = True
    """True: batches come in the order of the epoch, always."""

    pin_memory_device = ""
    """Empty: `device` says where batches arrive."""

    generator = None
    """None: all draws are functions of `seed`."""

    # No worker_init_fn: where a loader has one that is None, Lightning sets it
    # (``seed_everything(seed, workers=True)``), and nothing here would call it.

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{name} of a fastdata loader cannot be set: make another loader with {name}=..., "
                "if fastdata.loader has such an option"
            )
        object.__setattr__(self, name, value)


class LoaderSampler(Sampler[int]):
    """The order of a loader on this rank."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.data_source: Any = loader.dataset

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch, as `Loader.set_epoch` does."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        raise _not_for_others("sampler")

    def __len__(self) -> int:
        """Samples of an epoch on this rank."""
        return self.loader.samples_per_epoch


class _Sequential(LoaderSampler, SequentialSampler):
    """The same, of a loader that does not shuffle."""


class _Random(LoaderSampler, RandomSampler):
    """The same, of a loader that shuffles."""

    replacement = False
    generator = None
    num_samples = property(LoaderSampler.__len__)


def _sampler(loader: Any, kind: str) -> LoaderSampler:
    """Return the sampler that a loader of a "sequential", "random" or "other" order shows."""
    return {"sequential": _Sequential, "random": _Random, "other": LoaderSampler}[kind](loader)


class LoaderBatchSampler(BatchSampler):
    """How a loader's order is cut into batches."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.sampler: Any = loader.sampler
        self.batch_size: Any = loader.batch_size
        self.drop_last = loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch, as `Loader.set_epoch` does."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        raise _not_for_others("batch_sampler")

    def __len__(self) -> int:
        return len(self.loader)


def _not_for_others(name: str) -> OptionError:
    return OptionError(
        f"the {name} of a fastdata loader cannot be iterated over: a DataLoader made of it would "
        "lose the loader's transforms. Iterate over the loader itself; loader.skip(n) leaves out "
        "its next n batches, rank= and world_size= choose its share, and fastdata.integrations "
        "has what Accelerate, Lightning and transformers need"
    )
