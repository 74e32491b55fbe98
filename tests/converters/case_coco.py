"""COCO files by ``json``, from the format's description; nothing that the reader uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import Case, Picture

__all__ = ["CASES", "instances", "write_coco"]


def instances(pictures: Sequence[Picture]) -> dict[str, Any]:
    """Return the content of a file of instances: each picture has one box."""
    return {
        "info": {"description": "pictures of bées", "year": 2017},
        "licenses": [{"id": 1, "name": "CC-BY", "url": "http://example.org/"}],
        "images": [
            {
                "license": 1,
                "file_name": f"{p.name}.jpg",
                "height": p.pixels.shape[0],
                "width": p.pixels.shape[1],
                "id": 7 + 3 * k,
            }
            for k, p in enumerate(pictures)
        ],
        "annotations": [
            {
                "segmentation": [[4.0, 4.0, 20.0, 4.0, 20.0, 12.5]],
                "area": 68.0,
                "iscrowd": 0,
                "image_id": 7 + 3 * k,
                "bbox": [4.0, 4.0, 16.0, 8.5],
                "category_id": (3, 18, 90)[p.label],
                "id": 1000 + k,
            }
            for k, p in enumerate(pictures)
        ][::-1],
        "categories": [
            {"supercategory": "animal", "id": 90, "name": "cat"},
            {"supercategory": "animal", "id": 3, "name": "ant"},
            {"supercategory": "animal", "id": 18, "name": "bee"},
        ],
    }


def write_coco(folder: Path, pictures: Sequence[Picture], content: Any = None) -> Path:
    """Write annotations/instances_val2017.json and val2017; return the folder."""
    (folder / "annotations").mkdir()
    (folder / "val2017").mkdir()
    text = json.dumps(instances(pictures) if content is None else content)
    (folder / "annotations/instances_val2017.json").write_text(text)
    for picture in pictures:
        (folder / f"val2017/{picture.name}.jpg").write_bytes(picture.data)
    return folder


def indented(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write the JSON beside the images, to be named itself; first the annotations."""
    text = json.dumps(instances(pictures), indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "labels.json").write_text(text, encoding="utf-8")
    for picture in pictures:
        (folder / f"{picture.name}.jpg").write_bytes(picture.data)
    return folder / "labels.json"


CASES = [
    Case("coco", "coco", write_coco, labels=False),
    Case("coco-masks", "coco", write_coco, {"masks": "classes"}, labels=False),
    Case("coco-json", "coco", indented, labels=False),
]
