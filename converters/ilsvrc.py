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
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField

from .base import reason_of
from .reading.image_files import is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import folders_in, printable
from .reading.options import Option
from .reading.refusals import require
from .reading.selection import joined
from .reading.text_lines import csv_rows, text_lines

__all__ = ["IlsvrcSource"]

_DATA = ("", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
_VAL = "ILSVRC2012_val_"
_MAPPING, _SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_LARGEST_META = 4 << 20
_SYNSET = re.compile(r"n[0-9]{8}")


class IlsvrcSource(ImageListSource):
    """Images of ImageNet with their synsets, in sorted order as torchvision numbers them."""

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
        names: Annotated[
            str,
            Option(
                "what classes are called: synsets (n01440764), or words (tench, Tinca tinca)",
                ("synsets", "words"),
            ),
        ] = "synsets",
        synsets: Annotated[
            str | None, Option("a file of synsets in the order of the ground truth's numbers")
        ] = None,
    ) -> dict[str, Field]:
        data = _data_folder(location)
        if data is None:
            raise SourceError(f"{location}: expected train/<synset> and val/{_VAL}*.JPEG in it")
        self._places = list(dict.fromkeys([location, *data.parents[:3], data]))
        mapping = self._find(_MAPPING)
        words = _read_mapping(mapping) if mapping is not None else {}
        train = _synset_folders(data / "train")
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
        found = self._class_fields(classes, words, names, chosen)
        for synset in train if "train" in chosen else []:
            self._add_synset(synset, os.path.join("train", synset), "train")
        if "val" in chosen:
            self._add_listed("val", "val", listing, places[0])
            for place in places[1:]:
                self.beside.append(place)
                self.notes.append(f"numbers in {_TRUTH} are synsets of {place}")
        if split is None and (data / "test").is_dir():
            self.notes.append("test left out, which has no labels (--option split=test takes it)")
        return found

    def _find(self, *names: str) -> Path | None:
        found = (place / name for place in self._places for name in names)
        return next((path for path in found if path.is_file()), None)

    def _class_fields(
        self, synsets: list[str], words: Mapping[str, str], names: str, splits: list[str]
    ) -> dict[str, Field]:
        """Number the classes and splits; return their fields.

        names: the option: ``synsets`` or ``words``.
        """
        synsets = sorted(synsets)
        self._numbers_of = {synset: k for k, synset in enumerate(synsets)}
        if names == "words" and (lost := [s for s in synsets if s not in words]):
            raise OptionError(f"names=words: {self.root} has no words for {joined(lost, 5)}")
        classes = tuple(words[s] for s in synsets) if names == "words" else tuple(synsets)
        self.splits, self.with_split = splits, len(splits) > 1
        return {"label": ScalarField(classes=classes), **self.split_field()}

    def _add_synset(self, synset: str, folder: str, split: str) -> None:
        """Add the images of a folder, in sorted order."""
        number = self._numbers_of[synset]
        for name in _images(self.root / folder):
            self.add(os.path.join(folder, name), label=number, split=self.splits.index(split))

    def _add_listed(self, folder: str, split: str, synsets: Mapping[str, str], place: Path) -> None:
        """Add the images of a folder whose synsets are in a list.

        synsets: by name of the file, with suffix or without.
        """
        self.beside.append(place)
        number = self.splits.index(split)
        seen = 0
        for name in _images(self.root / folder):
            path = os.path.join(folder, name)
            stem = os.path.splitext(name)[0]
            synset = synsets.get(name) or synsets.get(stem)
            if synset in self._numbers_of:
                self.add(path, label=self._numbers_of[synset], split=number)
                seen += 1
            elif synset is None:
                self.reject(path, f"{place.name} does not list it")
            else:
                self.reject(path, f"{place.name} has {synset!r:.60} for it, but the classes do not")
        if not seen:
            raise SourceError(f"{place}: names none of the images in {self.root / folder}")
        if len(synsets) > seen:
            self.notes.append(
                f"{len(synsets) - seen:,} of the {len(synsets):,} images that {place.name} lists "
                "are not there"
            )

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
                f"sorted synsets. Put {_META} into its folder, or name that order: --option "
                "synsets=FILE, with a synset a line"
            )
        found: dict[str, str] = {}
        for image, (number, line) in enumerate(text_lines(truth), 1):
            text = line.strip()
            if not text.isdecimal() or not 1 <= int(text) <= len(numbered):
                raise SourceError(
                    f"{truth}, line {number}: expected a number from 1 to {len(numbered)}, found "
                    f"{text[:40]!r}"
                )
            found[f"{_VAL}{image:08}"] = numbered[int(text) - 1]
        return [truth, source], found


def _order_given(path: str) -> list[str]:
    """Return the synsets of a text file, in its order."""
    numbered = [line.strip() for _, line in text_lines(Path(path), refusal=OptionError)]
    if not all(map(_is_synset, numbered)) or numbered == sorted(numbered):
        raise OptionError(
            f"synsets={path}: expected synsets (n01440764), one a line, in the order of "
            f"{_META}; sorted ones are not in it"
        )
    return numbered


def _order_of_meta(path: Path) -> list[str]:
    """Return the synsets that are classes, in the order of their numbers, which count from 1."""
    loadmat = require("scipy.io", "imagenet", f"reading {_META}").loadmat
    try:
        if path.stat().st_size > _LARGEST_META:
            raise ValueError(f"a {_META} of more than {_LARGEST_META:,} bytes is not believed")
        rows = loadmat(path, squeeze_me=True, variable_names=["synsets"])["synsets"].reshape(-1)
        # Synsets with children stand above the classes.
        leaves = [row for row in rows if row["num_children"] == 0]
        found = {row["ILSVRC2012_ID"]: str(row["WNID"]) for row in leaves}
        order = [found[number + 1] for number in range(len(leaves))]
    except Exception as error:  # what SciPy raises on damage
        raise SourceError(
            f"{path}: expected the development kit's struct array 'synsets', with numbers that "
            f"count from 1: {reason_of(error)}"
        ) from error
    if not order or not all(map(_is_synset, order)) or len(set(order)) < len(order):
        raise SourceError(f"{path}: its classes are not different synsets (n01440764)")
    return order


def _is_synset(name: str) -> bool:
    """Tell whether this is the number of a synset of WordNet's: ``n01440764``."""
    return _SYNSET.fullmatch(name) is not None


def _synset_folders(folder: Path) -> list[str]:
    """Return the folders that are called like synsets, sorted; none if `folder` is missing."""
    return list(filter(_is_synset, folders_in(folder))) if folder.is_dir() else []


def _read_mapping(path: Path) -> dict[str, str]:
    """Return the rest of each line by its first word."""
    found: dict[str, str] = {}
    for number, line in text_lines(path):
        key, *rest = line.strip().split(None, 1)
        if not rest:
            raise SourceError(f"{path}, line {number}: expected two columns, found {line[:60]!r}")
        if key in found:
            raise SourceError(f"{path}: {key!r} stands twice")
        found[key] = rest[0]
    return found


def _images(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise SourceError(f"{printable(str(folder))}: the folder does not exist")
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if is_image_name(entry.name))


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


def _solution(path: Path) -> dict[str, str]:
    """Return the synset of each image: ``ILSVRC2012_val_00048981,n03995372 85 1 499 272 ...``."""
    found: dict[str, str] = {}
    for number, row in enumerate(csv_rows(path), 1):
        synset = row[1].split(" ", 1)[0] if len(row) == 2 else ""
        if _is_synset(synset):
            found[row[0]] = synset
        elif number > 1:
            raise SourceError(f"{path}, row {number}: no image and synset: {row[:2]}")
    return found
