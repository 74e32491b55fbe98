"""Epochs of fastdata's loader; run by `load.py` and `figures.py`."""

from __future__ import annotations

import time
from itertools import chain

from epochs import options, print_report, time_epochs
from fastdata_loader import PACKAGES, make_loader
from page_cache import evict


def main() -> None:
    """Time epochs."""
    given = options()
    if given.get("cold"):
        evict(given["data"])
    with make_loader(given) as loader:
        # Small images make epochs too short for the clock: several are timed as one.
        joined = given.get("joined_epochs", 1)
        report = time_epochs(
            lambda: chain.from_iterable(loader for _ in range(joined)),
            lambda batch: batch[0].numpy(),
            epochs=given["epochs"],
        )
        # For the memory to be seen once more from outside.
        time.sleep(given.get("linger_seconds", 0))
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
