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

# As the lists of Stanford Cars and Dogs are: struct arrays, cells of text.
sides = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
fields = [(name, object) for name in ("relative_im_path", *sides, "class", "test")]
cars = np.array(
    [("car_ims/000001.jpg", 112, 7, 853, 598, 3, 0), ("car_ims/000002.jpg", 1, 1, 300, 200, 1, 1)],
    fields,
)
names = np.array(["Acura RL", "Audi S4", "BMW M3"], object)[None]
scipy.io.savemat(
    folder / "cars_annos.mat",
    {"annotations": cars[None], "class_names": names},
    do_compression=True,
)
dogs = {
    "train": [
        "n02085620-Chihuahua/n02085620_5927.jpg",
        "n02085782-Japanese_spaniel/n02085782_50.jpg",
    ],
    "test": ["n02085620-Chihuahua/n02085620_4441.jpg"],
}
for split, files in dogs.items():
    listed = np.array(files, object)[:, None]
    labels = np.arange(1.0, len(files) + 1)[:, None]
    scipy.io.savemat(folder / f"{split}_list.mat", {"file_list": listed, "labels": labels})

# As ILSVRC's development kit has it: classes, which have no children, and synsets above them.
fields = [
    (name, object)
    for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children",
                 "wordnet_height", "num_train_images")
]  # fmt: skip
synsets = np.array(
    [
        (
            1.0,
            "n01443537",
            "goldfish, Carassius auratus",
            "a fish",
            0.0,
            np.zeros((1, 0)),
            0.0,
            9.0,
        ),
        (2.0, "n03995372", "power drill", "a tool", 0.0, np.zeros((1, 0)), 0.0, 7.0),
        (3.0, "n01440764", "tench, Tinca tinca", "a fish", 0.0, np.zeros((1, 0)), 0.0, 8.0),
        (4.0, "n02512053", "fish", "a vertebrate", 2.0, np.array([[3.0, 1.0]]), 1.0, 0.0),
    ],
    fields,
)
scipy.io.savemat(folder / "meta.mat", {"synsets": synsets[:, None]}, do_compression=True)

expected = {}
for path in sorted(folder.glob("*.mat")):
    for name, array in scipy.io.loadmat(path).items():
        if not name.startswith("__") and array.dtype.kind in "uif":
            expected[f"{path.stem}.{name}"] = array
np.savez_compressed(folder / "expected.npz", **expected)
