"""Objects in Examples, as TensorFlow's Object Detection API writes them.

``image/object/bbox/{xmin,ymin,xmax,ymax}`` are lists of floats, parts of the picture's width and
height; ``image/object/class/{label,text}`` are the numbers and the names of the classes.  Source:
``research/object_detection/dataset_tools`` of ``github.com/tensorflow/models``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.schema import ArrayField, Field

from ..annotations.annotated import check_parts, frame_of
from ..class_names import numbered
from ..fields import BOXES
from .examples import values_of

__all__ = ["OBJECTS", "Objects", "class_texts", "has_objects"]

_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_SIZE = ("image/height", "image/width")
OBJECTS = {*_SIDES, _LABEL, _TEXT}
"""The features that are read."""


class Objects(NamedTuple):
    """How the objects of an Example become boxes and labels."""

    names: tuple[str, ...] | None  # of the classes
    named: bool  # whether records have the names of their classes, which count; else numbers do
    check_size: bool

    @property
    def fields(self) -> dict[str, Field]:
        """The fields."""
        return {"boxes": BOXES, "labels": ArrayField("int64", (None,), classes=self.names)}

    def values(self, example: Mapping[str, Any], image: bytes) -> tuple[Any, Any]:
        """Return boxes, in pixels of the image file, and labels.

        Raises ValueError if features have different lengths or impossible values.
        """
        sides = [_listed(example, name) for name in _SIDES]
        classes = list(_listed(example, _TEXT if self.named else _LABEL))
        counts = [*map(len, sides), len(classes)]
        if len(set(counts)) > 1:
            raise ValueError(
                f"{', '.join(_SIDES)} and the classes have {counts} values, not as many each"
            )
        parts = np.array(sides, np.float64).T.reshape(-1, 4)
        check_parts(parts)
        size = [int(value) for name in _SIZE for value in _listed(example, name)[:1]]
        said = (size[0], size[1]) if len(size) == 2 else None
        frame = frame_of(image, said, self.check_size)
        boxes = frame.boxes(parts * (frame.width, frame.height, frame.width, frame.height))
        if self.named:
            assert self.names is not None
            known = numbered(self.names)
            unknown = [name for name in map(_text, classes) if name not in known]
            if unknown:
                raise ValueError(f"the class {unknown[0]!r} is not known")
            classes = [known[_text(name)] for name in classes]
        return boxes.astype(np.float32), np.array(classes, np.int64)


def has_objects(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether Examples have boxes, as four features."""
    return any(all(name in example for name in _SIDES) for example in examples)


def class_texts(example: Mapping[str, Any]) -> list[str]:
    """Return the names that an Example has for the classes of its objects."""
    return [_text(name) for name in _listed(example, _TEXT)]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _listed(example: Mapping[str, Any], name: str) -> Sequence[Any]:
    return values_of(example[name]) if name in example else ()
