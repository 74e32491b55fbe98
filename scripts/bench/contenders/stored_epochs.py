"""How every loader over a store is timed: first batch, a first epoch from nothing, later epochs.

Standard library and NumPy only, as it runs in the peers' interpreters.

The clock starts where the loader is made, after imports.  An epoch's rate is that of all of its
images from the call of ``iter`` on, and that of the first epoch from the making of the loader on,
so that it has all that a loader does before its first batch.  What was fetched is what the server
has sent.  What the cache takes on the disk is looked at while it is used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from epochs import describe

LOOK_SECONDS = 0.1


class Watch:
    """Looks every so often at a number that grows and shrinks; `peak` is the highest."""

    def __init__(self, look: Callable[[], float], every_seconds: float = LOOK_SECONDS) -> None:
        self.peak = 0.0
        self._look = look
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_seconds):
            self.peak = max(self.peak, self._look())


def disk_bytes(folder: Path) -> int:
    """Return what the files below a folder take on the disk, holes left out."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just gone
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


@contextmanager
def cache_of(given: dict[str, Any]) -> Iterator[Path]:
    """Give the folder of the cache: the one that is kept, else a new one that is removed again."""
    if "kept" in given:
        yield Path(given["kept"])
        return
    folder = Path(tempfile.mkdtemp(dir=given["caches"]))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def labelled(files: str) -> list[tuple[str, int]]:
    """Return the paths of class folders' files, sorted, and the numbers of their classes."""
    folders = sorted(path for path in Path(files).iterdir() if path.is_dir())
    return [
        (str(path), label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
    ]


def sent_bytes(log: str, start: int = 0) -> int:
    """Return the bytes of all answers that the server's log has from a byte of it on."""
    with open(log) as lines:
        lines.seek(start)
        return sum(int(line.split()[1]) for line in lines)


def dispersion(batches: list[list[int]]) -> float:
    """Return the variance of the counts of classes in batches, over that of a full shuffle.

    As tests/test_lanes.py has it: 1 is a full shuffle.
    """
    kinds = max(map(max, batches)) + 1
    counts = np.stack([np.bincount(batch, minlength=kinds) for batch in batches])
    size, share = len(batches[0]), counts.sum(axis=0) / counts.sum()
    expected = size * share * (1 - share) * (1 - size / counts.sum())
    return float((counts.var(axis=0, ddof=1) / expected).mean())


def time_store(
    make: Callable[[Path], Iterable[Any]], given: dict[str, Any], cache: Path
) -> dict[str, Any]:
    """Return the report of ``given["epochs"]`` epochs of the loader that `make` makes.

    A batch begins with images, uint8, and labels, both tensors.
    """
    start = os.path.getsize(given["log"]) if "log" in given else 0
    rates, first_batch, fetched = [], 0.0, 0
    first_labels: list[list[int]] = []
    counts: list[int] = []
    took: list[float] = []
    images: Any = None
    with Watch(lambda: disk_bytes(cache)) as disk:
        called = began = time.perf_counter()
        loader = make(cache)
        for epoch in range(given["epochs"]):
            labels: list[list[int]] = []
            for batch in loader:
                if not epoch and not labels:
                    first_batch = time.perf_counter() - called
                images = batch[0]
                labels.append(batch[1].tolist())
            seconds = time.perf_counter() - began
            count = sum(map(len, labels))
            rates.append(round(count / seconds, 1))
            counts.append(count)
            took.append(seconds)
            if not epoch:
                first_labels = labels
                fetched = sent_bytes(given["log"], start) if "log" in given else 0
            began = time.perf_counter()
    report = {
        "value": rates[0],
        "unit": "images/s",
        "first_batch": round(first_batch, 4),
        "epochs": rates,
        "all": round(sum(counts) / sum(took), 1),
        "images": sum(counts),
        "dispersion": round(dispersion(first_labels), 3),
        "peak_disk_bytes": disk.peak,
        "fetched_over_data": round(fetched / given["data_bytes"], 5),
        "batch": describe(images.numpy()),
    }
    if later := sum(took[1:]):  # peers have one epoch
        report["later"] = round(sum(counts[1:]) / later, 1)
    if "cache_bytes" in given:
        report["peak_over_limit"] = round(disk.peak / given["cache_bytes"], 4)
    return report
