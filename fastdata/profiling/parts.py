"""What measuring a loader's stages one by one gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastdata.profiling.costs import Cost

__all__ = ["Parts", "handing_over"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Stages of a loader.

    Attributes
    ----------
    costs : tuple of Cost
    where : dict of str to str
        The user's line that takes most of a stage, by its name.
    overhead : float
        What was taken off the times because taking them cost it, as a share of them.
    notes : tuple of str
    """

    costs: tuple[Cost, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    overhead: float = 0.0
    notes: tuple[str, ...] = ()


def handing_over(seconds: float, busy: float) -> list[Cost]:
    """Return the costs of a batch's way from a worker to the loop.

    Parameters
    ----------
    seconds : float
        That it takes altogether.
    busy : float
        Of these, the loop's own on a core.  The rest passes while workers make the next one.
    """
    busy = min(busy, seconds)
    return [
        Cost("hand over", busy, False, busy),
        Cost("hand over", seconds - busy, False, overlapped=True),
    ]
