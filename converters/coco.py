"""COCO: images, and one JSON file with what is in them.

``{"images": [...], "annotations": [...], "categories": [...]}``, as
https://cocodataset.org/#format-data specifies it: boxes as left, top, width, height from the
top left corner, in pixels; regions as polygons or run lengths; captions.  Variants: LVIS,
iNaturalist (a class an image), Roboflow's export (a file a split).

A file is read once, entry by entry (``reading/json_files.py``).  In memory are the images' names
and numbers, and 57 bytes an annotation.  What is no number is read again by workers.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .listing import DeferredSample
from .reading.annotations.coco_annotations import CocoReader
from .reading.annotations.coco_files import (
    FEDERATED,
    CocoIndex,
    annotation_files,
    classes_of,
    image_folder,
    is_coco,
    read_categories,
)
from .reading.annotations.regions import mask_field
from .reading.fields import BOXES
from .reading.fingerprints import hash_samples
from .reading.locations import printable, stat_of
from .reading.named_files import find_named
from .reading.options import CheckSize, ImageFolder, Option, PaintedMasks
from .reading.refusals import refuse_fields
from .reading.selection import joined, left_out
from .reading.splits import choose_folder

__all__ = ["CocoSource"]

_USED = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "caption", "segmentation"}


class _Part(NamedTuple):
    """An annotation file: its entries, where its images are, how workers read them."""

    listing: CocoIndex
    folder: Path
    reader: CocoReader


class CocoSource(IndexedSource):
    """Images of a COCO annotation file, each with its boxes, or its captions."""

    name = "coco"
    summary = "COCO, LVIS, iNaturalist: a JSON file of boxes, regions, captions or classes"
    parts = ("*instances*.json|annotations/*.json|**/_annotations.coco.json", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_coco(Path(location))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        annotations: Annotated[
            str | None, Option("the annotation file, below the folder; where there are several")
        ] = None,
        images: ImageFolder = None,
        masks: PaintedMasks = None,
        split: Annotated[str | None, Option("take only this split, where each has a file")] = None,
        check_size: CheckSize = True,
    ) -> None:
        refuse_fields(fields, self.name)
        self.notes = []
        self.root, files = annotation_files(Path(location), annotations or "", self.notes)
        splits = choose_folder(list(files), split, self.notes)
        indices = {name: CocoIndex(files[name]) for name in splits}
        classes = classes_of(
            {
                path: indices[name].categories if name in indices else read_categories(path)
                for name, path in files.items()
            },
            self.notes,
        )
        for index in indices.values():
            index.number_classes(classes)
        self._seen = set().union(*(index.seen for index in indices.values()))
        self._single = all(index.single for index in indices.values())
        found = self._fields(channels, masks, classes)
        self._text_ids = any(
            not index.texts.keys().isdisjoint(index.ids) for index in indices.values()
        )
        found["image_id"] = StringField() if self._text_ids else ScalarField("int64")
        if not split and list(files) != [""]:
            found["split"] = ScalarField(classes=tuple(map(printable, splits)))
        self.schema = Schema(found)
        self._parts = []
        for name, index in indices.items():
            path = files[name]
            try:
                folder = image_folder(self.root, path, images or "", index.first_names())
            except SourceError as error:
                others = f", or take one split: --option split={joined([*{*splits} - {name}], 1)}"
                raise SourceError(f"{error}{others if len(splits) > 1 else ''}") from None
            reader = CocoReader(str(path), tuple(found), masks, check_size)
            self._parts.append(_Part(index, folder, reader))
        counts = [len(index.names) + len(index.strays) for index in indices.values()]
        self._starts = [0, *itertools.accumulate(counts)]
        self.num_samples = self._starts[-1]
        left = sorted(filter(str.isprintable, self._seen - _USED - {*FEDERATED}))
        if "segmentation" in self._seen and not masks:
            left.append("segmentation (--option masks=classes paints it)")
        self.notes += left_out("of annotations", left)
        self.notes += left_out("of images", sorted(self._seen & {*FEDERATED}))

    def _fields(
        self, channels: int, masks: str | None, classes: tuple[str, ...]
    ) -> dict[str, Field]:
        """Return the fields, by which members annotations have."""
        seen = self._seen
        of_image = "category_id" in seen and not seen & {"bbox", "segmentation"}
        boxed = not of_image and bool(
            seen & {"bbox", "category_id"} or (classes and "caption" not in seen)
        )
        if (boxed or of_image) and not classes:
            raise SourceError(f"{self.root}: has boxes, but no categories that they are of")
        fields: dict[str, Field] = {"image": ImageField(channels=channels)}
        if masks:
            if not boxed:
                raise OptionError(f"masks={masks}: the annotations of {self.root} have no regions")
            fields |= mask_field(masks, classes)
        if boxed:
            fields["boxes"] = BOXES
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
            fields["crowd"] = ArrayField("bool", (None,))
            fields["areas"] = ArrayField("float32", (None,))
        elif of_image and self._single:
            fields["label"] = ScalarField(classes=classes)
        elif of_image:
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
        if "caption" in seen:
            fields["captions"] = StringField()
        if len(fields) == 1:
            self.notes.append("no annotations: only the images")
        return fields

    def __getitem__(self, index: int) -> Sample | Reject:
        number = bisect_right(self._starts, index) - 1
        entries, folder, reader = self._parts[number]
        row = index - self._starts[number]
        if row >= len(entries.names):
            return entries.strays[row - len(entries.names)]
        reject = entries.reject_at(row, bool({"boxes", "label", "labels"} & set(self.schema)))
        if reject is not None:
            return reject
        name = entries.names[row]
        known = {
            "image_id": str(entries.id_of(row)) if self._text_ids else entries.ids[row],
            "split": number,
            "size": tuple(entries.sizes[2 * row : 2 * row + 2]),
            "annotations": entries.rows_of(row).tobytes(),
        }
        # Images of several folders differ by these.
        inside = os.path.relpath(folder, self.root) if len(self._parts) > 1 else ""
        path = find_named(folder, name)
        if "\\" in name:
            name = os.path.relpath(path, folder)
        image = DeferredSample(reader, reader.fields, [path], known)
        return Sample(os.path.join(inside, name), image)

    def key_at(self, index: int) -> str:
        return self.get(index).key

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        files = [stat_of(part.reader.path) for part in self._parts]

        def parts(index: int) -> tuple[Any, ...]:
            sample = self.get(index)
            values = sample.values if isinstance(sample, Sample) else None
            image = stat_of(values.files[0]) if isinstance(values, DeferredSample) else ()
            return sample.key, image, *files

        return hash_samples(self.num_samples, limit, parts)
