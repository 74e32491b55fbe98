"""The rows that come of measuring: in a JSON file as soon as they are known, in a table at the end.

A row is a figure with all its rounds, or the reason why there is none.  Some rows have a
`Bar`: what is asked of them.  On a dry run nothing is judged.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bench_parts import readable

__all__ = ["DRY_RUN", "Bar", "Report", "Row"]

DRY_RUN = "A dry run on the CPU: these figures say nothing about a GPU."

Status = Literal["measured", "not available", "failed"]


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked of a figure.

    Parameters
    ----------
    what : str
    at_least : float
        In the unit of the row.
    """

    what: str
    at_least: float


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, or why there is none.

    Parameters
    ----------
    part, name : str
        Together they name the row.
    unit : str
    values : sequence of float
        One a counted round.
    status : {"measured", "not available", "failed"}
        "not available": something is not there that it needs.
    why : str
        The reason, where it is not measured.
    bar : Bar, optional
    note : str
        Shown beside it.
    details : mapping of str to JSON values
        In the JSON alone.
    """

    part: str
    name: str
    unit: str = ""
    values: Sequence[float] = ()
    status: Status = "measured"
    why: str = ""
    bar: Bar | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """The median of the rounds."""
        return statistics.median(self.values) if self.values else None

    def verdict(self, dry: bool) -> str:
        """Return "met", "missed", "not measured", "not judged", or nothing without a bar."""
        if self.bar is None:
            return ""
        if dry:
            return "not judged"
        if self.value is None:
            return "not measured"
        return "met" if self.value >= self.bar.at_least else "missed"

    def as_json(self, dry: bool) -> dict[str, Any]:
        """Return the row's JSON object."""
        line: dict[str, Any] = {"part": self.part, "name": self.name, "status": self.status}
        if self.value is not None:
            line |= {
                "value": _digits(self.value),
                "unit": self.unit,
                "lowest": _digits(min(self.values)),
                "highest": _digits(max(self.values)),
                "rounds": [_digits(value) for value in self.values],
            }
        if self.why:
            line["why"] = self.why
        if self.bar is not None:
            line["bar"] = {
                "what": self.bar.what,
                "at_least": self.bar.at_least,
                "verdict": self.verdict(dry),
            }
        if self.note:
            line["note"] = self.note
        return line | ({"details": dict(self.details)} if self.details else {})


class Report:
    """All rows so far.

    Parameters
    ----------
    path : Path, optional
        Written anew, as a whole, with each row: whatever ends the run, it is there and sound.
    about : mapping of str to JSON values
        The machine, the versions, the settings.
    dry : bool
    """

    def __init__(
        self, path: Path | None = None, about: Mapping[str, Any] | None = None, dry: bool = False
    ) -> None:
        self.dry = dry
        self.state = "running"
        self._path = path
        self._about = dict(about or {})
        self._rows: dict[tuple[str, str], Row] = {}

    @property
    def rows(self) -> list[Row]:
        """In the order in which they came first."""
        return list(self._rows.values())

    def put(self, row: Row) -> None:
        """Add a row, or replace the one of its name."""
        self._rows[row.part, row.name] = row
        self._write()

    def expect(self, rows: Iterable[Row]) -> None:
        """Have rows stand in this order, and with a reason until they are measured."""
        for row in rows:
            if (row.part, row.name) not in self._rows:
                row = replace(row, status="not available", why="not measured until the end")
                self._rows[row.part, row.name] = row
        self._write()

    def end(self, state: Literal["complete", "interrupted"]) -> None:
        """Say how the run ended."""
        self.state = state
        self._write()

    def document(self) -> dict[str, Any]:
        """Return what the JSON file holds."""
        return {
            "gpu_check": 1,
            "state": self.state,
            **({"dry_run": DRY_RUN} if self.dry else {}),
            **self._about,
            "rows": [row.as_json(self.dry) for row in self.rows],
        }

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(self._path.name + ".part")
        unfinished.write_text(json.dumps(self.document(), indent=1) + "\n")
        os.replace(unfinished, self._path)

    @property
    def holds(self) -> bool:
        """Whether nothing failed and every bar is met; on a dry run, whether nothing failed."""
        failed = any(row.status == "failed" for row in self.rows)
        verdicts = {row.verdict(self.dry) for row in self.rows}
        return not failed and not verdicts & {"missed", "not measured"}

    def table(self) -> str:
        """Return the rows as a table, and below it the bars."""
        lines = [DRY_RUN] if self.dry else []
        part = ""
        names = max([20, *(len(row.name) for row in self.rows)])
        for row in self.rows:
            if row.part != part:
                part = row.part
                lines += ["", f"| {part:{names}} |    median |    lowest-highest | |"]
                lines += [f"|{'-' * (names + 2)}|----------:|------------------:|---|"]
            lines.append(_line(row, names))
        barred = [row for row in self.rows if row.bar is not None]
        if barred:
            lines += ["", "| asked | at least | reached | |", "|---|--:|--:|---|"]
        for row in barred:
            assert row.bar is not None
            value = "" if row.value is None else readable(row.value)
            verdict = row.verdict(self.dry) + (f": {row.why}" if row.why else "")
            lines.append(f"| {row.bar.what} | {row.bar.at_least:g} | {value} | {verdict} |")
        if self.state == "interrupted":
            lines += ["", "Interrupted: these are the rounds that were measured until then."]
        if self.dry:
            lines += ["", DRY_RUN]
        return "\n".join(lines)


def _line(row: Row, names: int) -> str:
    if row.value is None:
        return f"| {row.name:{names}} | {row.status}: {row.why} |"
    spread = f"{readable(min(row.values))}-{readable(max(row.values))}"
    remark = " ".join(filter(None, [row.unit, f"({row.note})" if row.note else ""]))
    return f"| {row.name:{names}} | {readable(row.value):>9} | {spread:>17} | {remark} |"


def _digits(value: float) -> float:
    """Return a number with as many digits as it deserves."""
    return float(f"{value:.6g}")
