"""YOLO by text, from Ultralytics' description; nothing that the reader uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cases import CLASSES, Case, Picture

__all__ = ["CASES", "write_yolo"]


def line(picture: Picture) -> str:
    """Return a box of the left half, a quarter high."""
    return f"{picture.label} 0.25 0.5 0.5 0.25\n"


def write(folder: Path, picture: Picture, image: str, label: str) -> None:
    """Write one image and its label file, in these folders."""
    for place, data in ((f"{image}.jpg", picture.data), (f"{label}.txt", line(picture).encode())):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)


def write_yolo(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write data.yaml, images and labels of the splits train and val."""
    for k, p in enumerate(pictures):
        split = "train" if 2 * k < len(pictures) else "val"
        write(folder, p, f"images/{split}/{p.name}", f"labels/{split}/{p.name}")
    names = "".join(f"  {k}: {name}\n" for k, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(
        f"path: ../data/mine  # elsewhere\ntrain: images/train\nval: images/val\nnames:\n{names}"
    )
    return folder


def roboflow(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write what Roboflow exports: folders beside data.yaml, named as if they were not."""
    for k, p in enumerate(pictures):
        split = "train" if 2 * k < len(pictures) else "valid"
        write(folder, p, f"{split}/images/{p.name}", f"{split}/labels/{p.name}")
    (folder / "data.yaml").write_text(
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 3\n"
        f"names: {list(CLASSES)}\n"
    )
    return folder / "data.yaml"


def darknet(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write what CVAT exports as YOLO 1.1."""
    for p in pictures:
        write(folder, p, f"obj_train_data/{p.name}", f"obj_train_data/{p.name}")
    (folder / "obj.names").write_text("".join(f"{name}\n" for name in CLASSES))
    (folder / "obj.data").write_text(
        "classes = 3\ntrain = data/train.txt\nnames = data/obj.names\n"
    )
    names = "".join(f"data/obj_train_data/{p.name}.jpg\n" for p in pictures)
    (folder / "train.txt").write_text(names)
    return folder


def bare(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write images, labels, and a list of classes."""
    for p in pictures:
        write(folder, p, f"images/{p.name}", f"labels/{p.name}")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder


CASES = [
    Case("yolo", "yolo", write_yolo, labels=False),
    Case("yolo-roboflow", "yolo", roboflow, {"masks": "classes"}, labels=False),
    Case("yolo-darknet", "yolo", darknet, labels=False, files_each=2),
    Case("yolo-bare", "yolo", bare, labels=False),
]
