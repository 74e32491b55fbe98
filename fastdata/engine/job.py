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

    @property
    def pieces(self) -> Sequence[Callable[[], None]]:
        """Parts of the work: in any order, on any thread, each once."""

    def finish(self) -> Any:
        """Return the batch; called once, after all pieces returned."""


class Prepare(Protocol):
    """Turns a request into a job: quick, as the caller's thread does it."""

    def __call__(self, request: Request) -> Job: ...
