"""COCO: images, and one JSON file with what is in them.

``{"images": [...], "annotations": [...], "categories": [...]}``, as
https://cocodataset.org/#format-data specifies it: boxes as left, top, width, height from the
top left corner, in pixels; regions as polygons or run lengths; captions.  Variants: LVIS,
iNaturalist (a class an image), Roboflow's export (a file a split).

A file is read once, entry by entry (``reading/json_files.py``).  In memory are the images' names
and numbers, and 57 bytes an annotation.  Workers read the rest again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ScalarField, StringField

from .base import Deferred
from .reading.annotations.coco_annotations import CocoIndex, CocoReader, read_categories
from .reading.annotations.coco_files import annotation_files, classes_of, image_folder, is_coco
from .reading.annotations.regions import mask_field
from .reading.fields import BOXES
from .reading.image_list import DeferredSample, ImageListSource
from .reading.locations import printable
from .reading.named_files import find_named
from .reading.options import CheckSize, ImageFolder, Option, PaintedMasks
from .reading.selection import joined, left_out

__all__ = ["CocoSource"]

_USED = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "caption", "segmentation"}


class CocoSource(ImageListSource):
    """Images of a COCO annotation file, each with its boxes, or its captions."""

    name = "coco"
    summary = "COCO, LVIS, iNaturalist: a JSON file of boxes, regions, captions or classes"
    parts = ("*instances*.json|annotations/*.json|**/_annotations.coco.json", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_coco(Path(location))

    def list_samples(
        self,
        location: Path,
        *,
        images: ImageFolder = None,
        masks: PaintedMasks = None,
        split: Annotated[str | None, Option("take only this split, if each has a file")] = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        self.root, files = annotation_files(location, self.notes)
        splits = self.choose_splits(list(files), split)
        self._indices = [CocoIndex(files[name]) for name in splits]
        categories = {index.path: index.categories for index in self._indices}
        others = {path: read_categories(path) for path in files.values() if path not in categories}
        known = {**categories, **others}
        classes = classes_of({path: known[path] for path in files.values()}, self.notes)
        found = self._fields_of(masks, classes)
        self._text_ids = any(index.text_ids for index in self._indices)
        found["image_id"] = StringField() if self._text_ids else ScalarField("int64")
        found |= self.split_field()
        for number, index in enumerate(self._indices):
            index.number_classes(classes)
            try:
                folder = image_folder(self.root, index.path, images or "", index.first_names())
            except SourceError as error:
                rest = joined([*{*splits} - {splits[number]}], 1)
                remedy = f", or take one split: --option split={rest}" if len(splits) > 1 else ""
                raise SourceError(f"{error}{remedy}") from None
            self._add_all(index, os.path.relpath(folder, self.root), number)
        self.beside = [index.path for index in self._indices]
        self.reader = CocoReader(tuple(map(str, self.beside)), ("image", *found), masks, check_size)
        return found

    def _add_all(self, index: CocoIndex, folder: str, split: int) -> None:
        inside = "" if folder == "." else f"{folder}/"
        # Images of several folders differ by the folder.
        self._prefix = inside if len(self._indices) == 1 else ""
        for row in range(len(index.names)):
            if row in index.rejects:
                self.reject(*index.rejects[row])
                continue
            name = f"{inside}{index.names[row]}"
            if "\\" in name or not name.isascii():
                name = os.path.relpath(find_named(self.root, name), self.root)
            self.add(name, split=split, row=row)
        for key, reason in index.strays:
            self.reject(key, reason)

    def _fields_of(self, masks: str | None, classes: tuple[str, ...]) -> dict[str, Field]:
        """Return the fields, by which members annotations have."""
        seen = set().union(*(index.seen for index in self._indices))
        of_image = "category_id" in seen and not seen & {"bbox", "segmentation"}
        boxed = not of_image and bool(
            seen & {"bbox", "category_id"} or (classes and "caption" not in seen)
        )
        if (boxed or of_image) and not classes:
            raise SourceError(f"{self.root}: has boxes, but no categories that they are of")
        if masks and not boxed:
            raise OptionError(f"masks={masks}: the annotations of {self.root} have no regions")
        fields = mask_field(masks, classes)
        if boxed:
            fields["boxes"] = BOXES
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
            fields["crowd"] = ArrayField("bool", (None,))
            fields["areas"] = ArrayField("float32", (None,))
        elif of_image and all(index.single for index in self._indices):
            fields["label"] = ScalarField(classes=classes)
        elif of_image:
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
        if "caption" in seen:
            fields["captions"] = StringField()
        if not fields:
            self.notes.append("no annotations: only the images")
        left = sorted(filter(str.isprintable, seen - _USED))
        if "segmentation" in seen and not masks:
            left.append("segmentation (--option masks=classes paints it)")
        self.notes += left_out("of annotations", left)
        return fields

    def key_of(self, names: list[str], numbers: Mapping[str, int]) -> str:
        return printable(names[0].removeprefix(self._prefix))

    def values(self, files: list[str], numbers: dict[str, int]) -> Deferred:
        index, row = self._indices[numbers["split"]], numbers["row"]
        known = {
            "image_id": str(index.id_of(row)) if self._text_ids else index.ids[row],
            "split": numbers["split"],
            "size": tuple(index.sizes[2 * row : 2 * row + 2]),
            "annotations": index.rows_of(row).tobytes(),
        }
        assert self.reader is not None
        return DeferredSample(self.reader, self._fields, files, known)
