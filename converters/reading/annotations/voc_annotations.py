"""One image of Pascal VOC's: its annotation file, read and made into values by a worker."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from ...base import Deferred
from .annotated import frame_of
from .safe_xml import parse_xml

__all__ = ["AnnotatedImage", "Plan", "class_names", "first_pixel", "survey"]

_FLAGS = {"": False, "0": False, "1": True, "Unspecified": False}


class Plan(NamedTuple):
    """What all images of a dataset share."""

    fields: tuple[str, ...]  # in the schema's order
    classes: Mapping[str, int]  # from names to numbers
    origin: int  # 1, 0; number of the first row and column of pixels
    check_size: bool
    empty: bool  # whether an image without an annotation file has no objects


class AnnotatedImage(Deferred):
    """Paths of an image, its annotation file and its mask; further values, such as its split."""

    def __init__(
        self,
        image: str,
        annotation: str,
        mask: str | None,
        plan: Plan,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self.image, self.annotation, self.mask, self.plan = image, annotation, mask, plan
        self.others = others or {}

    def load(self) -> tuple[Any, ...]:
        """Read the image and its annotations."""
        data = read_regular(self.image)
        values: dict[str, Any] = {"image": data}
        if self.mask is not None:
            values["mask"] = read_regular(self.mask)
        if "boxes" in self.plan.fields:
            values |= self._objects(data)
        values |= self.others
        return tuple(values[name] for name in self.plan.fields)

    def _objects(self, data: bytes) -> dict[str, Any]:
        path = Path(self.annotation)
        try:
            root = parse_xml(read_regular(path), path.name)
        except FileNotFoundError:
            if not self.plan.empty:
                raise SourceError(
                    f"it has no annotation file {path} (--option empty=true takes "
                    "such images for ones without objects)"
                ) from None
            root = Element("annotation")
        boxes, labels, difficult, truncated = [], [], [], []
        for number, element in enumerate(root.findall("object"), 1):
            try:
                boxes.append(_box(element, self.plan.origin))
                labels.append(self._label(element))
                difficult.append(_flag(element, "difficult"))
                truncated.append(_flag(element, "truncated"))
            except ValueError as error:
                raise SourceError(f"{path.name}, object {number}: {error}") from None
        frame = frame_of(data, _size(root, path.name), self.plan.check_size)
        placed = frame.boxes(np.array(boxes, np.float64).reshape(-1, 4))
        return {
            "boxes": placed.astype(np.float32),
            "labels": np.array(labels, np.int64),
            "difficult": np.array(difficult, bool),
            "truncated": np.array(truncated, bool),
        }

    def _label(self, element: Element) -> int:
        name = _text(element, "name")
        if name not in self.plan.classes:
            raise ValueError(f"its name is {name!r:.80}, which is none of the classes")
        return self.plan.classes[name]


def class_names(data: bytes, name: str) -> set[str]:
    """Return the names of the classes that an annotation file has objects of."""
    names = {_text(element, "name") for element in parse_xml(data, name).findall("object")}
    return names - {""}


def first_pixel(data: bytes, name: str) -> float:
    """Return the least number of a row or column at which a box of an annotation file begins.

    Infinity where there is none.
    """
    least = math.inf
    for box in parse_xml(data, name).iterfind("object/bndbox"):
        for side in ("xmin", "ymin"):
            with contextlib.suppress(ValueError):  # the worker says what is the matter
                least = min(least, _number(box, side))
    return least


def survey(paths: Iterable[str]) -> tuple[set[str], float]:
    """Return the classes of all objects, and where the first box begins."""
    found: set[str] = set()
    least = math.inf
    for path in paths:
        with contextlib.suppress(OSError, SourceError):  # the worker says what is the matter
            data = read_regular(path)
            found |= class_names(data, path)
            least = min(least, first_pixel(data, path))
    return found, least


def _text(element: Element, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _flag(element: Element, name: str) -> bool:
    text = _text(element, name)
    if text not in _FLAGS:
        raise ValueError(f"its {name} is {text!r:.40}, neither 0 nor 1")
    return _FLAGS[text]


def _box(element: Element, origin: int) -> list[float]:
    """Return left, top, right, bottom; those of the file are of pixels within."""
    box = element.find("bndbox")
    if box is None:
        raise ValueError("it has no bndbox")
    left, top, right, bottom = (_number(box, name) for name in ("xmin", "ymin", "xmax", "ymax"))
    if right < left or bottom < top:
        raise ValueError(
            f"its bndbox from {left:g}, {top:g} to {right:g}, {bottom:g} is inside out"
        )
    return [left - origin, top - origin, right, bottom]


def _number(element: Element, name: str) -> float:
    text = _text(element, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < 1e9:
        raise ValueError(f"the {name} of its {element.tag} is {text!r:.40}, not a number")
    return value


def _size(root: Element, name: str) -> tuple[int, int] | None:
    """Return height and width as the file says them; None where it does not, or says 0."""
    size = root.find("size")
    if size is None:
        return None
    try:
        height, width = _number(size, "height"), _number(size, "width")
    except ValueError as error:
        raise SourceError(f"{name}: {error}") from None
    return (int(height), int(width)) if height >= 1 and width >= 1 else None
