"""Pascal VOC: its folders, its lists of images, and the XML files of their objects."""

from __future__ import annotations

import contextlib
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular, read_regular
from fastdata.schema import ArrayField, Field

from ..class_names import MOST_CLASSES, classes_of_texts, numbered, read_class_names
from ..fields import BOXES
from ..image_files import is_image_name
from ..image_list import ImageListSource
from ..locations import start_of_first
from ..selection import left_out
from ..splits import FolderPair, has_images, pairs_of_splits, pairs_within
from .annotated import frame_of
from .safe_xml import parse_xml

__all__ = [
    "VocReader",
    "XmlSource",
    "classes_of_lists",
    "names_in_list",
    "splits_of",
    "survey",
    "voc_root",
    "voc_roots",
    "xml_folders",
]

_FLAGS = {"": False, "0": False, "1": True, "Unspecified": False}
_FLAGGED = re.compile(r"(\S+)\s+(-1|0|1)")
_LONGEST = 4096
_IMAGES = ("images", "image", "imgs", "img", "jpegimages")
_ANNOTATIONS = ("annotations", "annotation", "xmls", "xml", "labels")
_XML = re.compile(rb"<annotation\b.*?<(object|filename|size|folder)\b", re.DOTALL)


class XmlSource(ImageListSource):
    """Images whose objects are in VOC's XML files."""

    def read_objects(
        self,
        files: Iterable[str],
        own: tuple[str, ...] = (),
        *,
        classes: str | None,
        one_based: bool | None,
        check_size: bool,
        empty: bool,
    ) -> dict[str, Field]:
        """Set the reader, and return the fields of objects.

        files: the XML files of all splits, so that each split has the same classes.
        own: the classes, if the dataset names them.
        """
        names = own if classes is None else read_class_names(classes)
        if not names or (one_based is None and not own):
            found, least = survey(files)
            names = names or classes_of_texts(found, str(self.root))
            if one_based is None:
                one_based = least >= 1
                how = "1, as VOC's" if one_based else "0"
                self.notes.append(
                    f"pixels of boxes are counted from {how} (--option one_based="
                    f"{str(not one_based).lower()} counts from {int(not one_based)})"
                )
        if not names:
            self.notes.append("no objects in any annotation file")
        self.notes += left_out("of annotations", ("pose", "occluded", "parts", "actions"))
        self.reader = VocReader(numbered(names), int(one_based is not False), check_size, empty)
        return {
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=names),
            "difficult": ArrayField("bool", (None,)),
            "truncated": ArrayField("bool", (None,)),
        }


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


# -- VOC's folders and lists ------------------------------------------------------------


def voc_roots(location: Path) -> list[Path]:
    """Return the folders that are laid out like VOC's: this one, or ``VOC2007`` in it."""
    if _is_root(location):
        return [location]
    inner = [location / "VOCdevkit", location]
    found = [entry for folder in inner if folder.is_dir() for entry in sorted(folder.glob("VOC*"))]
    return [path for path in found if _is_root(path)]


def _is_root(path: Path) -> bool:
    if not (path / "JPEGImages").is_dir():
        return False
    # Where images are in these, they are class folders that happen to be called so.
    others = [path / part for part in ("Annotations", "ImageSets")]
    return (path / "SegmentationClass").is_dir() or any(
        other.is_dir() and not has_images(other) for other in others
    )


def voc_root(location: Path) -> Path:
    """Return the one folder that is laid out like VOC's."""
    found = voc_roots(location)
    if not found:
        raise SourceError(
            f"{location}: no Pascal VOC. Expected JPEGImages and Annotations (or ImageSets, "
            "SegmentationClass) in it."
        )
    if len(found) > 1:
        raise OptionError(f"{location}: pack one of {', '.join(map(str, found))}")
    return found[0]


def splits_of(lists: Path) -> list[str]:
    """Return the names of the lists in a folder of ``ImageSets``."""
    return sorted(path.stem for path in lists.glob("*.txt"))


def names_in_list(lists: Path, split: str) -> Iterator[tuple[int, str | None]]:
    """Yield the line and the name of each image of a list; None where that is marked -1."""
    path = lists / f"{split}.txt"
    if os.sep in split or not path.is_file():
        known = ", ".join(splits_of(lists)[:30]) or "none"
        raise OptionError(f"split={split}: not in {lists}, which has {known}")
    with open(path, "rb", opener=open_regular) as file:
        for number, data in enumerate(file, 1):
            line = data[:_LONGEST].decode("utf-8", "surrogateescape").strip()
            flagged = _FLAGGED.fullmatch(line)
            if flagged is not None:
                yield number, flagged[1] if flagged[2] != "-1" else None
            elif line:
                yield number, line


def classes_of_lists(lists: Path) -> tuple[str, ...]:
    """Return the classes that have lists of their own, as ``cat_train.txt``; none if none has."""
    splits = splits_of(lists)
    found = set()
    for split in ("train", "val", "trainval", "test"):
        for name in splits if split in splits else ():
            if name.endswith(f"_{split}") and _is_flagged(lists / f"{name}.txt"):
                found.add(name[: -len(split) - 1])
    return tuple(sorted(found))


def _is_flagged(path: Path) -> bool:
    with open(path, "rb", opener=open_regular) as file:
        line = file.readline(_LONGEST).decode("utf-8", "replace").strip()
    return _FLAGGED.fullmatch(line) is not None


# -- without VOC's other folders ---------------------------------------------------------


def xml_folders(root: Path) -> list[FolderPair]:
    """Return the folders of images whose objects are in XML files, beside them or in a folder."""
    return _xml_beside(root, "") or pairs_of_splits(root, _xml_beside)


def _xml_beside(root: Path, place: str) -> list[FolderPair]:
    """Return these folders in a folder of the dataset; those of splits, if there are such."""
    if not (root / place).is_dir():
        return []
    names = [entry.name for entry in os.scandir(root / place)]
    if _holds_xml(root / place) and any(map(is_image_name, names)):
        return [FolderPair("", place or ".", place or ".")]
    for image in sorted(name for name in names if name.lower() in _IMAGES):
        for annotation in sorted(name for name in names if name.lower() in _ANNOTATIONS):
            images, annotations = os.path.join(place, image), os.path.join(place, annotation)
            if (root / annotations / "xmls").is_dir():  # the Oxford pets
                annotations = os.path.join(annotations, "xmls")
            found = pairs_within(root, images, annotations)
            if all(_holds_xml(root / pair.others) for pair in found):
                return found
    return []


def _holds_xml(folder: Path) -> bool:
    """Tell whether this is a folder whose first XML file is an annotation."""
    start = start_of_first(folder, ".xml")
    return _XML.search(start.lstrip(b"\xef\xbb\xbf")) is not None
