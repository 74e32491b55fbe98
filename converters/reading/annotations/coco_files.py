"""Where a COCO dataset has its annotation files and its images, and what such a file lists.

A file's entries are held in arrays, not objects: an image takes its name and 40 bytes, an
annotation 57.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError

from ...base import Reject
from ..json_files import Member, json_members
from ..locations import first_bytes, folders_in, path_inside, printable
from ..named_files import find_named
from ..picture_pairs import SPLIT_WORDS, words
from ..selection import joined, left_out
from ..small_memory import StringTable
from ..splits import in_usual_order
from .coco_annotations import ROW, Id, Ids, pack_row

__all__ = [
    "FEDERATED", "CocoIndex", "annotation_files", "classes_of", "image_folder", "is_coco",
    "read_categories",
]  # fmt: skip

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


def annotation_files(location: Path, chosen: str, notes: list[str]) -> tuple[Path, dict[str, Path]]:
    """Return the dataset's folder and its annotation file, or those of its splits.

    A dataset without splits has the name "".

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
    usual = [name for name in files if Path(name).name.startswith("instances")] or files
    notes += left_out(
        "annotation files", sorted({*files} - {*usual}), "--option annotations=FILE takes one"
    )
    if len(usual) == 1:
        return location, {"": location / usual[0]}
    splits = {_split_in(name): location / name for name in usual}
    found = (words(Path(name).stem) for name in usual)
    rest = {tuple(word for word in one if word not in SPLIT_WORDS) for one in found}
    alike = len(rest) == 1 and "" not in splits
    if all(name.endswith("/_annotations.coco.json") for name in usual):
        splits, alike = {os.path.dirname(name): location / name for name in usual}, True
    if not alike or len(splits) < len(usual):
        raise OptionError(
            f"{location}: has the annotation files {joined(files)}. Name one: "
            f"--option annotations={usual[0]}"
        )
    return location, {split: splits[split] for split in in_usual_order(splits)}


def image_folder(root: Path, file: Path, chosen: str, names: Sequence[str]) -> Path:
    """Return the folder of the images.

    chosen: the folder, relative to `root`; "" to try the usual folders, and then any folder that is
        not named after another split.
    """
    if chosen:
        if not (root / chosen).is_dir():
            raise OptionError(f"images={chosen}: no such folder in {root}")
        return root / chosen
    parts, split = file.stem.split("_"), _split_in(file.stem)
    near = list(filter(None, [*("_".join(parts[k:]) for k in range(len(parts))), split]))
    usual = [root / place / name for place in ("", "images") for name in near]
    usual += [root / "images", root / "data", file.parent, root]
    folders = list(dict.fromkeys(usual))
    same = ("", SPLIT_WORDS.get(split))  # "val" and "valid" are one split
    other = [n for n in folders_in(root) if not split or SPLIT_WORDS.get(_split_in(n), "") in same]
    others = [root / n for n in other if root / n not in folders and _has_any(root / n, names)]
    found = next((folder for folder in folders if _has_any(folder, names)), None)
    if found is None and len(others) == 1:
        return others[0]
    if found is None:
        tried = ", ".join(str(folder) for folder in others or folders if folder.is_dir())
        raise SourceError(
            f"{file}: its first images ({joined(names[:3])}) are in {'each' if others else 'none'} "
            f"of {tried}. Name the folder: --option images=FOLDER"
        )
    return found


def _has_any(folder: Path, names: Sequence[str]) -> bool:
    for name in names:
        with contextlib.suppress(SourceError, OSError):
            if os.path.isfile(find_named(folder, name)):
                return True
    return False


def _split_in(name: str) -> str:
    """Return the word of a split in a name; "" if there is none."""
    return next((word for word in words(Path(name).stem) if word in SPLIT_WORDS), "")


# -- what a file lists ------------------------------------------------------------------


FEDERATED = ("neg_category_ids", "not_exhaustive_category_ids")
"""What LVIS says of its images, and is left out."""
_KEYS = {"bbox", "category_id", "caption", "segmentation"}
_MOST_KEYS = 100


class CocoIndex:
    """Images and their annotations.

    names: file names, in the file's order; empty where an entry is damaged.
    ids, sizes: numbers of the images; heights and widths, one behind the other, 0 where not stated.
    texts: ids of images that are text, by their numbers.
    strays: what belongs to no image.
    seen: names of the members that annotations have, and those of `FEDERATED` of images.
    categories: their names by their ids.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names, self.ids, self.sizes = StringTable(), array("q"), array("i")
        self.strays: list[Reject] = []
        self.seen: set[str] = set()
        self.categories: dict[Id, str] = {}
        self._ids, self._category_ids = Ids(), Ids()
        self._rejects: dict[int, Reject] = {}
        self._unnumbered: list[int] = []
        self._packed = bytearray()
        self._wrong: dict[int, str] = {}
        adders = {"images": self._add_image, "annotations": self._add_annotation}
        for member in json_members(path):
            if member.key == "categories":
                _add_category(self.categories, member, path)
            elif member.key in adders:
                adders[member.key](member)
        if not len(self.names):
            raise SourceError(f"{path}: lists no images")
        self.texts = {number: text for text, number in self._ids.texts.items()}
        self._order_annotations()
        self.strays += self._dangling()

    # -- going through the file ----------------------------------------------------------

    def _add_image(self, member: Member) -> None:
        name, number, size = "", None, (0, 0)
        try:
            number = self._ids.number(member.value, "id")
            name = _name_of(member.value)
            name.encode()
            path_inside("", name)
            size = _size(member.value)
            self.seen.update(key for key in FEDERATED if key in member.value)
        except (ValueError, SourceError) as error:
            row = len(self.names)
            self._rejects[row] = Reject(self._place(member), f"an image's entry: {error}")
            name = ""
            if number is None:
                self._unnumbered.append(row)
        self.names.append(name)
        self.ids.append(number or 0)
        self.sizes.extend(size)

    def _add_annotation(self, member: Member) -> None:
        size = member.end - member.start
        try:
            row, wrong = pack_row(member.value, self._ids, self._category_ids, member.start, size)
        except ValueError as error:
            self.strays.append(Reject(self._place(member), f"an annotation: {error}"))
            return
        if "segments_info" in member.value:
            raise SourceError(
                f"{self._path}: panoptic segments are not read. Turn them into regions with "
                "panopticapi's converters/panoptic2detection_coco_format.py, and pack that file"
            )
        if wrong:
            self._wrong[len(self._packed) // ROW.itemsize] = wrong
        self._packed += row
        self.seen.update(member.value if len(self.seen) < _MOST_KEYS else _KEYS & set(member.value))

    def _place(self, member: Member) -> str:
        return f"{printable(self._path.name)}@{member.start}"

    # -- what belongs to what ------------------------------------------------------------

    def number_classes(self, classes: Sequence[str]) -> None:
        """Let annotations have the numbers of classes instead of the ids of categories."""
        numbers = {name: number for number, name in enumerate(classes)}
        texts = self._category_ids.texts
        known = {
            id if isinstance(id, int) else texts.get(id, 0): numbers[name]
            for id, name in self.categories.items()
        }
        ids = np.array(sorted(known), np.int64)
        place = _index_in(ids, self._rows["label"])
        found = np.array([*(known[id] for id in ids.tolist()), -1], np.int64)
        self._rows["label"] = found[place]

    @property
    def single(self) -> bool:
        """Whether every image has exactly one annotation."""
        return bool((np.diff(self._bounds) == 1).all())

    def id_of(self, image: int) -> Id:
        """Return the id of an image."""
        return self.texts.get(self.ids[image], self.ids[image])

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
            reason = f"another image has its id, {self.id_of(row)}"
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

    def _dangling(self) -> list[Reject]:
        """Return a reject for each image that annotations name and the file does not list."""
        lost = self._rows["image"][self._order[self._bounds[-1] :]]
        numbers, counts = np.unique(lost, return_counts=True)
        key = printable(self._path.name)
        return [
            Reject(
                key,
                f"{count} annotations are of image_id {self.texts.get(number, number)}, which is "
                "not listed",
            )
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        ]


# -- categories ---------------------------------------------------------------------------


def read_categories(path: Path) -> dict[Id, str]:
    """Return the names of a file's categories by their ids."""
    found: dict[Id, str] = {}
    for member in json_members(path):
        if member.key == "categories":
            _add_category(found, member, path)
    return found


def _add_category(found: dict[Id, str], member: Member, path: Path) -> None:
    try:
        number, name = Ids().of(member.value, "id"), _text(member.value, "name")
        name.encode()
        if found.setdefault(number, name) != name:
            raise ValueError(f"id {number} is {found[number]!r} and {name!r}")
    except ValueError as error:
        place = f"{printable(path.name)}@{member.start}"
        raise SourceError(f"{place}: a category: {error}") from error


def classes_of(files: Mapping[Path, Mapping[Id, str]], notes: list[str]) -> tuple[str, ...]:
    """Return the classes of all files of a dataset, in the order of their ids.

    Files may have some of the categories, or number the same names in another way.
    """
    first, *others = files
    for path, categories in files.items():
        for name in [name for name, n in Counter(categories.values()).items() if n > 1][:1]:
            twice = [number for number in categories if categories[number] == name]
            raise SourceError(
                f"{path}: the categories {joined(map(str, twice))} are all called {name!r}. Give "
                "each a name of its own, or give their annotations one category_id"
            )
    merged = dict(files[first])
    for path in others:
        differ = [n for n, name in files[path].items() if merged.setdefault(n, name) != name]
        if differ and {*files[path].values()} != {*files[first].values()}:
            raise SourceError(
                f"{path}: its categories are not those of {first}: {differ[0]} is "
                f"{files[path][differ[0]]!r} here and {merged[differ[0]]!r} there. Give both files "
                f"the same categories, or pack this file as a dataset of its own: SOURCE {path}"
            )
        if differ:
            notes.append(f"{path.name} and {first.name} have other ids of the same categories")
    return tuple(dict.fromkeys(merged[n] for n in sorted(merged, key=lambda n: (str(n) == n, n))))


def _index_in(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where in a sorted array values are; -1 where they are not."""
    place = np.searchsorted(known, wanted)
    found = place < len(known)
    found[found] = known[place[found]] == wanted[found]
    return np.where(found, place, -1)


def _text(row: Any, name: str) -> str:
    """Return an entry's member, which is text."""
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str) or not value:
        raise ValueError(f"its {name} is {value!r:.80}, not text")
    return value


def _name_of(row: Any) -> str:
    """Return an image's name; LVIS has that of its folder and file in an address."""
    address = row.get("coco_url") if isinstance(row, dict) and "file_name" not in row else None
    if isinstance(address, str) and address.count("/") > 3:
        return "/".join(address.split("/")[-2:])
    return _text(row, "file_name")


def _size(row: dict[str, Any]) -> tuple[int, int]:
    """Return height and width, zeros where the entry does not say."""
    size = row.get("height") or 0, row.get("width") or 0
    if not all(type(side) is int and 0 <= side < 1 << 31 for side in size):
        raise ValueError(f"its height and width are {size!r:.80}")
    return size
