"""Columns of objects, ``{"bbox": [[x, y, w, h], ...], "categories": [...]}``: boxes and classes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field

from ..class_names import check_number
from ..string_table import StringTable
from .roles import LABELS

__all__ = ["ObjectCells"]

_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = (
    "category", "categories", "category_id", "category_ids", "labels", "classes", *LABELS,
)  # fmt: skip


class ObjectCells:
    """The objects of each row, kept as text.

    labelled: whether objects have classes.
    """

    def __init__(self, classes: tuple[str, ...] | None = None) -> None:
        self.texts, self._classes = StringTable(), classes
        self._names: set[str] = set()
        self._keys: tuple[str, str] = ("", "")
        self._numbers: dict[str, int] | None = None

    def append(self, cell: str) -> None:
        """Add the objects of a row."""
        self.texts.append(cell)
        try:
            value = json.loads(cell or "{}")
        except (ValueError, RecursionError):
            return  # the row is rejected when it is read
        if isinstance(value, dict):
            boxes = next((key for key in _BOXES if key in value), self._keys[0])
            labels = next((key for key in _CLASSES if key in value), self._keys[1])
            self._keys = (boxes, labels)
            if isinstance(value.get(labels), list):
                self._names |= {label for label in value[labels] if isinstance(label, str)}

    @property
    def labelled(self) -> bool:
        return bool(self._keys[1])

    def fields(self) -> dict[str, Field]:
        """Return the fields of boxes and classes."""
        if not self._keys[0]:
            raise SourceError("the column 'objects' has no bbox; take it out, or rename it")
        names = self._classes or tuple(sorted(self._names)) or None
        self._numbers = {name: k for k, name in enumerate(names or ())}
        fields: dict[str, Field] = {"boxes": ArrayField("float32", (None, 4), boxes=True)}
        if self.labelled:
            fields["labels"] = ArrayField("int64", (None,), classes=names)
        return fields

    def __getitem__(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return boxes, shape [n, 4], and classes, shape [n], of a row."""
        value = json.loads(self.texts[index] or "{}")
        if not isinstance(value, dict):
            raise ValueError(f"its objects are {str(value)[:60]!r}, not boxes and classes")
        boxes = np.array(value.get(self._keys[0]) or np.zeros((0, 4)), np.float64)
        labels = value.get(self._keys[1]) or []
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not isinstance(labels, list):
            raise ValueError(f"its boxes have the shape {boxes.shape}, not n x 4")
        if self.labelled and len(labels) != len(boxes):
            raise ValueError(f"it has {len(boxes)} boxes and {len(labels)} classes")
        return boxes, np.array([self._number(label) for label in labels], np.int64)

    def _number(self, label: Any) -> int:
        assert self._numbers is not None
        if isinstance(label, str) and label in self._numbers:
            return self._numbers[label]
        if isinstance(label, int) and not isinstance(label, bool):
            if self._classes is not None:
                check_number(label, self._classes, "category")
            return label
        raise ValueError(f"an object's class is {str(label)[:60]!r}, which is none of the classes")
