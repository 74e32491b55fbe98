"""Epochs of Hugging Face `datasets` in a stock DataLoader; run by `load.py`.

As its documentation has it: an image folder, `with_transform`, and transforms of torchvision.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import load_dataset
from epochs import options, print_report, time_epochs
from torch.utils.data import DataLoader
from torchvision_crop import transform


def main() -> None:
    """Time epochs."""
    given = options()
    crop = transform(given["transform"])

    def cropped(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**batch, "image": [crop(image.convert("RGB")) for image in batch["image"]]}

    folder = Path(given["data"])
    kept = folder.with_name("huggingface")
    dataset = load_dataset("imagefolder", data_dir=folder, split="train", cache_dir=kept)
    loader = DataLoader(
        dataset.with_transform(cropped),
        batch_size=given["batch_size"],
        shuffle=given["shuffle"],
        drop_last=True,
        num_workers=given["workers"],
        persistent_workers=True,
    )
    report = time_epochs(
        lambda: loader, lambda batch: batch["image"].numpy(), epochs=given["epochs"]
    )
    print_report(report, "datasets", "torch", "torchvision", "pillow", "pyarrow")


if __name__ == "__main__":
    main()
