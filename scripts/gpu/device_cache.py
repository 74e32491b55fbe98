"""Batches out of the device's own memory: bytes moved a second, over a copy within the device.

The dataset lies on the device as uint8, every image of the size that is wanted: a batch is a
gather, a random flip, and normalising to bfloat16.  A value is read once, 1 byte, and written
once, 2 bytes: that is what counts as moved.  A copy reads and writes every byte.

- `kernels` is the time in which the GPU did something for a batch, by torch's profiler: what
  the kernels reach, and what is asked for.
- `through the loader` is the time of the loop that takes batches.  A batch of 256 is
  moved in some ten microseconds, so here the host's part of the work shows; the large
  batches tell how much of it is for a batch, and how much for a sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from budget import Budget
from fastdata import transforms as T  # noqa: N812 - as users write it
from fastdata.steps.meter import Meter
from feeds import MEAN, STD, Feed, datasets_of
from loaders import images_per_second
from report import Bar, Report
from rounds import Measurement, UnavailableError, excused, in_turns, put_ratio
from settings import Settings

__all__ = ["CACHE_BAR", "measure_cache", "united_seconds"]

PART = "cache"
CACHE_BAR = Bar("on-device cache, gather + flip + normalise to bf16, over a copy there", 0.6)
KERNELS = "kernels over copy within the device"
PROFILED_BATCHES = 30


def united_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the time that intervals cover together, whatever overlaps, in their unit."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def bytes_moved(samples: int, side: int) -> int:
    """Return the fewest bytes that are read and written for a batch."""
    return samples * 3 * side * side * (1 + 2)


def cached_feed(squares: Path, settings: Settings, size: int) -> Feed:
    """Return batches out of the device's memory; they are flipped and normalised there."""
    return Feed(
        f"batches of {size}, on the device",
        squares,
        settings,
        {"cache": "device"},
        transform=[T.RandomHorizontalFlip(), T.Normalize(MEAN, STD), T.ToDtype(torch.bfloat16)],
        batch_size=size,
    )


def copies_within(settings: Settings, meter: Meter) -> Measurement:
    """Return the measurement of a copy within the device, in GB/s moved."""
    source = torch.randint(
        0, 256, (settings.copy_bytes,), dtype=torch.uint8, device=settings.device
    )
    target = torch.empty_like(source)
    counts: list[int] = []

    def copy(count: int) -> None:
        for _ in range(count):
            target.copy_(source)

    def window() -> float:
        if not counts:
            counts.append(meter.repeats(copy, settings.window_seconds))
        return 2 * source.nbytes * counts[0] / meter.seconds(lambda: copy(counts[0])) / 1e9

    return Measurement("copy within the device", window, "GB/s")


def through_loader(feed: Feed, meter: Meter) -> Measurement:
    """Return the measurement of a loop that takes batches, in GB/s moved."""
    settings = feed.settings
    each = bytes_moved(1, settings.side)
    return Measurement(
        f"batches of {feed.size} through the loader",
        lambda: images_per_second(feed, meter, settings.window_seconds) * each / 1e9,
        "GB/s",
    )


def kernels(feed: Feed, meter: Meter) -> Measurement:
    """Return the measurement of the GPU's part of making batches, in GB/s moved."""
    launched: list[float] = []

    def window() -> float:
        if not meter.on_gpu:
            raise UnavailableError("there are no kernels without a GPU")
        spans = kernel_spans(feed, meter, PROFILED_BATCHES)
        if not spans:
            raise UnavailableError(
                "torch's profiler saw no kernel: CUPTI may not be permitted here"
            )
        launched[:] = [len(spans) / PROFILED_BATCHES]
        moved = bytes_moved(feed.size, feed.settings.side) * PROFILED_BATCHES
        return moved / (united_seconds(spans) / 1e6) / 1e9

    return Measurement(
        f"batches of {feed.size}, kernels",
        window,
        "GB/s",
        note=lambda: f"{launched[0]:.1f} kernels and copies a batch" if launched else "",
    )


def kernel_spans(feed: Feed, meter: Meter, batches: int) -> list[tuple[float, float]]:
    """Return start and end, in microseconds, of all that the GPU does for some batches."""
    from torch.profiler import ProfilerActivity, profile

    feed.skip(2)
    meter.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # events of earlier cycles are cleared: there are none
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            feed.skip(batches)
            meter.synchronize()
    return [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type.name == "CUDA"
    ]


def measure_cache(settings: Settings, report: Report, budget: Budget) -> None:
    """Put the rows of this part."""
    meter = Meter(settings.device)
    squares = datasets_of(settings).squares(".lmdb", settings.side)
    with ExitStack() as stack:
        contenders = [copies_within(settings, meter)]
        measured: list[tuple[str, Measurement, Bar | None]] = []
        # Few samples make no large batch.
        for size in (settings.batch_size, min(settings.cache_batch, settings.samples // 2)):
            bar = CACHE_BAR if size == settings.batch_size else None
            name = KERNELS if bar else f"{KERNELS}, batches of {size}"
            with excused(report, PART, name, bar):
                feed = stack.enter_context(closing(cached_feed(squares, settings, size)))
                looped = f"batches of {size} through the loader, over copy"
                measured += [(name, kernels(feed, meter), bar)]
                measured += [(looped, through_loader(feed, meter), None)]
        contenders += [contender for _, contender, _ in measured]
        try:
            in_turns(report, PART, contenders, settings.rounds, budget)
        finally:
            for name, contender, bar in measured:
                put_ratio(report, PART, name, contender, contenders[0], bar=bar)


def run(settings: Settings, report: Report, budget: Budget) -> None:
    """Measure, and report what cannot be."""
    with excused(report, PART, KERNELS, CACHE_BAR):
        measure_cache(settings, report, budget)
