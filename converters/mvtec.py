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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField

from .base import Deferred
from .reading.annotations.annotated import frame_of
from .reading.image_files import ignored_files, is_image_name, suffix_of
from .reading.image_list import ImageListSource
from .reading.locations import folders_in, printable
from .reading.options import Option
from .reading.selection import joined

__all__ = ["MvtecSource"]

_GOOD = "good"
_SPLITS = ("train", "test")


class MvtecSource(ImageListSource):
    """Images with their masks; fields ``image``, ``mask``, ``defect``, ``category``, ``split``."""

    name = "mvtec"
    summary = "MVTec AD: a category's train, test and ground_truth, or all categories"
    parts = ("train/good", "test", "ground_truth")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return bool(_categories(Path(location)))

    def list_samples(
        self,
        location: Path,
        *,
        category: Annotated[str | None, Option("take only this category")] = None,
        split: Annotated[str | None, Option("take only this split", _SPLITS)] = None,
        masks: Annotated[
            bool, Option("add the ground truth as it is (255: defect); zeros where good")
        ] = True,
    ) -> dict[str, Field]:
        self._masks = masks
        self._folders = _folders(self.root, _chosen(self.root, category), split)
        ignored: Counter[str] = Counter()
        for number, folder in enumerate(self._folders):
            for name in sorted(entry.name for entry in os.scandir(self.root / folder.place)):
                if is_image_name(name):
                    self.add(name, folder=number)
                else:
                    ignored[suffix_of(name)] += 1
        if not self.num_samples:
            raise SourceError(f"{self.root}: no images in its {len(self._folders)} folders")
        self.notes += ignored_files(ignored)
        if not category and (beside := _beside(self.root)):
            self.notes.append(
                f"folders without train/good, test and ground_truth left out: {beside}"
            )
        defects = (_GOOD, *sorted({folder.defect for folder in self._folders} - {_GOOD}))
        categories = tuple(sorted({folder.category for folder in self._folders}))
        self._class_numbers = [
            {
                "defect": defects.index(folder.defect),
                "category": categories.index(folder.category),
                "split": _SPLITS.index(folder.split),
            }
            for folder in self._folders
        ]
        self.reader = MvtecReader(masks)
        mask: dict[str, Field] = {"mask": ImageField(channels=1, mask=True)} if masks else {}
        return mask | {
            "defect": ScalarField(classes=tuple(map(printable, defects))),
            "category": ScalarField(classes=tuple(map(printable, categories))),
            "split": ScalarField(classes=_SPLITS),
        }

    def files_of(self, names: list[str], numbers: Mapping[str, int]) -> list[str]:
        folder = self._folders[numbers["folder"]]
        masked = self._masks and folder.defect != _GOOD
        mask = [folder.mask_of(names[0])] if masked else []
        return [os.path.join(folder.place, names[0]), *mask]

    def key_of(self, names: list[str], numbers: Mapping[str, int]) -> str:
        folder = self._folders[numbers["folder"]]
        return printable(f"{folder.category}/{folder.split}/{folder.defect}/{names[0]}")

    def values(self, files: list[str], numbers: dict[str, int]) -> tuple[Any, ...] | Deferred:
        if len(files) > 1 and not os.path.isfile(files[1]):
            raise SourceError(
                f"its mask {files[1]} is missing (--option masks=false packs without masks)"
            )
        return super().values(files, self._class_numbers[numbers["folder"]])


@dataclass(frozen=True)
class MvtecReader:
    """How a worker reads an image with its mask: a file, or else zeros of the image's size."""

    masks: bool  # whether there is a field of masks

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image."""
        image, *masks = files
        data = read_regular(image)
        values: dict[str, Any] = {"image": data}
        if masks:
            values["mask"] = read_regular(masks[0])
        elif self.masks:
            frame = frame_of(data, None)
            values["mask"] = frame.mask(frame.blank())
        return values


class _Folder(NamedTuple):
    """One folder of images."""

    top: str  # the category's, relative to the root; "" where it is that
    category: str
    split: str
    defect: str

    @property
    def place(self) -> str:
        """Where it is, relative to the root."""
        return os.path.join(self.top, self.split, self.defect)

    def mask_of(self, name: str) -> str:
        """Return where the mask of an image is that has this defect, relative to the root."""
        stem = os.path.splitext(name)[0]
        return os.path.join(self.top, "ground_truth", self.defect, f"{stem}_mask.png")


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
    left = [printable(name) for name in folders_in(root) if taken and root / name not in taken]
    return joined(left) if left else ""


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


def _folders(root: Path, categories: list[Path], split: str | None) -> list[_Folder]:
    """Return the folders of images: good ones first, then by defect."""
    found = []
    for path in categories:
        for part in [split] if split else _SPLITS:
            for name in sorted(folders_in(path / part), key=lambda name: name != _GOOD):
                top = path.name if path != root else ""
                found.append(_Folder(top, path.resolve().name, part, name))
    return found
