"""The contracts between batches, which are cut into tasks, and the workers that do these.

    Request  --Prepare-->  Job: tasks  --Workers-->  results  --Job.finish-->  batch

What makes batches altogether is a `fastdata.engine.backend.Backend`.

A task says what to do and a slot where to put it.  Both can reach a worker in
this process as they are, and one in another process as a short message and a
block of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.engine.buffers import Slot
from fastdata.random import SampleKeys
from fastdata.sampling import Batches, SampledBatches
from fastdata.sampling.batches import EpochBatches

__all__ = [
    "BatchOrder",
    "Job",
    "Pending",
    "Prepare",
    "Request",
    "Work",
    "Workers",
    "request_of",
]


BatchOrder: TypeAlias = Batches | SampledBatches
"""Which samples make which batch."""

Work: TypeAlias = "Callable[[Any, NDArray[np.uint8] | None], Any]"
"""What a worker does with a task: leaves in the memory what is large, and returns what is small.

Picklable, and safe in any number of threads."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Which batch is wanted.

    Attributes
    ----------
    number : int
        Of the batch in its epoch.
    keys : SampleKeys
        The samples, in order; at least one.
    """

    number: int
    keys: SampleKeys

    @property
    def epoch(self) -> int:
        return self.keys.epoch

    @property
    def indices(self) -> NDArray[np.int64]:
        """The samples, int64 [n]."""
        return self.keys.indices


def request_of(batches: EpochBatches, epoch: int, number: int, rank: int = 0) -> Request:
    """Return the request of a batch of an epoch.

    `rank` is given where each rank has an order of its own, in which samples of others may come.
    """
    places = batches.places(number)
    if places is not None:
        places = places + (rank << 48)
    return Request(number, SampleKeys(epoch, batches[number], places))


class Pending(Protocol):
    """A task that a worker was given."""

    def done(self) -> bool:
        """Return whether `result` would return, or raise, at once."""

    def result(self) -> Any:
        """Wait, and return what the work returned or raise what it raised."""


class Workers(Protocol):
    """Threads or processes that take tasks in order."""

    def submit(self, task: Any, slot: Slot | None) -> Pending: ...

    def check(self) -> None:
        """Raise `WorkerError` if one of them has died; does not wait."""

    def close(self) -> None:
        """End them.  Idempotent; tasks not begun are dropped."""


class Job(Protocol):
    """One batch to be made."""

    @property
    def slot(self) -> Slot | None:
        """Where its tasks put what is large."""

    def tasks(self) -> Sequence[Any]:
        """Return the parts of the work: picklable, in any order, each for any worker."""

    def finish(self, results: Sequence[Any]) -> Any:
        """Return the batch; called once, with the results of the tasks in their order."""


Prepare: TypeAlias = Callable[[Request], Job]
"""Plans a batch: quick, as the caller's thread does it."""
