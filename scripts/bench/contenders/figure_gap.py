"""The pause between two epochs, in batch intervals; run by `figures.py`.

From the arrival of an epoch's last batch to that of the next one's first,
over the mean time between batches within epochs.  Once with a consumer that
only takes batches, once with one that sleeps after each batch for as long as making
one takes, like a training step on a GPU.  Medians over the epochs after the first.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

from epochs import options, print_report
from fastdata_loader import PACKAGES, make_loader


def arrivals(loader: Any, epochs: int, step_seconds: float) -> list[list[float]]:
    """Return when each batch of each epoch arrived."""
    times = []
    for _ in range(epochs):
        epoch = []
        for _batch in loader:
            epoch.append(time.perf_counter())
            if step_seconds:
                time.sleep(step_seconds)
        times.append(epoch)
    return times


def measure(times: list[list[float]]) -> dict[str, float]:
    """Return mean interval, median gap and largest gap, in seconds, without the first epoch."""
    times = times[1:]
    intervals = [b - a for epoch in times for a, b in pairwise(epoch)]
    gaps = [after[0] - before[-1] for before, after in pairwise(times)]
    return {
        "interval_seconds": statistics.fmean(intervals),
        "gap_seconds": statistics.median(gaps),
        "longest_gap_seconds": max(gaps),
    }


def main() -> None:
    """Measure as the options say."""
    given = options()
    with make_loader(given) as loader:
        taking = measure(arrivals(loader, given["epochs"], 0.0))
        stepping = measure(arrivals(loader, given["epochs"], taking["interval_seconds"]))
    report = {
        "value": taking["gap_seconds"] / taking["interval_seconds"],
        "unit": "intervals",
        "with_step": stepping["gap_seconds"] / stepping["interval_seconds"],
        "taking": taking,
        "stepping": stepping,
    }
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
