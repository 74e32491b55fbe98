"""ImageNet's classification set (ILSVRC CLS-LOC) as Kaggle has it: flat validation images.

::

    ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_18.JPEG
    ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG
    LOC_val_solution.csv      ImageId,PredictionString

If ``val`` has class folders too, the set is in the format ``folder``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField

from .listing import Listing
from .reading.class_names import numbered
from .reading.image_files import files_below, is_image_name
from .reading.locations import folders_in
from .reading.options import Option
from .reading.selection import joined
from .reading.text_lines import csv_rows

__all__ = ["IlsvrcSource"]

_DATA = ("", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
_VAL = "ILSVRC2012_val_"
_SOLUTION = "LOC_val_solution.csv"
_SYNSET = re.compile(r"n[0-9]{8}")


class IlsvrcSource(Listing):
    """Images of ImageNet with their synsets, in sorted order as torchvision numbers them."""

    name = "ilsvrc"
    summary = "ImageNet (ILSVRC CLS-LOC) of Kaggle: train/<synset>, val flat with its list"
    parts = ("**/CLS-LOC|train", f"**/{_SOLUTION}")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _data_folder(Path(location)) is not None

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[
            str | None, Option("take only this split; default: both", ("train", "val"))
        ] = None,
    ) -> dict[str, Field]:
        data = _data_folder(location)
        if data is None:
            raise SourceError(f"{location}: expected train/<synset> and val/{_VAL}*.JPEG in it")
        places = [location, *data.parents[:3], data]
        self.beside = [p / _SOLUTION for p in places if (p / _SOLUTION).is_file()][:1]
        self.root, train = data, _synset_folders(data / "train")
        synsets = _read_solution(self.beside[0]) if self.beside else {}
        classes = sorted({*train, *synsets.values()})
        there = [s for s, has in (("train", train), ("val", _has_flat_val(data))) if has]
        if split and split not in there:
            raise OptionError(f"split={split}: {data} has {joined(there)}")
        taken = self.choose_splits(there, split)
        if "train" in taken:
            labels = numbered(classes)
            for synset in train:
                for name in filter(is_image_name, files_below(data, f"train/{synset}")):
                    self.add(name, label=labels[synset], **self.split_number("train"))
        if "val" in taken:
            self._add_validation(synsets, numbered(classes))
        if (data / "test").is_dir():
            self.notes.append(f"test left out, which has no labels: pack {data / 'test'} by itself")
        return {"label": ScalarField(classes=tuple(classes)), **self.split_field()}

    def _add_validation(self, synsets: dict[str, str], labels: dict[str, int]) -> None:
        """Add the validation images; `synsets` has theirs by the name of the file."""
        if not self.beside:
            raise SourceError(
                f"{self.root}: val is flat, and there is no {_SOLUTION}, which says what its "
                "images are. Bring it from Kaggle, or sort the images into class folders, as "
                "torchvision.datasets.ImageNet does with the development kit; or take "
                "--option split=train"
            )
        seen = 0
        for name in filter(is_image_name, files_below(self.root, "val")):
            file = os.path.relpath(name, "val")
            synset = synsets.get(file) or synsets.get(os.path.splitext(file)[0])
            if synset is None:
                self.reject(name, f"{_SOLUTION} does not list it")
                continue
            self.add(name, label=labels[synset], **self.split_number("val"))
            seen += 1
        if not seen:
            raise SourceError(f"{self.beside[0]}: names none of the images in {self.root / 'val'}")
        if len(synsets) > seen:
            self.notes.append(
                f"{len(synsets) - seen:,} of the {len(synsets):,} images that {_SOLUTION} lists "
                "are not there"
            )


def _is_synset(name: str) -> bool:
    """Tell whether this is the number of a synset of WordNet's: ``n01440764``."""
    return _SYNSET.fullmatch(name) is not None


def _synset_folders(folder: Path) -> list[str]:
    """Return the folders that are called like synsets, sorted; none if `folder` is missing."""
    return list(filter(_is_synset, folders_in(folder))) if folder.is_dir() else []


def _data_folder(folder: Path) -> Path | None:
    """Return the folder with ``train`` and ``val``."""
    for name in _DATA:
        data = folder / name
        if _has_flat_val(data) or (name and _synset_folders(data / "train")):
            return data
    return None


def _has_flat_val(data: Path) -> bool:
    """Tell whether validation images lie side by side."""
    if not (data / "val").is_dir():
        return False
    with os.scandir(data / "val") as entries:
        return any(entry.name.startswith(_VAL) for entry in entries)


def _read_solution(path: Path) -> dict[str, str]:
    """Return the synset of each image: ``ILSVRC2012_val_00048981,n03995372 85 1 499 272 ...``."""
    found: dict[str, str] = {}
    for number, row in enumerate(csv_rows(path), 1):
        synset = row[1].split(" ", 1)[0] if len(row) == 2 else ""
        if _is_synset(synset):
            found[row[0]] = synset
        elif number > 1:
            raise SourceError(f"{path}, row {number}: no image and synset: {row[:2]}")
    return found
