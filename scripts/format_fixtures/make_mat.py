"""Make .mat files by SciPy, which writes MATLAB's level 5, for the tests of the reader.

Usage: python scripts/format_fixtures/make_mat.py tests/converters/fixtures/mat

Needs SciPy.  ``expected.npz`` beside them has what ``scipy.io.loadmat`` reads from them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.io

random = np.random.default_rng(7)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)

pixels = random.integers(0, 256, (32, 32, 3, 6), np.uint8)
labels = np.array([[10], [1], [9], [10], [2], [5]], np.uint8)
scipy.io.savemat(folder / "train_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)
scipy.io.savemat(folder / "test_32x32.mat", {"X": pixels[..., :3], "y": labels[:3]})
scipy.io.savemat(
    folder / "grey.mat",
    {
        "images": pixels[:, :28, 0],
        "labels": labels[:, 0].astype(np.float64),
        "info": {"name": "a struct", "cells": np.array([["a", 1]], dtype=object)},
    },
)
scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.arange(1, 103, dtype=np.uint8)[None]})
scipy.io.savemat(
    folder / "setid.mat",
    {
        "trnid": np.array([[3, 1]], np.uint16),
        "valid": np.array([[2]], np.uint16),
        "tstid": np.array([[5, 4]], np.uint16),
    },
    do_compression=True,
)

expected = {}
for path in sorted(folder.glob("*.mat")):
    for name, array in scipy.io.loadmat(path).items():
        if not name.startswith("__") and name != "info":
            expected[f"{path.stem}.{name}"] = array
np.savez_compressed(folder / "expected.npz", **expected)
