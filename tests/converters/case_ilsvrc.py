"""ImageNet as Kaggle has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = ["CASES", "SYNSETS", "ilsvrc", "put"]

SYNSETS = ("n01440764", "n01443537", "n03995372")


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
    return folder


CASES = [
    Case("ilsvrc", "ilsvrc", ilsvrc, keeps_order=False),
]
