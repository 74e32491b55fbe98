"""Objects in Examples, as TensorFlow's Object Detection API writes them.

``image/object/bbox/{xmin,ymin,xmax,ymax}`` are lists of floats, parts of the picture's width and
height; ``image/object/class/{label,text}`` are the numbers and the names of the classes.  Source:
``research/object_detection/dataset_tools`` of ``github.com/tensorflow/models``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field

from ..annotations.annotated import check_parts, frame_of
from ..class_names import MOST_CLASSES
from ..fields import BOXES
from .examples import values_of

__all__ = ["OBJECTS", "Objects", "class_names", "has_objects"]

_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_SIZE = ("image/height", "image/width")
OBJECTS = {*_SIDES, _LABEL, _TEXT}
"""The features that are read."""


class Objects(NamedTuple):
    """How the objects of an Example become boxes and labels."""

    names: tuple[str, ...] | None  # of the classes; without them, labels are the file's numbers
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
        counts = {len(side) for side in sides}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(_SIDES)} have {sorted(counts)} values, not as many each")
        parts = np.array(sides, np.float64).T.reshape(-1, 4)
        check_parts(parts)
        size = [_listed(example, name) for name in _SIZE]
        said = (int(size[0][0]), int(size[1][0])) if all(map(len, size)) else None
        frame = frame_of(image, said, self.check_size)
        boxes = frame.boxes(parts * (frame.width, frame.height, frame.width, frame.height))
        return boxes.astype(np.float32), self._labels(example, len(parts))

    def _labels(self, example: Mapping[str, Any], count: int) -> Any:
        found, texts = list(_listed(example, _LABEL)), _listed(example, _TEXT)
        if self.names is not None and len(texts) == count:
            known = {name: number for number, name in enumerate(self.names)}
            shown = [text.decode("utf-8", "replace") for text in texts]
            unknown = [text for text in shown if text not in known]
            if unknown:
                raise ValueError(f"the class {unknown[0]!r} is not known")
            found = [known[text] for text in shown]
        if len(found) != count:
            raise ValueError(
                f"{count} boxes, {len(found)} values of {_LABEL} and {len(texts)} of {_TEXT}"
            )
        return np.array(found, np.int64)


def has_objects(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether Examples have boxes, as four features."""
    return any(all(name in example for name in _SIDES) for example in examples)


def class_names(examples: Iterable[Mapping[str, Any]], place: object) -> tuple[str, ...] | None:
    """Return the names of the classes that all Examples have, or None.

    They are in the order of their own numbers, or sorted without these.

    Raises SourceError if a number has two names, or a name two numbers.
    """
    numbers: dict[str, int] = {}
    texts: set[str] = set()
    named = True
    remedy = "Say which is which: --option classes=FILE"
    for example in examples:
        own = [text.decode("utf-8", "replace") for text in _listed(example, _TEXT)]
        labels = _listed(example, _LABEL)
        named = named and (len(own) > 0 or len(labels) == 0)
        texts.update(own)
        for text, number in zip(own, labels, strict=False):
            if numbers.setdefault(text, number) != number:
                raise SourceError(
                    f"{place}: the class {text!r} has the numbers {numbers[text]} and {number}. "
                    f"{remedy}"
                )
        if len(texts) > MOST_CLASSES:
            raise SourceError(f"{place}: more than {MOST_CLASSES:,} names of classes")
    if not named or not texts:
        return None
    if len(set(numbers.values())) < len(numbers):
        shown = sorted(numbers.items())[:8]
        raise SourceError(f"{place}: two classes have one number: {shown}. {remedy}")
    return tuple(sorted(texts, key=lambda text: (numbers.get(text, 1 << 63), text)))


def _listed(example: Mapping[str, Any], name: str) -> Sequence[Any]:
    return values_of(example[name]) if name in example else ()
