"""Pascal VOC: images, an XML file of objects for each, and lists of the images of each split.

::

    JPEGImages/2007_000027.jpg
    Annotations/2007_000027.xml
    ImageSets/Main/train.txt
    SegmentationClass/2007_000032.png

Source: M. Everingham and J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012)
Development Kit", sections 2 and 3.  Boxes there are of the pixels within, counted from 1.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField

from .base import hash_fields, reject_reason
from .reading.annotations.voc_files import (
    FROM_ZERO,
    VocReader,
    classes_of_lists,
    names_in_list,
    object_fields,
    splits_of,
    survey,
    voc_root,
    voc_roots,
)
from .reading.class_names import classes_of_texts, numbered, read_class_names
from .reading.image_files import BOTH_CASES, ignored_files, is_image_name, suffix_of
from .reading.image_list import ImageListSource
from .reading.locations import path_inside
from .reading.options import AllowEmpty, CheckSize, ClassFile, OneBased, Option
from .reading.selection import left_out

__all__ = ["VocSource"]

_MASKS = {"": "", "classes": "SegmentationClass", "instances": "SegmentationObject"}


class VocSource(ImageListSource):
    """Images with the boxes, classes and flags of their objects."""

    name = "voc"
    summary = "Pascal VOC: JPEGImages, Annotations, ImageSets, SegmentationClass"
    parts = ("JPEGImages", "Annotations/*.xml|ImageSets/*|SegmentationClass")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return bool(voc_roots(Path(location)))

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[
            str | None, Option("the list to take, e.g. trainval; default: all images")
        ] = None,
        sets: Annotated[
            str | None, Option("the folder of lists in ImageSets: Main, or with masks Segmentation")
        ] = None,
        masks: Annotated[
            str | None,
            Option(
                "add SegmentationClass or SegmentationObject; 0 background, 255 void",
                ("classes", "instances"),
            ),
        ] = None,
        classes: ClassFile = None,
        one_based: OneBased = None,
        empty: AllowEmpty = False,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        self.root = voc_root(location)
        self._masks = _MASKS[masks or ""]
        if self._masks and not (self.root / self._masks).is_dir():
            raise OptionError(f"masks={masks}: there is no folder {self.root / self._masks}")
        lists = self.root / "ImageSets" / (sets or ("Segmentation" if masks else "Main"))
        if split:
            self._read_list(lists, split)
        else:
            self._read_folder(lists)
        self._reject_doubles()
        found: dict[str, Field] = {}
        if self._masks:
            found["mask"] = ImageField(channels=1, mask=True)
        names: tuple[str, ...] = ()
        least = math.inf
        boxed = (self.root / "Annotations").is_dir()
        if boxed:
            names, least = self._classes(classes)
            found |= object_fields(names)
            self.notes += left_out("of annotations", ("pose", "occluded", "parts", "actions"))
        elif not masks:
            self.notes.append(f"no folder {self.root / 'Annotations'}: only the images")
        if one_based is None:
            one_based = least >= 1
            if not one_based:
                self.notes.append(FROM_ZERO)
        self.reader = VocReader(numbered(names), int(one_based), check_size, empty, boxed)
        return found

    def _read_folder(self, lists: Path) -> None:
        """Take all images, or those that have a mask."""
        ignored: Counter[str] = Counter()
        for name in sorted(entry.name for entry in os.scandir(self.root / "JPEGImages")):
            if not is_image_name(name):
                ignored[suffix_of(name)] += 1
            elif not self._masks or (self.root / self._masks / f"{Path(name).stem}.png").is_file():
                self.add(name)
        if not self.num_samples:
            raise SourceError(f"{self.root}: there are no images in JPEGImages to be packed")
        self.notes += ignored_files(ignored)
        if splits := splits_of(lists):
            self.notes.append(
                f"images of all splits; --option split=NAME takes one of {', '.join(splits[:12])}"
            )

    def _read_list(self, lists: Path, split: str) -> None:
        """Take the images that a list names."""
        others = 0
        for number, name in names_in_list(lists, split):
            if name is None:
                others += 1
                continue
            try:
                image = path_inside(self.root / "JPEGImages", name)
                suffix = next((s for s in BOTH_CASES if os.path.exists(f"{image}{s}")), None)
                if suffix is None:
                    shown = ", ".join(BOTH_CASES)
                    raise SourceError(f"there is no image {image} with one of {shown}")
                self.add(name + suffix)
            except (OSError, SourceError) as error:
                key = f"{name} ({split}.txt, line {number})"
                self.reject(key, reject_reason(key, error))
        if not self.num_samples:
            raise SourceError(f"{lists}/{split}.txt: lists no images")
        if others:
            self.notes.append(f"{others} images of {split}.txt left out, which it marks -1")

    def _reject_doubles(self) -> None:
        """Reject images that a list names again."""
        names = (self.names_of(row)[0] for row in range(self.num_samples))
        hashes = np.fromiter(map(hash_fields, names), np.uint64, self.num_samples)
        first = np.unique(hashes, return_index=True)[1]
        for row in np.setdiff1d(np.arange(self.num_samples), first).tolist():
            self._rejects.setdefault(row, "the list names it before")

    def _classes(self, given: str | None) -> tuple[tuple[str, ...], float]:
        """Return the classes, and where the first box begins, if annotations are read for them."""
        if given is not None:
            return read_class_names(given), math.inf
        if own := classes_of_lists(self.root / "ImageSets" / "Main"):
            return own, math.inf
        rows = (row for row in range(self.num_samples) if row not in self._rejects)
        xml_files = (self.files_of(self.names_of(row), {})[1] for row in rows)
        found, least = survey(os.path.join(self.root, name) for name in xml_files)
        names = classes_of_texts(found, str(self.root / "Annotations"))
        if not names:
            self.notes.append("no objects in any annotation file")
        return names, least

    def files_of(self, names: list[str], numbers: Mapping[str, int]) -> list[str]:
        stem = os.path.splitext(names[0])[0]
        mask = [os.path.join(self._masks, f"{stem}.png")] if self._masks else []
        image, annotation = os.path.join("JPEGImages", names[0]), f"Annotations/{stem}.xml"
        return [image, annotation, *mask]
