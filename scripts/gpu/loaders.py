"""Images a second of each path onto the device, for a consumer that only takes batches."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from budget import Budget
from fastdata.steps.meter import Meter
from feeds import PATHS, Feed, datasets_of
from report import Report, Row
from rounds import Measurement, excused, in_turns
from settings import Settings

__all__ = ["images_per_second", "measure_loaders"]

PART = "loaders"
LEAD = 6
"""Batches right before a window: those that were made ahead while others had their turn."""


def images_per_second(feed: Feed, meter: Meter, seconds: float, least: int = 10) -> float:
    """Return the rate of a window of some seconds, and of ten batches at least."""
    taken = 0

    def work() -> None:
        nonlocal taken
        end = time.perf_counter() + seconds
        while taken < least or time.perf_counter() < end:
            next(feed)
            taken += 1

    took = meter.seconds(work, lead=lambda: feed.skip(LEAD))
    return feed.size * taken / took


def measure_loaders(settings: Settings, report: Report, budget: Budget) -> None:
    """Put the rows of this part."""
    meter = Meter(settings.device)
    packed = datasets_of(settings).packed(".lmdb")
    report.expect(Row(PART, name) for name in PATHS)
    with ExitStack() as stack:
        contenders = []
        for name, options in PATHS.items():
            with excused(report, PART, name):
                feed = stack.enter_context(closing(Feed(name, packed, settings, options)))
                contenders.append(contender(feed, meter, settings))
        in_turns(report, PART, contenders, settings.rounds, budget)


def contender(feed: Feed, meter: Meter, settings: Settings) -> Measurement:
    """Return the measurement of one path."""
    seconds = 2 * settings.window_seconds
    return Measurement(
        feed.name,
        lambda: images_per_second(feed, meter, seconds),
        "images/s",
        note=lambda: note_of(feed),
    )


def note_of(feed: Feed) -> str:
    """Return how long the first epoch took, and what is held in memory since."""
    stats = getattr(feed.loader, "stats", None)  # a stock DataLoader has none
    held = stats().cache_bytes if stats else 0
    holds = f", {held / 1e9:.3g} GB held" if held else ""
    return f"first epoch {feed.first_epoch_seconds:.3g} s{holds}"


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Measure, and report what cannot be."""
    with excused(report, PART, "all paths"):
        measure_loaders(settings, report, budget)
