"""Objects in Examples, as TensorFlow's Object Detection API writes them.

``image/object/bbox/{xmin,ymin,xmax,ymax}`` are lists of floats, parts of the picture's width and
height; ``image/object/class/{label,text}`` the objects' classes, by number and by name.  Source:
``research/object_detection/dataset_tools`` and ``protos/string_int_label_map.proto`` of
``github.com/tensorflow/models``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field

from ..annotations.annotated import check_parts, frame_of
from ..class_names import MOST_CLASSES
from ..fields import BOXES
from ..protobuf import message_class
from .examples import values_of

__all__ = ["OBJECTS", "Objects", "classes_of_objects", "has_objects", "read_label_map"]

_BOX = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_SIZE = ("image/height", "image/width")
OBJECTS = (*_BOX, _LABEL, _TEXT)
"""The features that are read."""

_LARGEST_MAP = 64 << 20
_LABEL_MAP = {
    "Item": [("name", 1, "string"), ("id", 2, "int64"), ("display_name", 3, "string")],
    "LabelMap": [("item", 1, "Item*")],
}


class Objects(NamedTuple):
    """How the objects of an Example become boxes and labels."""

    # Of the classes; None where only their numbers are known, which are then the labels
    names: tuple[str, ...] | None
    by_text: Mapping[str, int]  # Class by the text of an object
    by_number: Mapping[int, int]  # Class by its number; asked before the text
    check_size: bool

    @property
    def fields(self) -> dict[str, Field]:
        """The fields."""
        return {
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=self.names),
        }

    def values(self, example: Mapping[str, Any], image: bytes) -> tuple[Any, Any]:
        """Return boxes, in pixels of the image file, and labels.

        Raises ValueError if features have different lengths, or what cannot be.
        """
        sides = [_listed(example, name) for name in _BOX]
        counts = {len(side) for side in sides}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(_BOX)} have {sorted(counts)} values, not as many each")
        parts = np.array(sides, np.float64).T.reshape(-1, 4)
        check_parts(parts)
        size = [_listed(example, name) for name in _SIZE]
        said = (int(size[0][0]), int(size[1][0])) if all(map(len, size)) else None
        frame = frame_of(image, said, self.check_size)
        boxes = frame.boxes(parts * (frame.width, frame.height, frame.width, frame.height))
        return boxes.astype(np.float32), self._labels(example, len(parts))

    def _labels(self, example: Mapping[str, Any], count: int) -> Any:
        numbers, texts = _listed(example, _LABEL), _listed(example, _TEXT)
        if len(numbers) == count and (self.by_number or self.names is None):
            if self.names is None:
                return np.array(numbers, np.int64)
            found = [self.by_number.get(number) for number in numbers]
            shown: Sequence[Any] = numbers
        elif len(texts) == count:
            shown = [text.decode("utf-8", "replace") for text in texts]
            found = [self.by_text.get(text) for text in shown]
        else:
            raise ValueError(
                f"{count} boxes, {len(numbers)} values of {_LABEL} and {len(texts)} of {_TEXT}"
            )
        if None in found:
            raise ValueError(f"the class {shown[found.index(None)]!r} is none of those known")
        return np.array(found, np.int64)


def has_objects(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether Examples have boxes, as four features."""
    return any(all(name in example for name in _BOX) for example in examples)


def classes_of_objects(
    examples: Iterable[Mapping[str, Any]], place: object, check_size: bool
) -> Objects:
    """Return how objects are read, from the classes that all Examples have.

    Classes are numbered in the order of their own numbers, or of their names without these.

    Raises SourceError if a number has two names, or a name two numbers.
    """
    numbers: dict[str, int] = {}
    texts: set[str] = set()
    named = True
    for example in examples:
        own = [text.decode("utf-8", "replace") for text in _listed(example, _TEXT)]
        labels = _listed(example, _LABEL)
        named = named and (len(own) > 0 or len(labels) == 0)
        texts.update(own)
        for text, number in zip(own, labels, strict=False):
            if numbers.setdefault(text, number) != number:
                raise SourceError(
                    f"{place}: the class {text!r} has the numbers {numbers[text]} and {number}. "
                    "Say which is which: --option label_map=FILE"
                )
        if len(texts) > MOST_CLASSES:
            raise SourceError(f"{place}: more than {MOST_CLASSES:,} names of classes")
    if not named or not texts:
        return Objects(None, {}, {}, check_size)
    if len(set(numbers.values())) < len(numbers):
        raise SourceError(
            f"{place}: two classes have one number: {sorted(numbers.items())[:8]}. Say which is "
            "which: --option label_map=FILE"
        )
    names = sorted(texts, key=lambda text: (numbers.get(text, 1 << 63), text))
    return Objects(tuple(names), {name: k for k, name in enumerate(names)}, {}, check_size)


def read_label_map(path: str, check_size: bool) -> Objects:
    """Return how objects are read, from a ``label_map.pbtxt``.

    Raises OptionError if there is no such file, or it is no label map.
    """
    from google.protobuf import text_format

    message = message_class("fastdata_label_map", _LABEL_MAP, "LabelMap", "tfrecord")()
    try:
        if os.path.getsize(path) > _LARGEST_MAP:
            raise OptionError(f"label_map={path}: too large for a list of classes")
        text = read_regular(path).decode("utf-8")
        text_format.Parse(text, message, allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise OptionError(f"label_map={path}: cannot be read as a label map: {error}") from error
    items = sorted(message.item, key=lambda item: item.id)
    numbers = [item.id for item in items]
    names = [item.display_name or item.name for item in items]
    if not items or len(set(numbers)) < len(items) or len(set(names)) < len(items):
        raise OptionError(
            f"label_map={path}: expected items, each with a name and an id of its own"
        )
    by_text = {item.name: k for k, item in enumerate(items) if item.name}
    by_text |= {name: k for k, name in enumerate(names)}
    return Objects(tuple(names), by_text, {n: k for k, n in enumerate(numbers)}, check_size)


def _listed(example: Mapping[str, Any], name: str) -> Sequence[Any]:
    return values_of(example[name]) if name in example else ()
