"""Reading all JPEGs in random order, none of them in the page cache; run by `figures.py`.

No image is decoded.  Each reader touches every page of every value: py-lmdb
with `readahead=False`, as most training code opens it, and fastdata's reader with the
images of the next batches asked for ahead, by the call that its loader makes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from epochs import options, print_report
from fastdata_loader import PACKAGES, open_dataset
from page_cache import evict, resident

PAGE = 4096
BATCH = 256
AHEAD = 8  # batches of 7.5 MB: about what the loader is ahead


def with_lmdb(path: str, order: list[int]) -> Iterator[Any]:
    """Yield the values as py-lmdb gives them, in one transaction, without its copy."""
    import lmdb

    environment = lmdb.open(
        path, subdir=False, readonly=True, lock=False, readahead=False, lib_version=0
    )
    with environment.begin(buffers=True) as transaction:
        for index in order:
            yield transaction.get(b"image/%010d" % index)


def with_fastdata(path: str, order: list[int]) -> Iterator[Any]:
    """Yield the values as fastdata's reader gives them, read ahead as its loader does."""
    dataset = open_dataset(path)
    reader = next(dataset.shards)
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    for number, batch in enumerate(batches):
        for later in batches[number + AHEAD : number + AHEAD + 1] if number else batches[:AHEAD]:
            dataset._images("image", later).read_ahead()
        for index in batch:
            yield reader.blob("image", index)


READERS = {"py-lmdb": with_lmdb, "fastdata": with_fastdata}


def main() -> None:
    """Read as the options say."""
    given = options()
    path = given["data"]
    order = np.random.default_rng(0).permutation(given["samples"]).tolist()
    evict(path)
    left = resident(path)
    total = 0
    started = time.perf_counter()
    for blob in READERS[given["reader"]](path, order):
        pages = np.frombuffer(blob, np.uint8)
        int(pages[::PAGE].sum()) + int(pages[-1])
        total += len(pages)
    seconds = time.perf_counter() - started
    report = {"value": total / 1e6 / seconds, "unit": "MB/s", "bytes": total, "resident": left}
    print_report(report, *PACKAGES)


if __name__ == "__main__":
    main()
