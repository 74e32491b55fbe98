"""The content of COCO files: images in little memory, and each annotation as a row of numbers.

An image takes its name and 40 bytes, an annotation 57.  A row has the annotation's place in the
file.  Workers read captions and regions there, and the reason why a row is damaged.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from ..json_files import Member, json_members
from ..locations import path_inside, printable
from ..small_memory import StringTable
from ..spans import read_at
from .annotated import frame_of, paint_objects

__all__ = ["CocoIndex", "CocoReader", "Id", "read_categories"]

ROW = np.dtype(
    [
        ("image", "<i8"),
        ("label", "<i8"),
        ("box", "<f4", (4,)),
        ("area", "<f4"),
        ("crowd", "?"),
        ("start", "<u8"),
        ("length", "<u4"),
    ]
)
"""An annotation: number of its image, its category's id, later its class's number (-1 if there is
none), left, top, right, bottom, pixels, and its place in the file."""

Id: TypeAlias = int | str
_TEXTS = 1 << 62
_PACKED = struct.Struct("<qq5f?QI")
_NO_CATEGORY = -(2**63)
_NO_BOX = (math.nan,) * 4
_KEYS = {"bbox", "category_id", "caption", "segmentation"}
_MOST_KEYS = 100


class CocoIndex:
    """Images and their annotations.

    names: file names, in the file's order; empty if an entry is damaged.
    ids, sizes: numbers of the images; heights and widths in turn, 0 if not stated.
    rejects: by the rows of images, the key and the reason.
    strays: keys and reasons of entries that belong to no image.
    seen: names of the members that annotations have.
    categories: their names by their ids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names, self.ids, self.sizes = StringTable(), array("q"), array("i")
        self.rejects: dict[int, tuple[str, str]] = {}
        self.strays: list[tuple[str, str]] = []
        self.seen: set[str] = set()
        self.categories: dict[Id, str] = {}
        self._numbers: dict[str, int] = {}
        packed = bytearray()
        for member in json_members(path):
            if member.key == "annotations":
                packed += self._annotation(member)
            elif member.key == "images":
                self._add_image(member)
            elif member.key == "categories":
                _add_category(self.categories, member, path)
        if not len(self.names):
            raise SourceError(f"{path}: lists no images")
        self._texts = {number: text for text, number in self._numbers.items()}
        self._rows = np.frombuffer(packed, ROW) if packed else np.zeros(0, ROW)
        self._order_annotations()

    def _add_image(self, member: Member) -> None:
        key, name, size = _place(self.path, member), "", (0, 0)
        try:
            number = self._number(_id_of(member.value, "id"))
        except ValueError as error:
            self.strays.append((key, f"an image's entry: {error}"))
            return
        try:
            name, size = _name_and_size(member.value)
        except ValueError as error:
            self.rejects[len(self.names)] = key, f"an image's entry: {error}"
        self.ids.append(number)
        self.names.append(name)
        self.sizes.extend(size)

    def _annotation(self, member: Member) -> bytes:
        """Return an annotation as a row; b"" if it is of no image."""
        entry, place = member.value, (member.start, member.end - member.start)
        try:
            image = self._number(_id_of(entry, "image_id"))
        except ValueError as error:
            self.strays.append((_place(self.path, member), f"an annotation: {error}"))
            return b""
        if "segments_info" in entry:
            raise SourceError(
                f"{self.path}: panoptic segments are not read. Turn them into regions with "
                "panopticapi's converters/panoptic2detection_coco_format.py, and pack that file"
            )
        self.seen.update(entry if len(self.seen) < _MOST_KEYS else _KEYS & set(entry))
        try:
            category, box, area, crowd = _parsed(entry)
        except ValueError:  # a caption, or the worker that reads it says why
            return _PACKED.pack(image, _NO_CATEGORY, 0, 0, 0, 0, 0, False, *place)
        return _PACKED.pack(image, self._number(category), *box, area, crowd, *place)

    def _number(self, id: Id) -> int:
        """Return an id as a number: texts get numbers that no other id has."""
        if isinstance(id, str):
            return self._numbers.setdefault(id, -_TEXTS - len(self._numbers))
        return id

    # -- annotations of images -----------------------------------------------------------

    def _order_annotations(self) -> None:
        """Find the annotations of each image, and entries whose partner is missing or ambiguous."""
        ids = np.frombuffer(self.ids, np.int64)
        known, first = np.unique(ids, return_index=True)
        for row in np.setdiff1d(np.arange(len(ids)), first).tolist():
            reason = f"another image has its id, {self.id_of(row)}"
            self.rejects.setdefault(row, (self.names[row], reason))
        image = _index_in(known, self._rows["image"])
        image = np.where(image < 0, len(ids), first[image])
        # Sorted are places, not rows: these would be there twice meanwhile.
        self._order = np.argsort(image, kind="stable")
        self._bounds = np.searchsorted(image[self._order], np.arange(len(ids) + 1))
        lost = self._rows["image"][self._order[self._bounds[-1] :]]
        for number, count in zip(*np.unique(lost, return_counts=True), strict=True):
            id = self._texts.get(int(number), int(number))
            reason = f"{count} annotations are of image_id {id}, which is not listed"
            self.strays.append((printable(self.path.name), reason))

    def number_classes(self, classes: Sequence[str]) -> None:
        """Give annotations the numbers of classes in place of the ids of categories."""
        numbers = {name: number for number, name in enumerate(classes)}
        known = {self._number(id): numbers[name] for id, name in self.categories.items()}
        ids = np.array(sorted(known), np.int64)
        found = np.array([*(known[id] for id in ids.tolist()), -1], np.int64)
        self._rows["label"] = found[_index_in(ids, self._rows["label"])]

    @property
    def single(self) -> bool:
        """Whether every image has exactly one annotation."""
        return bool((np.diff(self._bounds) == 1).all())

    @property
    def text_ids(self) -> bool:
        """Whether ids of images are text."""
        return min(self.ids) <= -_TEXTS

    def id_of(self, image: int) -> Id:
        """Return the id of an image."""
        return self._texts.get(self.ids[image], self.ids[image])

    def rows_of(self, image: int) -> NDArray[Any]:
        """Return the annotations of an image, of dtype `ROW`, in the file's order."""
        return self._rows[self._order[int(self._bounds[image]) : int(self._bounds[image + 1])]]

    def first_names(self) -> list[str]:
        """Return the file names of the first images."""
        sound = (row for row in range(len(self.names)) if row not in self.rejects)
        return [self.names[row] for row, _ in zip(sound, range(16), strict=False)]


@dataclass(frozen=True)
class CocoReader:
    """Reads an image, and the captions and regions of its annotations, in a worker."""

    paths: tuple[str, ...]  # the annotation file of each split
    fields: tuple[str, ...]
    masks: str | None
    check_size: bool

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name the annotation's place.

        known: ``size``, height and width of its entry, or 0; ``annotations``, of dtype `ROW`;
            ``split``, the number of the annotation file.
        """
        path, data = self.paths[known["split"]], read_regular(files[0])
        values: dict[str, Any] = {"image": data}
        rows = np.frombuffer(known["annotations"], ROW)
        stated = known["size"] if all(known["size"]) else None
        if {"boxes", "label", "labels"} & set(self.fields):
            boxless = np.isnan(rows["box"][:, 0]) if "boxes" in self.fields else False
            for row in rows[(rows["label"] < 0) | boxless][:1]:
                raise _bad(path, row, _fault(path, row))
        values["labels"] = rows["label"]
        if "label" in self.fields:
            values["label"] = rows["label"][0]
        if "boxes" in self.fields:
            frame = frame_of(data, stated, self.check_size)
            values["boxes"] = frame.boxes(rows["box"])
            values["crowd"], values["areas"] = rows["crowd"], rows["area"]
            if self.masks:  # crowds below, and of the rest the larger below the smaller
                values["mask"] = paint_objects(
                    frame,
                    self.masks,
                    rows["label"].tolist(),
                    np.lexsort((-rows["area"], ~rows["crowd"])).tolist(),
                    lambda k: _entry(path, rows[k]).get("segmentation"),
                )
        if "captions" in self.fields:
            values["captions"] = "\n".join(_caption(path, row) for row in rows)
        return values


def _entry(path: str, row: Any) -> Any:
    return json.loads(read_at(path, int(row["start"]), int(row["length"])))


def _bad(path: str, row: Any, reason: str) -> ValueError:
    return ValueError(f"the annotation at byte {row['start']:,} of {Path(path).name}: {reason}")


def _fault(path: str, row: Any) -> str:
    """Return why an annotation has no class or no box."""
    try:
        _parsed(_entry(path, row))
    except ValueError as error:
        return str(error)
    if row["label"] < 0:
        return "its category_id is none of the categories"
    return "its bbox is None, not four numbers"


def _caption(path: str, row: Any) -> str:
    """Return a caption on one line."""
    text = _entry(path, row).get("caption")
    if not isinstance(text, str):
        raise _bad(path, row, f"its caption is {text!r:.40}, not text")
    return " ".join(text.split())


# -- entries ------------------------------------------------------------------------------


def read_categories(path: Path) -> dict[Id, str]:
    """Return the names of a file's categories by their ids."""
    found: dict[Id, str] = {}
    for member in json_members(path):
        if member.key == "categories":
            _add_category(found, member, path)
    return found


def _add_category(found: dict[Id, str], member: Member, path: Path) -> None:
    try:
        number, name = _id_of(member.value, "id"), member.value.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"its name is {name!r:.80}, not text")
        name.encode()
        if found.setdefault(number, name) != name:
            raise ValueError(f"id {number} is {found[number]!r} and {name!r}")
    except ValueError as error:
        raise SourceError(f"{_place(path, member)}: a category: {error}") from error


def _place(path: Path, member: Member) -> str:
    return f"{printable(path.name)}@{member.start}"


def _index_in(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of values in a sorted array; -1 for other values."""
    place = np.searchsorted(known, wanted)
    found = place < len(known)
    found[found] = known[place[found]] == wanted[found]
    return np.where(found, place, -1)


def _id_of(entry: Any, name: str) -> Id:
    """Return an id of an entry: whole numbers as text are numbers."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(value, str) and value:
        whole = value.isdecimal() and len(value) < 19 and str(int(value)) == value
        return int(value) if whole else value
    if type(value) is not int or abs(value) >= _TEXTS:
        raise ValueError(f"its {name} is {value!r:.80}, neither an int of 63 bits nor text")
    return value


def _name_and_size(entry: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    """Return file name, height and width of an image; zeros if the entry has no size."""
    name, address = entry.get("file_name"), entry.get("coco_url")
    if name is None and isinstance(address, str) and address.count("/") > 3:
        name = "/".join(address.split("/")[-2:])  # LVIS has its folder and file in an address
    path_inside("", name)
    assert isinstance(name, str)
    name.encode()
    size = entry.get("height") or 0, entry.get("width") or 0
    if not all(type(side) is int and 0 <= side < 1 << 31 for side in size):
        raise ValueError(f"its height and width are {size!r:.80}")
    return name, size


def _parsed(entry: dict[str, Any]) -> tuple[Id, tuple[float, ...], float, bool]:
    """Return category, box (left, top, right, bottom), area and crowd of an annotation.

    The box is NaN if the annotation is of the whole image.
    """
    of_image = "bbox" not in entry and "segmentation" not in entry and "category_id" in entry
    box = _NO_BOX if of_image else _box(entry.get("bbox"))
    category, crowd = _id_of(entry, "category_id"), entry.get("iscrowd", 0)
    if not isinstance(crowd, int) or crowd not in (0, 1):
        raise ValueError(f"its iscrowd is {crowd!r:.40}, neither 0 nor 1")
    area = entry.get("area")
    if area is None:
        area = 0 if of_image else (box[2] - box[0]) * (box[3] - box[1])
    elif not _is_number(area):
        raise ValueError(f"its area is {area!r:.40}, not a number")
    return category, box, area, bool(crowd)


def _box(box: Any) -> tuple[float, ...]:
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise ValueError(f"its bbox is {box!r:.80}, not four numbers")
    left, top, width, height = box
    if width < 0 or height < 0:
        raise ValueError(f"its bbox {box} has a negative width or height")
    return left, top, left + width, top + height


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e12
