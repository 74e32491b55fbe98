"""Numbers of a report as text, for its terminal form and its page.

Every number may be nan or infinite, where something could not be measured or divided: those are
shown as `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastdata.printable import printable

__all__ = [
    "UNKNOWN",
    "blocks",
    "gigabytes_per_second",
    "largest",
    "machine_lines",
    "megabytes_per_second",
    "milliseconds",
    "number",
    "share",
    "speedup",
]

UNKNOWN = "n/a"
BAR_CHARACTERS = 20
EIGHTHS = " ▏▎▍▌▋▊▉"


def number(value: float) -> str:
    """Return a number with three significant digits, and commas."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "unlimited" if value > 0 else UNKNOWN
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.0005:
        return f"{value:.3f}"
    return "<0.001" if value else "0"


def milliseconds(seconds: float) -> str:
    """Return a time, in milliseconds."""
    return number(seconds * 1e3) + " ms" * math.isfinite(seconds)


def gigabytes_per_second(bytes_per_second: float) -> str:
    """Return a speed of copying."""
    return number(bytes_per_second / 1e9) + " GB/s" * math.isfinite(bytes_per_second)


def megabytes_per_second(bytes_per_second: float) -> str:
    """Return a speed of downloading."""
    return number(bytes_per_second / 1e6) + " MB/s" * math.isfinite(bytes_per_second)


def share(value: float) -> str:
    """Return a share, 0 to 1, in percent."""
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value:.1%}" if 0 < abs(value) < 0.0995 else f"{value:.0%}"


def speedup(value: float) -> str:
    """Return how many times as fast: two decimals up to ten, none above."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:.2f}x" if value < 10 else f"{value:,.0f}x"


def largest(values: Iterable[float]) -> float:
    """Return the largest finite number, which others are drawn against; 0 without one."""
    return max((value for value in values if math.isfinite(value)), default=0.0)


def blocks(
    value: float, whole: float, width: int = BAR_CHARACTERS, ascii_only: bool = False
) -> str:
    """Return a bar, `width` characters for `whole`, padded with spaces.

    What is above 0 is visible: one eighth of a character at least (in ASCII, one character).
    """
    if math.isnan(value) or not value > 0 or not whole > 0:
        return " " * width
    filled = 1.0 if math.isinf(value) else min(value / whole, 1.0)
    if ascii_only:
        return ("#" * max(1, round(filled * width))).ljust(width)
    full, eighth = divmod(max(1, round(filled * width * 8)), 8)
    return ("█" * full + EIGHTHS[eighth].strip()).ljust(width)


def machine_lines(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and values of a machine's description, nested ones as ``outer.inner``."""
    return [(printable(name), printable(value)) for name, value in _flattened("", machine)]


def _flattened(prefix: str, machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in machine.items():
        if isinstance(value, Mapping):
            yield from _flattened(f"{prefix}{name}.", value)
        elif isinstance(value, (list, tuple)):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{name}", "none" if value is None else str(value)
