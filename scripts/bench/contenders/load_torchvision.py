"""Epochs of torchvision's ImageFolder in a stock DataLoader; run by `load.py`.

Images of 32 x 32 are in memory, as torchvision's `CIFAR10` has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from epochs import options, print_report, time_epochs
from PIL import Image
from stored_epochs import labelled
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision_crop import transform


class InMemory(Dataset[Any]):
    """Images of 32 x 32 pixels, from their files."""

    def __init__(self, folder: str, crop: Any) -> None:
        paths, self.targets = zip(*labelled(folder), strict=True)
        self.data = np.stack([np.fromfile(path, np.uint8).reshape(32, 32, 3) for path in paths])
        self.crop = crop

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.crop(Image.fromarray(self.data[index])), self.targets[index]


def main() -> None:
    """Time epochs."""
    given = options()
    make = InMemory if given["transform"] == "crop 32" else ImageFolder
    loader = DataLoader(
        make(given["data"], transform(given["transform"])),
        batch_size=given["batch_size"],
        shuffle=given["shuffle"],
        drop_last=True,
        num_workers=given["workers"],
        persistent_workers=True,
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "torch", "torchvision", "pillow")


if __name__ == "__main__":
    main()
