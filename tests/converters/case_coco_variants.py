"""Variants of COCO by ``json`` and PIL: keypoints, LVIS, iNaturalist, Roboflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from case_coco import instances
from cases import CLASSES, Case, Picture

__all__ = ["CASES", "inaturalist", "keypoints", "lvis", "roboflow"]

IDS = (3, 18, 90)


def images(pictures: Sequence[Picture], folder: Path, place: str = "") -> list[dict[str, Any]]:
    """Write images; return their entries."""
    entries = []
    for k, p in enumerate(pictures):
        path = folder / place / f"{p.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(p.data)
        height, width = p.pixels.shape[:2]
        entries.append({"id": k + 1, "file_name": path.name, "height": height, "width": width})
    return entries


def categories() -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in zip(IDS, CLASSES, strict=True)]


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def keypoints(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a file of two keypoints an object."""
    entries = images(pictures, folder, "val2017")
    write(
        folder / "annotations/person_keypoints_val2017.json",
        images=entries,
        annotations=[
            {
                "id": k, "image_id": e["id"], "category_id": 1, "bbox": [4, 5, 20, 10],
                "num_keypoints": 1, "keypoints": [12, 10, 2, 0, 0, 0],
            }
            for k, e in enumerate(entries)
        ],
        categories=[
            {"id": 1, "name": "person", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
        ],
    )  # fmt: skip
    return folder


def lvis(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write LVIS: images have addresses, and classes that are not in them."""
    entries = images(pictures, folder, "train2017")
    for k, entry in enumerate(entries):
        name = entry.pop("file_name")
        entry["coco_url"] = f"http://images.cocodataset.org/train2017/{name}"
        entry["neg_category_ids"] = [90, 3][: k % 3]
        entry["not_exhaustive_category_ids"] = [18]
    content = instances(pictures)
    for k, entry in enumerate(sorted(content["annotations"], key=lambda a: a["id"])):
        entry["image_id"] = k + 1
        del entry["iscrowd"]
    content["images"] = entries
    write(folder / "lvis_v1_train.json", **content)
    return folder


def inaturalist(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write iNaturalist: a class an image."""
    entries = images(pictures, folder, "train_val2019/Birds")
    for entry in entries:
        entry["file_name"] = f"train_val2019/Birds/{entry['file_name']}"
    annotations = [
        {"id": k, "image_id": e["id"], "category_id": IDS[p.label]}
        for k, (e, p) in enumerate(zip(entries, pictures, strict=True))
    ]
    write(
        folder / "train2019.json",
        images=entries, annotations=annotations, categories=categories(),
    )  # fmt: skip
    return folder


def roboflow(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write what Roboflow exports: a file in each split."""
    half = len(pictures) // 2
    for split, some in (("train", pictures[:half]), ("valid", pictures[half:])):
        content = instances(some)
        content["images"] = [
            {**entry, "id": content["images"][k]["id"]}
            for k, entry in enumerate(images(some, folder, split))
        ]
        write(folder / split / "_annotations.coco.json", **content)
    return folder


CASES = [
    Case("coco-keypoints", "coco", keypoints, labels=False),
    Case("coco-lvis", "coco", lvis, labels=False),
    Case("coco-inaturalist", "coco", inaturalist),
    Case("coco-roboflow", "coco", roboflow, {"masks": "instances"}, labels=False),
]
