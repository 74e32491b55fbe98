"""Raw images of one size without transforms, beside a memcpy; run by `figures.py`.

In turns, in one process: a whole epoch of the loader in random order, from the call of ``iter`` to
its last batch, as a training loop has it; and a copy of the same bytes, in file order, from the
warm page cache into one buffer of a batch's size, by one thread.  The medians are compared.  The
copy has the easier work: no beginning and end of an epoch, no labels, nothing random.
"""

from __future__ import annotations

import statistics
import time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from epochs import options, print_report
from fastdata_loader import PACKAGES, make_loader
from page_cache import warm

UNCOUNTED = 2

Bytes: TypeAlias = npt.NDArray[np.uint8]


def copy_speed(source: Bytes, buffer: Bytes, count: int) -> float:
    """Return the bytes a second of copying `count` bytes of `source` through `buffer`."""
    started = time.perf_counter()
    for place in range(0, count, len(buffer)):
        part = source[place : min(place + len(buffer), count)]
        np.copyto(buffer[: len(part)], part)
    return count / (time.perf_counter() - started)


def main() -> None:
    """Compare as the options say."""
    given = options()
    warm(given["data"])
    source = np.memmap(given["data"], np.uint8, "r")
    int(source[::4096].sum())  # maps the pages, as the loader's first epoch does
    loaded: list[float] = []
    copied: list[float] = []
    with make_loader(given) as loader:
        first = next(iter(loader))[0]
        bytes_an_image = first[0].numel()
        buffer = np.zeros(first.numel(), np.uint8)
        del first
        for _ in range(UNCOUNTED + given["turns"]):
            count, started = 0, time.perf_counter()
            for images, _labels in loader:
                count += len(images)
            del images
            nbytes = count * bytes_an_image
            loaded.append(nbytes / (time.perf_counter() - started))
            copied.append(copy_speed(source, buffer, nbytes))
    ours, theirs = (statistics.median(found[UNCOUNTED:]) for found in (loaded, copied))
    report = {
        "value": ours / theirs,
        "unit": "of memcpy in one thread",
        "images": count,
        "loader_gb_per_second": round(ours / 1e9, 2),
        "memcpy_gb_per_second": round(theirs / 1e9, 2),
    }
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
