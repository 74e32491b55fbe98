"""Objects in Examples, as TensorFlow's Object Detection API and TensorFlow Datasets write them.

The API has ``image/object/bbox/{xmin,ymin,xmax,ymax}``, lists of floats, parts of the picture's
width and height, and the classes as ``image/object/class/{label,text}``.  A dataset of TensorFlow
Datasets has one list, ``objects/bbox``, of ymin, xmin, ymax and xmax of each object, and the
numbers of the classes in ``objects/label``.  Source: ``research/object_detection/dataset_tools`` of
``github.com/tensorflow/models``, ``core/features/bounding_boxes.py`` of ``tensorflow/datasets``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field

from ..annotations.annotated import check_parts, frame_of
from ..box_forms import BoxNumbers
from ..class_names import MOST_CLASSES
from ..fields import BOXES
from ..lists.boxed_image import BoxForm, box_form
from .examples import values_of

__all__ = ["Objects", "class_names", "find_objects"]

_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_SIZE = ("image/height", "image/width")


class Objects(NamedTuple):
    """How the objects of an Example become boxes and labels."""

    names: tuple[str, ...] | None  # of the classes; without them, labels are the file's numbers
    form: BoxForm
    boxes: str = ""  # the feature of all boxes; empty where there are the four `_SIDES`
    label: str = _LABEL  # the features of the classes; a text counts more than a number
    text: str = _TEXT

    @property
    def features(self) -> set[str]:
        """All features that are read."""
        return {*(_SIDES if not self.boxes else (self.boxes,)), self.label, self.text}

    @property
    def fields(self) -> dict[str, Field]:
        """The fields."""
        labels = ArrayField("int64", (None,), classes=self.names)
        return {"boxes": BOXES, **({"labels": labels} if self.label else {})}

    def values(self, example: Mapping[str, Any], image: bytes) -> tuple[Any, ...]:
        """Return boxes, in pixels of the image file, and labels.

        Raises ValueError if features have different lengths, or what cannot be.
        """
        boxes = self._boxes(example)
        size = [_listed(example, name) for name in _SIZE]
        said = (int(size[0][0]), int(size[1][0])) if all(map(len, size)) else None
        frame = frame_of(image, said, self.form.check_size)
        if self.form.unit == "normalised":
            check_parts(boxes)
            boxes = boxes * (frame.width, frame.height, frame.width, frame.height)
        found = frame.boxes(boxes).astype(np.float32)
        return (found, self._labels(example, len(boxes))) if self.label else (found,)

    def _boxes(self, example: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return boxes, N x 4: left, top, right, bottom."""
        if self.boxes:
            numbers = np.array(_listed(example, self.boxes), np.float64)
            if len(numbers) % 4:
                raise ValueError(f"{self.boxes} has {len(numbers)} values, which are no boxes")
            return BoxNumbers(self.form.form, "pixels").corners(numbers, 1, 1)
        sides = [_listed(example, name) for name in _SIDES]
        counts = {len(side) for side in sides}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(_SIDES)} have {sorted(counts)} values, not as many each")
        parts: np.ndarray[Any, np.dtype[np.float64]] = np.array(sides, np.float64).T.reshape(-1, 4)
        return parts

    def _labels(self, example: Mapping[str, Any], count: int) -> Any:
        numbers, texts = _listed(example, self.label), _listed(example, self.text)
        by_text = bool(self.names) and len(texts) == count and self.text != ""
        if not by_text and len(numbers) != count:
            raise ValueError(
                f"{count} boxes, {len(numbers)} values of {self.label} and {len(texts)} of "
                f"{self.text or 'texts'}"
            )
        if self.names is None:
            return np.array(numbers, np.int64)
        known = {name: number for number, name in enumerate(self.names)}
        shown = [t.decode("utf-8", "replace") for t in texts] if by_text else list(numbers)
        found = [known.get(one, -1) if by_text else one for one in shown]
        bad = [s for s, f in zip(shown, found, strict=True) if not 0 <= f < len(self.names)]
        if bad:
            raise ValueError(f"the class {bad[0]!r} is none of those known")
        return np.array(found, np.int64)


def find_objects(
    examples: Sequence[Mapping[str, Any]],
    known: Sequence[str],
    wanted: Sequence[str],
    check_size: bool,
    place: object,
) -> Objects | None:
    """Return how objects are read; None if the first Examples have none.

    known: features that are boxes of TensorFlow Datasets.
    wanted: the option ``boxes=``.

    Raises SourceError if a feature has boxes, and it is not known what their numbers are.
    """
    if any(all(side in example for side in _SIDES) for example in examples):
        return Objects(None, BoxForm("xyxy", "normalised", check_size))
    there = {name for example in examples for name in example}
    called = [n for n in sorted(there) if _may_be_boxes(n, examples)]
    boxes = next((name for name in (*known, *called) if name in there), "")
    if not boxes:
        return None
    form = box_form(wanted or ("yxyx", "normalised") * (boxes in known), check_size)
    if not (form.form and form.unit):
        raise SourceError(
            f"{place}: {boxes!r} may be boxes, and nothing says what their numbers are. Say it: "
            "--option boxes=FORM,UNIT (xyxy, xywh, cxcywh or yxyx; pixels or normalised). Or name "
            "the features to take: --option features=FIELD=FEATURE,..."
        )
    label = boxes.rpartition("/")[0] + "/label"
    return Objects(None, form, boxes, label if label in there else "", "")


def _may_be_boxes(name: str, examples: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a feature is called like boxes, and has four numbers for each."""
    rows = [_listed(example, name) for example in examples]
    return name.rpartition("/")[2] in ("bbox", "bboxes", "boxes") and not any(
        len(row) % 4 or (len(row) and isinstance(row[0], bytes)) for row in rows
    )


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
