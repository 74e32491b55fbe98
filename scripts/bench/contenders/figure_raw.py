"""Raw images of one size without transforms, beside a memcpy; run by `figures.py`.

In turns, in one process: `LAPS` epochs of the loader in random order, timed as one
since an epoch is over in a moment, and as many copies of the same file's bytes,
in file order, from the warm page cache into one buffer of a batch's size, by
one thread and by as many as the loader has.  The copies have the easier work:
no gaps, no labels, nothing random.  The best turn of each counts.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from epochs import options, print_report, time_epochs
from fastdata_loader import PACKAGES, make_loader
from page_cache import warm

LAPS = 5

Bytes: TypeAlias = npt.NDArray[np.uint8]


def copy_speed(source: Bytes, buffer: Bytes, pool: ThreadPoolExecutor, parts: int) -> float:
    """Return the bytes a second of copying `source` through `buffer` in `parts` threads."""
    bounds = np.linspace(0, len(buffer), parts + 1).astype(int).tolist()
    targets = [buffer[start:stop] for start, stop in pairwise(bounds)]
    copied = len(source) // len(buffer) * len(buffer)
    started = time.perf_counter()
    for place in list(range(0, copied, len(buffer))) * LAPS:
        pieces = [source[place + start : place + stop] for start, stop in pairwise(bounds)]
        if parts == 1:
            np.copyto(targets[0], pieces[0])
        else:
            list(pool.map(np.copyto, targets, pieces))
    return LAPS * copied / (time.perf_counter() - started)


def main() -> None:
    """Compare as the options say."""
    given = options()
    warm(given["data"])
    source = np.memmap(given["data"], np.uint8, "r")
    int(source[::4096].sum())  # maps the pages, as the loader's first epoch does
    loaded: list[float] = []
    copied: dict[int, list[float]] = {1: [], given["workers"]: []}
    with make_loader(given) as loader, ThreadPoolExecutor(given["workers"]) as pool:
        first = next(iter(loader))[0]
        bytes_an_image = first[0].numel()
        buffer = np.zeros(first.numel(), np.uint8)
        del first
        for _ in range(given["turns"]):
            report = time_epochs(
                lambda: chain.from_iterable(loader for _ in range(LAPS)),
                lambda batch: batch[0].numpy(),
                epochs=1,
            )
            loaded.append(report["value"] * bytes_an_image)
            for parts, speeds in copied.items():
                speeds.append(copy_speed(source, buffer, pool, parts))
    best, alone = max(loaded), max(copied[1])
    together = max(max(speeds) for speeds in copied.values())
    report = {
        "value": best / together,
        "unit": "of memcpy",
        "over_one_thread": best / alone,
        "loader_gb_per_second": round(best / 1e9, 2),
        "memcpy_gb_per_second": round(alone / 1e9, 2),
        "memcpy_gb_per_second_of_all_threads": round(together / 1e9, 2),
    }
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
