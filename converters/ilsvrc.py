"""ImageNet's classification set (ILSVRC CLS-LOC) as it is downloaded: flat validation images.

Kaggle's::

    ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_18.JPEG
    ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG
    LOC_synset_mapping.txt    n01440764 tench, Tinca tinca
    LOC_val_solution.csv      ImageId,PredictionString

or image-net.org's: ``train`` and ``val`` with ``ILSVRC2012_validation_ground_truth.txt``, whose
numbers are of the development kit's own order of synsets, which is not the sorted one.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import ImageField, Schema

from .base import FieldSpec
from .reading.lists.joined import read_mapping
from .reading.lists.synset_source import SynsetSource, is_synset, synset_folders
from .reading.locations import folder_at
from .reading.refusals import check_choice, refuse_fields
from .reading.selection import listed
from .reading.text_lines import text_lines

__all__ = ["IlsvrcSource"]

_DATA = ("", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
_VAL = "ILSVRC2012_val_"
_MAPPING, _SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_DEVKIT = "ILSVRC2012_devkit_t12/data"


class IlsvrcSource(SynsetSource):
    """Images of ImageNet with their synsets.

    Parameters
    ----------
    split : str, optional
        ``train``, ``val``, or ``test``, which has no labels.  Default: train and val, as far as
        they are there.
    names : str
        What classes are called: ``synsets`` (n01440764), or ``words`` (tench, Tinca tinca).
    synsets : str, optional
        A text file of synsets, one a line, in the order of the ground truth's numbers.
    """

    name = "ilsvrc"
    summary = "ImageNet (ILSVRC CLS-LOC) as downloaded: train/<synset>, val flat with its list"
    parts = ("**/CLS-LOC|train", "**/*synset*.txt|**/*solution*.csv")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        return folder is not None and _data_folder(folder) is not None

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str | None = None,
        names: str = "synsets",
        synsets: str | None = None,
    ) -> None:
        refuse_fields(fields, self.name)
        check_choice("split", split or "", ("", "train", "val", "test"))
        top = Path(location)
        data = _data_folder(top)
        if data is None:
            raise SourceError(f"{top}: expected train/<synset> and val/{_VAL}*.JPEG in it")
        self._places = list(dict.fromkeys([top, *data.parents[:3], data]))
        mapping = self._find(_MAPPING)
        words = read_mapping(mapping) if mapping is not None else {}
        train = synset_folders(data / "train")
        classes = sorted({*train, *words})
        there = [s for s, has in (("train", train), ("val", _has_flat_val(data))) if has]
        chosen = there if split is None else [split]
        if split == "test":
            self._take_test(data, channels)
            return
        if split is not None and split not in there:
            raise OptionError(f"split={split}: {data} has {listed(there)}")
        listing: dict[str, str] = {}
        place = data
        if "val" in chosen:
            place, listing = self._validation(synsets)
            classes = classes or sorted(set(listing.values()))
        self.start(data, classes, words, names=names, splits=chosen, channels=channels)
        for synset in train if "train" in chosen else []:
            self.add_synset(synset, os.path.join("train", synset), "train")
        if "val" in chosen:
            self.add_listed("val", "val", listing, place)
        if split is None and (data / "test").is_dir():
            self.notes.append("test left out, which has no labels (--option split=test takes it)")

    def _take_test(self, data: Path, channels: int) -> None:
        self.begin(data)
        for name in sorted(entry.name for entry in os.scandir(data / "test")):
            self.add(os.path.join("test", name), numbers=[])
        self.schema = Schema({"image": ImageField(channels=channels)})

    def _find(self, *names: str) -> Path | None:
        found = (place / name for place in self._places for name in names)
        return next((path for path in found if path.is_file()), None)

    def _validation(self, order: str | None) -> tuple[Path, dict[str, str]]:
        """Return the list of the validation images, and the synset of each by its name."""
        solution = self._find(_SOLUTION)
        if solution is not None:
            return solution, _solution(solution)
        truth = self._find(_TRUTH, f"{_DEVKIT}/{_TRUTH}")
        if truth is None:
            raise SourceError(
                f"{self._places[0]}: val is flat, and neither {_SOLUTION} nor {_TRUTH} is there, "
                "which say what its images are. Bring one, or take --option split=train"
            )
        if order is None:
            raise OptionError(
                f"{truth}: its numbers are of the order in the development kit's meta.mat, not of "
                "sorted synsets. Give that order: --option synsets=FILE, with a synset a line"
            )
        numbered = [line.strip() for _, line in text_lines(Path(order), refusal=OptionError)]
        if not all(map(is_synset, numbered)) or numbered == sorted(numbered):
            raise OptionError(
                f"synsets={order}: expected synsets (n01440764), one a line, in the order of "
                "meta.mat; sorted ones are not in it"
            )
        found: dict[str, str] = {}
        for image, (number, line) in enumerate(text_lines(truth), 1):
            text = line.strip()
            if not text.isdecimal() or not 1 <= int(text) <= len(numbered):
                raise SourceError(
                    f"{truth}, line {number}: {text[:40]!r} is no number from 1 to {len(numbered)}"
                )
            found[f"{_VAL}{image:08}"] = numbered[int(text) - 1]
        return truth, found


def _data_folder(folder: Path) -> Path | None:
    """Return the folder with ``train`` and ``val``."""
    for name in _DATA:
        data = folder / name
        if _has_flat_val(data) or (name and synset_folders(data / "train")):
            return data
    return None


def _has_flat_val(data: Path) -> bool:
    """Tell whether validation images lie side by side."""
    if not (data / "val").is_dir():
        return False
    with os.scandir(data / "val") as entries:
        return any(entry.name.startswith(_VAL) for entry in entries)


def _solution(path: Path) -> dict[str, str]:
    """Return the synset of each image: ``ILSVRC2012_val_00048981,n03995372 85 1 499 272 ...``."""
    found: dict[str, str] = {}
    try:
        with open(path, newline="", opener=open_regular, encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                synset = row[1].split(" ", 1)[0] if len(row) == 2 else ""
                if is_synset(synset):
                    found[row[0]] = synset
                elif number > 1:
                    raise SourceError(f"{path}, line {number}: no image and synset: {row[:2]}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}") from error
    return found
