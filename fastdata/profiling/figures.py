"""What a report says in figures and words, for people: what its text and its page share.

Everything in a report may come from outside (a file's name, a line of the user's code, the name
of a device), and every number may be nan or infinite, where something could not be measured or
divided.  What is returned here can be shown: it has no control characters, and numbers that are
not known are `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastdata.printable import printable
from fastdata.profiling.report import Fix, ProfileReport, Stall

__all__ = [
    "UNKNOWN",
    "batch_times",
    "gain",
    "gigabytes_per_second",
    "key_figures",
    "largest",
    "machine_lines",
    "milliseconds",
    "number",
    "rates",
    "share",
    "speedup",
    "stall_line",
    "times",
]

UNKNOWN = "n/a"


def number(value: float) -> str:
    """Return a number with three digits that count, and commas."""
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


def _with(unit: str, value: float, text: str) -> str:
    return f"{text}{unit}" if math.isfinite(value) else text


def milliseconds(seconds: float) -> str:
    """Return a time, in milliseconds."""
    return _with(" ms", seconds, number(seconds * 1e3))


def share(value: float) -> str:
    """Return a share, 0 to 1, in percent."""
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value:.1%}" if 0 < abs(value) < 0.0995 else f"{value:.0%}"


def speedup(value: float) -> str:
    """Return how many times as fast: two decimals up to ten, fewer above."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:.2f}x" if value < 10 else f"{value:,.0f}x"


def gain(fix: Fix) -> str:
    """Return what a fix is predicted to gain, or that it is not known."""
    if math.isfinite(fix.speedup) and fix.speedup > 1:
        return f"{speedup(fix.speedup)} as fast"
    return "gain not predicted"


def gigabytes_per_second(value: float) -> str:
    """Return a speed of copying."""
    return _with(" GB/s", value, number(value / 1e9))


def times(count: int) -> str:
    """Return how often something happens in a step."""
    return f"{count:,} time{'s' * (count != 1)} a step"


def stall_line(stall: Stall) -> str:
    """Return what a stall of the step is, how often, and how much it copies; not where."""
    copied = f", {stall.nbytes / 1e6:,.1f} MB copied" if stall.nbytes else ""
    what = {
        "synchronisation": "makes the host wait for the device",
        "host tensor": "is made on the host, then copied",
    }[stall.kind]
    return f"{printable(stall.operation)} {what}, {times(stall.count)}{copied}"


def rates(report: ProfileReport) -> list[tuple[str, float]]:
    """Return the three rates that are compared, steps a second, each with its name."""
    return [
        ("the real loader", report.steps_per_second),
        ("one batch, on the host", report.steps_per_second_host),
        ("batches on the device", report.steps_per_second_device),
    ]


def largest(values: Iterable[float]) -> float:
    """Return the largest number that is finite, which others are drawn against; 0 without one."""
    return max((value for value in values if math.isfinite(value)), default=0.0)


def batch_times(report: ProfileReport) -> list[tuple[str, float]]:
    """Return the times from one batch to the next, seconds, each with its name."""
    ceiling = report.steps_per_second_device
    best = 1 / ceiling if ceiling > 0 else math.nan
    return [
        ("half of all batches (p50)", report.batch_seconds_p50),
        ("99 of 100 batches (p99)", report.batch_seconds_p99),
        ("the step, without waiting", best),
    ]


def key_figures(report: ProfileReport) -> list[tuple[str, str]]:
    """Return a report's figures beside rates and stages: what, and how much."""
    figures = [
        ("step waits for data", share(report.waiting)),
        ("wait for a batch", milliseconds(report.wait_seconds)),
        ("batches ready when asked for", number(report.ready_batches)),
        ("batch time, p50", milliseconds(report.batch_seconds_p50)),
        ("batch time, p99", milliseconds(report.batch_seconds_p99)),
        ("batch size", f"{report.batch_size:,}"),
        ("workers", f"{report.workers:,}"),
    ]
    if report.workers_to_saturate is not None:
        figures.append(("workers that would be enough", f"{report.workers_to_saturate:,}"))
    figures.append(("cores", f"{report.cores:,}"))
    if report.cores_to_saturate is not None:
        figures.append(("cores that loading would need", number(report.cores_to_saturate)))
    if report.copy_bytes_per_second:
        figures.append(("host to device", gigabytes_per_second(report.copy_bytes_per_second)))
    figures.append(("steps measured", f"{report.steps:,}"))
    figures.append(("taken by profiling itself", share(report.overhead)))
    return figures


def machine_lines(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a machine is, nested tables as ``outer.inner``."""
    return [(printable(name), printable(value)) for name, value in _flat("", machine)]


def _flat(prefix: str, machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in machine.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, (list, tuple)):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{name}", "none" if value is None else str(value)
