"""Epochs of MosaicML Streaming over a store, or the writing of its shards; run by `remote.py`.

It has no scheme for plain HTTP: it asks the same server as an S3 endpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cv2_crop import collate, decode, random_resized_crop
from epochs import options, print_report
from stored_epochs import cache_of, labelled, time_store
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def batch_of(samples: list[dict[str, Any]]) -> Any:
    """Return the crops and the labels of samples."""
    crops = (random_resized_crop(decode(sample["image"]), 224) for sample in samples)
    return collate([(crop, sample["label"]) for crop, sample in zip(crops, samples, strict=True)])


def write(given: dict[str, Any]) -> None:
    """Write files into shards, in their order."""
    with MDSWriter(
        out=given["destination"],
        columns={"image": "bytes", "label": "int"},
        size_limit=given["shard_mb"] * 1_000_000,
    ) as writer:
        for path, label in labelled(given["files"]):
            writer.write({"image": Path(path).read_bytes(), "label": label})


def main() -> None:
    """Write, or time epochs."""
    given = options()
    if "destination" in given:
        write(given)
        return
    os.environ["S3_ENDPOINT_URL"] = given["endpoint"]
    os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "any"
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    clean_stale_shared_memory()

    def make(cache: Path) -> Any:
        dataset = StreamingDataset(
            remote=given["data"],
            local=str(cache / "local"),
            cache_limit=given.get("cache_bytes"),
            shuffle=True,
            batch_size=256,
        )
        # It has fetched the index: workers that are forked would share its S3 connection, and mix
        # up the answers.
        for stream in dataset.streams:
            stream._downloader.clean_up()
        return DataLoader(
            dataset,
            batch_size=256,
            num_workers=given["workers"],
            drop_last=True,
            collate_fn=batch_of,
            persistent_workers=True,
        )

    with cache_of(given) as cache:
        report = time_store(make, given, cache)
    packages = "mosaicml-streaming", "torch", "opencv-python-headless", "numpy", "boto3"
    print_report(report, *packages)


if __name__ == "__main__":
    main()
