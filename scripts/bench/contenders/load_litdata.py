"""Epochs of LitData's StreamingDataset over chunks on this disk; run by `load.py`."""

from __future__ import annotations

from typing import Any

import litdata
from cv2_crop import CROPS, collate
from epochs import options, print_report, time_epochs


def main() -> None:
    """Time epochs."""
    given = options()
    crop = CROPS[given["transform"]]

    def cropped(sample: dict[str, Any]) -> tuple[Any, int]:
        return crop(sample["image"]), sample["label"]

    loader = litdata.StreamingDataLoader(
        litdata.StreamingDataset(given["data"], shuffle=given["shuffle"], transform=cropped),
        batch_size=given["batch_size"],
        num_workers=given["workers"],
        drop_last=True,
        collate_fn=collate,
        persistent_workers=True,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "litdata", "torch", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
