"""Stanford Cars and Stanford Dogs: images in folders, labels and splits in ``.mat`` files.

::

    cars_annos.mat, car_ims/000001.jpg                            Cars, all in one
    devkit/cars_train_annos.mat, cars_train/00001.jpg             Cars, as in its challenge:
    devkit/cars_meta.mat, cars_test_annos_withlabels.mat
    train_list.mat, test_list.mat, Images/<class>/<image>         Dogs,
    Annotation/<class>/<image without suffix>                     with boxes

Source: the README of Cars' devkit and of Dogs, ``vision.stanford.edu/aditya86/ImageNetDogs``.
Boxes of Cars are of the pixels within, counted from 1.  Those of Dogs are Pascal VOC's files,
taken from ImageNet, where many count from 0.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ScalarField

from .base import Deferred
from .reading.annotations.voc_files import VocReader, survey
from .reading.arrays.mat_file import mat_kind, mat_values, whole_number
from .reading.class_names import numbered
from .reading.fields import BOXES
from .reading.image_files import is_image_name
from .reading.image_list import ImageListSource
from .reading.lists.synset_source import is_synset
from .reading.locations import folders_in
from .reading.options import AllowEmpty, CheckSize, OneBased, Option
from .reading.selection import left_out

__all__ = ["StanfordSource"]

_SPLITS = ("train", "test")
_SIDES = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
_CARS, _META = "cars_annos.mat", "cars_meta.mat"
_DEVKIT = ("cars_train_annos.mat", "cars_test_annos_withlabels.mat")
_DOGS = ("train_list.mat", "test_list.mat")
_IMAGES, _XML = "Images", "Annotation"
_MOST_CLASSES = 1 << 16
_PLACES = ("", "devkit", "lists")


class StanfordSource(ImageListSource):
    """Images with label and split, the box of the car, and the boxes of dogs with their classes."""

    name = "stanford"
    summary = "Stanford Cars and Stanford Dogs, by their lists in .mat files"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        if _has_dogs(folder):
            return True
        lists = (_CARS, _DEVKIT[0], _DOGS[0])
        found = [path for name in lists if (path := _find(folder, name)) is not None]
        return any(mat_kind(path) for path in found)

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[str, Option("take only this split", ("all", *_SPLITS))] = "all",
        one_based: OneBased = None,
        empty: AllowEmpty = False,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        self._wanted, self._split = split, split == "all"
        self._labels: set[int] = set()
        self._boxes = (
            _find(self.root, _CARS) is not None or _find(self.root, _DEVKIT[0]) is not None
        )
        self._xml = not self._boxes and (self.root / _XML).is_dir()
        names = self._cars() if self._boxes else self._dogs()
        if not self.num_samples:
            raise SourceError(f"{location}: its lists name no images that are taken")
        if min(self._labels) < 1 or max(self._labels) > len(names):
            raise SourceError(f"{self.beside[0]}: labels that are none of 1 to {len(names)}")
        found: dict[str, Field] = {"label": ScalarField(classes=tuple(names))}
        if self._boxes or self._xml:
            found["boxes"] = BOXES
        if self._xml:
            found["labels"] = ArrayField("int64", (None,), classes=tuple(names))
        if self._split:
            found["split"] = ScalarField(classes=_SPLITS)
        if self._xml:
            count = self.num_samples if one_based is None else 0
            paths = (os.path.join(self.root, self.names_of(k)[-1]) for k in range(count))
            origin = survey(paths)[1] >= 1 if one_based is None else one_based
            start = "1, as VOC's" if origin else "0"
            self.notes.append(f"boxes count pixels from {start} (--option one_based=true|false)")
            self.notes += left_out("of annotations", ("pose", "truncated", "difficult"))
            self.reader = VocReader(numbered(names), int(origin), check_size, empty)
        return found

    def _add(self, path: str, label: int, split: int, box: tuple[int, ...] = ()) -> None:
        """Take an image, of which class and box are as the file has them."""
        self._labels.add(label)
        if self._wanted not in ("all", _SPLITS[split]):
            return
        stem = os.path.splitext(os.path.relpath(path.replace("\0", " "), _IMAGES))[0]
        others = (os.path.join(_XML, stem),) if self._xml else ()
        sides = zip(_SIDES, box, strict=False)  # no box where XML files have them
        self.add_inside(self.root, path, *others, label=label - 1, split=split, **dict(sides))

    def _cars(self) -> list[str]:
        """Take the images of Cars; return the names of the classes."""
        if (path := _find(self.root, _CARS)) is not None:
            for entry in self._structs(path):
                split = whole_number(entry.get("test"), f"{path}: 'test'")
                self._car(entry, entry.get("relative_im_path"), split, path)
            return self._names(path)
        for split, (name, folder) in enumerate(
            zip(_DEVKIT, ("cars_train", "cars_test"), strict=True)
        ):
            if (path := _find(self.root, name)) is None:
                self.notes.append(f"there is no {name}: images of that split are left out")
                continue
            for entry in self._structs(path):
                self._car(entry, f"{folder}/{entry.get('fname')}", split, path)
        return self._names(self._list(_META))

    def _car(self, entry: dict[str, Any], name: Any, split: int, path: Path) -> None:
        left, top, right, bottom = box = tuple(
            whole_number(entry.get(side), f"{path}: {side!r}") for side in _SIDES
        )
        if not (1 <= left <= right and 1 <= top <= bottom) or split not in (0, 1):
            raise SourceError(f"{path}: {name!s:.80}: a box {box} in split {split} cannot be")
        label = whole_number(entry.get("class"), f"{path}: 'class'")
        self._add(str(name), label, split, box)

    def _structs(self, path: Path) -> Iterator[dict[str, Any]]:
        self.beside.append(path)
        for name, value in mat_values(path):
            if name == "annotations" and isinstance(value, Iterator):
                for entry in value:
                    if not isinstance(entry, dict):
                        raise SourceError(f"{path}: 'annotations' is no struct array")
                    yield entry
                return
        raise SourceError(f"{path}: expected a struct array 'annotations'")

    def _names(self, path: Path) -> list[str]:
        for name, value in mat_values(path):
            if name == "class_names" and isinstance(value, Iterator):
                names = list(itertools.islice(value, _MOST_CLASSES))
                if all(isinstance(each, str) for each in names):
                    return names
        raise SourceError(f"{path}: expected a cell array 'class_names' of text")

    def _dogs(self) -> list[str]:
        """Take the images of Dogs; return the names of the classes, from their folders."""
        if _find(self.root, _DOGS[0]) is None:
            return self._dogs_of_folders()
        folders: dict[int, str] = {}
        for split, path in enumerate(map(self._list, _DOGS)):
            values = dict(mat_values(path))
            files, labels = values.get("file_list"), values.get("labels")
            if not isinstance(files, Iterator) or not isinstance(labels, np.ndarray):
                raise SourceError(f"{path}: expected file_list and labels")
            for file, label in itertools.zip_longest(files, labels.ravel()):
                if file is None or label is None:
                    raise SourceError(f"{path}: file_list and labels are not of one length")
                number = whole_number(label, f"{path}: 'labels'")
                folder = str(file).partition("/")[0]
                if folders.setdefault(number, folder) != folder:
                    raise SourceError(f"{path}: label {number} is {folders[number]} and {folder}")
                self._add(f"{_IMAGES}/{file}", number, split)
        names = [folders.get(number + 1, "") for number in range(len(folders))]
        if not all(names) or len(set(names)) < len(names):
            raise SourceError(f"{self.root}: labels of {', '.join(_DOGS)} do not count from 1")
        return [name.partition("-")[2] or name for name in names]

    def _dogs_of_folders(self) -> list[str]:
        """Take all images of Dogs, whose lists are not there; return the names of the classes."""
        if not self._split:
            raise OptionError(f"split={self._wanted}: there is no {_DOGS[0]} in {self.root}")
        self._split = False
        self.notes.append(f"there is no {_DOGS[0]}: all images, without their splits")
        folders = _folders(self.root / _IMAGES)
        for number, folder in enumerate(folders, 1):
            for name in sorted(filter(is_image_name, os.listdir(self.root / _IMAGES / folder))):
                self._add(f"{_IMAGES}/{folder}/{name}", number, 0)
        return [name.partition("-")[2] for name in folders]

    def _list(self, name: str) -> Path:
        path = _find(self.root, name)
        if path is None:
            raise SourceError(f"{self.root}: there is no {name}")
        self.beside.append(path)
        return path

    def values(self, files: list[str], numbers: dict[str, Any]) -> tuple[Any, ...] | Deferred:
        if self._boxes:
            box = np.array([[numbers[side] for side in _SIDES]], np.float32)
            numbers["boxes"] = box - (1, 1, 0, 0)
        return super().values(files, numbers)


def _folders(path: Path) -> list[str]:
    """Return the folders of Dogs' classes, sorted: ``n02085620-Chihuahua``."""
    if not path.is_dir():
        return []
    names = (name.partition("-") for name in folders_in(path))
    return ["-".join((synset, name)) for synset, _, name in names if is_synset(synset) and name]


def _has_dogs(folder: Path) -> bool:
    """Tell whether images and annotations of Dogs are there, with the same classes."""
    found = _folders(folder / _IMAGES)
    return bool(found) and found == _folders(folder / _XML)


def _find(root: Path, name: str) -> Path | None:
    """Return a list, in the folder or in one of those that it is usually in."""
    places = (root / place / name for place in _PLACES)
    return next((path for path in places if os.path.isfile(path)), None)
