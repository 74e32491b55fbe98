"""Seconds from the call of `fastdata.loader` to its first batch; run by `figures.py`.

In a fresh interpreter that has imported what a training script imports, with
the dataset in the page cache.  ``again`` is a second loader in the same process.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from epochs import options, print_report
from fastdata_loader import PACKAGES, make_loader
from page_cache import warm


def first_batch_seconds(given: dict[str, Any]) -> float:
    """Return how long opening, making a loader and its first batch take."""
    started = time.perf_counter()
    with make_loader(given) as loader:
        batches = iter(loader)
        next(batches)
        return time.perf_counter() - started


def main() -> None:
    """Measure as the options say."""
    given = options()
    warm(given["data"])
    report = {
        "value": first_batch_seconds(given),
        "unit": "s",
        "again": first_batch_seconds(given),
        "start_method": multiprocessing.get_start_method(),
    }
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
