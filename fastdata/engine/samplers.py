"""What a loader shows as its ``sampler`` and ``batch_sampler``.

Training libraries tell a loader the epoch through ``loader.sampler.set_epoch``, and look at the
sampler's class to learn whether the order is shuffled.  That is what these are for.  They cannot be
iterated over: a `DataLoader` that a library made of them and the dataset would have neither the
transforms nor the draws of this loader, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fastdata.errors import OptionError

if TYPE_CHECKING:
    from fastdata.engine.packed import Loader

__all__ = ["LoaderBatchSampler", "loader_sampler"]


class LoaderSampler(Sampler[int]):
    """The order of a loader on this rank.

    Parameters
    ----------
    loader : Loader
    """

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


def loader_sampler(loader: Loader, kind: str) -> LoaderSampler:
    """Return the sampler that a loader shows.

    Parameters
    ----------
    loader : Loader
    kind : {"sequential", "random", "other"}
    """
    return {"sequential": _Sequential, "random": _Random, "other": LoaderSampler}[kind](loader)


class LoaderBatchSampler(BatchSampler):
    """How a loader's order is cut into batches.

    Parameters
    ----------
    loader : Loader
    """

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
