"""CVAT for images 1.1: one XML file with the objects of all images.

::

    annotations.xml      <annotations><image name="0.jpg" width="640" height="480"><box .../>...
    images/0.jpg

The file may have any size: it is read once, for the offsets of each ``<image>``.  Workers read
these pieces again.

Source: https://docs.cvat.ai/docs/manual/advanced/formats/format-cvat/ (version 1.1), "Annotation".
CVAT shows pictures upright, and its coordinates refer to these.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular, read_regular
from fastdata.schema import ArrayField, Field, StringField

from .reading.annotations.annotated import upright_frame_of
from .reading.annotations.safe_xml import parse_xml
from .reading.annotations.shapes import (
    Shape,
    numbers,
    object_fields,
    object_values,
    of_bitmap,
    of_box,
    of_ellipse,
    of_polygon,
)
from .reading.class_names import numbered, read_class_names
from .reading.image_list import ImageListSource
from .reading.locations import first_bytes, path_inside
from .reading.options import CheckSize, ClassFile, PaintedMasks, SplitOption
from .reading.selection import left_out
from .reading.small_memory import StringTable
from .reading.spans import read_at
from .reading.splits import in_usual_order

__all__ = ["CvatSource"]

_LOOKED_AT = 20


class CvatSource(ImageListSource):
    """Images with the boxes and classes of their objects."""

    name = "cvat"
    summary = "CVAT for images 1.1: annotations.xml and images"
    parts = ("annotations.xml", "images")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return bool(_files_at(Path(location)))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        files = _files_at(location)
        if not files:
            raise SourceError(f"{location}: no file of CVAT's, as annotations.xml")
        if len(files) > 1:
            raise OptionError(f"{location}: pack one of {', '.join(map(str, files))}")
        path = files[0]
        index = CvatIndex(path)
        if not len(index.names):
            raise SourceError(f"{path}: has no images")
        subsets = in_usual_order({index.subsets[k] for k in range(len(index.names))})
        self.root, self.beside = path.parent, [path]
        self.choose_splits(subsets, split)
        for row in range(len(index.names)):
            if index.subsets[row] in self.splits:
                self._add(index, row)
        names = tuple(index.labels) if classes is None else read_class_names(classes)
        found = object_fields(masks, names)
        found["occluded"] = ArrayField("bool", (None,))
        if index.attributed:
            found["attributes"] = StringField()
        if index.tags:
            found["tags"] = ArrayField("int64", (None,), classes=tuple(index.tags))
        numbers, tags = numbered(names), numbered(index.tags)
        self.reader = CvatReader(str(path), numbers, tags, masks, check_size)
        shown = [f"{count:,} {kind}" for kind, count in sorted(index.left_out.items())]
        self.notes += left_out("of objects", shown)
        return {**found, **self.split_field()}

    def _add(self, index: CvatIndex, row: int) -> None:
        """Add an image, or why it cannot be."""
        name, subset = index.names[row], index.subsets[row]
        start, length = index.spans[2 * row : 2 * row + 2]
        try:
            for folder in ("images", os.path.join("images", subset), "", subset):
                if os.path.isfile(os.path.join(self.root, path_inside(folder, name))):
                    # The split's number is always there, also where there is no field of it.
                    number = self.splits.index(subset)
                    path = os.path.join(folder, name)
                    self.add(path, start=start, length=length, split=number)
                    return
            self.reject(name, f"there is no such image in {self.root / 'images'}")
        except SourceError as error:
            self.reject(name or f"image {row}", str(error))


def _files_at(path: Path) -> list[Path]:
    """Return the files of CVAT's that a location is, or has."""
    paths = [path]
    if path.is_dir():
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".xml"))
        paths = [path / name for name in names[:_LOOKED_AT]]
    found = [path for path in paths if path.is_file() and _is_cvat(path)]
    return [path for path in found if path.name == "annotations.xml"] or found


def _is_cvat(path: Path) -> bool:
    start = first_bytes(path, 1 << 16)
    return b"<annotations>" in start and any(s in start for s in (b"<version>1.", b"<meta>"))


# -- the file ----------------------------------------------------------------------------


_AREAS = ("box", "polygon", "ellipse", "mask")
_OTHERS = ("polyline", "points", "cuboid", "skeleton")
_CLOSING = b"</image>"
_WINDOW = 1 << 16
_MOST_LABELS = 1 << 16


class CvatIndex:
    """The images of a file.

    names, subsets: the attributes ``name`` and ``subset`` of each image.
    spans: where its element begins and how long it is, one behind the other, in bytes.
    labels: of the task, else those of the objects, sorted.
    tags: labels of whole images, sorted.
    left_out: kinds of objects that have no inside.
    attributed: whether objects have attributes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names, self.subsets, self.spans = StringTable(), StringTable(), array("q")
        self.left_out: Counter[str] = Counter()
        self.attributed = False
        self._stack: list[str] = []
        self._text: list[str] = []
        self._task: list[str] = []
        self._seen: dict[str, set[str]] = {"object": set(), "tag": set()}
        self._parser: Any = expat.ParserCreate("utf-8")
        parser = self._parser
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            with open(path, "rb", opener=open_regular) as file:
                while data := file.read(_WINDOW):
                    parser.Parse(data)
                parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise SourceError(f"{path}: no sound XML in UTF-8: {error}") from error
        finally:
            self._parser = None
        self.tags = sorted(self._seen["tag"])
        self.labels = list(dict.fromkeys(self._task)) or sorted(self._seen["object"])
        self.labels += sorted(self._seen["object"] - set(self.labels))

    def _refuse(self, *_: Any) -> None:
        raise SourceError(f"{self._path}: declares a document type; such files are not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._stack.append(name)
        self._text.clear()
        depth = len(self._stack)
        if depth > 50:
            raise SourceError(f"{self._path}: more than 50 elements one within the other")
        if depth == 2 and name == "track":
            raise SourceError(
                f"{self._path}: annotations of a video (tracks). Export it as 'CVAT for images'."
            )
        if depth == 2 and name == "image":
            self.names.append(attributes.get("name", ""))
            self.subsets.append(attributes.get("subset", ""))
            self.spans.append(self._parser.CurrentByteIndex)
        elif depth == 3 and self._stack[1] == "image":
            kind = "tag" if name == "tag" else "object" if name in _AREAS else ""
            if kind and len(self._seen[kind]) < _MOST_LABELS:
                self._seen[kind].add(attributes.get("label", ""))
            elif name in _OTHERS:
                self.left_out[name] += 1
        elif depth == 4 and name == "attribute" and self._stack[2] in _AREAS:
            self.attributed = True

    def _end(self, name: str) -> None:
        if len(self._stack) == 2 and name == "image":
            # Where "</image>" begins; where "<image ... />" ends.
            self.spans.append(self._parser.CurrentByteIndex - self.spans[-1])
        elif self._stack[-3:] == ["labels", "label", "name"]:
            self._task.append("".join(self._text).strip())
        self._stack.pop()

    def _characters(self, text: str) -> None:
        if self._stack[-1] == "name":
            self._text.append(text)


@dataclass(frozen=True)
class CvatReader:
    """How a worker reads an image, and its element in the file."""

    path: str
    classes: Mapping[str, int]  # numbers by their names
    tags: Mapping[str, int]
    masks: str | None
    check_size: bool

    def read(self, files: list[str], known: dict[str, int]) -> dict[str, Any]:
        """Return the values of an image; errors name the object by its number."""
        start, length = known["start"], known["length"]
        data = read_regular(files[0])
        file = os.path.basename(self.path)
        place = f"{file}, the image at byte {start:,}"
        text = read_at(self.path, start, length + len(_CLOSING))
        root = parse_xml(text if text.endswith(_CLOSING) else text[:length], place)
        frame = upright_frame_of(data, _size(root), self.check_size)
        elements = [element for element in root if element.tag in _AREAS]
        shapes, tags = [], []
        for number, element in enumerate(elements, 1):
            try:
                shapes.append(_shape(element, self.classes))
            except ValueError as error:
                raise SourceError(f"{place}, object {number}, a {element.tag}: {error}") from None
        for element in root.iterfind("tag"):
            if element.get("label") not in self.tags:
                raise SourceError(f"{place}: its tag is {element.get('label')!r:.80}, not a label")
            tags.append(self.tags[str(element.get("label"))])
        order = sorted(range(len(shapes)), key=lambda k: _z_order(elements[k]))
        values = {"image": data, **object_values(shapes, frame, self.masks, order)}
        values["occluded"] = np.array([e.get("occluded") == "1" for e in elements], bool)
        values["attributes"] = json.dumps([_attributes(e) for e in elements], ensure_ascii=False)
        values["tags"] = np.array(tags, np.int64)
        return values


def _z_order(element: Element) -> int:
    text = element.get("z_order", "0")
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 9 else 0


def _attributes(element: Element) -> dict[str, str]:
    found = element.iterfind("attribute")
    return {str(entry.get("name")): (entry.text or "").strip() for entry in found}


def _size(root: Element) -> tuple[int, int] | None:
    """Return height and width as the element has them; None where it does not."""
    height, width = root.get("height", ""), root.get("width", "")
    if height.isdecimal() and width.isdecimal() and len(height + width) < 20:
        return (int(height), int(width)) if int(height) and int(width) else None
    return None


def _of(element: Element, *names: str) -> NDArray[np.float64]:
    return numbers(element.get(name, "") for name in names)


def _shape(element: Element, classes: Mapping[str, int]) -> Shape:
    name = element.get("label")
    if name not in classes:
        raise ValueError(f"its label is {name!r:.80}, which is none of the classes")
    label = classes[str(name)]
    degrees = float(numbers([element.get("rotation", "0")])[0])
    if element.tag == "box":
        return of_box(label, _of(element, "xtl", "ytl", "xbr", "ybr").tolist(), degrees)
    if element.tag == "polygon":
        pairs = [pair.split(",") for pair in element.get("points", "").split(";")]
        if not all(len(pair) == 2 for pair in pairs):
            raise ValueError("its points are not as x,y;x,y;...")
        return of_polygon(label, numbers(n for pair in pairs for n in pair).reshape(-1, 2))
    if element.tag == "ellipse":
        middle, radii = _of(element, "cx", "cy"), _of(element, "rx", "ry")
        return of_ellipse(label, middle.tolist(), radii.tolist(), degrees)
    left, top, width, height = _of(element, "left", "top", "width", "height").astype(int).tolist()
    return of_bitmap(label, left, top, _bitmap(element.get("rle", ""), height, width))


def _bitmap(text: str, height: int, width: int) -> NDArray[np.bool_]:
    """Return pixels from run lengths, row by row; the first run is outside the object."""
    runs = [int(run) if run.strip().isdecimal() else -1 for run in text[: 1 << 24].split(",")]
    if min(height, width) < 1 or height * width > MAX_PIXELS or min(runs) < 0:
        raise ValueError(f"its rle, of {width} x {height} pixels, is none")
    if sum(runs) != height * width:
        raise ValueError(f"the runs of its rle have {sum(runs):,} pixels, not {height * width:,}")
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape(height, width)
