"""Write small annotated datasets as Datumaro exports them, and what they have.

    pip install datumaro==1.13.12
    python scripts/format_fixtures/make_annotated.py tests/converters/fixtures/annotated

One dataset of two pictures, each with boxes, a polygon and a mask, goes out in every format that
Datumaro writes and fastdata reads.  ``expected.json`` has the boxes and their classes; ``masks``
the class numbers of the pixels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import datumaro
import numpy as np
from datumaro.components.annotation import Bbox, LabelCategories, Mask, MaskCategories, Points
from datumaro.components.media import Image

LABELS = ("background", "road", "car")
COLOURS = {0: (0, 0, 0), 1: (128, 64, 128), 2: (0, 0, 142)}
HEIGHT, WIDTH = 40, 48


def picture(seed: int) -> np.ndarray[Any, Any]:
    """Return something like a photograph."""
    random = np.random.default_rng(seed)
    grid = random.integers(0, 255, (5, 6, 3)).astype(np.uint8)
    noise = random.integers(-12, 12, (HEIGHT, WIDTH, 3))
    smooth = cv2.resize(grid, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth.astype(int) + noise, 0, 255).astype(np.uint8)


def numbers(seed: int) -> np.ndarray[Any, Any]:
    """Return the class number of each pixel."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[20 + seed :] = 1
    mask[25 : 35 - seed, 10 + seed : 30] = 2
    return mask


def boxes(seed: int) -> list[tuple[int, list[float]]]:
    """Return class and left, top, right, bottom of each box."""
    return [(2, [10.0 + seed, 25.0, 30.0, 35.0 - seed]), (1, [0.0, 20.0 + seed, 48.0, 40.0])]


def dataset(kind: str) -> Any:
    """Return the dataset with annotations of one kind."""
    items = []
    for seed in range(2):
        found: list[Any] = []
        if kind == "masks":
            for label in (0, 1, 2):
                found.append(
                    Mask(numbers(seed) == label, label=label, id=label + 1, group=label + 1)
                )
        for number, (label, (left, top, right, bottom)) in enumerate(boxes(seed)):
            given = {"label": label, "id": number + 1, "group": number + 1}
            if kind in ("boxes", "points"):
                found.append(Bbox(left, top, right - left, bottom - top, **given))
            if kind == "points":
                found.append(Points([left + 2, top + 2, right - 2, bottom - 2], [2, 1], **given))
        items.append(
            datumaro.DatasetItem(
                id=f"pic_{seed}",
                subset=("train", "val")[seed],
                media=Image.from_numpy(data=picture(seed)),
                annotations=found,
            )
        )
    categories: dict[Any, Any] = {
        datumaro.AnnotationType.label: LabelCategories.from_iterable(LABELS),
        datumaro.AnnotationType.mask: MaskCategories(COLOURS),
    }
    if kind == "points":
        points = datumaro.PointsCategories.from_iterable([(k, ["nose", "tail"]) for k in range(3)])
        categories[datumaro.AnnotationType.points] = points
    return datumaro.Dataset.from_iterable(items, categories=categories, media_type=Image)


def main(root: Path) -> None:
    """Write all formats."""
    root.mkdir(parents=True)
    for kind, names in (
        ("boxes", ("yolo", "yolo_ultralytics", "coco_instances", "voc_detection")),
        ("points", ("coco_person_keypoints",)),
        ("masks", ("camvid", "cityscapes", "voc_segmentation")),
    ):
        for name in names:
            dataset(kind).export(str(root / name), name, save_media=True, image_ext=".jpg")
    expected = {f"pic_{seed}": boxes(seed) for seed in range(2)}
    (root / "expected.json").write_text(json.dumps(expected) + "\n")
    (root / "masks").mkdir()
    for seed in range(2):
        cv2.imwrite(str(root / f"masks/pic_{seed}.png"), numbers(seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
