"""Files that NumPy writes: as MedMNIST, Keras and others have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import Case, Picture

__all__ = ["CASES", "arrays_of", "medmnist"]


def arrays_of(pictures: Sequence[Picture]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([p.pixels for p in pictures]), np.array([p.label for p in pictures], np.uint8)


def medmnist(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write three splits, of which the labels have a column."""
    cuts = (0, len(pictures) // 2, len(pictures) * 3 // 4, len(pictures))
    arrays = {}
    for split, start, stop in zip(("train", "val", "test"), cuts, cuts[1:], strict=False):
        arrays[f"{split}_images"], labels = arrays_of(pictures[start:stop])
        arrays[f"{split}_labels"] = labels[:, None]
    np.savez_compressed(folder / "pathmnist.npz", **arrays)
    return folder / "pathmnist.npz"


def keras(folder: Path, pictures: Sequence[Picture]) -> Path:
    images, labels = arrays_of(pictures)
    half = len(pictures) // 2
    np.savez(
        folder / "mnist.npz",
        x_train=images[:half], y_train=labels[:half], x_test=images[half:], y_test=labels[half:],
    )  # fmt: skip
    return folder / "mnist.npz"


def beside(folder: Path, pictures: Sequence[Picture]) -> Path:
    images, labels = arrays_of(pictures)
    np.save(folder / "X_train.npy", images)
    np.save(folder / "y_train.npy", labels.astype(np.int64))
    return folder


def alone(folder: Path, pictures: Sequence[Picture]) -> Path:
    np.save(folder / "frames.npy", arrays_of(pictures)[0])
    return folder / "frames.npy"


CASES = [
    Case("numpy-medmnist", "numpy", medmnist, holds="pixels", shuffles=False),
    Case("numpy-keras", "numpy", keras, holds="pixels"),
    Case("numpy-beside", "numpy", beside, holds="pixels"),
    Case("numpy-alone", "numpy", alone, holds="pixels", labels=False),
]
