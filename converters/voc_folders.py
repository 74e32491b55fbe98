"""Pascal VOC's XML files without its other folders: what LabelImg and Roboflow write.

::

    images/0.jpg              0.jpg                 train/0.jpg
    annotations/0.xml         0.xml                 train/0.xml
                                                    valid/1.jpg
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import Field

from .reading.annotations.voc_files import XmlSource, voc_roots, xml_folders
from .reading.image_files import files_below, is_image_name
from .reading.named_files import find_named
from .reading.options import AllowEmpty, CheckSize, ClassFile, OneBased, SplitOption
from .reading.splits import FolderPair

__all__ = ["VocFoldersSource"]


class VocFoldersSource(XmlSource):
    """Images with the boxes, classes and flags of their objects."""

    name = "voc_folders"
    summary = (
        "images and Pascal VOC's XML files, side by side or in two folders (LabelImg, Roboflow)"
    )
    parts = ("**/*.xml", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        return not voc_roots(folder) and bool(xml_folders(folder))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        classes: ClassFile = None,
        one_based: OneBased = None,
        empty: AllowEmpty = False,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        folders = xml_folders(location)
        if not folders:
            raise SourceError(
                f"{location}: no images with XML files. Expected these beside each other, in "
                "images/ and annotations/, or in train/, valid/ and test/"
            )
        splits = self.choose_splits([part.split for part in folders], split)
        for part in folders:
            if part.split in splits:
                self._add_all(part)
        if not self.num_samples:
            raise SourceError(
                f"{location}: no images in {', '.join(part.images for part in folders)}"
            )
        files = (name for part in folders for name in files_below(self.root, part.others))
        objects = self.read_objects(
            (os.path.join(self.root, name) for name in files if name.endswith(".xml")),
            classes=classes,
            one_based=one_based,
            check_size=check_size,
            empty=empty,
        )
        return {**objects, **self.split_field()}

    def _add_all(self, part: FolderPair) -> None:
        """Add the images of a folder; note XML files of no image."""
        taken = 0
        for name in filter(is_image_name, files_below(self.root, part.images)):
            stem = os.path.splitext(os.path.relpath(name, part.images))[0]
            annotation = find_named(self.root, os.path.normpath(f"{part.others}/{stem}.xml"))
            taken += os.path.isfile(annotation)
            annotation = os.path.relpath(annotation, self.root)
            self.add(name, annotation, **self.split_number(part.split))
        files = files_below(self.root, part.others)
        others = sum(name.endswith(".xml") for name in files) - taken
        if others > 0:
            self.notes.append(f"{others:,} XML files in {part.others} are of no image; left out")
