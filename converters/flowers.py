"""Oxford Flowers 102: images in ``jpg/``, their labels and splits in two ``.mat`` files.

::

    jpg/image_00001.jpg
    imagelabels.mat      labels: the class of each image, from 1
    setid.mat            trnid, valid, tstid: the numbers of the images of each split, from 1

Source: the README of ``robots.ox.ac.uk/~vgg/data/flowers/102``.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField

from .reading.arrays.mat_file import mat_columns, mat_kind
from .reading.class_names import named_classes
from .reading.image_files import ignored_files, is_image_name, suffix_of
from .reading.image_list import ImageListSource
from .reading.options import Option

__all__ = ["FlowersSource"]

_LABELS, _SPLITS, _IMAGES = "imagelabels.mat", "setid.mat", "jpg"
_IDS = {"train": "trnid", "val": "valid", "test": "tstid"}
_MOST = 1 << 24


class FlowersSource(ImageListSource):
    """Images with their labels and splits; fields ``image``, ``label`` and ``split``."""

    name = "flowers"
    summary = "Oxford Flowers 102: jpg/, imagelabels.mat and setid.mat"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        lists = all(mat_kind(folder / name) for name in (_LABELS, _SPLITS))
        return lists and (folder / _IMAGES).is_dir()

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[str, Option("take only this split", ("all", *_IDS))] = "all",
        classes: Annotated[
            str | None, Option("a file with names of classes, the first for MATLAB's 1")
        ] = None,
    ) -> dict[str, Field]:
        self.beside = [self.root / _LABELS, self.root / _SPLITS]
        labels = _vector(self.beside[0], "labels")
        splits = np.full(len(labels), -1)
        for number, name in enumerate(_IDS.values()):
            ids = _vector(self.beside[1], name) - 1
            if len(ids) and (ids.min() < 0 or ids.max() >= len(labels)):
                raise SourceError(f"{self.beside[1]}: {name} has numbers beyond the labels")
            if np.any(splits[ids] >= 0) or len(np.unique(ids)) < len(ids):
                raise SourceError(f"{self.beside[1]}: an image of {name} is in a split already")
            splits[ids] = number
        if len(labels) and labels.min() < 1:
            raise SourceError(f"{self.beside[0]}: labels count from 1, and {labels.min()} is there")
        wanted = None if split == "all" else list(_IDS).index(split)
        self._add_images(labels, splits, wanted)
        found: dict[str, Field] = {"label": ScalarField()}
        if wanted is None:
            found["split"] = ScalarField(classes=tuple(_IDS))
        found = named_classes(found, "label", classes)
        named = found["label"]
        if isinstance(named, ScalarField) and named.classes and len(named.classes) < max(labels):
            raise OptionError(f"classes={classes}: {len(named.classes)} names for {max(labels)}")
        self.notes.append("labels are MATLAB's less 1: the first class is 0")
        return found

    def _add_images(self, labels: Any, splits: Any, wanted: int | None) -> None:
        ignored: Counter[str] = Counter()
        there = np.zeros(len(labels), bool)
        for file in sorted(os.listdir(self.root / _IMAGES)):
            number = os.path.splitext(file)[0].removeprefix("image_")
            if not is_image_name(file) or not number.isdecimal():
                ignored[suffix_of(file)] += 1
                continue
            row, name = int(number) - 1, f"{_IMAGES}/{file}"
            if not 0 <= row < len(labels):
                self.reject(name, f"{_LABELS} has no label of this number")
                continue
            there[row] = True
            if splits[row] < 0:
                self.reject(name, f"{_SPLITS} has it in no split")
            elif wanted in (None, splits[row]):
                self.add(name, label=int(labels[row]) - 1, split=int(splits[row]))
        for row in np.flatnonzero(~there).tolist():
            if wanted in (None, splits[row]):
                self.reject(f"{_IMAGES}/image_{row + 1:05}.jpg", "there is no such image")
        self.notes += ignored_files(ignored)


def _vector(path: Path, name: str) -> Any:
    """Return a row of whole numbers of a file; SourceError if there is none of that name."""
    found = [array for array in mat_columns(path) if array.label == name]
    if len(found) == 1 and found[0].dtype is not None and 0 in found[0].shape:
        return np.zeros(0, np.int64)
    if len(found) != 1 or found[0].refused or len(found[0].shape) != 1:
        raise SourceError(f"{path}: expected a row of numbers called {name!r}")
    if found[0].shape[0] > _MOST:
        raise SourceError(f"{path}: {name!r} claims {found[0].shape[0]:,} images")
    numbers = found[0].read(0, found[0].shape[0])
    if np.any(numbers != np.rint(numbers)):
        raise SourceError(f"{path}: {name!r} has numbers that are not whole")
    return numbers.astype(np.int64)
