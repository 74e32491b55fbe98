"""The contract between what is done (a batch) and who does it (workers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Job", "Prepare", "Request"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Which batch is wanted.

    Attributes
    ----------
    epoch : int
        What random draws depend on, besides seed and sample.
    indices : ndarray of int64, shape [n]
        The samples, in order; at least one.
    """

    epoch: int
    indices: NDArray[np.int64]


class Job(Protocol):
    """One batch to be made."""

    def pieces(self) -> Sequence[Callable[[], None]]:
        """Return the parts of the work; called once.

        They may run in any order, on any thread, each once.  A job does not
        hold on to them: they hold it, and its memory would wait for the
        garbage collector.
        """

    def finish(self) -> Any:
        """Return the batch; called once, after all pieces returned."""


class Prepare(Protocol):
    """Turns a request into a job: quick, as the caller's thread does it."""

    def __call__(self, request: Request) -> Job: ...
