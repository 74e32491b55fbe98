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

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField

from .base import reject_reason
from .reading.annotations.voc_files import (
    VocReader,
    XmlSource,
    classes_of_lists,
    names_in_list,
    splits_of,
    voc_root,
    voc_roots,
)
from .reading.image_files import BOTH_CASES, ignored_files, is_image_name, suffix_of
from .reading.locations import path_inside
from .reading.named_files import find_named
from .reading.options import AllowEmpty, CheckSize, ClassFile, OneBased, Option

__all__ = ["VocSource"]

_MASKS = {"": "", "classes": "SegmentationClass", "instances": "SegmentationObject"}


class VocSource(XmlSource):
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
        lists = self.root / "ImageSets" / ("Segmentation" if masks else "Main")
        if split:
            self._read_list(lists, split)
        else:
            self._read_folder(lists)
        mask: dict[str, Field] = {"mask": ImageField(channels=1, mask=True)} if masks else {}
        annotations = self.root / "Annotations"
        if annotations.is_dir():
            return mask | self.read_objects(
                map(str, annotations.glob("*.xml")),
                classes_of_lists(self.root / "ImageSets" / "Main"),
                classes=classes,
                one_based=one_based,
                check_size=check_size,
                empty=empty,
            )
        if not masks:
            self.notes.append(f"no folder {annotations}: only the images")
        self.reader = VocReader({}, 1, check_size, empty, boxed=False)
        return mask

    def _read_folder(self, lists: Path) -> None:
        """Take all images, or those that have a mask."""
        ignored: Counter[str] = Counter()
        for name in sorted(entry.name for entry in os.scandir(self.root / "JPEGImages")):
            if not is_image_name(name):
                ignored[suffix_of(name)] += 1
            elif not self._masks or (self.root / self.files_of([name], {})[-1]).is_file():
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
        others, seen = 0, set()
        for number, name in names_in_list(lists, split):
            if name is None:
                others += 1
                continue
            try:
                images = self.root / "JPEGImages"
                path_inside(images, name)
                tried = (find_named(images, f"{name}{suffix}") for suffix in BOTH_CASES)
                image = next(filter(os.path.exists, tried), None)
                if image is None:
                    raise SourceError(
                        f"there is no image {images / name} with one of {', '.join(BOTH_CASES)}"
                    )
                image = os.path.relpath(image, images)
                if image in seen:
                    self.reject(image, "the list names it before")
                else:
                    self.add(image)
                seen.add(image)
            except (OSError, SourceError) as error:
                key = f"{name} ({split}.txt, line {number})"
                self.reject(key, reject_reason(key, error))
        if not self.num_samples:
            raise SourceError(f"{lists}/{split}.txt: lists no images")
        if others:
            self.notes.append(f"{others} images of {split}.txt left out, which it marks -1")

    def files_of(self, names: list[str], numbers: Mapping[str, int]) -> list[str]:
        stem = os.path.splitext(names[0])[0]
        others = [f"Annotations/{stem}.xml"] + [f"{self._masks}/{stem}.png"] * bool(self._masks)
        return [os.path.join("JPEGImages", names[0]), *map(self._called, others)]

    def _called(self, name: str) -> str:
        """Return what a file is called whose name comes from an image's."""
        try:
            return os.path.relpath(find_named(self.root, name), self.root)
        except SourceError:  # of a reject, whose name leads elsewhere
            return name
