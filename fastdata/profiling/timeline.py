"""A report's timeline as it is drawn: rows of stretches, and ticks, in percent of the window."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fastdata.printable import printable
from fastdata.profiling.figures import milliseconds
from fastdata.profiling.report import Event

__all__ = ["Row", "Stretch", "Tick", "Timeline", "lay_out"]

MOST = 4000
"""Events that are drawn: beyond, a browser takes seconds, and nobody sees them apart."""

TICKS = 6

STAGES = "read", "decode", "augment", "collate"
"""Those that have a colour of their own."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rectangle: its left edge and width in percent, what it says, and what colours it."""

    left: str
    width: str
    title: str
    kind: str


@dataclass(frozen=True, slots=True)
class Row:
    """Stretches one after another.

    Each is coloured by its kind: "wait" or "step" of the loop, a stage that workers do ("read",
    "decode", "augment", "collate"), or "work", whatever that is.
    """

    name: str
    summary: str
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of the scale: its place in percent, and its milliseconds."""

    left: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The loop's rows in the order in which they first appear, then workers by number.

    `left_out` events are not drawn.  `stages` are the kinds that need a key: those of `STAGES`
    that there are.
    """

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    left_out: int
    stages: tuple[str, ...] = ()


def lay_out(events: Iterable[Event]) -> Timeline:
    """Place events in the window from the first's beginning to the last's end.

    Events whose time is not known (nan, infinite, below 0) are left out, and those beyond `MOST`.
    """
    given = list(events)
    known = [
        event
        for event in given
        if math.isfinite(event.start) and math.isfinite(event.seconds) and event.seconds >= 0
    ]
    shown = sorted(known, key=lambda event: event.start)[:MOST]
    if not shown:
        return Timeline((), (), len(given))
    first = shown[0].start
    length = max(event.start + event.seconds for event in shown) - first or 1e-6
    names = dict.fromkeys(event.row for event in shown)
    rows = (
        _row(name, [event for event in shown if event.row == name], first, length)
        for name in sorted(names, key=_place)
    )
    stages = {event.stage for event in shown}
    return Timeline(
        tuple(rows),
        tuple(_ticks(length)),
        len(given) - len(shown),
        tuple(stage for stage in STAGES if stage in stages),
    )


def _place(name: str) -> tuple[bool, int, str]:
    """Return what rows are sorted by: those of the loop as they came, then workers by number."""
    return (False, 0, "") if name.startswith("loop") else (True, len(name), name)


def _row(name: str, events: list[Event], first: float, length: float) -> Row:
    what = name.partition(": ")[2]
    kind = what if what in ("wait", "step") else "work"
    total = sum(event.seconds for event in events)
    return Row(
        printable(name),
        f"{printable(name)}: {len(events):,} of {milliseconds(total)} together",
        tuple(
            Stretch(
                percent((event.start - first) / length),
                percent(event.seconds / length),
                _title(event, first),
                event.stage if event.stage in STAGES else kind,
            )
            for event in events
        ),
    )


def _title(event: Event, first: float) -> str:
    said = " ".join(printable(text) for text in (event.stage, event.label) if text)
    label = f" {said}" if said else ""
    begun = milliseconds(event.start - first)
    return f"{printable(event.row)}{label}: {milliseconds(event.seconds)}, from {begun}"


def _ticks(length: float) -> Iterable[Tick]:
    """Mark 0 and multiples of 1, 2 or 5 times a power of ten, `TICKS` at most after it."""
    power = 10.0 ** math.floor(math.log10(length / TICKS))
    step = next(m * power for m in (1, 2, 5, 10, 20) if length / (m * power) <= TICKS + 1e-9)
    for count in range(math.floor(length / step + 1e-9) + 1):
        text = "0" if not count else f"{count * step * 1e3:,.10g}"
        yield Tick(percent(count * step / length), text)


def percent(part: float) -> str:
    """Return a part of 1 as SVG takes it."""
    return f"{100 * min(max(part, 0.0), 1.0):.3f}%"
