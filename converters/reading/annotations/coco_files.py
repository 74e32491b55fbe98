"""Where a COCO dataset has its annotation files and its images, and what such a file lists.

A file's entries are held in arrays, not objects: an image takes its name and 56 bytes, an
annotation 57.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError

from ...base import Reject
from ..json_files import Member, json_members
from ..locations import first_bytes, folders_in, path_inside, printable
from ..selection import joined
from ..small_memory import StringTable
from ..splits import in_usual_order
from .coco_annotations import ROW, pack_row

__all__ = ["CocoIndex", "annotation_files", "image_folder", "is_coco", "segment_folder"]

# -- where files are --------------------------------------------------------------------


_MEMBER = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_ENTRY = re.compile(rb'"(file_name|image_id|supercategory|coco_url)"\s*:')
_LOOKED_AT = 50
_PEEK = 1 << 16
"""Where the keys are sorted, the first annotation's polygon is what a file begins with."""


def is_coco(path: Path) -> bool:
    """Tell whether this is a COCO annotation file, or a folder with one where it usually is."""
    return _looks_so(path) if path.is_file() else bool(_files_in(path, _LOOKED_AT))


def _looks_so(path: Path) -> bool:
    start = first_bytes(path, _PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and all(part.search(start) for part in (_MEMBER, _ENTRY))


def _files_in(folder: Path, most: int | None = None) -> list[str]:
    """Return the annotation files of a folder, relative to it, or those among the first."""
    found = [
        os.path.join(place, name)
        for place in ("annotations", "")
        for name in _jsons(folder / place, most)
        if _looks_so(folder / place / name)
    ]
    inner = [os.path.join(split, "_annotations.coco.json") for split in folders_in(folder)]
    return found + [name for name in inner if _looks_so(folder / name)]


def _jsons(folder: Path, most: int | None) -> list[str]:
    """Return names of JSON files in a folder, sorted: of all, or of the first that are listed."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if entry.name.endswith(".json"))
        return sorted(itertools.islice(names, most))


def annotation_files(location: Path, chosen: str) -> tuple[Path, dict[str, Path]]:
    """Return the dataset's folder and its annotation file, or those of its splits.

    The name of what is no split is "".

    location: what is packed: the annotation file, or the folder.
    chosen: the annotation file, relative to the folder; "" where there is one to be found.
    """
    if location.is_file():
        if chosen:
            raise OptionError(f"annotations={chosen}: {location} is an annotation file already")
        inner = location.parent.name == "annotations"
        return (location.parent.parent if inner else location.parent), {"": location}
    files = _files_in(location)
    if chosen:
        if not (location / chosen).is_file():
            raise OptionError(
                f"annotations={chosen}: no such file in {location}; there are {joined(files)}"
            )
        return location, {"": location / chosen}
    if not files:
        raise SourceError(f"{location}: no COCO annotation file in it, as annotations/*.json")
    boxed = [name for name in files if Path(name).name.startswith("instances")]
    usual = boxed if boxed else files
    splits = {os.path.dirname(name): location / name for name in usual}
    if len(usual) > 1 and all(name.endswith("/_annotations.coco.json") for name in usual):
        return location, {split: splits[split] for split in in_usual_order(splits)}
    if len(usual) > 1:
        raise OptionError(
            f"{location}: has the annotation files {joined(files)}. Name one: "
            f"--option annotations={usual[0]}"
        )
    return location, {"": location / usual[0]}


def segment_folder(file: Path) -> Path:
    """Return the folder of the masks of a panoptic annotation file: called as the file is."""
    tried = [file.with_suffix(""), file.parent.parent / file.stem]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise SourceError(
        f"{file}: a panoptic file, whose masks are in none of {', '.join(map(str, tried))}. "
        "Unpack them there."
    )


def image_folder(root: Path, file: Path, chosen: str, names: Sequence[str]) -> Path:
    """Return the folder of the images.

    chosen: the folder, relative to `root`; "" to try what is usual.
    """
    if chosen:
        if not (root / chosen).is_dir():
            raise OptionError(f"images={chosen}: no such folder in {root}")
        return root / chosen
    split = file.stem.removeprefix("image_info_").removeprefix("person_keypoints_")
    split = split if split != file.stem else file.stem.partition("_")[2]
    usual = [root / split, root / "images" / split, root / "images", file.parent, root]
    folders = list(dict.fromkeys(usual))
    for folder in folders:
        for name in names:
            with contextlib.suppress(SourceError, OSError):
                if os.path.isfile(path_inside(folder, name)):
                    return folder
    tried = ", ".join(map(str, folders))
    raise SourceError(
        f"{file}: none of its first images ({joined(names[:3])}) is in {tried}. Name the folder: "
        "--option images=FOLDER"
    )


# -- what a file lists ------------------------------------------------------------------


_KEYS = {"bbox", "category_id", "caption", "segmentation", "keypoints", "segments_info"}
_MOST_KEYS = 100
_MOST_POINTS = 10_000


class CocoIndex:
    """Images and their annotations.

    names: file names, in the file's order; empty where an entry is damaged.
    ids, sizes: numbers of the images; heights and widths, one behind the other, 0 where not stated.
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
        self._order_annotations()
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

    def _order_annotations(self) -> None:
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
