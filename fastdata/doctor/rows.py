"""The rows of an examination: their numbers, verdicts, and effects on the numbers of a step.

A row is the script with some advice followed.  The one that follows none compares the script with
itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastdata.doctor.advice import advice_by_id
from fastdata.doctor.contract import Numerics
from fastdata.doctor.numerics import Compared, compare_dumps
from fastdata.doctor.results import Environment, Follow, Trial
from fastdata.measuring.statistics import LEAST_STARTS, Judgement, judge, smallest_gain

__all__ = ["ALLOCATOR", "ITSELF", "Rows", "TriedRow"]

SHARP = 1.05
"""The upper end of a gain's interval over the gain itself, at most."""

ITSELF: Follow = ()
"""The row that compares the script with itself."""

ALLOCATOR = "D55"
"""All processes follow this advice; its own row is compared with one that does not."""


@dataclass(eq=False)
class TriedRow:
    """What is known of a row so far."""

    follow: Follow
    environment: Environment = ()
    numbers: list[float] = field(default_factory=list)
    """One for each process: logarithms of its gain."""
    why: str = ""  # it failed
    dump: Path | None = None
    warm_up_seconds: float = 0.0
    peak_bytes: int = 0
    step_seconds: float = 0.0

    def __str__(self) -> str:
        return ", ".join(self.follow) or "the script as it is"

    @property
    def is_allocator(self) -> bool:
        """All other processes follow the advice on the memory allocator."""
        return self.follow == (ALLOCATOR,)


class Rows:
    """The rows of training steps, or of validation; `folder` has the dumps of their steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.itself = TriedRow(ITSELF)
        self.repeatable = True
        """Whether a step has the same gradients each time."""
        self.is_random = False
        """Whether a step draws numbers, as dropout does; in another order they are others."""
        self._rows = {ITSELF: self.itself}
        self._compared: dict[tuple[Follow, bool], Compared] = {}

    def add(self, rows: Mapping[Follow, Environment]) -> list[TriedRow]:
        """Add rows with their environment; they are returned."""
        made = [TriedRow(follow, environment) for follow, environment in rows.items()]
        self._rows |= {row.follow: row for row in made}
        return made

    def dump_of(self, follow: Follow, name: str = "") -> Path:
        """Return the file for the numbers of a step."""
        return self._folder / f"{name or '+'.join(follow) or 'base'}.pt"

    @property
    def exact(self) -> Path:
        """The file for the numbers of a step in float64."""
        return self.dump_of(ITSELF, "float64")

    @property
    def smallest_gain(self) -> float | None:
        """The smallest gain that can be seen; None while nothing was measured."""
        rows = [row for row in self._rows.values() if not row.environment and row.numbers]
        found = smallest_gain({row.follow: row.numbers for row in rows}) if rows else math.inf
        return found if math.isfinite(found) else None

    def found(self) -> dict[Follow, Trial]:
        """Return the present results."""
        judged, found = self._judged(), {}
        for row in self._rows.values():
            if row.why:
                found[row.follow] = Trial(row.follow, why=row.why)
            elif row.follow in judged:
                compared = self._numerics(row)
                found[row.follow] = Trial(
                    row.follow,
                    judged[row.follow].gain,
                    judged[row.follow].verdict,
                    "",
                    _at_least_promised(compared.numerics, row.follow),
                    compared.error,
                    row.warm_up_seconds,
                    row.peak_bytes,
                    self.itself.peak_bytes,
                    row.step_seconds,
                )
        return found

    def still_open(
        self, rows: Sequence[TriedRow], starts: int, kind: Literal["live", "start"]
    ) -> list[TriedRow]:
        """Return those of the rows that need another process after `starts`."""
        rows = [row for row in rows if not row.why]
        if starts < LEAST_STARTS[kind]:
            return rows
        judged = self._judged()
        return [row for row in rows if row.follow in judged and _is_open(judged[row.follow])]

    @property
    def needs_exact(self) -> bool:
        """Whether a step in float64 would tell rounding from less precision, for a gain."""
        gains = {id for id, one in self._judged().items() if one.verdict == "gain"}
        rows = [row for row in self._rows.values() if row.follow in gains and row.dump]
        unknown = self.repeatable and any(self._numerics(row).numerics is None for row in rows)
        return unknown and not self.exact.exists()

    def _judged(self) -> dict[Follow, Judgement]:
        rows = [row for row in self._rows.values() if row.numbers]
        return judge(
            {row.follow: row.numbers for row in rows if not row.environment},
            {row.follow: row.numbers for row in rows if row.environment},
        )

    def _numerics(self, row: TriedRow) -> Compared:
        """Compare the numbers of a step with those of the script as it is."""
        if row.is_allocator:
            return Compared(Numerics.EQUAL, 0.0)
        if row.dump is None or not self.repeatable:
            return Compared()
        key = row.follow, self.exact.exists()
        if key not in self._compared:  # dumps of a large model take seconds
            self._compared[key] = compare_dumps(self.dump_of(ITSELF), row.dump, self.exact)
        found = self._compared[key]
        is_told = not self.is_random or (found.numerics or 0) <= Numerics.ROUNDING
        return found if is_told else Compared()


def _is_open(judged: Judgement) -> bool:
    """Return whether a row may become a gain, or is a gain with a wide interval."""
    is_wide = judged.gain.high > SHARP * judged.gain.value
    return judged.is_open or (judged.verdict == "gain" and is_wide)


def _at_least_promised(measured: Numerics | None, follow: Follow) -> Numerics | None:
    """Return the class of numerics; of advice that lowers the precision at least that, if any."""
    promised = max((advice_by_id(id).numerics for id in follow), default=Numerics.EQUAL)
    if measured in (None, Numerics.EQUAL) or promised < Numerics.PRECISION:
        return measured
    return max(measured, promised)
