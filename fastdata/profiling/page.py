"""A report as one HTML page, with its timeline drawn as rows of stretches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from fastdata.pages import render
from fastdata.profiling.figures import largest, machine_lines, milliseconds, number, speedup
from fastdata.profiling.report import (
    Event,
    ProfileReport,
    batch_times,
    gain,
    key_figures,
    rates,
    stall_line,
)

__all__ = ["Row", "Stretch", "Tick", "Timeline", "lay_out", "render_page"]

MOST_EVENTS = 4000
"""Events that are drawn: more would take a browser seconds, and be too narrow to see."""

MOST_TICKS = 6

COLOURED_STAGES = "read", "decode", "augment", "collate"


def render_page(report: ProfileReport) -> str:
    """Return a report as an HTML page."""
    return render("fastdata.profiling", "report.html.jinja", _content(report))


def _content(report: ProfileReport) -> dict[str, Any]:
    """Return what the template shows, and the functions by which it shows it."""
    times = [time for stage in report.stages for time in (stage.seconds, stage.stall_seconds)]
    return {
        "report": report,
        "mood": "data" if report.input_bound else "step" if report.bottleneck else "fine",
        "rates": rates(report),
        "figures": key_figures(report),
        "times": batch_times(report),
        "longest": largest(times),
        # The bar shows what is gained: a bar for 1.00x would look like a gain.
        "largest_gain": largest(stage.speedup_if_free - 1 for stage in report.stages),
        "timeline": lay_out(report.timeline),
        "machine": machine_lines(report.machine),
        "largest": largest,
        "number": number,
        "milliseconds": milliseconds,
        "speedup": speedup,
        "gain": gain,
        "stall_line": stall_line,
        "width": _width,
    }


def _width(value: float, whole: float) -> str:
    """Return the length of a bar: empty for unknown values, full for infinite ones."""
    if math.isnan(value) or value <= 0:
        return _percent(0.0)
    return _percent(1.0 if math.isinf(value) or not whole else value / whole)


def _percent(part: float) -> str:
    """Return a part of 1 as SVG takes it."""
    return f"{100 * min(max(part, 0.0), 1.0):.3f}%"


# -- the timeline ----------------------------------------------------------------------------


class Stretch(NamedTuple):
    """A rectangle: left edge and width in percent, its tooltip, and what colours it.

    The kind is "wait" or "step" for the loop, a stage of `COLOURED_STAGES`, or "work" for anything
    else.
    """

    left: str
    width: str
    title: str
    kind: str


class Row(NamedTuple):
    """Stretches one after another."""

    name: str
    summary: str
    stretches: tuple[Stretch, ...]


class Tick(NamedTuple):
    """A mark of the scale: its position in percent, and its milliseconds."""

    left: str
    text: str


class Timeline(NamedTuple):
    """The loop's rows in the order in which they first appear, then workers by number.

    `left_out` events are not drawn; `stages` are the coloured ones, which need a key.
    """

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    left_out: int
    stages: tuple[str, ...] = ()


def lay_out(events: Iterable[Event]) -> Timeline:
    """Place events in the window from the first's beginning to the last's end.

    Events whose time is not known (nan, infinite, below 0) are left out, and those beyond
    `MOST_EVENTS`.
    """
    given = list(events)
    known = [
        event
        for event in given
        if math.isfinite(event.start) and math.isfinite(event.seconds) and event.seconds >= 0
    ]
    shown = sorted(known, key=lambda event: event.start)[:MOST_EVENTS]
    if not shown:
        return Timeline((), (), len(given))
    first = shown[0].start
    length = max(event.start + event.seconds for event in shown) - first or 1e-6
    names = dict.fromkeys(event.row for event in shown)
    stages = {event.stage for event in shown}
    return Timeline(
        tuple(
            _row(name, [event for event in shown if event.row == name], first, length)
            for name in sorted(names, key=_row_order)
        ),
        tuple(_ticks(length)),
        len(given) - len(shown),
        tuple(stage for stage in COLOURED_STAGES if stage in stages),
    )


def _row_order(name: str) -> tuple[bool, int, str]:
    """Return a sort key: the loop's rows as they came, then workers by number."""
    return (False, 0, "") if name.startswith("loop") else (True, len(name), name)


def _row(name: str, events: list[Event], first: float, length: float) -> Row:
    activity = name.partition(": ")[2]
    kind = activity if activity in ("wait", "step") else "work"
    total = sum(event.seconds for event in events)
    return Row(
        name,
        f"{name}: {len(events):,} of {milliseconds(total)} together",
        tuple(
            Stretch(
                _percent((event.start - first) / length),
                _percent(event.seconds / length),
                _title(event, first),
                event.stage if event.stage in COLOURED_STAGES else kind,
            )
            for event in events
        ),
    )


def _title(event: Event, first: float) -> str:
    words = " ".join(filter(None, (event.row, event.stage, event.label)))
    begun = milliseconds(event.start - first)
    return f"{words}: {milliseconds(event.seconds)}, from {begun}"


def _ticks(length: float) -> Iterable[Tick]:
    """Mark 0 and multiples of 1, 2 or 5 times a power of ten, at most `MOST_TICKS` after 0."""
    power = 10.0 ** math.floor(math.log10(length / MOST_TICKS))
    step = next(m * power for m in (1, 2, 5, 10, 20) if length / (m * power) <= MOST_TICKS + 1e-9)
    for count in range(math.floor(length / step + 1e-9) + 1):
        text = "0" if not count else f"{count * step * 1e3:,.10g}"
        yield Tick(_percent(count * step / length), text)
