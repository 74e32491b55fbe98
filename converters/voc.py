"""Pascal VOC: images, an XML file of objects for each, and lists of the images of each split.

::

    JPEGImages/2007_000027.jpg             images/0.jpg         0.jpg     train/0.jpg
    Annotations/2007_000027.xml            annotations/0.xml    0.xml     train/0.xml
    ImageSets/Main/train.txt                                              valid/1.jpg
    SegmentationClass/2007_000032.png

The first layout is VOC's; the others are those of LabelImg and Roboflow.

Source: M. Everingham and J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012)
Development Kit", sections 2 and 3.  Its boxes have the first and the last pixel, counted from 1.

XML files may not declare a document type.  So they have no entities, and nothing is fetched.
"""

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
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field, ImageField

from .listing import Listing
from .reading.annotations.annotated import frame_of
from .reading.class_names import MOST_CLASSES, classes_of_texts, numbered, read_class_names
from .reading.fields import BOXES
from .reading.image_files import files_below, has_own_images, is_image_name
from .reading.locations import first_bytes, printable
from .reading.named_files import find_named
from .reading.options import AllowEmpty, CheckSize, ClassFile, OneBased, PaintedMasks, SplitOption
from .reading.selection import joined
from .reading.splits import FolderPair, has_images, pairs_within, split_folders_in, splits_next_to
from .reading.text_lines import text_lines

__all__ = ["VocSource"]

_PAIR = FolderPair("", "JPEGImages", "Annotations")
_MASKS = {"": "", "classes": "SegmentationClass", "instances": "SegmentationObject"}


class VocSource(Listing):
    """Images with the boxes, classes and flags of their objects."""

    name = "voc"
    summary = "Pascal VOC: JPEGImages, Annotations, ImageSets; XML files of LabelImg and Roboflow"
    parts = ("**/*.jpg|**/*.png", "**/*.xml|ImageSets/*|SegmentationClass")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        return bool(voc_roots(folder) or xml_folders(folder))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
        one_based: OneBased = None,
        empty: AllowEmpty = False,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        roots = voc_roots(location)
        if len(roots) > 1:
            raise OptionError(f"{location}: pack one of {', '.join(map(str, roots))}")
        pairs = [_PAIR] if roots else xml_folders(location)
        if not pairs:
            raise SourceError(
                f"{location}: no Pascal VOC. Expected JPEGImages and Annotations (or ImageSets, "
                "SegmentationClass) in it, or images and XML files in one folder, in images/ and "
                "annotations/, or in train/, valid/ and test/"
            )
        self.root = roots[0] if roots else location
        self._prefix = f"{_PAIR.images}/" if roots else ""
        self._masks = _MASKS[masks or ""]
        if self._masks and not (self.root / self._masks).is_dir():
            raise OptionError(f"masks={masks}: {self.root / self._masks} does not exist")
        lists = self.root / "ImageSets" / ("Segmentation" if masks else "Main")
        listed, own = (
            (lists_in(lists)[0], lists_in(lists.with_name("Main"))[1]) if roots else ([], ())
        )
        if roots and split and split not in listed:
            raise OptionError(f"split={split}: not in {lists}, which has {joined(listed)}")
        if listed and not split:
            self.notes.append(
                f"images of all splits; --option split=NAME takes one of {joined(listed)}"
            )
        self.choose_splits([pair.split for pair in pairs], None if roots else split)
        chosen = lists / f"{split}.txt" if roots and split else None
        for pair in pairs:
            if pair.split in self.splits:
                self._add_all(pair, chosen)
        if not self.num_samples:
            place = f"{chosen}: lists" if chosen else f"{self.root}: has"
            raise SourceError(f"{place} no images in {', '.join(pair.images for pair in pairs)}")
        found: dict[str, Field] = {}
        if masks:
            found["mask"] = ImageField(channels=1, mask=True)
        boxed = (self.root / pairs[0].others).is_dir()
        names, first = self._classes(pairs, own, classes, one_based) if boxed else ((), 1)
        self.reader = VocReader(numbered(names), first, check_size, empty, boxed)
        if boxed:
            found["boxes"] = BOXES
            found["labels"] = ArrayField("int64", (None,), classes=names)
            found["difficult"] = found["truncated"] = ArrayField("bool", (None,))
        elif not masks:
            self.notes.append(f"{self.root / _PAIR.others} does not exist: only the images")
        return {**found, **self.split_field()}

    def _classes(
        self,
        pairs: Iterable[FolderPair],
        own: tuple[str, ...],
        given: str | None,
        one_based: bool | None,
    ) -> tuple[tuple[str, ...], int]:
        """Return the classes, and the number of the first pixel.

        Both are of all XML files, so that they are the same in each split.

        own: the classes that the dataset names; then it is VOC, and no file is read.
        """
        names = own if given is None else read_class_names(given)
        if not names or (one_based is None and not own):
            places = [] if given or own else splits_next_to(self.root)
            others = [pair for place in places for pair in _xml_beside(self.root, str(place))]
            both = [*pairs, *others]
            files = (name for pair in both for name in files_below(self.root, pair.others))
            found, least = survey(self.root / name for name in files if name.endswith(".xml"))
            if others:
                shown = joined(printable(pair.others) for pair in others)
                self.notes.append(f"numbers of classes are those of {shown}, too")
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
        return names, int(one_based is not False)

    def _add_all(self, pair: FolderPair, chosen: Path | None) -> None:
        """Add the images of a folder, or those with a mask, or those of a list."""
        images = filter(is_image_name, files_below(self.root, pair.images))
        taken = 0
        for image in self._listed(chosen, images) if chosen else images:
            stem = _stem(image, pair)
            # NEU-DET has its images in folders, and all XML files in one.
            inner = (self.root / pair.others / os.path.dirname(stem)).is_dir()
            files = [f"{pair.others}/{stem if inner else os.path.basename(stem)}.xml"]
            files += [f"{self._masks}/{stem}.png"] * bool(self._masks)
            paths = [find_named(self.root, os.path.normpath(file)) for file in files]
            there = os.path.isfile(paths[-1])
            taken += there
            if there or chosen or not self._masks:
                names = (os.path.relpath(path, self.root) for path in paths)
                self.add(image, *names, **self.split_number(pair.split))
        if not (chosen or self._masks) and (self.root / pair.others).is_dir():
            files = [n for n in files_below(self.root, pair.others) if n.endswith(".xml")]
            if len(files) > taken:
                self.notes.append(
                    f"{len(files) - taken:,} XML files in {pair.others} are of no image; left out"
                )

    def _listed(self, path: Path, images: Iterable[str]) -> Iterator[str]:
        """Yield the images of a list; reject those that are missing or listed twice."""
        known: dict[str, str] = {}
        for image in images:
            known.setdefault(unicodedata.normalize("NFC", _stem(image, _PAIR)), image)
        seen = set()
        for number, line in text_lines(path):
            name = unicodedata.normalize("NFC", line.strip())
            if name not in known:
                reason = f"{self.root / _PAIR.images} has no image of that name"
                self.reject(f"{name} ({path.name}, line {number})", reason)
            elif name in seen:
                self.reject(known[name], "the list names it before")
            else:
                yield known[name]
            seen.add(name)

    def key_of(self, names: list[str], numbers: Mapping[str, int]) -> str:
        return printable(names[0].removeprefix(self._prefix))


def _stem(image: str, pair: FolderPair) -> str:
    return os.path.splitext(os.path.relpath(image, pair.images))[0]


# -- where files are ---------------------------------------------------------------------


_FLAGGED = re.compile(rb"\s*\S+\s+(-1|0|1)\s*")
_XML = re.compile(rb"<annotation\b.*?<(object|filename|size|folder)\b", re.DOTALL)


def voc_roots(location: Path) -> list[Path]:
    """Return the folders that are laid out like VOC's: this one, or ``VOC2007`` in it."""
    if _is_root(location):
        return [location]
    inner = [location / "VOCdevkit", location]
    found = [entry for folder in inner if folder.is_dir() for entry in sorted(folder.glob("VOC*"))]
    return [path for path in found if _is_root(path)]


def _is_root(path: Path) -> bool:
    if not (path / _PAIR.images).is_dir() or not has_own_images(path / _PAIR.images):
        return False
    # If images are in these, they are class folders that happen to be called so.
    others = [path / part for part in (_PAIR.others, "ImageSets")]
    return (path / "SegmentationClass").is_dir() or any(
        other.is_dir() and not has_images(other) for other in others
    )


def lists_in(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the lists of splits, and the classes that have lists of their own.

    The list of a class, such as ``cat_train.txt``, marks each image of the split.
    """
    names = sorted(path.stem for path in folder.glob("*.txt"))
    of_classes = [
        (name, found)
        for name in names
        for found, _, split in [name.rpartition("_")]
        if found and split in names and _is_flagged(folder / f"{name}.txt")
    ]
    flagged = {name for name, _ in of_classes}
    classes = tuple(sorted({found for _, found in of_classes}))
    return [name for name in names if name not in flagged], classes


def _is_flagged(path: Path) -> bool:
    return _FLAGGED.fullmatch(first_bytes(path).partition(b"\n")[0]) is not None


def xml_folders(root: Path) -> list[FolderPair]:
    """Return the folders of images with XML files, in the same folder or in another."""
    return _xml_beside(root, "") or [
        pair._replace(split=split)
        for split in split_folders_in(root)
        for pair in _xml_beside(root, split)
    ]


def _xml_beside(root: Path, place: str) -> list[FolderPair]:
    """Return these folders in a folder of the dataset; those of splits, if there are such."""
    if not (root / place).is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(root / place))
    if _holds_xml(root / place) and any(map(is_image_name, names)):
        return [FolderPair("", place or ".", place or ".")]
    usual = ("images", "image", "imgs", "img", "jpegimages")
    files = ("annotations", "annotation", "xmls", "xml", "labels")
    for image in (name for name in names if name.lower() in usual):
        for annotation in (name for name in names if name.lower() in files):
            images, annotations = os.path.join(place, image), os.path.join(place, annotation)
            if (root / annotations / "xmls").is_dir():  # the Oxford pets
                annotations = os.path.join(annotations, "xmls")
            found = pairs_within(root, images, annotations)
            if all(_holds_xml(root / pair.others) for pair in found):
                return found
    return []


def _holds_xml(folder: Path) -> bool:
    """Tell whether this is a folder whose first XML file is an annotation."""
    first = min(folder.glob("[!.]*.xml"), default=None)
    start = b"" if first is None else first_bytes(first)
    return _XML.search(start.lstrip(b"\xef\xbb\xbf")) is not None


# -- one annotation file, read by a worker -----------------------------------------------


_LARGEST = 4 << 20
_FARTHEST = 1e9
_FLAGS = {"": False, "0": False, "1": True, "Unspecified": False}


@dataclass(frozen=True)
class VocReader:
    """How a worker reads an image, its annotation file and, if there is one, its mask."""

    classes: Mapping[str, int]  # numbers by their names
    origin: int  # number of the first row and column of pixels: 1 or 0
    check_size: bool
    empty: bool  # whether an image without an annotation file has no objects
    boxed: bool  # whether annotation files are read

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and object."""
        image, annotation, *masks = files
        data = read_regular(image)
        values: dict[str, Any] = {"image": data}
        if masks:
            values["mask"] = read_regular(masks[0])
        return values | (self._objects(data, Path(annotation)) if self.boxed else {})

    def _objects(self, data: bytes, path: Path) -> dict[str, Any]:
        none = self.empty and not path.exists()
        root, objects = Element("annotation") if none else parse_xml(path), []
        try:
            frame = frame_of(data, _size(root), self.check_size)
        except ValueError as error:
            raise SourceError(f"{path.name}: {error}") from None
        for number, element in enumerate(root.findall("object"), 1):
            try:
                objects.append(self._object(element))
            except ValueError as error:
                raise SourceError(f"{path.name}, object {number}: {error}") from None
        boxes, labels, difficult, truncated = zip(*objects, strict=True) if objects else ([],) * 4
        return {
            "boxes": frame.boxes(boxes),
            "labels": np.array(labels, np.int64),
            "difficult": np.array(difficult, bool),
            "truncated": np.array(truncated, bool),
        }

    def _object(self, element: Element) -> tuple[list[float], int, bool, bool]:
        """Return box, label and flags of an object."""
        name, box = _text(element, "name"), element.find("bndbox")
        flags = _text(element, "difficult"), _text(element, "truncated")
        if name not in self.classes:
            raise ValueError(f"no class is called {name!r:.80}")
        if not _FLAGS.keys() >= {*flags}:
            raise ValueError(f"difficult and truncated are {flags!r:.80}, not 0 or 1")
        if box is None:
            raise ValueError("it has no bndbox")
        sides = [_number(box, side) for side in ("xmin", "ymin", "xmax", "ymax")]
        left, top, right, bottom = sides  # of the first and the last pixel
        if right < left or bottom < top:
            raise ValueError(f"its bndbox {sides} is inside out")
        placed = [left - self.origin, top - self.origin, right, bottom]
        return placed, self.classes[name], _FLAGS[flags[0]], _FLAGS[flags[1]]


class _Builder(TreeBuilder):
    """Refuses a document type, before any of its entities is read."""

    def doctype(self, *_: Any) -> None:
        raise ValueError("it declares a document type; such files are not read")


def parse_xml(path: Path) -> Element:
    """Return the root of a document."""
    try:
        parser = XMLParser(target=_Builder())
        parser.feed(read_regular(path, _LARGEST))
        return parser.close()
    except FileNotFoundError:
        raise SourceError(
            f"it has no annotation file {path} (--option empty=true takes such images for ones "
            "without objects)"
        ) from None
    except (ParseError, ValueError, LookupError) as error:  # LookupError: its encoding
        raise SourceError(f"{path.name}: no sound XML: {error}") from error


def survey(paths: Iterable[Path]) -> tuple[set[str], float]:
    """Return the classes of all objects, and the least number at which a box begins."""
    found: set[str] = set()
    least = math.inf
    for path in paths:
        with contextlib.suppress(OSError, SourceError):  # the worker that reads it rejects it
            root = parse_xml(path)
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


def _number(element: Element, name: str) -> float:
    text = _text(element, name)
    with contextlib.suppress(ValueError):
        if abs(value := float(text)) < _FARTHEST:  # and no NaN
            return value
    raise ValueError(f"the {name} of its {element.tag} is {text!r:.40}, not a number")


def _size(root: Element) -> tuple[int, int] | None:
    """Return height and width as the file says them; None if it does not, or says 0."""
    size = root.find("size")
    if size is None:
        return None
    height, width = _number(size, "height"), _number(size, "width")
    return (int(height), int(width)) if height >= 1 and width >= 1 else None
