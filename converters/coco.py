"""COCO: images, and one JSON file with what is in them.

``{"images": [...], "annotations": [...], "categories": [...]}``, as
https://cocodataset.org/#format-data specifies it: boxes as left, top, width, height from the
top left corner, in pixels; regions as polygons or run lengths; captions.

The file is gone through once, entry by entry (``reading/annotations/json_members.py``).  Kept of it
are the images' names and numbers, and 57 bytes an annotation.  Captions and regions are read
again by workers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .reading.annotations.coco_annotations import AnnotatedImage, Plan
from .reading.annotations.coco_index import CocoIndex
from .reading.annotations.coco_layout import annotation_file, image_folder, is_coco
from .reading.fingerprints import hash_samples
from .reading.locations import stat_of
from .reading.refusals import check_choice, refuse_fields
from .reading.safe_paths import path_inside
from .reading.selection import left_out

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
    parts = ("*instances*.json|annotations/*.json|**/_annotations.coco.json", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_coco(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        annotations: str | None = None,
        images: str | None = None,
        masks: str | None = None,
        check_size: bool = True,
    ) -> None:
        refuse_fields(fields, self.name)
        masks = masks or ""
        check_choice("masks", masks, ("", "classes", "instances"))
        self.notes = []
        annotations = annotations or ""
        images = images or ""
        self.root, self.path = annotation_file(Path(location), annotations)
        self._index = index = CocoIndex(self.path)
        self.folder = image_folder(self.root, self.path, images, index.first_names())
        self.schema = self._schema(channels, masks)
        self._plan = Plan(str(self.path), tuple(self.schema), masks, check_size)
        self.num_samples = len(index.names) + len(index.strays)
        left = sorted(filter(str.isprintable, index.seen - _USED))
        if "segmentation" in index.seen and not masks:
            left.append("segmentation (--option masks=classes paints it)")
        self.notes += left_out("of annotations", left)

    def _schema(self, channels: int, masks: str) -> Schema:
        classes, seen = self._index.classes, self._index.seen
        fields: dict[str, Field] = {"image": ImageField(channels=channels)}
        boxed = bool(seen & {"bbox", "category_id"} or (classes and "caption" not in seen))
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
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
            fields["crowd"] = ArrayField("bool", (None,))
            fields["areas"] = ArrayField("float32", (None,))
        if "caption" in seen:
            fields["captions"] = StringField()
        fields["image_id"] = ScalarField("int64")
        if len(fields) == 2:
            self.notes.append("no annotations: only the images")
        return Schema(fields)

    def __getitem__(self, index: int) -> Sample | Reject:
        of = self._index
        if index >= len(of.names):
            return of.strays[index - len(of.names)]
        reject = of.reject_at(index, "boxes" in self.schema)
        if reject is not None:
            return reject
        name = of.names[index]
        image = AnnotatedImage(
            path_inside(self.folder, name),
            of.ids[index],
            (of.sizes[2 * index], of.sizes[2 * index + 1]),
            of.rows_of(index).tobytes(),
            self._plan,
        )
        return Sample(name, image)

    def key_at(self, index: int) -> str:
        return self.get(index).key

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        of = stat_of(self.path)

        def parts(index: int) -> tuple[Any, ...]:
            key = self.get(index).key
            listed = isinstance(self.get(index), Sample)
            return key, stat_of(os.path.join(self.folder, key)) if listed else (), of

        return hash_samples(self.num_samples, limit, parts)
