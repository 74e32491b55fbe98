"""SVHN's whole pictures: the list as MATLAB 7.3 lays a struct array out, written by h5py."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from cases import Case, Picture

__all__ = ["CASES", "Digit", "digits_of", "stamp", "write_digits", "write_list", "write_splits"]

Digit = Mapping[str, float]
FIELDS = ("height", "left", "top", "width", "label")


def digits_of(picture: Picture) -> list[Digit]:
    """Return one, two or three digits: 10, 1, 2; the first begins before the picture."""
    return [
        {"left": 9 * k - 1, "top": 3, "width": 8, "height": 20 + k, "label": k or 10}
        for k in range(picture.label + 1)
    ]


def stamp(path: Path) -> None:
    """Write MATLAB's head into the 512 bytes before HDF5's."""
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def write_list(path: Path, images: Sequence[tuple[str, Sequence[Digit]]]) -> Path:
    """Write a list: a number for one digit, an array of references to numbers for several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        numbering = itertools.count()

        def put(array: np.ndarray[Any, Any], group: Any = refs, name: str = "") -> Any:
            # As `create_dataset` does, which takes several times as long for so little.
            key = (name or f"r{next(numbering)}").encode()
            kind = h5py.h5t.py_create(array.dtype, logical=True)
            made = h5py.h5d.create(group.id, key, kind, h5py.h5s.create_simple(array.shape))
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
            return h5py.h5r.create(group.id, key, h5py.h5r.OBJECT)

        names, boxes = [], []
        for name, digits in images:
            names.append(put(np.array([[ord(letter)] for letter in name], np.uint16)))
            group = refs.create_group(f"g{next(numbering)}")
            for field in FIELDS:
                numbers = [np.array([[float(digit[field])]]) for digit in digits]
                if len(digits) == 1:
                    put(numbers[0], group, field)
                else:
                    cells = [[put(number)] for number in numbers]
                    put(np.array(cells, h5py.ref_dtype), group, field)
            boxes.append(group.ref)
        for field, found in (("name", names), ("bbox", boxes)):
            data = np.array([[each] for each in found], h5py.ref_dtype)
            file.create_dataset(f"digitStruct/{field}", data=data, dtype=h5py.ref_dtype)
    stamp(path)
    return path


def write_digits(folder: Path, pictures: Sequence[Picture]) -> Path:
    rows = []
    for number, picture in enumerate(pictures, 1):
        (folder / f"{number}.png").write_bytes(picture.data)
        rows.append((f"{number}.png", digits_of(picture)))
    write_list(folder / "digitStruct.mat", rows)
    return folder


def write_splits(folder: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    for split, part in (("train", pictures[:half]), ("extra", pictures[half:])):
        (folder / split).mkdir()
        write_digits(folder / split, part)
    return folder


CASES = [
    Case("svhn", "svhn", write_digits, labels=False),
    Case("svhn-splits", "svhn", write_splits, labels=False),
]
