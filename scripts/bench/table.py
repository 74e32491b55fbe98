"""What is printed after the runs: a table of medians and spreads, and how they compare.

`compare` is what a script of images a second calls: it runs the contenders
(`harness.py`) and prints.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from harness import Contender, Results, hardware, run_rounds

FILTER = "resize filter"
OVER_ANOTHER_VERSION = 0.97
"""How many times as good a figure is asked to be as that of an older version."""


@dataclass(frozen=True, slots=True)
class Bar:
    """How many times as fast one contender is asked to be as another."""

    contender: str
    other: str
    at_least: float


def compare(
    benchmark: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    settings: Mapping[str, Any],
    output: TextIO,
    bars: Sequence[Bar] = (),
    against: str | None = None,
) -> int:
    """Run every contender `rounds` times after a warm-up, and print the result.

    JSON lines go to `output`, the table to standard output.  `against` is a Python that imports
    another version of fastdata: then only fastdata runs, in both versions.
    Below the table stand the ratios of `bars`, or of everything to everything
    where none are given.

    Returns
    -------
    int
        An exit code: 1 where a contender that could start then failed.
    """
    if against:
        contenders = [one for one in contenders if "fastdata" in one.modules]
        others = [
            replace(one, name=f"{one.name}, other", command=[against, *one.command[1:]])
            for one in contenders
        ]
        bars = [Bar(one.name, f"{one.name}, other", OVER_ANOTHER_VERSION) for one in contenders]
        contenders = [*contenders, *others]
    results = run_rounds(benchmark, contenders, rounds=rounds, settings=settings, output=output)
    print_table(benchmark, contenders, results)
    if bars:
        print_bars(benchmark, bars, results, output)
    else:
        print_ratios(contenders, results)
    return 1 if results.failed else 0


def median(results: Results, name: str) -> float | None:
    """Return the median of a contender's counted values; None where it has none."""
    values = [run.value for run in results.counted(name)]
    return statistics.median(values) if values else None


def print_table(benchmark: str, contenders: Sequence[Contender], results: Results) -> None:
    """Print a line a contender, and below what each does differently."""
    machine = hardware()
    width = max([24, *(len(contender.name) for contender in contenders)])
    filters = any(FILTER in contender.notes for contender in contenders)
    # Loaders: images/s with the start of the epoch, which `images/s` leaves out.
    epochs = any("whole_epochs" in run.report for run in results.runs)
    column = "whole epoch" if epochs else "MB out"
    print(f"\n{benchmark}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB")
    print(
        f"| {'contender':{width}} | images/s |   lowest-highest | process s | peak MB | {column} |"
        + f" {FILTER} |" * filters
    )
    dashes = [9, 17, 10, 8, len(column) + 1]
    print(f"|{'-' * (width + 2)}|" + "".join(f"{'-' * n}:|" for n in dashes) + "---|" * filters)
    for contender in contenders:
        runs = results.counted(contender.name)
        if not runs:
            why = results.excuses.get(contender.name, "no counted round")
            print(f"| {contender.name:{width}} | {why}")
            continue
        values = [run.value for run in runs]
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        process = statistics.median(run.process_seconds for run in runs)
        memory = max(run.peak_memory_bytes for run in runs) / 1e6
        last = ""
        if epochs:
            rates = [max(run.report["whole_epochs"]) for run in runs]
            last = f"{statistics.median(rates):,.0f}"
        elif "bytes_out" in runs[-1].report:
            last = f"{runs[-1].report['bytes_out'] / 1e6:.0f}"
        print(
            f"| {contender.name:{width}} | {statistics.median(values):8,.0f} | {spread:>16} "
            f"| {process:9.1f} | {memory:7,.0f} | {last:>{len(column)}} |"
            + f" {contender.notes.get(FILTER, '')} |"
            * filters
        )
    for contender in contenders:
        others = [f"{name}: {what}" for name, what in contender.notes.items() if name != FILTER]
        if others:
            print(f"{contender.name} - {'; '.join(others)}")


def print_ratios(contenders: Sequence[Contender], results: Results) -> None:
    """Print the ratio of each contender's median to each other's."""
    medians = {c.name: median(results, c.name) for c in contenders}
    known = {name: value for name, value in medians.items() if value is not None}
    for name, value in known.items():
        rest = [f"{value / known[other]:.2f}x {other}" for other in known if other != name]
        if rest:
            print(f"{name}: {', '.join(rest)}")


def print_bars(benchmark: str, bars: Sequence[Bar], results: Results, output: TextIO) -> None:
    """Print a line a bar: the ratio of the two medians, and what is asked for."""
    rows = ["\n| ratio | asked | reached |", "|---|--:|--:|"]
    for bar in bars:
        ours, theirs = median(results, bar.contender), median(results, bar.other)
        ratio = None if ours is None or theirs is None else ours / theirs
        reached = "not measured" if ratio is None else f"{ratio:.2f}x"
        rows.append(f"| {bar.contender} over {bar.other} | {bar.at_least}x | {reached} |")
        line = {
            "benchmark": benchmark,
            "ratio": [bar.contender, bar.other],
            "asked": bar.at_least,
            "reached": None if ratio is None else round(ratio, 3),
        }
        print(json.dumps(line), file=output, flush=True)
    print("\n".join(rows))
