"""Seconds that `fastdata --help` takes, as a process; run by `figures.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from epochs import print_report
from fastdata_loader import PACKAGES

RUNS = 5


def main() -> None:
    """Run it a few times and report the median."""
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fastdata", "--help"], capture_output=True, check=True
        )
        seconds.append(time.perf_counter() - started)
    print_report({"value": statistics.median(seconds), "unit": "s"}, *PACKAGES)


if __name__ == "__main__":
    main()
