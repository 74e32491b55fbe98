"""Write tests/converters/fixtures/coco: regions, and the masks that pycocotools makes of them.

Made with pycocotools 2.0.11, NumPy 2.4.6 and Pillow 13.0.0::

    python -m venv coco && coco/bin/pip install pycocotools==2.0.11 numpy==2.4.6 pillow==13.0.0
    coco/bin/python scripts/format_fixtures/make_coco.py

The folder is laid out as COCO's; ``expected/<id>-classes.png`` and ``-instances.png`` are the masks
as the converter describes them: crowds below, then the larger below the smaller.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as regions  # type: ignore[import-not-found,unused-ignore]

FOLDER = Path(__file__).resolve().parents[2] / "tests/converters/fixtures/coco"
CATEGORIES = {1: "person", 17: "cat", 90: "toothbrush"}


def polygon(random: np.random.Generator, height: int, width: int) -> list[float]:
    """Return a polygon, some of whose corners are outside of the picture."""
    corners = int(random.integers(3, 12))
    places = random.uniform(-0.15, 1.15, (corners, 2)) * [width, height]
    return [float(number) for number in np.round(places.ravel(), 2)]


def blob(random: np.random.Generator, height: int, width: int) -> np.ndarray[Any, Any]:
    """Return a region with holes and specks."""
    rows, columns = np.mgrid[:height, :width]
    centre = random.uniform(0.2, 0.8, 2) * [height, width]
    inside = np.hypot(rows - centre[0], columns - centre[1]) < random.uniform(6, 16)
    return np.asfortranarray(inside & (random.random((height, width)) < 0.9), dtype=np.uint8)


def annotation(random: np.random.Generator, kind: int, size: tuple[int, int]) -> tuple[Any, Any]:
    """Return an annotation without its numbers, and its mask."""
    height, width = size
    if kind % 3 == 0:
        parts = [polygon(random, height, width) for _ in range(1 + kind % 2)]
        rle = regions.merge(regions.frPyObjects(parts, height, width))
        segmentation: Any = parts
    else:
        rle = regions.encode(blob(random, height, width))
        segmentation = {"size": list(size), "counts": rle["counts"].decode()}
    pixels = regions.decode(rle)
    crowd = kind % 3 == 2
    if crowd:  # as COCO has them: not compressed
        flat = pixels.ravel(order="F")
        bounds = np.flatnonzero(np.diff(flat)) + 1
        counts = np.diff([0, *bounds, flat.size]).tolist()
        segmentation = {"size": list(size), "counts": [0, *counts] if flat[0] else counts}
    entry = {
        "segmentation": segmentation,
        "area": float(regions.area(rle)),
        "iscrowd": int(crowd),
        "bbox": [float(number) for number in regions.toBbox(rle)],
        "category_id": list(CATEGORIES)[kind % len(CATEGORIES)],
    }
    return entry, pixels


def main() -> None:
    random = np.random.default_rng(2017)
    for name in ("annotations", "val2017", "expected"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number in range(5):
        size = int(random.integers(30, 70)), int(random.integers(30, 70))
        identity = 9 + 100 * number
        file = f"{identity:012}.png"
        Image.new("RGB", size[::-1], (number, 80, 160)).save(FOLDER / "val2017" / file)
        images.append(
            {"id": identity, "file_name": file, "height": size[0], "width": size[1], "license": 3}
        )
        made = [annotation(random, number + k, size) for k in range(number + 1)]
        order = sorted(
            range(len(made)), key=lambda k: (1 - made[k][0]["iscrowd"], -made[k][0]["area"])
        )
        classes, instances = np.zeros((2, *size), np.uint8)
        for k in order:
            entry, pixels = made[k]
            classes[pixels == 1] = 1 + list(CATEGORIES).index(entry["category_id"])
            instances[pixels == 1] = 1 + k
        Image.fromarray(classes).save(FOLDER / f"expected/{identity}-classes.png")
        Image.fromarray(instances).save(FOLDER / f"expected/{identity}-instances.png")
        for k, (entry, _) in enumerate(made):
            annotations.append({**entry, "image_id": identity, "id": 1000 * identity + k})
    categories = [{"id": k, "name": name, "supercategory": "x"} for k, name in CATEGORIES.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = FOLDER / "annotations/instances_val2017.json"
    path.write_text(json.dumps({"info": {"year": 2017}, "licenses": [], **content}) + "\n")


if __name__ == "__main__":
    main()
