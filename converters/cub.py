"""CUB-200-2011: birds, with their class, a box each, and a split, in tables by number of image.

::

    images.txt               1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18111.jpg
    image_class_labels.txt   1 1
    train_test_split.txt     1 0                 (1 is training)
    bounding_boxes.txt       1 60.0 27.0 325.0 304.0
    classes.txt              1 001.Black_footed_Albatross
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import Field, ScalarField

from .base import Deferred
from .reading.fields import BOXES
from .reading.image_list import ImageListSource
from .reading.lists.boxed_image import BoxForm
from .reading.lists.rows import keyed_lines, rows_by_key
from .reading.locations import path_inside
from .reading.options import Option

__all__ = ["CubSource"]

_IMAGES, _LABELS, _CLASSES = "images.txt", "image_class_labels.txt", "classes.txt"
_SPLIT, _BOXES = "train_test_split.txt", "bounding_boxes.txt"
_SPLITS = ("train", "test")


class CubSource(ImageListSource):
    """Birds; fields ``image``, ``boxes`` (one), ``label`` and ``split``."""

    name = "cub"
    summary = "CUB-200-2011: images.txt, image_class_labels.txt, bounding_boxes.txt"
    parts = ("images.txt", "classes.txt", "image_class_labels.txt")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _root(Path(location)) is not None

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[str | None, Option("take only this split", _SPLITS)] = None,
    ) -> dict[str, Field]:
        root = _root(location)
        if root is None:
            raise SourceError(f"{location}: expected {_IMAGES}, {_LABELS} and {_CLASSES} in it")
        self.root = root / "images"
        self._boxes = array("d")
        names = (_IMAGES, _LABELS, _SPLIT, _BOXES)
        if split is not None and not (root / _SPLIT).is_file():
            raise SourceError(f"split={split}: there is no {root / _SPLIT}")
        there = [name for name in names if (root / name).is_file()]
        self.beside = [root / name for name in (*there, _CLASSES)]
        classes = dict(keyed_lines(root / _CLASSES))
        numbers = {key: k for k, key in enumerate(classes)}
        found: dict[str, Field] = {}
        if _BOXES in there:
            found["boxes"] = BOXES
            self.reader = BoxForm("xywh", "pixels")
        found["label"] = ScalarField(classes=tuple(classes.values()))
        if _SPLIT in there and split is None:
            found["split"] = ScalarField(classes=_SPLITS)
        for key, cells in rows_by_key({root / name: keyed_lines(root / name) for name in there}):
            row = dict(zip(there, cells, strict=True))
            of_split = {"1": 0, "0": 1}.get(row.get(_SPLIT, "1"), -1)
            if split is not None and of_split != _SPLITS.index(split):
                continue
            try:
                path_inside(self.root, row[_IMAGES])
                if of_split < 0:
                    raise ValueError(f"{_SPLIT} has {row[_SPLIT]!r:.40} of it, neither 0 nor 1")
                box = [float(word) for word in row.get(_BOXES, "0 0 0 0").split()]
                if len(box) != 4:
                    raise ValueError(f"{_BOXES} has {row[_BOXES]!r:.60} of it, not four numbers")
                label, place = numbers[row[_LABELS]], len(self._boxes) // 4
                self.add(row[_IMAGES], label=label, split=of_split, box=place)
                self._boxes.extend(box)
            except (ValueError, KeyError) as error:
                shown = error if isinstance(error, ValueError) else f"no class {error}"
                self.reject(row[_IMAGES], f"image {key}: {shown}")
        return found

    def values(self, files: list[str], numbers: dict[str, Any]) -> tuple[Any, ...] | Deferred:
        place = 4 * numbers["box"]
        numbers["boxes"] = np.array(self._boxes[place : place + 4])
        return super().values(files, numbers)


def _root(folder: Path) -> Path | None:
    """Return the folder with the tables: this one, or the one in it that is called as usual."""
    for root in (folder, folder / "CUB_200_2011"):
        tables = all((root / name).is_file() for name in (_IMAGES, _LABELS, _CLASSES))
        if tables and (root / "images").is_dir():
            return root
    return None
