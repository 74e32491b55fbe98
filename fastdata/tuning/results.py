"""The result of a tuning: what was tried, the choice and why; as JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fastdata.measuring.reports import plain_json
from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings, from_plain

__all__ = ["Demand", "Trial", "TuningResult"]


@dataclass(frozen=True, slots=True)
class Demand:
    """How fast a training step consumes batches that are on its device already.

    Attributes
    ----------
    rate : Rate
    step : str
        What was measured, in words: "a simulated step of 42 ms".
    """

    rate: Rate
    step: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried.

    Attributes
    ----------
    settings : Settings
    supply : Rate or None
        Batches a second with nothing done to them; None where it failed.
    failure : str
        Why it has no rate: it died, took too long, or would not fit.
    start_seconds : float
        From the making of the loader to its first batch, in the median.
    memory_bytes, shm_bytes : int
        Predicted for batches in the making, host memory and of it ``/dev/shm``.
    """

    settings: Settings
    supply: Rate | None = None
    failure: str = ""
    start_seconds: float = 0.0
    memory_bytes: int = 0
    shm_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The chosen settings, every trial, the verdict.

    Attributes
    ----------
    settings : Settings
        The chosen ones.
    verdict : str
        One line: whether they keep the step busy.
    saturates : bool
        Whether the step gets batches as fast as it can take them; without a step False.
    batch_size : int
    demand : Demand or None
        None where no step was given: then the goal was the most there is.
    trained : Rate or None
        Steps a second with the chosen settings and the real step; None without one.
    trials : tuple of Trial
        In the order of their cost.
    advice : tuple of str
        What would change a verdict that they do not.
    complete : bool
        False where it was stopped before its end.
    cache_state : {"warm", "cold"}
        Whether the data was in the page cache when measuring began.
    machine : dict
        What it was measured on: see `fastdata.tuned_settings.key`.
    notes : tuple of str
        What a reader has to know of how it was measured.
    """

    settings: Settings
    verdict: str
    saturates: bool
    batch_size: int
    demand: Demand | None = None
    trained: Rate | None = None
    trials: tuple[Trial, ...] = ()
    advice: tuple[str, ...] = ()
    complete: bool = True
    cache_state: str = "warm"
    machine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types; `from_json` builds the same from them."""
        plain: dict[str, Any] = plain_json(asdict(self))
        return plain

    @classmethod
    def from_json(cls, entry: Any) -> TuningResult:
        """Build a result from `to_json`'s.

        Raises
        ------
        ValueError
            If it is not the JSON of a result.
        """
        result = from_plain(cls, entry)
        if result.batch_size < 1:
            raise ValueError(f"batch_size is {result.batch_size}")
        return result
