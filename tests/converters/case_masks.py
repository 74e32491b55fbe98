"""Folders of images and masks, by PIL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Picture
from PIL import Image

__all__ = ["CASES", "COLOURS", "mask_of", "save", "write_camvid", "write_cityscapes", "write_masks"]

COLOURS = np.array([(0, 0, 0), (128, 64, 128), (10, 200, 30), (0, 0, 192)], np.uint8)


def mask_of(picture: Picture) -> np.ndarray[Any, Any]:
    """Return class numbers from 0 to 3."""
    height, width = picture.pixels.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : height // 2, width // 8 : width // 2] = picture.label + 1
    mask[-height // 4 :] = 3 - picture.label
    return mask


def save(path: Path, mask: Any) -> None:
    """Write a mask, or the pixels of an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path)


def image(path: Path, picture: Picture) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.data)


def half(pictures: Sequence[Picture], k: int, names: tuple[str, str] = ("train", "val")) -> str:
    return names[2 * k >= len(pictures)]


def write_masks(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write imgs and masks, whose names end in _mask."""
    for p in pictures:
        image(folder / f"imgs/{p.name}.jpg", p)
        save(folder / f"masks/{p.name}_mask.png", mask_of(p))
    return folder


def write_camvid(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write CamVid with colours, and its table of classes."""
    for k, p in enumerate(pictures):
        split = half(pictures, k)
        image(folder / f"{split}/{p.name}.jpg", p)
        save(folder / f"{split}_labels/{p.name}_L.png", COLOURS[mask_of(p)])
    rows = zip(("Void", "Road", "Traffic Light", "Car"), COLOURS.tolist(), strict=True)
    lines = [f"{name}, {', '.join(map(str, colour))}\n" for name, colour in rows]
    (folder / "class_dict.csv").write_text("name,r,g,b\n" + "".join(lines))
    return folder


def write_cityscapes(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write Cityscapes with three kinds of masks."""
    for k, p in enumerate(pictures):
        place = f"{half(pictures, k)}/bonn"
        image(folder / f"leftImg8bit/{place}/bonn_{p.name}_leftImg8bit.jpg", p)
        start = folder / f"gtFine/{place}/bonn_{p.name}_gtFine"
        save(Path(f"{start}_labelIds.png"), mask_of(p) + 7)
        save(Path(f"{start}_labelTrainIds.png"), mask_of(p))
        save(Path(f"{start}_instanceIds.png"), mask_of(p).astype(np.uint16) * 1000)
    return folder


CASES = [
    Case("masks", "masks", write_masks, labels=False),
    Case("masks-camvid", "masks", write_camvid, labels=False),
    Case("masks-cityscapes", "masks", write_cityscapes, labels=False),
]
