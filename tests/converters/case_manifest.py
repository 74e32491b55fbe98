"""Lists of images, by Python's csv and json: ids, JSON Lines, blanks, boxes in rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from cases import CLASSES, Case, Picture

__all__ = ["CASES", "write_images", "write_rows"]


def write_images(folder: Path, pictures: Sequence[Picture]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / f"{picture.name}.jpg").write_bytes(picture.data)


def write_rows(path: Path, rows: Iterable[Sequence[object]], separator: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows(rows)
    return path


def ids(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a list of names without suffix, and the images in a folder beside it."""
    write_images(folder / "train_images", pictures)
    rows = [(p.name, CLASSES[p.label]) for p in pictures]
    return write_rows(folder / "train.csv", [("image_id", "label"), *rows])


def json_lines(folder: Path, pictures: Sequence[Picture]) -> Path:
    write_images(folder / "images", pictures)
    path = folder / "train.jsonl"
    rows = [{"image": f"images/{p.name}.jpg", "label": p.label} for p in pictures]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def json_list(folder: Path, pictures: Sequence[Picture]) -> Path:
    write_images(folder / "images", pictures)
    path = folder / "train.json"
    rows = [{"label": CLASSES[p.label], "path": f"images/{p.name}.jpg"} for p in pictures]
    path.write_text(json.dumps(rows, indent=1))
    return path


def blanks(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a list as Caffe has it."""
    write_images(folder / "val set", pictures)
    path = folder / "val.txt"
    path.write_text("".join(f"val set/{p.name}.jpg {p.label}\n" for p in pictures))
    return path


def box_rows(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a folder as Roboflow does: two boxes of each image, and of the first none."""
    write_images(folder, pictures)
    rows: list[Sequence[object]] = [
        ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
    ]
    for number, p in enumerate(pictures):
        height, width = p.pixels.shape[:2]
        for left in (2, 5):
            box = (left, 3, left + 9 + number % 3, 20) if number else ("", "", "", "")
            name = CLASSES[p.label] if number else ""
            rows.append((f"{p.name}.jpg", width, height, name, *box))
    write_rows(folder / "_annotations.csv", rows)
    return folder


CASES = [
    Case("manifest-ids", "manifest", ids),
    Case("manifest-jsonl", "manifest", json_lines),
    Case("manifest-json", "manifest", json_list),
    Case("manifest-blanks", "manifest", blanks),
    Case("manifest-boxes", "manifest", box_rows, labels=False),
]
