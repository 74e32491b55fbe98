"""Interleaved rounds within one process: every contender in turn, one warm-up, then counted ones.

`scripts/bench` gives every contender a process of its own.  Here all need the same model on the
same GPU, which takes a minute to compile; so they are functions that take turns, and a slow
moment of the machine meets each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from bench_parts import say
from budget import Budget
from fastdata.errors import OptionError
from report import Bar, Report, Row, Status

__all__ = [
    "Measurement",
    "UnavailableError",
    "excuse",
    "excused",
    "in_turns",
    "put_ratio",
    "reason_of",
]


class UnavailableError(Exception):
    """Something that a figure needs is not there."""


@dataclass(slots=True)
class Measurement:
    """One contender.

    Parameters
    ----------
    name : str
    measure : callable
        Returns the figure of one window.
    unit : str
    shown : bool
        Whether it is a row of its own.
    bar : Bar, optional
    note : callable, optional
        Returns what is shown beside the figure.
    values : list of float
        One a counted round.
    why : str
        The reason, once it failed; it is then left out.
    """

    name: str
    measure: Callable[[], float]
    unit: str = ""
    shown: bool = True
    bar: Bar | None = None
    note: Callable[[], str] = str
    values: list[float] = field(default_factory=list)
    why: str = ""


def reason_of(error: BaseException) -> tuple[Status, str]:
    """Return whether an error means that something is not there, and what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else "it said nothing"
    if isinstance(error, UnavailableError):
        return "not available", said
    # What this version has no option for, or the machine no package or memory.
    if isinstance(error, (OptionError, ImportError)):
        return "not available", said
    return "failed", f"{type(error).__name__}: {said}"


def excuse(report: Report, part: str, name: str, error: Exception, bar: Bar | None = None) -> None:
    """Report why there is no figure."""
    status, why = reason_of(error)
    say(f"  {name}: {status}: {why}")
    report.put(Row(part, name, status=status, why=why, bar=bar))
    _free()


@contextmanager
def excused(report: Report, part: str, name: str, bar: Bar | None = None) -> Iterator[None]:
    """Have an error within become a row with its reason."""
    try:
        yield
    except Exception as error:
        excuse(report, part, name, error, bar)


def in_turns(
    report: Report, part: str, contenders: list[Measurement], rounds: int, budget: Budget
) -> None:
    """Measure all contenders `rounds` times after a warm-up, in turns, as long as there is time.

    Each value is in the report as soon as it is known.  One that fails is a row with its
    reason, and the others go on.  There is one counted round at least.
    """
    report.expect(
        Row(part, contender.name, bar=contender.bar) for contender in contenders if contender.shown
    )
    for number in range(rounds + 1):
        started = time.monotonic()
        turn = number % max(1, len(contenders))
        for contender in contenders[turn:] + contenders[:turn]:
            if not contender.why:
                _measure(report, part, contender, counts=number > 0)
        took = time.monotonic() - started
        if 0 < number < rounds and budget.remaining < took:
            say(f"  {part}: {number} of {rounds} rounds, as the time is over")
            return


def _measure(report: Report, part: str, contender: Measurement, counts: bool) -> None:
    try:
        value = contender.measure()
    except Exception as error:
        status, contender.why = reason_of(error)
        say(f"  {contender.name}: {status}: {contender.why}")
        contender.values.clear()  # half of its rounds would stand beside whole ones
        if contender.shown:
            row = Row(part, contender.name, status=status, why=contender.why, bar=contender.bar)
            report.put(row)
        _free()
        return
    if not counts:
        return
    contender.values.append(value)
    if contender.shown:
        report.put(
            Row(
                part,
                contender.name,
                contender.unit,
                tuple(contender.values),
                bar=contender.bar,
                note=contender.note(),
            )
        )


def put_ratio(
    report: Report,
    part: str,
    name: str,
    ours: Measurement,
    theirs: Measurement,
    *,
    bar: Bar | None = None,
    unit: str = "x",
    details: Mapping[str, float] | None = None,
) -> None:
    """Report one contender over another, round by round."""
    # Not strict: an interruption leaves one of them a round ahead.
    values = tuple(a / b for a, b in zip(ours.values, theirs.values, strict=False))
    if values:
        report.put(Row(part, name, unit, values, bar=bar, details=details or {}))
    else:
        why = ours.why or theirs.why or "no round was measured"
        report.put(Row(part, name, status="not available", why=why, bar=bar))


def _free() -> None:
    """Give back what a failed contender had of the device's memory."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
