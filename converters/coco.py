"""COCO: images, and one JSON file with what is in them.

``{"images": [...], "annotations": [...], "categories": [...]}``, as
https://cocodataset.org/#format-data specifies it: boxes as left, top, width, height from the
top left corner, in pixels; regions as polygons or run lengths; captions.

The file is gone through once, entry by entry (``reading/json_members.py``).  Kept of it
are the images' names and numbers and 28 bytes an annotation: the place where it stands,
from which a worker reads it again.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample, hash_fields
from .reading.coco_annotations import AnnotatedImage, Plan
from .reading.coco_layout import annotation_file, image_folder, is_coco
from .reading.inside import path_inside
from .reading.json_members import Member, json_members
from .reading.locations import printable, stat_of
from .reading.table import StringTable

__all__ = ["CocoSource"]

_USED = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "caption", "segmentation"}
_MOST_CLASSES = 254


class CocoSource(IndexedSource):
    """Images of a COCO annotation file, each with its boxes, or its captions.

    Parameters
    ----------
    annotations : str
        The annotation file, relative to the folder that is packed; needed where there
        are several.
    images : str
        The folder of the images, relative to the same; by default one that is called as usual.
    masks : str
        ``classes`` adds a mask of class numbers from 1 on, ``instances`` one of the
        numbers of boxes from 1 on; 0 is what is in neither.
    check_size : bool
        Whether an image of another size than its annotations say is rejected.
    """

    name = "coco"
    summary = "COCO: a JSON file of boxes, regions or captions, and its images"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_coco(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        annotations: str = "",
        images: str = "",
        masks: str = "",
        check_size: bool = True,
    ) -> None:
        if fields:
            raise OptionError("format 'coco' has fields of its own; fields= cannot change them")
        if masks not in ("", "classes", "instances"):
            raise OptionError(f"masks={masks!r} is neither 'classes' nor 'instances'")
        self.notes = []
        self.root, self.path = annotation_file(Path(location), annotations)
        self._names, self._ids, self._sizes = StringTable(), array("q"), array("i")
        self._rejects: dict[int, Reject] = {}
        self._unnumbered: list[int] = []
        self._strays: list[Reject] = []
        self._image_ids, self._starts, self._lengths = array("q"), array("Q"), array("I")
        self._categories: dict[int, str] = {}
        self._seen: set[str] = set()
        for member in json_members(self.path):
            add = _ADDERS.get(member.key)
            if add is not None:
                add(self, member)
        if not len(self._names):
            raise SourceError(f"{self.path}: lists no images")
        self._settle_order()
        self.folder = image_folder(self.root, self.path, images, self._first_names())
        ids = sorted(self._categories)
        self.schema = self._schema(channels, masks, [self._categories[k] for k in ids])
        classes = {number: k for k, number in enumerate(ids)}
        self._plan = Plan(str(self.path), tuple(self.schema), classes, masks, check_size)
        self._strays += self._dangling()
        self.num_samples = len(self._names) + len(self._strays)
        left = sorted(filter(str.isprintable, self._seen - _USED)) + ["segmentation"] * (
            "segmentation" in self._seen and not masks
        )
        if left:
            more = "; --option masks=classes paints segmentation" if "segmentation" in left else ""
            self.notes.append(f"of annotations left out: {', '.join(left[:12])}{more}")

    # -- going through the file ----------------------------------------------------------

    def _add_image(self, member: Member) -> None:
        name, number, size = "", None, (0, 0)
        try:
            number = _of(member.value, "id", int)
            array("q", [number])  # OverflowError where it does not fit
            name = _of(member.value, "file_name", str)
            name.encode()
            path_inside(Path(), name)
            size = _size(member.value)
        except (ValueError, OverflowError, SourceError) as error:
            row = len(self._names)
            self._rejects[row] = Reject(self._place(member), f"an image's entry: {error}")
            name = ""
            if number is None or isinstance(error, OverflowError):
                number = None
                self._unnumbered.append(row)
        self._names.append(name)
        self._ids.append(number or 0)
        self._sizes.extend(size)

    def _add_annotation(self, member: Member) -> None:
        try:
            self._image_ids.append(_of(member.value, "image_id", int))
        except (ValueError, OverflowError) as error:
            self._strays.append(Reject(self._place(member), f"an annotation: {error}"))
            return
        self._starts.append(member.start)
        self._lengths.append(member.end - member.start)
        if len(self._seen) < 100:
            self._seen.update(member.value)

    def _add_category(self, member: Member) -> None:
        try:
            number, name = _of(member.value, "id", int), _of(member.value, "name", str)
            name.encode()
            if self._categories.setdefault(number, name) != name:
                raise ValueError(f"id {number} is {self._categories[number]!r} and {name!r}")
        except ValueError as error:
            raise SourceError(f"{self._place(member)}: a category: {error}") from error

    def _place(self, member: Member) -> str:
        return f"{printable(self.path.name)}@{member.start}"

    # -- what belongs to what ------------------------------------------------------------

    def _settle_order(self) -> None:
        """Find each image's annotations, and images whose number another one has."""
        ids = np.frombuffer(self._ids, np.int64)
        numbered = np.ones(len(ids), bool)
        numbered[self._unnumbered] = False
        rows = np.flatnonzero(numbered)
        known, first = np.unique(ids[rows], return_index=True)
        for row in np.setdiff1d(rows, rows[first]).tolist():
            reason = f"another image has its id, {ids[row]}"
            self._rejects.setdefault(row, Reject(self._names[row], reason))
        of = np.frombuffer(self._image_ids, np.int64) if self._image_ids else np.zeros(0, np.int64)
        place = np.searchsorted(known, of)
        found = place < len(known)
        found[found] = known[place[found]] == of[found]
        image = np.full(len(of), len(ids), np.int64)
        image[found] = rows[first][place[found]]
        self._order = np.argsort(image, kind="stable")
        self._bounds = np.searchsorted(image[self._order], np.arange(len(ids) + 1))

    def _dangling(self) -> list[Reject]:
        """Return a reject for each image that annotations name and the file does not list."""
        lost = self._order[self._bounds[-1] :]
        if not len(lost):
            return []
        numbers, counts = np.unique(
            np.frombuffer(self._image_ids, np.int64)[lost], return_counts=True
        )
        key = printable(self.path.name)
        return [
            Reject(key, f"{count} annotations are of image_id {number}, which is not listed")
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        ]

    def _first_names(self) -> list[str]:
        sound = (row for row in range(len(self._names)) if row not in self._rejects)
        return [self._names[row] for row, _ in zip(sound, range(16), strict=False)]

    def _schema(self, channels: int, masks: str, classes: list[str]) -> Schema:
        fields: dict[str, Field] = {"image": ImageField(channels=channels)}
        boxed = bool(
            self._seen & {"bbox", "category_id"} or (classes and "caption" not in self._seen)
        )
        if boxed and not classes:
            raise SourceError(f"{self.path}: has boxes, but no categories that they are of")
        if masks:
            if not boxed:
                raise OptionError(f"masks={masks}: {self.path} has no regions")
            if masks == "classes" and len(classes) > _MOST_CLASSES:
                raise OptionError(
                    f"masks=classes: a mask holds {_MOST_CLASSES} classes, and there are "
                    f"{len(classes)}. masks=instances has no such limit."
                )
            fields["mask"] = ImageField(channels=1, mask=True)
        if boxed:
            fields["boxes"] = ArrayField("float32", (None, 4), boxes=True)
            fields["labels"] = ArrayField("int64", (None,), classes=tuple(classes))
            fields["crowd"] = ArrayField("bool", (None,))
            fields["areas"] = ArrayField("float32", (None,))
        if "caption" in self._seen:
            fields["captions"] = StringField()
        fields["image_id"] = ScalarField("int64")
        if len(fields) == 2:
            self.notes.append("no annotations: only the images")
        return Schema(fields)

    # -- samples -------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample | Reject:
        if index >= len(self._names):
            return self._strays[index - len(self._names)]
        if index in self._rejects:
            return self._rejects[index]
        name = self._names[index]
        own = self._order[self._bounds[index] : self._bounds[index + 1]].tolist()
        spans = [(self._starts[k], self._lengths[k]) for k in own]
        size = self._sizes[2 * index], self._sizes[2 * index + 1]
        path = path_inside(self.folder, name)
        return Sample(name, AnnotatedImage(path, self._ids[index], size, spans, self._plan))

    def key_at(self, index: int) -> str:
        reject = self.get(index)
        return reject.key

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        count = self.num_samples if limit is None else min(limit, self.num_samples)
        result = np.empty(count, np.uint64)
        of = stat_of(self.path)
        for index in range(count):
            sample = self.get(index)
            sound = isinstance(sample, Sample)
            stat = stat_of(self.folder / sample.key) if sound else (0, 0)
            result[index] = hash_fields(sample.key, stat, of)
        return result


_ADDERS = {
    "images": CocoSource._add_image,
    "annotations": CocoSource._add_annotation,
    "categories": CocoSource._add_category,
}


def _of(row: Any, name: str, kind: type) -> Any:
    """Return an entry's member, which is of a kind."""
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not kind or value == "":
        raise ValueError(f"its {name} is {value!r:.80}, not {kind.__name__}")
    return value


def _size(row: dict[str, Any]) -> tuple[int, int]:
    """Return height and width, zeros where the entry does not say."""
    size = row.get("height") or 0, row.get("width") or 0
    if not all(type(side) is int and 0 <= side < 1 << 31 for side in size):
        raise ValueError(f"its height and width are {size!r:.80}")
    return size
