"""Make a meta.mat by SciPy, like the one of ImageNet's development kit.

Usage: python scripts/format_fixtures/make_mat.py tests/converters/fixtures/mat
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.io

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)

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
