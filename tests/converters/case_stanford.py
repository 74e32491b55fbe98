"""Stanford Cars and Dogs: their folders, and lists in files of MATLAB's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from case_mat import cells, mat5, matrix, structs, text
from cases import CLASSES, Case, Picture

__all__ = ["CASES", "box_of", "write_annotations", "write_cars", "write_devkit", "write_dogs"]


def number(value: int) -> bytes:
    return matrix("", np.array([[value]], np.uint16))


def box_of(picture: Picture) -> tuple[int, int, int, int]:
    """Return the box of a car, of the pixels within, from 1."""
    return 1 + picture.label, 2, 10, 12


def annotation(picture: Picture) -> dict[str, bytes]:
    names = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
    box = {name: number(value) for name, value in zip(names, box_of(picture), strict=True)}
    return {**box, "class": number(picture.label + 1)}


def write_cars(root: Path, pictures: Sequence[Picture]) -> Path:
    """Write the dataset as it is all in one; every third image is for testing."""
    (root / "car_ims").mkdir()
    rows = []
    for k, picture in enumerate(pictures):
        name = f"car_ims/{k + 1:06}.jpg"
        (root / name).write_bytes(picture.data)
        rows.append(
            {"relative_im_path": text(name), **annotation(picture), "test": number(k % 3 == 2)}
        )
    names = cells("class_names", [text(name) for name in CLASSES])
    mat5(root / "cars_annos.mat", structs("annotations", rows), names, compressed=True)
    return root


def write_devkit(root: Path, pictures: Sequence[Picture]) -> Path:
    """Write the dataset as its challenge had it: the second half is for testing."""
    (root / "devkit").mkdir()
    half = len(pictures) // 2
    for split, name, part in (
        ("train", "devkit/cars_train_annos.mat", pictures[:half]),
        ("test", "cars_test_annos_withlabels.mat", pictures[half:]),
    ):
        (root / f"cars_{split}").mkdir()
        rows = []
        for k, picture in enumerate(part):
            (root / f"cars_{split}" / f"{k + 1:05}.jpg").write_bytes(picture.data)
            rows.append({**annotation(picture), "fname": text(f"{k + 1:05}.jpg")})
        mat5(root / name, structs("annotations", rows))
    mat5(root / "devkit/cars_meta.mat", cells("class_names", [text(name) for name in CLASSES]))
    return root


def write_dogs(root: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    for split, start, part in (("train", 0, pictures[:half]), ("test", half, pictures[half:])):
        names = []
        for k, picture in enumerate(part, start):
            name = f"n0208562{picture.label}-{CLASSES[picture.label]}/{k:06}.jpg"
            (root / "Images" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "Images" / name).write_bytes(picture.data)
            names.append(text(name))
        labels = np.array([[p.label + 1.0] for p in part])
        files = cells("file_list", names)
        mat5(root / f"{split}_list.mat", files, matrix("labels", labels), compressed=True)
    return root


def write_annotations(root: Path, pictures: Sequence[Picture], first: int = 1) -> Path:
    """Write Dogs with boxes: as many as the label says and one, from pixel `first`."""
    root.mkdir(exist_ok=True)
    write_dogs(root, pictures)
    height, width, _ = pictures[0].pixels.shape
    for k, picture in enumerate(pictures):
        name = CLASSES[picture.label]
        path = root / f"Annotation/n0208562{picture.label}-{name}/{k:06}"
        path.parent.mkdir(parents=True, exist_ok=True)
        objects = "".join(
            f"<object><name>{name}</name><pose>Unspecified</pose><truncated>0</truncated>"
            f"<difficult>0</difficult><bndbox><xmin>{first + each}</xmin><ymin>{first}</ymin>"
            "<xmax>20</xmax><ymax>15</ymax></bndbox></object>"
            for each in range(picture.label + 1)
        )
        path.write_text(
            f"<annotation><folder>0208562{picture.label}</folder><filename>{k:06}</filename><size>"
            f"<width>{width}</width><height>{height}</height><depth>3</depth></size>{objects}"
            "</annotation>\n"
        )
    return root


CASES = [
    Case("stanford-cars", "stanford", write_cars),
    Case("stanford-devkit", "stanford", write_devkit),
    Case("stanford-dogs", "stanford", write_dogs),
    Case("stanford-dogs-boxes", "stanford", write_annotations),
]
