"""Seconds that `fastdata.open` takes in a warm interpreter; run by `figures.py`."""

from __future__ import annotations

import statistics
import time

from epochs import options, print_report
from fastdata_loader import PACKAGES, open_dataset

RUNS = 20


def main() -> None:
    """Open the data once, and then a few times by the clock."""
    path = options()["data"]
    seconds = []
    for _ in range(1 + RUNS):
        started = time.perf_counter()
        data = open_dataset(path)
        seconds.append(time.perf_counter() - started)
        del data
    print_report({"value": statistics.median(seconds[1:]), "unit": "s"}, *PACKAGES)


if __name__ == "__main__":
    main()
