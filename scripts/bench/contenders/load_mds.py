"""Epochs of MosaicML Streaming over shards on this disk; run by `load.py`."""

from __future__ import annotations

from typing import Any

from cv2_crop import CROPS, collate
from epochs import options, print_report, time_epochs
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def main() -> None:
    """Time epochs."""
    given = options()
    crop = CROPS[given["transform"]]

    def batch_of(samples: list[dict[str, Any]]) -> Any:
        return collate([(crop(sample["image"]), sample["label"]) for sample in samples])

    clean_stale_shared_memory()
    loader = DataLoader(
        StreamingDataset(
            local=given["data"], shuffle=given["shuffle"], batch_size=given["batch_size"]
        ),
        batch_size=given["batch_size"],
        num_workers=given["workers"],
        drop_last=True,
        collate_fn=batch_of,
        persistent_workers=True,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "mosaicml-streaming", "torch", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
