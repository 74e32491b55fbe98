"""MVTec AD by PIL: its folders, with JPEGs in the place of its PNGs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import Case, Picture
from PIL import Image

__all__ = ["CASES", "mask_of", "write_category"]


def mask_of(picture: Picture) -> np.ndarray:
    """Return the mask of a picture with a defect."""
    mask = np.zeros(picture.pixels.shape[:2], np.uint8)
    mask[2 + picture.label : 9, 3:11] = 255
    return mask


def write_category(root: Path, pictures: Sequence[Picture]) -> Path:
    """Write a category: half of the pictures are for training, the last third has defects."""
    count = len(pictures)
    for k, picture in enumerate(pictures):
        place = "train/good" if 2 * k < count else "test/good"
        if 3 * k >= 2 * count:
            place = "test/scratch"
            truth = root / f"ground_truth/scratch/{picture.name}_mask.png"
            truth.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask_of(picture)).save(truth)
        path = root / place / f"{picture.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.data)
    return root


def write_whole(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write two categories, and a file beside them."""
    half = len(pictures) // 2
    write_category(folder / "bottle", pictures[:half])
    write_category(folder / "grid", pictures[half:])
    (folder / "license.txt").write_text("CC BY-NC-SA 4.0")
    return folder


CASES = [
    Case("mvtec", "mvtec", write_category, labels=False),
    Case("mvtec-whole", "mvtec", write_whole, labels=False),
]
