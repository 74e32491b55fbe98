"""What is asked of the loader besides images a second: one figure a name, each with its bar.

    python scripts/bench/figures.py gap first-batch --images DIR
    python scripts/bench/figures.py all --images DIR --output figures.jsonl
    python scripts/bench/figures.py jpeg cifar packing help --against OLD/bin/python

The last one compares with another version of fastdata, installed in that Python's environment.

FIGURE is one or more of those listed below.  Every measurement is a process of its own, in
interleaved rounds after a warm-up round (`harness.py`); a figure is a median
over the rounds, or the ratio of two.  `measures.py` tells what each runs, and the
contenders' docstrings what exactly is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_data import Datasets, find_images
from harness import Results, command_line, hardware, readable, run_rounds
from measures import FIGURES, Plan, Row
from results import Figure, spread
from table import OVER_ANOTHER_VERSION


def reach(row: Row, results: Results) -> Figure | None:
    """Return the figure of a row; None where it could not be measured.

    A ratio is that of the medians; its lowest and highest are those within a round.
    """
    values = [row.measure(run) for run in results.counted(row.contender)]
    if not values or not row.over:
        return spread(values) if values else None
    others = [row.measure(run) for run in results.counted(row.over)]
    if not others:
        return None
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    return spread(ratios) | {"median": statistics.median(values) / statistics.median(others)}


def line_of(figure: str, row: Row, results: Results) -> dict[str, Any]:
    """Return the JSON object of a row."""
    found = reach(row, results)
    line: dict[str, Any] = {"benchmark": figure, "row": row.what, "unit": row.unit}
    line["values"] = found and {name: float(f"{value:.5g}") for name, value in found.items()}
    line["asked"] = None if row.bar is None else f"{'<=' if row.at_most else '>='} {row.bar:g}"
    if found is not None and row.bar is not None:
        value = found["median"]
        line["holds"] = value <= row.bar if row.at_most else value >= row.bar
    excuses = [results.excuses[n] for n in (row.contender, row.over) if n in results.excuses]
    return line | ({"why": excuses} if excuses else {})


def print_rows(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    machine = hardware()
    print(f"\n{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB")
    print("| figure | asked | reached | |\n|---|--:|--:|---|")
    for line in lines:
        found, asked = line["values"], line["asked"]
        reached = f"{readable(found['median'])} {line['unit']}" if found else "not measured"
        verdict = {True: "holds", False: "falls short", None: ""}[line.get("holds")]
        remark = "; ".join(line.get("why", [verdict]))
        print(f"| {line['row']} | {asked or ''} | {reached} | {remark} |")


def against(plan: Plan, python: str) -> Plan:
    """Return the plan of the same figure as a ratio to another version, above 1 where it is better.

    The contenders run as they are, and with the fastdata that is installed in that Python's
    environment.
    """
    older = [
        replace(one, name=f"{one.name}, other", command=[python, *one.command[1:]])
        for one in plan.contenders
    ]
    rows = []
    for row in plan.rows:
        pair = row.contender, f"{row.contender}, other"
        better, worse = reversed(pair) if row.at_most else pair
        rows.append(
            Row(
                f"{row.what}: over the other",
                better,
                worse,
                bar=OVER_ANOTHER_VERSION,
                measure=row.measure,
            )
        )
    return replace(plan, contenders=[*plan.contenders, *older], rows=rows)


def measure(figure: str, given: argparse.Namespace, data: Datasets) -> Any:
    """Run one figure's contenders; return its rows' JSON objects, and whether any run failed."""
    plan = FIGURES[figure](data, given.workers)
    if given.against:
        plan = against(plan, given.against)
    results = run_rounds(
        figure,
        plan.contenders,
        rounds=given.rounds,
        settings={"samples": given.samples, "workers": given.workers},
        output=given.output,
        memory_sample_seconds=plan.memory_sample_seconds,
    )
    lines = [line_of(figure, row, results) for row in plan.rows]
    for line in lines:
        print(json.dumps(line), file=given.output, flush=True)
    return lines, results.failed


def main() -> int:
    """Read the command line and measure."""
    listed = "\n".join(f"  {name:12} {plan.__doc__}" for name, plan in FIGURES.items())
    parser = command_line(__doc__, rounds=3)
    parser.epilog = f"figures:\n{listed}"
    parser.add_argument("figures", nargs="+", choices=[*FIGURES, "all"], metavar="FIGURE")
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEG files")
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--against", metavar="PYTHON", help="compare with fastdata as it has it")
    given = parser.parse_args()

    data = Datasets(find_images(given.images), given.work.resolve() / "load", given.samples)
    chosen = list(FIGURES) if "all" in given.figures else given.figures
    lines: list[dict[str, Any]] = []
    any_failed = False
    for figure in chosen:
        found, failed = measure(figure, given, data)
        lines += found
        any_failed |= failed
    print_rows(lines)
    return 1 if any_failed else 0


if __name__ == "__main__":
    sys.exit(main())
