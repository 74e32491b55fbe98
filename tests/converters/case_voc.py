"""Pascal VOC by text and PIL, from the development kit's description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import CLASSES, Case, Picture
from PIL import Image

__all__ = ["CASES", "annotation", "write_mask", "write_voc"]


def annotation(picture: Picture, objects: str | None = None) -> str:
    """Return the annotation file of a picture, with one object or those given."""
    height, width = picture.pixels.shape[:2]
    if objects is None:
        objects = f"""
        <object>
            <name>{CLASSES[picture.label]}</name>
            <pose>Frontal</pose><truncated>1</truncated><difficult>0</difficult>
            <bndbox><xmin>5</xmin><ymin>3</ymin><xmax>20</xmax><ymax>11</ymax></bndbox>
            <part><name>head</name>
                <bndbox><xmin>6</xmin><ymin>4</ymin><xmax>7</xmax><ymax>5</ymax></bndbox>
            </part>
        </object>"""
    return f"""<annotation>
        <folder>VOC2012</folder><filename>../../{picture.name}.jpg</filename>
        <size><width>{width}</width><height>{height}</height><depth>3</depth></size>
        <segmented>0</segmented>{objects}
    </annotation>"""


def write_voc(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write JPEGImages, Annotations and the list ImageSets/Main/train.txt."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for picture in pictures:
        (folder / f"JPEGImages/{picture.name}.jpg").write_bytes(picture.data)
        (folder / f"Annotations/{picture.name}.xml").write_text(annotation(picture))
    names = "".join(f"{p.name}\n" for p in pictures)
    (folder / "ImageSets/Main/train.txt").write_text(names)
    return folder


def write_mask(path: Path, picture: Picture) -> None:
    """Write a mask with VOC's palette: class numbers from 1 on, and 255 around them."""
    height, width = picture.pixels.shape[:2]
    pixels = np.zeros((height, width), np.uint8)
    pixels[4:12, 3:20] = 255
    pixels[5:11, 4:19] = picture.label + 1
    image = Image.fromarray(pixels, "L")
    image.putpalette([(7 * k + c) % 256 for k in range(256) for c in range(3)])
    image.save(path)


def segmented(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a VOCdevkit of masks."""
    root = folder / "VOCdevkit/VOC2012"
    root.mkdir(parents=True)
    write_voc(root, pictures)
    (root / "SegmentationClass").mkdir()
    (root / "ImageSets/Segmentation").mkdir()
    for picture in pictures:
        write_mask(root / f"SegmentationClass/{picture.name}.png", picture)
    names = "".join(f"{p.name}\n" for p in pictures)
    (root / "ImageSets/Segmentation/val.txt").write_text(names)
    return folder


CASES = [
    Case("voc", "voc", write_voc, labels=False),
    Case("voc-split", "voc", write_voc, {"split": "train"}, labels=False),
    Case("voc-masks", "voc", segmented, {"masks": "classes", "split": "val"}, labels=False),
]
