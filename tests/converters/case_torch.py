"""Files of torch.save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from cases import Case, Picture

__all__ = ["CASES"]


def tensors(pictures: Sequence[Picture]) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.from_numpy(np.stack([p.pixels for p in pictures]))
    return pixels, torch.tensor([p.label for p in pictures])


def pair(folder: Path, pictures: Sequence[Picture]) -> Path:
    torch.save(tensors(pictures), folder / "training.pt")
    return folder / "training.pt"


def planes(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = tensors(pictures)
    content = {"images": pixels.permute(0, 3, 1, 2).contiguous(), "labels": labels.tolist()}
    torch.save(content, folder / "a.pth")
    return folder / "a.pth"


def named(folder: Path, pictures: Sequence[Picture]) -> Path:
    torch.save(dict(zip(("images", "labels"), tensors(pictures), strict=True)), folder / "a.pt")
    return folder / "a.pt"


CASES = [
    Case("torch-pair", "torch", pair, holds="pixels"),
    Case("torch-planes", "torch", planes, holds="pixels"),
    Case("torch-named", "torch", named, holds="pixels"),
]
