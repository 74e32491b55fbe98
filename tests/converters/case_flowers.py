"""Oxford Flowers 102: its folder and its two files of MATLAB's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from case_mat import mat5, matrix
from cases import Case, Picture

__all__ = ["CASES", "write_flowers"]


def write_flowers(root: Path, pictures: Sequence[Picture]) -> Path:
    """Write the dataset: every third picture is of another split."""
    (root / "jpg").mkdir(parents=True)
    for number, picture in enumerate(pictures, 1):
        (root / "jpg" / f"image_{number:05}.jpg").write_bytes(picture.data)
    labels = np.array([[p.label + 1 for p in pictures]], np.uint8)
    mat5(root / "imagelabels.mat", matrix("labels", labels), compressed=True)
    ids = np.arange(1, len(pictures) + 1, dtype=np.uint16)
    sets = {"tstid": ids[0::3][::-1], "trnid": ids[1::3], "valid": ids[2::3]}
    mat5(root / "setid.mat", *(matrix(name, ids[None]) for name, ids in sets.items()))
    return root


CASES = [Case("flowers", "flowers", write_flowers)]
