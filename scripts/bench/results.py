"""What was measured last: a JSON file for each measurement, in `results/`.

A file has runs, the newest first.  An older one stays while it has figures that no newer one has,
as of a peer that was not installed: ratios are taken within a run, never across runs.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).resolve().parent / "results"

Figure: TypeAlias = dict[str, Any]
"""``median``, ``lowest``, ``highest`` and ``unit`` of a contender, or what a row has instead."""

Run: TypeAlias = dict[str, Any]
"""``date``, ``command``, ``machine``, ``versions``, ``photographs``, ``samples`` and ``figures``.

``taken_over`` is true of figures that stood in the documentation before results were kept; their
ratios to others may be with them (``over``), as these were taken within runs that are not kept.
"""


def figures_of(lines: Iterable[dict[str, Any]]) -> dict[str, Figure]:
    """Return the figures in the JSON lines of a benchmark.

    They are its rows, and those of the counted rounds of contenders that no row is made of.
    """
    lines = list(lines)
    rows = [line for line in lines if "row" in line]
    covered = {line["benchmark"] for line in rows}
    failed = {line["contender"] for line in lines if "failed" in line}
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        counts = "value" in line and not line["warm_up"] and line["contender"] not in failed
        if counts and line["benchmark"] not in covered:
            rounds[line["contender"]].append(line)
    found = {
        name: spread([line["value"] for line in runs]) | {"unit": runs[0]["unit"]}
        for name, runs in rounds.items()
    }
    return found | {line["row"]: line["values"] for line in rows if line["values"]}


def spread(values: list[float]) -> Figure:
    """Return median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


@dataclass(frozen=True)
class Measured:
    """The runs of a measurement, the newest first."""

    runs: tuple[Run, ...]

    @classmethod
    def load(cls, name: str) -> Measured:
        """Return what is kept of a measurement; no runs where there is nothing."""
        path = FOLDER / f"{name}.json"
        return cls(tuple(json.loads(path.read_text("utf-8"))["runs"]) if path.exists() else ())

    @classmethod
    def of(cls, lines: Iterable[dict[str, Any]]) -> Measured:
        """Return what these lines say, for the tables of `pages`."""
        return cls(({"figures": figures_of(lines), "versions": {}},))

    def save(self, name: str) -> None:
        """Keep this in place of what was kept."""
        path = FOLDER / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".new")
        part.write_text(json.dumps({"runs": self.runs}, indent=1, ensure_ascii=False) + "\n")
        os.replace(part, path)

    def with_run(self, run: Run) -> Measured:
        """Return this after one more run, without older ones that have nothing more to say."""
        shown = list(Measured((run, *self.runs)).news())
        return Measured(tuple(one for one, names in shown if names))

    def news(self) -> Iterator[tuple[Run, list[str]]]:
        """Yield each run, with the names of those figures that no newer one has."""
        seen: set[str] = set()
        for run in self.runs:
            yield run, [name for name in run["figures"] if name not in seen]
            seen |= run["figures"].keys()

    def run_of(self, *names: str) -> Run | None:
        """Return the newest run that has all of these figures."""
        return next((run for run in self.runs if run["figures"].keys() >= set(names)), None)

    def figure(self, name: str) -> Figure | None:
        """Return the newest figure of this name."""
        run = self.run_of(name)
        return None if run is None else run["figures"][name]

    def ratio(self, name: str, other: str) -> float | None:
        """Return the ratio of two medians, of the newest run that has both."""
        run = self.run_of(name, other)
        if run is None:
            return None
        mine, theirs = run["figures"][name], run["figures"][other]
        return float(mine.get("over", {}).get(other) or mine["median"] / theirs["median"])
