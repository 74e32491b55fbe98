"""Epochs of LitData's StreamingDataset over a store, or the writing of its chunks; `remote.py`.

It has no scheme for plain HTTP: it asks the same server as an S3 endpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litdata
from cv2_crop import collate, decode, random_resized_crop
from epochs import options, print_report
from litdata.streaming.downloader import _OBSTORE_CLIENT_OPTIONS
from stored_epochs import cache_of, labelled, time_store


def crop(sample: dict[str, Any]) -> tuple[Any, int]:
    """Return the crop and the label of a sample."""
    return random_resized_crop(decode(sample["image"]), 224), sample["label"]


def read(sample: tuple[str, int]) -> dict[str, Any]:
    """Return a sample to be written."""
    return {"image": Path(sample[0]).read_bytes(), "label": sample[1]}


def write(given: dict[str, Any]) -> None:
    """Write files into chunks, in their order."""
    litdata.optimize(
        read,
        inputs=labelled(given["files"]),
        output_dir=given["destination"],
        chunk_bytes=f"{given['shard_mb']}MB",
        num_workers=1,
        reorder_files=False,
        verbose=False,
    )


def main() -> None:
    """Write, or time epochs."""
    given = options()
    if "destination" in given:
        write(given)
        return
    # Its S3 client, obstore, takes no endpoint without TLS, and LitData has no option for it.
    _OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    def make(cache: Path) -> Any:
        dataset = litdata.StreamingDataset(
            given["data"],
            cache_dir=str(cache),
            max_cache_size=given.get("cache_bytes"),
            shuffle=True,
            transform=crop,
            storage_options={
                "endpoint_url": given["endpoint"],
                "aws_access_key_id": "any",
                "aws_secret_access_key": "any",
                "region_name": "us-east-1",
            },
        )
        return litdata.StreamingDataLoader(
            dataset,
            batch_size=256,
            num_workers=given["workers"],
            drop_last=True,
            collate_fn=collate,
            persistent_workers=True,
        )

    with cache_of(given) as cache:
        report = time_store(make, given, cache)
    packages = "litdata", "torch", "opencv-python-headless", "numpy", "boto3", "obstore"
    print_report(report, *packages)


if __name__ == "__main__":
    main()
