"""labelme's files by ``json``, as its `write_label_file` has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import CLASSES, Case, Picture

__all__ = ["CASES", "content", "write_labelme"]


def content(picture: Picture, shapes: Any = None, **changed: Any) -> dict[str, Any]:
    """Return what the file of a picture has: a triangle, or these shapes."""
    height, width = picture.pixels.shape[:2]
    triangle = {
        "label": CLASSES[picture.label],
        "points": [[4.0, 4.0], [20.0, 4.0], [20.0, 12.5]],
        "group_id": None,
        "description": "",
        "shape_type": "polygon",
        "flags": {},
        "mask": None,
    }
    return {
        "version": "6.3.1",
        "flags": {},
        "shapes": [triangle] if shapes is None else shapes,
        "imagePath": f"{picture.name}.jpg",
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
        **changed,
    }


def write_labelme(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write images and files beside each other."""
    folder.mkdir(exist_ok=True)
    for p in pictures:
        (folder / f"{p.name}.jpg").write_bytes(p.data)
        (folder / f"{p.name}.json").write_text(json.dumps(content(p), indent=2))
    return folder


def embedded(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write files that have their images, in split folders."""
    for k, p in enumerate(pictures):
        path = folder / ("train", "val")[2 * k >= len(pictures)] / f"{p.name}.json"
        path.parent.mkdir(exist_ok=True)
        data = base64.b64encode(p.data).decode()
        path.write_text(
            json.dumps(content(p, imageData=data, imagePath=f"C:\\photos\\{p.name}.jpg"))
        )
    return folder


CASES = [
    Case("labelme", "labelme", write_labelme, labels=False, files_each=2),
    Case(
        "labelme-embedded", "labelme", embedded, {"masks": "instances"}, labels=False, files_each=2
    ),
]
