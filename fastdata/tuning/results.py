"""The result of a tuning: what was tried, the choice and why; as JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fastdata.measuring.reports import plain_json
from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings

__all__ = ["Demand", "Trial", "TuningResult"]


@dataclass(frozen=True, slots=True)
class Demand:
    """How fast a training step consumes batches that are on its device already.

    Attributes
    ----------
    rate : Rate
    step : str
        What was measured, for people: "a simulated step of 42 ms".
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
        try:
            values = _fields(cls, entry)
            demand = values["demand"]
            values["settings"] = Settings.from_json(values["settings"])
            values["demand"] = None if demand is None else _demand(demand)
            values["trained"] = _rate(values["trained"])
            values["trials"] = tuple(_trial(trial) for trial in values["trials"])
            for name in ("advice", "notes"):
                values[name] = tuple(str(line) for line in values[name])
            if type(values["batch_size"]) is not int or values["batch_size"] < 1:
                raise ValueError(f"batch_size is {values['batch_size']!r}")
            if not isinstance(values["machine"], dict):
                raise ValueError(f"machine is {values['machine']!r:.200}")
            return cls(**values)
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"this is not a tuning result: {error}") from error


def _demand(entry: Any) -> Demand:
    values = _fields(Demand, entry)
    rate = _rate(values["rate"])
    if rate is None:
        raise ValueError("a demand has a rate")
    return Demand(rate, str(values["step"]))


def _trial(entry: Any) -> Trial:
    values = _fields(Trial, entry)
    values["settings"] = Settings.from_json(values["settings"])
    values["supply"] = _rate(values["supply"])
    return Trial(**values)


def _rate(entry: Any) -> Rate | None:
    if entry is None:
        return None
    values = _fields(Rate, entry)
    windows = tuple(float(window) for window in values.pop("windows"))
    return Rate(**{name: float(value) for name, value in values.items()}, windows=windows)


def _fields(kind: Any, entry: Any) -> dict[str, Any]:
    """Return a copy of an entry that has exactly the fields of a dataclass."""
    names = {item.name for item in fields(kind)}
    if not isinstance(entry, dict) or set(entry) != names:
        raise ValueError(f"these are not the fields of a {kind.__name__}: {entry!r:.200}")
    return dict(entry)
