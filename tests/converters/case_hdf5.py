"""HDF5 files as h5py writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from cases import Case, Picture

__all__ = ["CASES"]


def labels(pictures: Sequence[Picture]) -> np.ndarray[Any, Any]:
    return np.array([p.label for p in pictures])


def stacked(pictures: Sequence[Picture]) -> np.ndarray[Any, Any]:
    return np.stack([p.pixels for p in pictures])


def chunked(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels = stacked(pictures)
    with h5py.File(folder / "a.h5", "w") as file:
        group = file.create_group("train")
        options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        group.create_dataset("images", data=pixels, chunks=(5, *pixels.shape[1:]), **options)
        group.create_dataset("labels", data=labels(pictures), chunks=(7,), **options)
    return folder / "a.h5"


def planes(folder: Path, pictures: Sequence[Picture]) -> Path:
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["x"] = stacked(pictures).transpose(0, 3, 1, 2)
        file["y"] = labels(pictures).astype(">i2")[:, None]
    return folder / "a.hdf5"


def variable(folder: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    for number, part in enumerate((pictures[:half], pictures[half:])):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            made = file.create_dataset("images", (len(part),), h5py.vlen_dtype(np.uint8))
            for index, picture in enumerate(part):
                made[index] = np.frombuffer(picture.data, np.uint8)
            file["labels"] = labels(part)
    return folder


CASES = [
    Case("hdf5-planes", "hdf5", planes, holds="pixels"),
    Case("hdf5-chunked", "hdf5", chunked, holds="pixels"),
    Case("hdf5-variable", "hdf5", variable),
]
