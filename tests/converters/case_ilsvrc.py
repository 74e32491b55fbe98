"""ImageNet as it is downloaded: Kaggle's layout, and the development kit's."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "ORDER", "SYNSETS", "devkit", "ilsvrc", "put"]

SYNSETS = ("n01440764", "n01443537", "n03995372")
ORDER = (SYNSETS[1], SYNSETS[2], SYNSETS[0])
"""Of the development kit's numbers, as in its ``meta.mat``, which SciPy wrote."""
WORDS = ("tench, Tinca tinca", "goldfish, Carassius auratus", "power drill")


def put(path: Path, picture: Picture) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.data)


def ilsvrc(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write Kaggle's layout: half of the pictures are for validation."""
    data = folder / "ILSVRC/Data/CLS-LOC"
    half = len(pictures) // 2
    for p in pictures[:half]:
        synset = SYNSETS[p.label]
        put(data / f"train/{synset}/{synset}_{int(p.name)}.JPEG", p)
    rows = []
    for number, p in enumerate(pictures[half:], 1):
        name = f"ILSVRC2012_val_{number:08}"
        put(data / f"val/{name}.JPEG", p)
        rows.append(f"{name},{SYNSETS[p.label]} 85 1 499 272 \n")
    put(data / "test/ILSVRC2012_test_00000001.JPEG", pictures[0])
    for number, synset in enumerate(SYNSETS):
        (data / f"train/{synset}").mkdir(parents=True, exist_ok=True)
        put(data / f"../../Annotations/CLS-LOC/train/{synset}/{number}.txt", pictures[0])
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows[::-1]))
    lines = [f"{s} {w}\n" for s, w in zip(SYNSETS, WORDS, strict=True)]
    (folder / "LOC_synset_mapping.txt").write_text("".join(lines[::-1]))
    return folder


def devkit(folder: Path, pictures: Sequence[Picture], place: str = "data") -> Path:
    """Write validation images with the development kit, its ``meta.mat`` in a folder of it."""
    root = folder / "ILSVRC2012_devkit_t12"
    (root / "data").mkdir(parents=True)
    (root / place).mkdir(exist_ok=True)
    meta = Path(__file__).parent / "fixtures/mat/meta.mat"
    shutil.copyfile(meta, root / place / "meta.mat")
    lines = []
    for number, p in enumerate(pictures, 1):
        put(folder / f"val/ILSVRC2012_val_{number:08}.JPEG", p)
        lines.append(f"{ORDER.index(SYNSETS[p.label]) + 1}\n")
    (root / "data/ILSVRC2012_validation_ground_truth.txt").write_text("".join(lines))
    return folder


CASES = [
    Case("ilsvrc", "ilsvrc", ilsvrc, keeps_order=False),
    Case("ilsvrc-devkit", "ilsvrc", devkit),
]
