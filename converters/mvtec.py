"""MVTec AD, the anomaly detection dataset: one category, or all of them.

::

    bottle/train/good/000.png
    bottle/test/good/000.png
    bottle/test/broken_large/000.png
    bottle/ground_truth/broken_large/000_mask.png

Source: P. Bergmann et al., "MVTec AD: A Comprehensive Real-World Dataset for Unsupervised
Anomaly Detection", CVPR 2019, and the readme in its archives.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import Deferred, FieldSpec, IndexedSource, Sample
from .reading.annotations.annotated import frame_of
from .reading.fingerprints import hash_samples
from .reading.image_files import ignored_files, is_image_name, suffix_of
from .reading.locations import folder_at, printable, stat_of
from .reading.refusals import check_choice, refuse_fields
from .reading.string_table import StringTable

__all__ = ["MvtecSource"]

_GOOD = "good"
_SPLITS = ("train", "test")


class MvtecSource(IndexedSource):
    """Images with their masks; fields ``image``, ``mask``, ``defect``, ``category``, ``split``.

    Parameters
    ----------
    category : str
        Take only this one of a folder of categories.
    split : str
        Take only ``train`` or ``test``.
    masks : bool
        Whether there is a field ``mask``: the file of the ground truth as it is (255 where the
        defect is), zeros for a good image.
    """

    name = "mvtec"
    summary = "MVTec AD: a category's train, test and ground_truth, or all categories"
    parts = ("train/good", "test", "ground_truth")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        return folder is not None and bool(_categories(folder))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        category: str | None = None,
        split: str | None = None,
        masks: bool = True,
    ) -> None:
        refuse_fields(fields, self.name)
        if split is not None:
            check_choice("split", split, _SPLITS)
        self.root = Path(location)
        self.notes = []
        self._masks = masks
        self._folders = _folders(_chosen(self.root, category), split)
        self._paths, self._of = StringTable(), array("q")
        ignored: Counter[str] = Counter()
        for number, folder in enumerate(self._folders):
            for name in sorted(entry.name for entry in os.scandir(folder.path)):
                if is_image_name(name):
                    self._paths.append(name)
                    self._of.append(number)
                else:
                    ignored[suffix_of(name)] += 1
        if not len(self._paths):
            raise SourceError(f"{self.root}: no images in its {len(self._folders)} folders")
        self.notes += ignored_files(ignored)
        if not category and (beside := _beside(self.root)):
            self.notes.append(
                f"folders without train/good, test and ground_truth left out: {beside}"
            )
        self.num_samples = len(self._paths)
        names = {folder.defect for folder in self._folders} - {_GOOD}
        self._defects = (_GOOD, *sorted(names))
        self._categories = tuple(sorted({folder.category for folder in self._folders}))
        self.schema = Schema(self._fields(channels))

    def _fields(self, channels: int) -> dict[str, Field]:
        mask = {"mask": ImageField(channels=1, mask=True)} if self._masks else {}
        return {
            "image": ImageField(channels=channels),
            **mask,
            "defect": ScalarField(classes=tuple(map(printable, self._defects))),
            "category": ScalarField(classes=tuple(map(printable, self._categories))),
            "split": ScalarField(classes=_SPLITS),
        }

    def __getitem__(self, index: int) -> Sample:
        folder = self._folders[self._of[index]]
        name = self._paths[index]
        numbers = (
            self._defects.index(folder.defect),
            self._categories.index(folder.category),
            _SPLITS.index(folder.split),
        )
        mask = None
        if self._masks and folder.defect != _GOOD:
            mask = folder.mask_of(name)
            if not os.path.isfile(mask):
                raise SourceError(
                    f"its mask {mask} is missing (--option masks=false packs without masks)"
                )
        image = AnomalyImage(os.path.join(folder.path, name), self._masks, mask, numbers)
        return Sample(self.key_at(index), image)

    def key_at(self, index: int) -> str:
        folder = self._folders[self._of[index]]
        name = self._paths[index]
        return printable(f"{folder.category}/{folder.split}/{folder.defect}/{name}")

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        def parts(index: int) -> tuple[Any, ...]:
            folder = self._folders[self._of[index]]
            name = self._paths[index]
            masked = self._masks and folder.defect != _GOOD
            mask = stat_of(folder.mask_of(name)) if masked else ()
            return self.key_at(index), *stat_of(os.path.join(folder.path, name)), *mask

        return hash_samples(self.num_samples, limit, parts)


class AnomalyImage(Deferred):
    """An image with its mask: a file, or where there is none zeros of the image's size."""

    def __init__(
        self, image: str, masked: bool, mask: str | None, numbers: tuple[int, ...]
    ) -> None:
        self.image, self.masked, self.mask, self.numbers = image, masked, mask, numbers

    def load(self) -> tuple[Any, ...]:
        """Read the image, and read or make its mask."""
        data = read_regular(self.image)
        if not self.masked:
            return data, *self.numbers
        if self.mask is not None:
            return data, read_regular(self.mask), *self.numbers
        frame = frame_of(data, None)
        return data, frame.mask(frame.blank()), *self.numbers


class _Folder(NamedTuple):
    """One folder of images."""

    path: Path
    category: str
    split: str
    defect: str

    def mask_of(self, name: str) -> str:
        """Return where the mask of an image is that has this defect."""
        category = os.path.dirname(os.path.dirname(self.path))
        stem = os.path.splitext(name)[0]
        return os.path.join(category, "ground_truth", self.defect, f"{stem}_mask.png")


def _is_category(path: Path) -> bool:
    """Tell a category from class folders in split folders, which have no ground truth."""
    return all((path / part).is_dir() for part in ("train/good", "test", "ground_truth"))


def _categories(root: Path) -> list[Path]:
    """Return the folders of the categories that a folder is or has."""
    if _is_category(root):
        return [root]
    return [root / name for name in sorted(os.listdir(root)) if _is_category(root / name)]


def _beside(root: Path) -> str:
    """Return which folders beside categories are none."""
    if _is_category(root):
        return ""
    taken = set(_categories(root))
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    left = [printable(name) for name in folders if taken and root / name not in taken]
    return ", ".join(left[:12]) + " ..." * (len(left) > 12)


def _chosen(root: Path, category: str | None) -> list[Path]:
    if not root.is_dir():
        raise SourceError(f"{root}: not a folder")
    if category and not _is_category(root):
        found = [path for path in _categories(root) if path.name == category]
        if not found:
            names = ", ".join(path.name for path in _categories(root)) or "none"
            raise OptionError(f"category={category}: not in {root}, which has {names}")
        return found
    if category and category != root.resolve().name:
        raise OptionError(f"category={category}: {root} is a category itself")
    found = _categories(root)
    if not found and all((root / split).is_dir() for split in _SPLITS):
        found = [root]  # asked for by name, and without ground truth
    if not found:
        raise SourceError(
            f"{root}: no MVTec AD. Expected train/good, test/<defect> and ground_truth/<defect> "
            "in it, or folders that have these."
        )
    return found


def _folders(categories: list[Path], split: str | None) -> list[_Folder]:
    """Return the folders of images: good ones first, then by defect."""
    found = []
    for path in categories:
        for part in [split] if split else _SPLITS:
            names = sorted(entry.name for entry in os.scandir(path / part) if entry.is_dir())
            for name in sorted(names, key=lambda name: name != _GOOD):
                found.append(_Folder(path / part / name, path.resolve().name, part, name))
    return found
