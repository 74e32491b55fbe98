"""What a COCO annotation file lists: its images, and the annotations of each.

In arrays, not objects: an image takes its name and 56 bytes, an annotation 57.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError

from ...base import Reject
from ..json_files import Member, json_members
from ..locations import path_inside, printable
from ..small_memory import StringTable
from .coco_annotations import ROW, pack_row

__all__ = ["CocoIndex"]

_KEYS = {"bbox", "category_id", "caption", "segmentation", "keypoints", "segments_info"}
_MOST_KEYS = 100
_MOST_POINTS = 10_000


class CocoIndex:
    """Images and their annotations.

    names: file names, in the file's order; empty where an entry is damaged.
    ids, sizes: numbers of the images; heights and widths, one behind the other, 0 where not said.
    places: where the images' entries begin and how long they are, one behind the other, in bytes.
    strays: what belongs to no image.
    seen: names of the members that annotations have.
    federated: whether images say which classes are not in them, as those of LVIS.
    keypoints: from the id of a category to the names of its points.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names, self.ids, self.sizes = StringTable(), array("q"), array("i")
        self.places = array("q")
        self.federated = False
        self.keypoints: dict[int, list[str]] = {}
        self.strays: list[Reject] = []
        self.seen: set[str] = set()
        self._rejects: dict[int, Reject] = {}
        self._unnumbered: list[int] = []
        self._packed = bytearray()
        self._wrong: dict[int, str] = {}
        self._categories: dict[int, str] = {}
        for member in json_members(path):
            add = _ADDERS.get(member.key)
            if add is not None:
                add(self, member)
        if not len(self.names):
            raise SourceError(f"{path}: lists no images")
        self._settle_order()
        self.strays += self._dangling()

    # -- going through the file ----------------------------------------------------------

    def _add_image(self, member: Member) -> None:
        name, number, size = "", None, (0, 0)
        try:
            number = _of(member.value, "id", int)
            array("q", [number])  # OverflowError where it does not fit
            name = _name_of(member.value)
            name.encode()
            path_inside("", name)
            size = _size(member.value)
        except (ValueError, OverflowError, SourceError) as error:
            row = len(self.names)
            self._rejects[row] = Reject(self._place(member), f"an image's entry: {error}")
            name = ""
            if number is None or isinstance(error, OverflowError):
                number = None
                self._unnumbered.append(row)
        self.names.append(name)
        self.ids.append(number or 0)
        self.sizes.extend(size)
        self.places.extend((member.start, member.end - member.start))
        self.federated |= isinstance(member.value, dict) and "neg_category_ids" in member.value

    def _add_annotation(self, member: Member) -> None:
        try:
            row, wrong = pack_row(member.value, member.start, member.end - member.start)
        except ValueError as error:
            self.strays.append(Reject(self._place(member), f"an annotation: {error}"))
            return
        if wrong:
            self._wrong[len(self._packed) // ROW.itemsize] = wrong
        self._packed += row
        self.seen.update(member.value if len(self.seen) < _MOST_KEYS else _KEYS & set(member.value))

    def _add_category(self, member: Member) -> None:
        try:
            number, name = _of(member.value, "id", int), _of(member.value, "name", str)
            name.encode()
            if abs(number) >= 1 << 63:
                raise ValueError(f"its id {number} has more than 64 bits")
            points = member.value.get("keypoints")
            if isinstance(points, list) and points:
                self.keypoints[number] = [str(point)[:100] for point in points[:_MOST_POINTS]]
            if self._categories.setdefault(number, name) != name:
                raise ValueError(f"id {number} is {self._categories[number]!r} and {name!r}")
        except ValueError as error:
            raise SourceError(f"{self._place(member)}: a category: {error}") from error

    def _place(self, member: Member) -> str:
        return f"{printable(self._path.name)}@{member.start}"

    # -- what belongs to what ------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the categories, in the order of their ids."""
        return tuple(self._categories[number] for number in sorted(self._categories))

    @property
    def categories(self) -> dict[int, str]:
        """Names of the categories by their ids, in the order of these."""
        return {number: self._categories[number] for number in sorted(self._categories)}

    @property
    def single(self) -> bool:
        """Whether every image has exactly one annotation."""
        return bool((np.diff(self._bounds) == 1).all())

    def rows_of(self, image: int) -> NDArray[Any]:
        """Return the annotations of an image, of dtype `ROW`, in the file's order."""
        return self._rows[self._places_of(image)]

    def _places_of(self, image: int) -> NDArray[np.int64]:
        return self._order[int(self._bounds[image]) : int(self._bounds[image + 1])]

    def reject_at(self, image: int, boxed: bool) -> Reject | None:
        """Return what is wrong with an image's entry or, if `boxed`, with its annotations."""
        if image in self._rejects or not (boxed and self._wrong):
            return self._rejects.get(image)
        for row in self._places_of(image).tolist():
            if row in self._wrong:
                place = f"the annotation at byte {self._rows['start'][row]:,} of {self._path.name}"
                return Reject(self.names[image], f"{place}: {self._wrong[row]}")
        return None

    def first_names(self) -> list[str]:
        """Return the file names of the first images."""
        sound = (row for row in range(len(self.names)) if row not in self._rejects)
        return [self.names[row] for row, _ in zip(sound, range(16), strict=False)]

    def _settle_order(self) -> None:
        """Find each image's annotations, and images whose number another one has."""
        ids = np.frombuffer(self.ids, np.int64)
        numbered = np.ones(len(ids), bool)
        numbered[self._unnumbered] = False
        rows = np.flatnonzero(numbered)
        known, first = np.unique(ids[rows], return_index=True)
        for row in np.setdiff1d(rows, rows[first]).tolist():
            reason = f"another image has its id, {ids[row]}"
            self._rejects.setdefault(row, Reject(self.names[row], reason))
        self._rows = np.frombuffer(self._packed, ROW) if self._packed else np.zeros(0, ROW)
        if "bbox" in self.seen:
            for row in np.flatnonzero(np.isnan(self._rows["box"][:, 0])).tolist():
                self._wrong.setdefault(row, "its bbox is None, not four numbers")
        image = _index_in(known, self._rows["image"])
        image = np.where(image < 0, len(ids), rows[first][image] if len(known) else 0)
        # Sorted are places, not rows: these would be there twice meanwhile.
        self._order = np.argsort(image, kind="stable")
        self._bounds = np.searchsorted(image[self._order], np.arange(len(ids) + 1))
        categories = np.array(sorted(self._categories), np.int64)
        self._rows["label"] = _index_in(categories, self._rows["label"])

    def _dangling(self) -> list[Reject]:
        """Return a reject for each image that annotations name and the file does not list."""
        lost = self._rows["image"][self._order[self._bounds[-1] :]]
        numbers, counts = np.unique(lost, return_counts=True)
        key = printable(self._path.name)
        return [
            Reject(key, f"{count} annotations are of image_id {number}, which is not listed")
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        ]


_ADDERS = {
    "images": CocoIndex._add_image,
    "annotations": CocoIndex._add_annotation,
    "categories": CocoIndex._add_category,
}


def _index_in(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where in a sorted array values are; -1 where they are not."""
    place = np.searchsorted(known, wanted)
    found = place < len(known)
    found[found] = known[place[found]] == wanted[found]
    return np.where(found, place, -1)


def _of(row: Any, name: str, kind: type) -> Any:
    """Return an entry's member, which is of a kind."""
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not kind or value == "":
        raise ValueError(f"its {name} is {value!r:.80}, not {kind.__name__}")
    return value


def _name_of(row: Any) -> str:
    """Return an image's name; LVIS has that of its folder and file in an address."""
    address = row.get("coco_url") if isinstance(row, dict) and "file_name" not in row else None
    if isinstance(address, str) and address.count("/") > 3:
        return "/".join(address.split("/")[-2:])
    name: str = _of(row, "file_name", str)
    return name


def _size(row: dict[str, Any]) -> tuple[int, int]:
    """Return height and width, zeros where the entry does not say."""
    size = row.get("height") or 0, row.get("width") or 0
    if not all(type(side) is int and 0 <= side < 1 << 31 for side in size):
        raise ValueError(f"its height and width are {size!r:.80}")
    return size
