"""Epochs of WebDataset over tar shards; run by `load.py`.

Each worker reads its share of the shards in turn, mixes through a buffer of 1,000
samples and makes whole batches, so that no sample crosses processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset as wds
from cv2_crop import CROPS, collate
from epochs import options, print_report, time_epochs


def main() -> None:
    """Time epochs."""
    given = options()
    shards = sorted(map(str, Path(given["data"]).glob("*.tar")))
    crop = CROPS[given["transform"]]

    def cropped(sample: tuple[bytes, bytes]) -> tuple[Any, int]:
        return crop(sample[0]), int(sample[1])

    dataset = wds.WebDataset(shards, shardshuffle=len(shards) if given["shuffle"] else False)
    if given["shuffle"]:
        dataset = dataset.shuffle(1000)
    dataset = dataset.to_tuple("jpg;rgb", "cls").map(cropped)
    dataset = dataset.batched(given["batch_size"], collation_fn=collate, partial=False)
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=given["workers"], persistent_workers=True
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "webdataset", "torch", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
