"""The XML files of Pascal VOC: the objects of an image.

Files of strangers may declare no document type: so they have no entities, and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from ..class_names import MOST_CLASSES
from .annotated import frame_of

__all__ = ["VocReader", "parse_xml", "survey"]

_LARGEST = 4 << 20
_FLAGS = {"": False, "0": False, "1": True, "Unspecified": False}


@dataclass(frozen=True)
class VocReader:
    """How a worker reads an image, its annotation file and, if there is one, its mask."""

    classes: Mapping[str, int]  # numbers by their names
    origin: int  # number of the first row and column of pixels: 1 or 0
    check_size: bool
    empty: bool  # whether an image without an annotation file has no objects
    boxed: bool = True  # whether annotation files are read

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and object."""
        image, annotation, *masks = files
        data = read_regular(image)
        values: dict[str, Any] = {"image": data}
        if masks:
            values["mask"] = read_regular(masks[0])
        if self.boxed:
            values |= self._objects(data, Path(annotation))
        return values

    def _objects(self, data: bytes, path: Path) -> dict[str, Any]:
        try:
            root = parse_xml(read_regular(path), path.name)
        except FileNotFoundError:
            if not self.empty:
                raise SourceError(
                    f"it has no annotation file {path} (--option empty=true takes "
                    "such images for ones without objects)"
                ) from None
            root = Element("annotation")
        boxes, labels, difficult, truncated = [], [], [], []
        for number, element in enumerate(root.findall("object"), 1):
            try:
                boxes.append(_box(element, self.origin))
                labels.append(self._label(element))
                difficult.append(_flag(element, "difficult"))
                truncated.append(_flag(element, "truncated"))
            except ValueError as error:
                raise SourceError(f"{path.name}, object {number}: {error}") from None
        frame = frame_of(data, _size(root, path.name), self.check_size)
        placed = frame.boxes(np.array(boxes, np.float64).reshape(-1, 4))
        return {
            "boxes": placed.astype(np.float32),
            "labels": np.array(labels, np.int64),
            "difficult": np.array(difficult, bool),
            "truncated": np.array(truncated, bool),
        }

    def _label(self, element: Element) -> int:
        name = _text(element, "name")
        if name not in self.classes:
            raise ValueError(f"its name is {name!r:.80}, which is none of the classes")
        return self.classes[name]


class _Builder(TreeBuilder):
    """Refuses a document type, before any of its entities is read."""

    def doctype(self, *_: Any) -> None:
        raise SourceError("declares a document type; such files are not read")


def parse_xml(data: bytes, name: str) -> Element:
    """Return the root of a document."""
    try:
        if len(data) > _LARGEST:
            raise SourceError(f"{len(data):,} bytes are too many for an annotation")
        parser = XMLParser(target=_Builder())
        parser.feed(data)
        return parser.close()
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    except (ParseError, ValueError, LookupError) as error:  # LookupError: its encoding
        raise SourceError(f"{name}: no sound XML: {error}") from error


def survey(paths: Iterable[str]) -> tuple[set[str], float]:
    """Return the classes of all objects, and the least number at which a box begins."""
    found: set[str] = set()
    least = math.inf
    for path in paths:
        with contextlib.suppress(OSError, SourceError):  # the worker that reads it rejects it
            root = parse_xml(read_regular(path), path)
            found |= {_text(element, "name") for element in root.iterfind("object")} - {""}
            for box in root.iterfind("object/bndbox"):
                for side in ("xmin", "ymin"):
                    with contextlib.suppress(ValueError):
                        least = min(least, _number(box, side))
        if len(found) > MOST_CLASSES:
            break  # too many for classes: the caller refuses them
    return found, least


def _text(element: Element, name: str) -> str:
    return unicodedata.normalize("NFC", (element.findtext(name) or "").strip())


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
