"""Original files as torchvision's transforms make tensors of them, by PIL alone.

`Files` is `ImageFolder` with `RandomResizedCrop` and `RandomHorizontalFlip` for training, and with
`Resize` and `CenterCrop` for validation, by torchvision's formulas for PIL images, except that it
turns images upright by their EXIF orientation, as `fastdata.pack` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def random_window(width: int, height: int) -> tuple[int, int, int, int]:
    """Return the box of a `RandomResizedCrop`, drawn as torchvision draws it."""
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(*SCALE).item()
        aspect = math.exp(torch.empty(1).uniform_(*map(math.log, RATIO)).item())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,)))
            left = int(torch.randint(0, width - w + 1, (1,)))
            return left, top, left + w, top + h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def training_image(image: Image.Image, side: int) -> Image.Image:
    """Return what RandomResizedCrop(side) and RandomHorizontalFlip() make."""
    crop = image.crop(random_window(*image.size)).resize((side, side), Image.Resampling.BILINEAR)
    return ImageOps.mirror(crop) if torch.rand(1) < 0.5 else crop


def validation_image(image: Image.Image, side: int) -> Image.Image:
    """Return what Resize(short_side(side)) and CenterCrop(side) make."""
    shorter = min(image.size)
    width, height = (int(short_side(side) * length / shorter) for length in image.size)
    left, top = round((width - side) / 2.0), round((height - side) / 2.0)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + side, top + side))


def short_side(side: int) -> int:
    """Return the short side that a validation image is resized to: 256 for crops of 224."""
    return round(side * 8 / 7)


@dataclass(frozen=True)
class Files(Dataset[tuple[torch.Tensor, int]]):
    """Original files: uint8 [3, side, side] and the label."""

    samples: list[tuple[Path, int]]
    side: int
    training: bool

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
        made = (training_image if self.training else validation_image)(image, self.side)
        return torch.from_numpy(np.array(made)).permute(2, 0, 1), label
