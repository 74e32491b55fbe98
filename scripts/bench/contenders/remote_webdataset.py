"""Epochs of WebDataset over tar shards of an HTTP server; run by `remote.py`.

As `load_webdataset.py`, with shards by URL, which WebDataset reads through curl.  With
``"cached"`` a shard goes whole into a folder of the disk before it is read, and is read from there
in later epochs; else it is read as it comes, in each epoch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import webdataset as wds
from cv2_crop import collate, decode, random_resized_crop
from epochs import options, print_report
from stored_epochs import cache_of, time_store


def crop(sample: tuple[bytes, bytes]) -> tuple[Any, int]:
    """Return the crop and the label of a sample of the tar."""
    return random_resized_crop(decode(sample[0]), 224), int(sample[1])


def main() -> None:
    """Time epochs."""
    given = options()

    def make(cache: Path) -> Any:
        kept: dict[str, Any] = {}
        if given["cached"]:
            kept = {"cache_dir": str(cache), "cache_size": given.get("cache_bytes", -1)}
        urls = [f"{given['data']}/{name}" for name in given["shards"]]
        dataset = (
            wds.WebDataset(urls, shardshuffle=len(urls), **kept)
            .shuffle(1000)
            .to_tuple("jpg", "cls")
            .map(crop)
            .batched(256, collation_fn=collate, partial=False)
        )
        return wds.WebLoader(
            dataset, batch_size=None, num_workers=given["workers"], persistent_workers=True
        )

    if shutil.which("curl") is None:
        raise SystemExit("WebDataset reads URLs through curl, which is not here")
    with cache_of(given) as cache:
        report = time_store(make, given, cache)
    print_report(report, "webdataset", "torch", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
