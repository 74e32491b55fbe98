"""XML files of Pascal VOC beside images, as LabelImg and Roboflow leave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from case_voc import annotation
from cases import Case, Picture

__all__ = ["CASES", "beside", "roboflow", "two_folders"]


def write(folder: Path, picture: Picture, image: str, xml: str) -> None:
    """Write an image and its annotation file into two folders."""
    for place, suffix, data in (
        (image, ".jpg", picture.data),
        (xml, ".xml", annotation(picture).encode()),
    ):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / f"{picture.name}{suffix}").write_bytes(data)


def beside(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write both into one folder."""
    for picture in pictures:
        write(folder, picture, ".", ".")
    return folder


def two_folders(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write images and annotations."""
    for picture in pictures:
        write(folder, picture, "images", "annotations")
    return folder


def roboflow(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write what Roboflow exports."""
    for k, picture in enumerate(pictures):
        split = "train" if 2 * k < len(pictures) else "valid"
        write(folder, picture, split, split)
    (folder / "README.dataset.txt").write_text("exported")
    return folder


CASES = [
    Case("voc-beside", "voc", beside, labels=False, files_each=2),
    Case("voc-two-folders", "voc", two_folders, labels=False),
    Case("voc-roboflow", "voc", roboflow, labels=False, files_each=2),
]
