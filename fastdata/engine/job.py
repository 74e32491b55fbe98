"""The contracts between what is done (a batch) and who does it (workers).

    Request  --Prepare-->  Job: tasks  --Workers-->  results  --Job.finish-->  batch

What makes batches altogether is a `fastdata.engine.backend.Backend`.

A task says what to do and a slot where to put it.  Both can reach a worker in
this process as they are, and one in another process as a short message and a
block of shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdata.engine.buffers import Slot
from fastdata.random import SampleKeys
from fastdata.sampling import SamplerEpoch

__all__ = [
    "BatchOrder",
    "EpochOfBatches",
    "Job",
    "Pending",
    "Prepare",
    "Request",
    "Work",
    "Workers",
    "request_of",
]


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


def request_of(batches: EpochOfBatches, epoch: int, number: int, rank: int = 0) -> Request:
    """Return the request of a batch of an epoch.

    `rank` is given where each rank has an order of its own, in which samples of others may come.
    """
    places = batches.places(number)
    if places is not None:
        places = places + (rank << 48)
    return Request(number, SampleKeys(epoch, batches[number], places))


class EpochOfBatches(Protocol):
    """The batches of one epoch: sample indices, int64 [n] each."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> NDArray[np.int64]: ...

    def places(self, number: int, /) -> NDArray[np.int64] | None:
        """Return where these samples stand in the epoch; None if none comes more than once."""


class BatchOrder(Protocol):
    """Which samples make which batch; see `fastdata.sampling.Batches`."""

    @property
    def joins(self) -> bool:
        """Whether an epoch may be looked up before the one before it has ended."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a place in training to mean the same."""

    @property
    def padding(self) -> int:
        """Samples of an epoch that are there twice."""

    @property
    def samples(self) -> int | None:
        """Samples of an epoch on this rank; None where they are not known before."""

    @property
    def sampler_epoch(self) -> SamplerEpoch | None:
        """The epoch of the user's sampler that decides the order; None where none does."""

    def __len__(self) -> int: ...

    def of(self, epoch: int, /) -> EpochOfBatches: ...


class Work(Protocol):
    """What a worker does with a task: picklable, safe in any number of threads."""

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None, /) -> Any:
        """Do it, leaving in `memory` what is large, and return what is small."""


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


class Prepare(Protocol):
    """Turns a request into a job: quick, as the caller's thread does it."""

    def __call__(self, request: Request) -> Job: ...
