"""Epochs of fastdata's loader over a store, or over files; run by `remote.py`.

The memory of the downloader, which is nobody's child, is looked at here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
from epochs import options, print_report
from fastdata_loader import PACKAGES, TRANSFORMS, new_loader
from stored_epochs import Watch, cache_of, time_store

MEMORY_SECONDS = 1.0


def downloaders(cache: Path) -> list[psutil.Process]:
    """Return the processes that fill a cache folder: one, where that is used."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(cache) in process.cmdline() and process.pid != psutil.Process().pid:
                found.append(process)
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Time epochs."""
    given = options()

    def make(cache: Path) -> Any:
        remote: dict[str, Any] = {}
        if "log" in given:
            remote = {"cache_dir": cache, "cache_bytes": given.get("cache_bytes")}
        return new_loader(
            given["data"],
            batch_size=256,
            shuffle="lanes",
            drop_last=True,
            transform=TRANSFORMS["crop 224"],
            num_workers=given["workers"],
            **remote,
        )

    known: list[psutil.Process] = []

    def memory() -> float:
        # Looking through all processes takes a while, and is done until there is one.
        if "log" in given and not known:
            known.extend(downloaders(cache))
        total = 0.0
        for process in list(known):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        if not total:
            known.clear()
        return total

    with cache_of(given) as cache:
        with Watch(memory, MEMORY_SECONDS) as downloading:
            report = time_store(make, given, cache)
        for process in downloaders(cache):
            process.kill()
    report["downloader_peak_bytes"] = downloading.peak
    print_report(report, *PACKAGES, "obstore")


if __name__ == "__main__":
    main()
