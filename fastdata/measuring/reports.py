"""How a result is written: as JSON, as a table of text, as a picture by matplotlib.

HTML pages are written by `fastdata.pages`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fastdata.errors import MissingExtraError, OptionError
from fastdata.installing import install_line

__all__ = ["check_picture_path", "new_figure", "plain_json", "save_figure", "text_table"]


def plain_json(value: Any) -> Any:
    """Return a value as plain JSON types: tuples as lists, nan and infinite numbers as None.

    What JSON does not have is its text.
    """
    if isinstance(value, dict):
        return {str(name): plain_json(content) for name, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(content) for content in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows as lines of a table, with two spaces between columns.

    The first `left` columns are aligned to the left, the others to the right.  A row that is
    shorter than the first one ends with text of any width.
    """
    count = len(rows[0])
    tabular = [row if len(row) == count else row[:-1] for row in rows]
    widths = [
        max((len(row[c]) for row in tabular if c < len(row)), default=0) for c in range(count)
    ]
    lines = []
    for row, cells in zip(rows, tabular, strict=True):
        aligned = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        lines.append("  ".join([*aligned, *row[len(cells) :]]).rstrip())
    return lines


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, of so many inches; the extra ``plot``."""
    return _figure_class()(figsize=(width, height), layout="constrained")


def _figure_class() -> Any:
    # No pyplot: it would look for a display, and keep the figure.
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(f"a plot needs matplotlib: {install_line('plot')}") from error
    return Figure


def check_picture_path(path: str | os.PathLike[str]) -> None:
    """Raise, before time is spent, what writing a picture there would.

    `MissingExtraError` without matplotlib; `OptionError` where it writes no format of this suffix,
    or there is no such folder.
    """
    known = _figure_class()().canvas.get_supported_filetypes()
    place = Path(path)
    if place.suffix.lstrip(".").lower() not in known:
        raise OptionError(
            f"{path}: no picture of this suffix; it is one of {', '.join(sorted(known))}"
        )
    if not place.absolute().parent.is_dir():
        raise OptionError(f"{path}: there is no folder {place.parent}; make it first")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, in the format of its suffix."""
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        if "format" not in str(error).lower():
            raise
        raise OptionError(f"{os.fspath(path)}: {error}") from error
