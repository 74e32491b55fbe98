"""Pascal VOC: images, an XML file of objects for each, and lists of which belong to a split.

::

    JPEGImages/2007_000027.jpg
    Annotations/2007_000027.xml
    ImageSets/Main/train.txt
    SegmentationClass/2007_000032.png

Source: M. Everingham and J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012)
Development Kit", sections 2 and 3.  Boxes there are of the pixels within, counted from 1.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import ArrayField, Field, ImageField, Schema

from .base import FieldSpec, IndexedSource, Reject, Sample, hash_fields
from .reading.annotations.voc_annotations import (
    AnnotatedImage,
    Plan,
    class_names,
    first_pixel,
)
from .reading.annotations.voc_layout import classes_of_lists, listed, splits_of, voc_root, voc_roots
from .reading.class_names import classes_of_texts, read_class_names
from .reading.fingerprints import hash_samples
from .reading.image_files import SUFFIXES, ignored_files, is_image_name, suffix_of
from .reading.locations import folder_at, printable, stat_of
from .reading.refusals import check_choice, refuse_fields
from .reading.safe_paths import path_inside
from .reading.selection import left_out
from .reading.string_table import StringTable

__all__ = ["VocSource"]

_MASKS = {"": "", "classes": "SegmentationClass", "instances": "SegmentationObject"}
_SUFFIXES = (*SUFFIXES, *map(str.upper, SUFFIXES))


class VocSource(IndexedSource):
    """Images with the boxes, classes and flags of their objects.

    Parameters
    ----------
    split : str
        The list to take, e.g. ``trainval``; default: all of ``JPEGImages``.
    sets : str
        The folder of lists in ``ImageSets``: ``Main`` unless masks are wanted, then
        ``Segmentation``.
    masks : str
        ``classes`` adds ``SegmentationClass``, ``instances`` ``SegmentationObject`` as a
        mask, to the images that have one: 0 is background, 255 void.
    classes : str, optional
        A text file with the names of the classes, one a line.  Default: those that have lists
        of their own (``cat_train.txt``), else those of the objects, in sorted order.
    one_based : bool, optional
        Whether boxes are as in VOC: of the pixels within, counted from 1.  Else their numbers
        are taken as they are.  Default: as in VOC, unless classes are found by reading all
        annotations and a box there begins before 1.
    empty : bool
        Whether an image without an annotation file is taken as one without objects.
    check_size : bool
        Whether an image of another size than its annotations say is rejected.
    """

    name = "voc"
    summary = "Pascal VOC: JPEGImages, Annotations, ImageSets, SegmentationClass"
    parts = ("JPEGImages", "Annotations/*.xml|ImageSets/*|SegmentationClass")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        return folder is not None and bool(voc_roots(folder))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str | None = None,
        sets: str | None = None,
        masks: str | None = None,
        classes: str | None = None,
        one_based: bool | None = None,
        empty: bool = False,
        check_size: bool = True,
    ) -> None:
        refuse_fields(fields, self.name)
        masks = masks or ""
        check_choice("masks", masks, _MASKS)
        self.root = voc_root(Path(location))
        self.notes = []
        split = split or ""
        sets = sets or ""
        self._masks = self.root / _MASKS[masks] if masks else None
        if self._masks is not None and not self._masks.is_dir():
            raise OptionError(f"masks={masks}: there is no folder {self._masks}")
        self._names = StringTable()
        self._rejects: dict[int, Reject] = {}
        lists = self.root / "ImageSets" / (sets or ("Segmentation" if masks else "Main"))
        if split:
            self._read_list(lists, split)
        else:
            self._read_folder(lists)
        self.num_samples = len(self._names)
        self._refuse_doubles()
        self._annotations = self.root / "Annotations"
        names: tuple[str, ...] = ()
        self._least = math.inf
        if self._annotations.is_dir():
            names = read_class_names(classes) if classes is not None else self._class_names()
        elif masks == "":
            self.notes.append(f"no folder {self._annotations}: only the images")
        self.schema = self._schema(channels, names)
        numbers = {name: k for k, name in enumerate(names)}
        if one_based is None:
            one_based = self._least >= 1
            if not one_based:
                self.notes.append(
                    "boxes begin at 0, so their numbers are taken as they are (--option "
                    "one_based=true counts from 1, as VOC does)"
                )
        self._plan = Plan(tuple(self.schema), numbers, int(one_based), check_size, empty)

    def _schema(self, channels: int, classes: tuple[str, ...]) -> Schema:
        fields: dict[str, Field] = {"image": ImageField(channels=channels)}
        if self._masks is not None:
            fields["mask"] = ImageField(channels=1, mask=True)
        if self._annotations.is_dir():
            fields["boxes"] = ArrayField("float32", (None, 4), boxes=True)
            fields["labels"] = ArrayField("int64", (None,), classes=classes)
            fields["difficult"] = ArrayField("bool", (None,))
            fields["truncated"] = ArrayField("bool", (None,))
            self.notes += left_out("of annotations", ("pose", "occluded", "parts", "actions"))
        return Schema(fields)

    # -- which images --------------------------------------------------------------------

    def _read_folder(self, lists: Path) -> None:
        """Take all images, or those that have a mask."""
        ignored: Counter[str] = Counter()
        for name in sorted(entry.name for entry in os.scandir(self.root / "JPEGImages")):
            if not is_image_name(name):
                ignored[suffix_of(name)] += 1
            elif self._masks is None or (self._masks / f"{Path(name).stem}.png").is_file():
                self._names.append(name)
        if not len(self._names):
            raise SourceError(f"{self.root}: there are no images in JPEGImages to be packed")
        self.notes += ignored_files(ignored)
        if splits := splits_of(lists):
            self.notes.append(
                f"images of all splits; --option split=NAME takes one of {', '.join(splits[:12])}"
            )

    def _read_list(self, lists: Path, split: str) -> None:
        """Take the images that a list names."""
        others = 0
        for number, name in listed(lists, split):
            if name is None:
                others += 1
            else:
                self._add(name, f"{split}.txt, line {number}")
        if not len(self._names):
            raise SourceError(f"{lists}/{split}.txt: lists no images")
        if others:
            self.notes.append(f"{others} images of {split}.txt left out, which it marks -1")

    def _add(self, name: str, place: str) -> None:
        try:
            image = path_inside(self.root / "JPEGImages", name)
            suffix = next((s for s in _SUFFIXES if os.path.exists(f"{image}{s}")), None)
            if suffix is None:
                raise SourceError(f"there is no image {image} with one of {', '.join(_SUFFIXES)}")
            self._names.append(name + suffix)
        except (OSError, SourceError) as error:
            self._rejects[len(self._names)] = Reject(printable(f"{name} ({place})"), str(error))
            self._names.append(name)

    def _refuse_doubles(self) -> None:
        """Reject images that a list names again."""
        names = map(self._names.__getitem__, range(self.num_samples))
        found = np.fromiter(map(hash_fields, names), np.uint64, self.num_samples)
        first = np.unique(found, return_index=True)[1]
        for row in np.setdiff1d(np.arange(len(found)), first).tolist():
            reject = Reject(printable(self._names[row]), "the list names it before")
            self._rejects.setdefault(row, reject)

    # -- classes -------------------------------------------------------------------------

    def _class_names(self) -> tuple[str, ...]:
        """Return the classes that have lists of their own, else those of all objects."""
        own = classes_of_lists(self.root / "ImageSets" / "Main")
        if own:
            return own
        names = classes_of_texts(self._names_of_objects(), str(self._annotations))
        if not names:
            self.notes.append("no objects in any annotation file")
        return names

    def _names_of_objects(self) -> Iterator[str]:
        for index in range(self.num_samples):
            if index in self._rejects:
                continue
            path = self._annotation_of(self._names[index])
            with contextlib.suppress(OSError, SourceError):  # the worker says what is the matter
                with open(path, "rb", opener=open_regular) as file:
                    data = file.read()
                self._least = min(self._least, first_pixel(data, path))
                yield from class_names(data, path)

    def _image_of(self, name: str) -> str:
        return os.path.join(self.root, "JPEGImages", name)

    def _annotation_of(self, name: str) -> str:
        return os.path.join(self._annotations, f"{os.path.splitext(name)[0]}.xml")

    def _mask_of(self, name: str) -> str | None:
        stem = os.path.splitext(name)[0]
        return None if self._masks is None else os.path.join(self._masks, f"{stem}.png")

    # -- samples -------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self._rejects:
            return self._rejects[index]
        name = self._names[index]
        mask = self._mask_of(name)
        image = AnnotatedImage(self._image_of(name), self._annotation_of(name), mask, self._plan)
        return Sample(printable(name), image)

    def key_at(self, index: int) -> str:
        return printable(self._names[index])

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        def parts(index: int) -> tuple[Any, ...]:
            name = self._names[index]
            if index in self._rejects:
                return (name,)
            mask = self._mask_of(name)
            files = (self._image_of(name), self._annotation_of(name), *([mask] if mask else ()))
            return name, *(part for file in files for part in stat_of(file))

        return hash_samples(self.num_samples, limit, parts)
