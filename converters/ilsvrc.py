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
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ScalarField

from .base import reason_of
from .listing import Listing
from .reading.image_files import is_image_name
from .reading.locations import folders_in, printable
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
_HEAD, _NAMED, _COMPRESSED, _TEXT = 128, 64, 15, 4
_MOST_BYTES = 64 << 20
_ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
_NUMBERS = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8",
    13: "<u8",
}  # fmt: skip
_SYNSET = re.compile(r"n[0-9]{8}")


class IlsvrcSource(Listing):
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
            str | None, Option("take only this split; default: both", ("train", "val"))
        ] = None,
    ) -> dict[str, Field]:
        data = _data_folder(location)
        if data is None:
            raise SourceError(f"{location}: expected train/<synset> and val/{_VAL}*.JPEG in it")
        self._places = list(dict.fromkeys([location, *data.parents[:3], data]))
        mapping = self._find(_MAPPING)
        train = _synset_folders(data / "train")
        classes = sorted({*train, *(_read_mapping(mapping) if mapping is not None else ())})
        there = [s for s, has in (("train", train), ("val", _has_flat_val(data))) if has]
        if split is not None and split not in there:
            raise OptionError(f"split={split}: {data} has {joined(there)}")
        self.root = data
        self.splits = there if split is None else [split]
        self.with_split = len(self.splits) > 1
        listing: dict[str, str] = {}
        if "val" in self.splits:
            places, listing = self._validation()
            self.beside += places
            self.notes += [f"numbers in {_TRUTH} are synsets of {place}" for place in places[1:]]
        numbers = {name: k for k, name in enumerate(classes or sorted(set(listing.values())))}
        for synset in train if "train" in self.splits else []:
            for name in _images(data / "train" / synset):
                self._add(f"train/{synset}/{name}", numbers[synset], "train")
        if "val" in self.splits:
            self._add_listed(listing, numbers, places[0])
        if (data / "test").is_dir():
            self.notes.append(f"test left out, which has no labels: pack {data / 'test'} by itself")
        return {"label": ScalarField(classes=tuple(numbers)), **self.split_field()}

    def _add(self, path: str, label: int, split: str) -> None:
        self.add(path, label=label, split=self.splits.index(split))

    def _find(self, *names: str) -> Path | None:
        found = (place / name for place in self._places for name in names)
        return next((path for path in found if path.is_file()), None)

    def _add_listed(
        self, synsets: Mapping[str, str], numbers: Mapping[str, int], place: Path
    ) -> None:
        """Add the validation images.

        synsets: by name of the file, with suffix or without.
        place: the list that has them.
        """
        seen = 0
        for name in _images(self.root / "val"):
            synset = synsets.get(name) or synsets.get(os.path.splitext(name)[0], "")
            if synset in numbers:
                self._add(f"val/{name}", numbers[synset], "val")
                seen += 1
            elif not synset:
                self.reject(f"val/{name}", f"{place.name} does not list it")
            else:
                reason = f"{place.name} has {synset!r:.60} for it, but the classes do not"
                self.reject(f"val/{name}", reason)
        if not seen:
            raise SourceError(f"{place}: names none of the images in {self.root / 'val'}")
        if len(synsets) > seen:
            self.notes.append(
                f"{len(synsets) - seen:,} of the {len(synsets):,} images that {place.name} lists "
                "are not there"
            )

    def _validation(self) -> tuple[list[Path], dict[str, str]]:
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
        if meta is None:
            raise SourceError(
                f"{truth}: its numbers are of the order in the development kit's {_META}, not of "
                f"sorted synsets. Put {_META} into its folder"
            )
        numbered = _order_of_meta(meta)
        found: dict[str, str] = {}
        for image, (number, line) in enumerate(text_lines(truth), 1):
            text = line.strip()
            if not text.isdecimal() or not 1 <= int(text) <= len(numbered):
                raise SourceError(
                    f"{truth}, line {number}: expected a number from 1 to {len(numbered)}, found "
                    f"{text[:40]!r}"
                )
            found[f"{_VAL}{image:08}"] = numbered[int(text) - 1]
        return [truth, meta], found


def _order_of_meta(path: Path) -> list[str]:
    """Return the synsets that are classes, in the order of their numbers, which count from 1."""
    try:
        data, at, content = read_regular(path), _HEAD, b""
        while b"synsets" not in content[:_NAMED]:
            kind, content, at = _element(data, at)
            if kind == _COMPRESSED:
                inflated = zlib.decompressobj().decompress(content, _MOST_BYTES)
                _, content, _ = _element(inflated, 0)
        # Synsets with children stand above the classes.
        leaves = [row for row in _structs(content) if not row["num_children"]]
        found = {row["ILSVRC2012_ID"]: row["WNID"] for row in leaves}
        order = [str(found[number + 1]) for number in range(len(leaves))]
    except Exception as error:  # as many kinds as there is damage
        raise SourceError(
            f"{path}: expected the development kit's struct array 'synsets', with numbers that "
            f"count from 1: {reason_of(error)}"
        ) from error
    if not order or not all(map(_is_synset, order)) or len(set(order)) < len(order):
        raise SourceError(f"{path}: its classes are not different synsets (n01440764)")
    return order


# -- MATLAB's level 5, as far as meta.mat needs it; no claimed size is believed -------------


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return the kind and content of an element, and where the next one begins."""
    kind, size = struct.unpack_from("<II", data, at)
    if kind >> 16:  # of four bytes or less, which stand in the tag
        return kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)], at + 8
    if at + 8 + size > len(data):
        raise ValueError("it is cut short")
    return kind, data[at + 8 : at + 8 + size], at + 8 + -(-size // 8) * 8


def _structs(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the texts and numbers of a struct array by their names."""
    at = 0
    for _ in range(4):  # flags, shape, name, the length of a field's name
        _, width, at = _element(content, at)
    _, names, at = _element(content, at)
    length = struct.unpack("<i", width)[0]
    fields = [names[k : k + length].rstrip(b"\0").decode() for k in range(0, len(names), length)]
    while at < len(content):
        row = {}
        for field in fields:
            _, value, at = _element(content, at)
            row[field] = _value(value)
        yield row


def _value(content: bytes) -> str | float | None:
    """Return a text or a number; None for anything else."""
    if not content:
        return None
    _, flags, at = _element(content, 0)
    for _ in range(2):  # shape, name
        _, _, at = _element(content, at)
    kind, data, _ = _element(content, at)
    if flags[0] == _TEXT:
        return data.decode(_ENCODINGS[kind])
    numbers = np.frombuffer(data, _NUMBERS[kind])
    return float(numbers[0]) if len(numbers) == 1 else None


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
