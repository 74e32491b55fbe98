"""A report as plain text, for a terminal: the verdict first, then what it rests on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from fastdata.printable import printable
from fastdata.profiling.figures import (
    UNKNOWN,
    gain,
    key_figures,
    largest,
    machine_lines,
    milliseconds,
    number,
    rates,
    speedup,
    stall_line,
)
from fastdata.profiling.report import ProfileReport, Stage

__all__ = ["blocks", "render_text"]

WIDTH = 88
LEAST_WIDTH = 60
BAR = 20
EIGHTHS = " ▏▎▍▌▋▊▉"


def render_text(report: ProfileReport, *, width: int = WIDTH, ascii_only: bool = False) -> str:
    """Return a report as text.

    Parameters
    ----------
    report : ProfileReport
    width : int
        Columns of the terminal; 60 or more are used.  Paths are not broken, and may stand out.
    ascii_only : bool
        Whether bars are drawn of ``#`` instead of Unicode's blocks, and all other characters
        beyond ASCII escaped.

    Returns
    -------
    str
        Lines without one at the end.  No line has control characters, whatever is in the report.
    """
    parts = [
        printable(report.verdict),  # one line, for grep
        *_what(report, width),
        *_rates(report),
        *_figures(report),
        *_stages(report, width, ascii_only),
        *_stalls(report, width),
        *_fixes(report, width),
        *_notes(report, width),
    ]
    text = "\n".join(parts)
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def blocks(value: float, whole: float, width: int = BAR, ascii_only: bool = False) -> str:
    """Return a bar, `width` characters for `whole`, padded with spaces.

    What is above 0 is seen: one eighth of a character at least (in ASCII, one character).
    """
    if math.isnan(value) or not value > 0 or not whole > 0:
        return " " * width
    filled = 1.0 if math.isinf(value) else min(value / whole, 1.0)
    if ascii_only:
        return ("#" * max(1, round(filled * width))).ljust(width)
    whole, eighth = divmod(max(1, round(filled * width * 8)), 8)
    return ("█" * whole + EIGHTHS[eighth].strip()).ljust(width)


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        printable(text),
        max(width, LEAST_WIDTH),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _what(report: ProfileReport, width: int) -> Iterator[str]:
    named = [("loader", report.loader), ("step", report.step)]
    if any(text for _, text in named):
        yield ""
    for name, text in named:
        if text:
            yield _wrapped(text, width, f"{name + ':':<8}", " " * 8)
    machine = ", ".join(f"{name} {value}" for name, value in machine_lines(report.machine))
    if machine:
        yield _wrapped(machine, width, "machine: ", " " * 9)


def _rates(report: ProfileReport) -> Iterator[str]:
    yield ""
    yield f"{'with':<24}{'steps/s':>10}{'samples/s':>12}"
    for name, rate in rates(report):
        yield f"{name:<24}{number(rate):>10}{number(rate * report.batch_size):>12}"


def _figures(report: ProfileReport) -> Iterator[str]:
    yield ""
    for name, value in key_figures(report):
        yield f"{name:<30} {value}"


def _stages(report: ProfileReport, width: int, ascii_only: bool) -> Iterator[str]:
    yield ""
    if not report.stages:
        yield "No stage could be measured by itself."
        return
    yield f"{'stage':<12}{'a batch':>12}  {'':<{BAR}}{'loop waits':>12}  {'if it were free':>16}"
    longest = largest(stage.seconds for stage in report.stages)
    for stage in report.stages:
        name = stage.name + (" *" if stage.parallel else "")
        bar = blocks(stage.seconds, longest, ascii_only=ascii_only)
        yield (
            f"{name:<12}{milliseconds(stage.seconds):>12}  {bar}"
            f"{milliseconds(stage.stall_seconds):>12}  {_if_free(stage):>16}"
        ).rstrip()
        if stage.where:
            yield _wrapped(f"at {stage.where}", width, " " * 12, " " * 15)
    if any(stage.parallel for stage in report.stages):
        yield "* of one worker's time; workers share it"


def _if_free(stage: Stage) -> str:
    value = speedup(stage.speedup_if_free)
    return value if value == UNKNOWN else f"{value} as fast"


def _stalls(report: ProfileReport, width: int) -> Iterator[str]:
    if report.stalls:
        yield ""
        yield "The step makes the device wait:"
    for stall in report.stalls:
        yield _wrapped(stall_line(stall), width, "- ", "  ")
        if stall.where:
            yield _wrapped(f"at {stall.where}", width, "  ", "     ")


def _fixes(report: ProfileReport, width: int) -> Iterator[str]:
    yield ""
    if not report.fixes:
        yield "Nothing to mend was found."
        return
    yield "What to do, the one that gains most first:"
    for place, fix in enumerate(report.fixes, 1):
        yield _wrapped(f"{fix.text} ({gain(fix)})", width, f"{place}. ", "   ")


def _notes(report: ProfileReport, width: int) -> Iterator[str]:
    yield from _list("Notes:", report.notes, width)


def _list(head: str, texts: Sequence[str], width: int) -> Iterator[str]:
    if texts:
        yield ""
        yield head
    for text in texts:
        yield _wrapped(text, width, "- ", "  ")
