"""Parts of the tables of `pages.py`: what stands in a cell, and a table's lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from results import Figure, Measured


def markdown(heads: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines; `align` has an ``l`` or ``r`` a column."""
    rules = ("--:" if letter == "r" else "---" for letter in align)
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    lines.insert(1, f"|{'|'.join(rules)}|")
    return [re.sub(r"  +\|", " |", line) for line in lines]  # an empty cell has one space


def whole(figure: Figure | None) -> str:
    """Return a median as a whole number."""
    return "" if figure is None else f"{figure['median']:,.0f}"


def between(figure: Figure | None) -> str:
    """Return lowest and highest."""
    known = figure is not None and "lowest" in figure
    return f"{figure['lowest']:,.0f}-{figure['highest']:,.0f}" if figure and known else ""


def times(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio as "8.2x", or "27x"."""
    return "" if ratio is None else f"{ratio:.{0 if ratio >= 10 else digits}f}x"


def over(measured: Measured, name: str, base: str, digits: int = 1) -> str:
    """Return how many times the base's a figure is; the base is 1."""
    return "1" if name == base else times(measured.ratio(name, base), digits)


def version(measured: Measured, contender: str, package: str) -> str:
    """Return a package's version as of the newest run with this contender, after a space."""
    run = measured.run_of(contender)
    found = None if run is None else run["versions"].get(package)
    return f" {found}" if found else ""
