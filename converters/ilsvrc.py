"""ImageNet's classification set (ILSVRC CLS-LOC) as it is downloaded: flat validation images.

Kaggle's::

    ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_18.JPEG
    ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG
    LOC_synset_mapping.txt    n01440764 tench, Tinca tinca
    LOC_val_solution.csv      ImageId,PredictionString

or image-net.org's: ``train`` and ``val`` with ``ILSVRC2012_validation_ground_truth.txt``, whose
numbers are of the development kit's own order of synsets, which is not the sorted one.  That order
is in its ``meta.mat``: a struct array ``synsets`` with ILSVRC2012_ID, WNID and num_children, which
is 0 for the classes and not for the synsets above them (the kit's ``readme.txt``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field

from .reading.arrays.mat_file import mat_values, whole_number
from .reading.lists.rows import read_mapping
from .reading.lists.synset_source import ClassesCalled, SynsetSource, is_synset, synset_folders
from .reading.options import Option
from .reading.selection import joined
from .reading.text_lines import csv_rows, text_lines

__all__ = ["IlsvrcSource"]

_DATA = ("", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
_VAL = "ILSVRC2012_val_"
_MAPPING, _SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_MOST_SYNSETS = 1 << 17
"""More than WordNet has."""


class IlsvrcSource(SynsetSource):
    """Images of ImageNet with their synsets."""

    name = "ilsvrc"
    summary = "ImageNet (ILSVRC CLS-LOC) as downloaded: train/<synset>, val flat with its list"
    parts = ("**/CLS-LOC|train", "**/*synset*.txt|**/*solution*.csv")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _data_folder(Path(location)) is not None

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[
            str | None,
            Option("take only this split; default: train and val", ("train", "val", "test")),
        ] = None,
        names: ClassesCalled = "synsets",
        synsets: Annotated[
            str | None, Option("a file of synsets in the order of the ground truth's numbers")
        ] = None,
    ) -> dict[str, Field]:
        data = _data_folder(location)
        if data is None:
            raise SourceError(f"{location}: expected train/<synset> and val/{_VAL}*.JPEG in it")
        self._places = list(dict.fromkeys([location, *data.parents[:3], data]))
        mapping = self._find(_MAPPING)
        words = read_mapping(mapping) if mapping is not None else {}
        train = synset_folders(data / "train")
        classes = sorted({*train, *words})
        there = [s for s, has in (("train", train), ("val", _has_flat_val(data))) if has]
        chosen = there if split is None else [split]
        self.root = data
        if split == "test":
            for name in sorted(os.listdir(data / "test")):
                self.add(os.path.join("test", name))
            return {}
        if split is not None and split not in there:
            raise OptionError(f"split={split}: {data} has {joined(there)}")
        listing: dict[str, str] = {}
        places: list[Path] = []
        if "val" in chosen:
            places, listing = self._validation(synsets)
            classes = classes or sorted(set(listing.values()))
        found = self.class_fields(classes, words, names, chosen)
        for synset in train if "train" in chosen else []:
            self.add_synset(synset, os.path.join("train", synset), "train")
        if "val" in chosen:
            self.add_listed("val", "val", listing, places[0])
            for place in places[1:]:
                self.beside.append(place)
                self.notes.append(f"numbers in {_TRUTH} are synsets of {place}")
        if split is None and (data / "test").is_dir():
            self.notes.append("test left out, which has no labels (--option split=test takes it)")
        return found

    def _find(self, *names: str) -> Path | None:
        found = (place / name for place in self._places for name in names)
        return next((path for path in found if path.is_file()), None)

    def _validation(self, order: str | None) -> tuple[list[Path], dict[str, str]]:
        """Return the lists of the validation images, and the synset of each by its name."""
        solution = self._find(_SOLUTION)
        if solution is not None:
            return [solution], _solution(solution)
        truth = self._find(_TRUTH, f"{_DEVKIT}/{_TRUTH}")
        if truth is None:
            raise SourceError(
                f"{self._places[0]}: val is flat, and neither {_SOLUTION} nor {_TRUTH} is there, "
                "which say what its images are. Bring one, or take --option split=train"
            )
        beside = truth.with_name(_META)
        meta = beside if beside.is_file() else self._find(_META, f"{_DEVKIT}/{_META}")
        if order is not None:
            source, numbered = Path(order), _order_given(order)
        elif meta is not None:
            source, numbered = meta, _order_of_meta(meta)
        else:
            raise OptionError(
                f"{truth}: its numbers are of the order in the development kit's {_META}, not of "
                f"sorted synsets. Put {_META} beside it, or give that order: --option "
                "synsets=FILE, with a synset a line"
            )
        found: dict[str, str] = {}
        for image, (number, line) in enumerate(text_lines(truth), 1):
            text = line.strip()
            if not text.isdecimal() or not 1 <= int(text) <= len(numbered):
                raise SourceError(
                    f"{truth}, line {number}: {text[:40]!r} is no number from 1 to {len(numbered)}"
                )
            found[f"{_VAL}{image:08}"] = numbered[int(text) - 1]
        return [truth, source], found


def _order_given(path: str) -> list[str]:
    """Return the synsets of a text file, in its order."""
    numbered = [line.strip() for _, line in text_lines(Path(path), refusal=OptionError)]
    if not all(map(is_synset, numbered)) or numbered == sorted(numbered):
        raise OptionError(
            f"synsets={path}: expected synsets (n01440764), one a line, in the order of "
            f"{_META}; sorted ones are not in it"
        )
    return numbered


def _order_of_meta(path: Path) -> list[str]:
    """Return the synsets that are classes, in the order of their numbers, which count from 1."""
    rows = next((rows for name, rows in mat_values(path) if name == "synsets"), None)
    if not isinstance(rows, Iterator):
        raise SourceError(f"{path}: expected a struct array 'synsets', as the development kit has")
    found: dict[int, str] = {}
    for count, row in enumerate(rows, 1):
        synset = row.get("WNID") if isinstance(row, dict) else None
        if not isinstance(synset, str) or not is_synset(synset) or count > _MOST_SYNSETS:
            raise SourceError(f"{path}, synset {count}: expected a WNID (n01440764) in each struct")
        if whole_number(row.get("num_children"), f"{path}, {synset}: num_children"):
            continue  # a synset above the classes
        number = whole_number(row.get("ILSVRC2012_ID"), f"{path}, {synset}: ILSVRC2012_ID")
        if found.setdefault(number, synset) != synset:
            raise SourceError(f"{path}: {number} is {found[number]} and {synset}")
    order = [found.get(number + 1, "") for number in range(len(found))]
    if not found or not all(order) or len(set(order)) < len(order):
        raise SourceError(f"{path}: numbers of synsets without children do not count from 1")
    return order


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
    for number, row in enumerate(csv_rows(path), 1):
        synset = row[1].split(" ", 1)[0] if len(row) == 2 else ""
        if is_synset(synset):
            found[row[0]] = synset
        elif number > 1:
            raise SourceError(f"{path}, row {number}: no image and synset: {row[:2]}")
    return found
