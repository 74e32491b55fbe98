"""Epochs of MNIST-size data by the stock DataLoader or fastdata; run by `mnist_table.py`.

The stock one reads the images from the packed file once, and then works as torchvision's MNIST
and ToTensor do, which it does not import.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from epochs import options, print_report
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata.installing import DISTRIBUTION


class InMemory(Dataset[tuple[torch.Tensor, int]]):
    """What torchvision's MNIST is: all images in one uint8 tensor, made PIL images one by one."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[index].numpy())
        return to_tensor(image), int(self.labels[index])


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return a PIL image as float32 [C, H, W] from 0 to 1, by the steps of `ToTensor`."""
    pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
    pixels = pixels.view(image.size[1], image.size[0], len(image.getbands()))
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def stock(given: dict[str, Any]) -> Any:
    """Return the stock DataLoader, with its defaults but for what is compared."""
    packed = fastdata.loader(given["data"], batch_size=1024, num_workers=0)
    parts = [(batch.image[:, 0].clone(), batch.label.clone()) for batch in packed]
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    # The samples of the two loaders are the same.
    return DataLoader(
        InMemory(images, labels),
        batch_size=given["batch_size"],
        shuffle=True,
        num_workers=given["workers"],
        pin_memory=given["pin_memory"],
    )


def ours(given: dict[str, Any]) -> Any:
    """Return fastdata's loader."""
    return fastdata.loader(
        given["data"],
        batch_size=given["batch_size"],
        shuffle=True,
        num_workers=given["workers"],
        pin_memory=given["pin_memory"],
        dtype=torch.float32,
    )


def main() -> None:
    """Time epochs."""
    given = options()
    loader = {"stock": stock, "fastdata": ours}[given["loader"]](given)
    seconds = []
    with warnings.catch_warnings():
        # Of more workers than cores, which is what is measured, and of pinning without CUDA.
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(given["epochs"]):
            count, called = 0, time.perf_counter()
            for images, _labels in loader:
                count += len(images)
            seconds.append(time.perf_counter() - called)
    if images.shape[1:] != (1, 28, 28) or images.dtype != torch.float32:
        raise SystemExit(f"images are {images.dtype} {tuple(images.shape)}: not what is compared")
    report = {
        "value": statistics.median(seconds),
        "unit": "s an epoch",
        "epochs": [round(each, 4) for each in seconds],
        "images": count,
        "mean": round(float(images.mean()), 3),
        "cuda": torch.cuda.is_available(),
    }
    if hasattr(loader, "close"):
        loader.close()
    print_report(report, "torch", "pillow", DISTRIBUTION)


if __name__ == "__main__":
    main()
