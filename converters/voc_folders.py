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
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from .base import Deferred, FieldSpec
from .reading.annotations.voc_annotations import AnnotatedImage, Plan, survey
from .reading.annotations.voc_layout import XmlFolders, voc_roots, xml_folders
from .reading.class_names import classes_of_texts, read_class_names
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import folder_at, printable
from .reading.refusals import refuse_fields
from .reading.selection import left_out
from .reading.splits import choose_folder

__all__ = ["VocFoldersSource"]


class VocFoldersSource(ImageListSource):
    """Images with the boxes, classes and flags of their objects.

    Parameters
    ----------
    split : str
        Take only this one of the folders ``train``, ``valid``, ``test``.
    classes : str, optional
        A text file with the names of the classes, one a line; default: those of the objects, in
        sorted order.
    one_based : bool, optional
        Whether boxes are as in VOC: of the pixels within, counted from 1.  Else their numbers
        are taken as they are.  Default: as in VOC, unless one begins before 1.
    empty : bool
        Whether an image without an annotation file is taken as one without objects.
    check_size : bool
        Whether an image of another size than its annotations say is rejected.
    """

    name = "voc_folders"
    summary = (
        "images and Pascal VOC's XML files, side by side or in two folders (LabelImg, Roboflow)"
    )
    parts = ("**/*.xml", "**/*.jpg|**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        return folder is not None and not voc_roots(folder) and bool(xml_folders(folder))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str | None = None,
        classes: str | None = None,
        one_based: bool | None = None,
        empty: bool = False,
        check_size: bool = True,
    ) -> None:
        refuse_fields(fields, self.name)
        root = Path(location)
        folders = xml_folders(root)
        if not folders:
            raise SourceError(
                f"{root}: no images with XML files. Expected these beside each other, in images/ "
                "and annotations/, or in train/, valid/ and test/"
            )
        names = [part.split for part in folders]
        self.begin(root, int(not split and names != [""]))
        splits = choose_folder(names, split, self.notes)
        for part in folders:
            if part.split in splits:
                self._add_all(part, splits.index(part.split))
        if not self.num_samples:
            raise SourceError(f"{root}: no images in {', '.join(part.images for part in folders)}")
        count = self.num_samples if classes is None or one_based is None else 0
        found, least = survey(os.path.join(root, self.names_of(k)[1]) for k in range(count))
        known = classes_of_texts(found, f"{root}", classes) if classes is None else ()
        known = read_class_names(classes) if classes is not None else known
        if one_based is None:
            one_based = least >= 1
            self.notes.append(
                "boxes are of pixels counted from 1, as VOC's (--option one_based=false takes "
                "their numbers as they are)"
                if one_based
                else "boxes begin at 0, so their numbers are taken as they are (--option "
                "one_based=true counts from 1, as VOC does)"
            )
        self.notes += left_out("of annotations", ("pose", "occluded", "parts", "actions"))
        self.schema = Schema(self._fields(channels, known, splits))
        numbers = {name: k for k, name in enumerate(known)}
        self._plan = Plan(tuple(self.schema), numbers, int(one_based), check_size, empty)

    def _fields(
        self, channels: int, classes: tuple[str, ...], splits: list[str]
    ) -> dict[str, Field]:
        split = {"split": ScalarField(classes=tuple(map(printable, splits)))}
        return {
            "image": ImageField(channels=channels),
            "boxes": ArrayField("float32", (None, 4), boxes=True),
            "labels": ArrayField("int64", (None,), classes=classes),
            "difficult": ArrayField("bool", (None,)),
            "truncated": ArrayField("bool", (None,)),
            **(split if self._width else {}),
        }

    def _add_all(self, part: XmlFolders, split: int) -> None:
        """Add the images of a folder; note XML files of no image."""
        taken = 0
        for name in filter(is_image_name, files_below(self.root, part.images)):
            stem = os.path.splitext(os.path.relpath(name, part.images))[0]
            annotation = os.path.normpath(os.path.join(part.annotations, f"{stem}.xml"))
            taken += os.path.isfile(os.path.join(self.root, annotation))
            self.add(name, annotation, numbers=[split] * self._width)
        files = files_below(self.root, part.annotations)
        others = sum(name.endswith(".xml") for name in files) - taken
        if others > 0:
            self.notes.append(
                f"{others:,} XML files in {part.annotations} are of no image; left out"
            )

    def values(self, files: list[str], numbers: list[int]) -> Deferred:
        others = dict(zip(("split",), numbers, strict=False))
        return AnnotatedImage(files[0], files[1], None, self._plan, others)
