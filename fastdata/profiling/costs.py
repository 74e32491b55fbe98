"""What stages take, and who has to take it: workers, the loop, or a thread or stream beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastdata.profiling.report import StageName

__all__ = ["Cost", "copies", "copying_seconds", "own_seconds", "shared_seconds"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stage takes.

    Attributes
    ----------
    name : StageName
    seconds : float
        A batch.
    parallel : bool
        Whether workers share it.
    cpu_seconds : float
        Of these, on a core.
    overlapped : bool
        Whether it has a thread or stream of its own.
    """

    name: StageName
    seconds: float
    parallel: bool
    cpu_seconds: float = 0.0
    overlapped: bool = False


def shared_seconds(costs: Iterable[Cost]) -> float:
    """Return what workers share."""
    return sum(cost.seconds for cost in costs if cost.parallel)


def own_seconds(costs: Iterable[Cost]) -> float:
    """Return what the loop does itself, the step and copying aside."""
    return sum(c.seconds for c in costs if not (c.parallel or c.overlapped or copies(c)))


def copying_seconds(costs: Iterable[Cost]) -> float:
    """Return what copying takes where the loop waits for it."""
    return sum(cost.seconds for cost in costs if copies(cost) and not cost.overlapped)


def copies(cost: Cost) -> bool:
    """Return whether it was measured by the windows themselves, and needs no scale."""
    return cost.name == "copy"
