"""Well-known datasets as they are downloaded: ImageNet, Tiny ImageNet, CUB, CelebA, WIDER FACE."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from cases import Case, Picture

__all__ = [
    "CASES",
    "ORDER",
    "SYNSETS",
    "WORDS",
    "celeba",
    "cub",
    "devkit",
    "ilsvrc",
    "put",
    "tiny",
    "widerface",
]

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


def tiny(folder: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    for p in pictures[:half]:
        synset = SYNSETS[p.label]
        put(folder / f"train/{synset}/images/{synset}_{int(p.name)}.JPEG", p)
    lines = []
    for number, p in enumerate(pictures[half:]):
        put(folder / f"val/images/val_{number:06}.JPEG", p)
        lines.append(f"val_{number:06}.JPEG\t{SYNSETS[p.label]}\t0\t32\t44\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines[::-1]))
    (folder / "wnids.txt").write_text("".join(f"{s}\n" for s in SYNSETS[::-1]))
    words = [f"{s}\t{w}\n" for s, w in zip(SYNSETS, WORDS, strict=True)]
    (folder / "words.txt").write_text("n00001740\tentity\n" + "".join(words))
    return folder


def cub(folder: Path, pictures: Sequence[Picture]) -> Path:
    root = folder / "CUB_200_2011"
    names = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
    tables: dict[str, list[str]] = {}
    for number, p in enumerate(pictures, 1):
        path = f"{names[p.label]}/Bird_{p.name}.jpg"
        put(root / "images" / path, p)
        for name, text in (
            ("images", path), ("image_class_labels", p.label + 1), ("train_test_split", number % 2),
            ("bounding_boxes", f"{number % 7}.0 3.0 20.0 11.5"),
        ):  # fmt: skip
            tables.setdefault(name, []).append(f"{number} {text}\n")
    tables["classes"] = [f"{k} {name}\n" for k, name in enumerate(names, 1)]
    for name, lines in tables.items():
        (root / f"{name}.txt").write_text("".join(lines))
    return folder


def celeba(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write the authors' text files: label 2 has both attributes, 1 the second, 0 none."""
    attributes, partition, identity = [f"{len(pictures)}\n", "5_o_Clock_Shadow Young \n"], [], []
    for number, p in enumerate(pictures, 1):
        name = f"{number:06}.jpg"
        put(folder / "img_align_celeba" / name, p)
        flags = [("-1", "-1"), ("-1", " 1"), (" 1", " 1")][p.label]
        attributes.append(f"{name} {' '.join(flags)}\n")
        partition.append(f"{name} {min(2, number // 4)}\n")
        identity.append(f"{name} {9000 + number}\n")
    (folder / "list_attr_celeba.txt").write_text("".join(attributes))
    (folder / "list_eval_partition.txt").write_text("".join(partition))
    (folder / "identity_CelebA.txt").write_text("".join(identity))
    (folder / "list_bbox_celeba.txt").write_text("0\nimage_id x_1 y_1 width height\n")
    return folder


def widerface(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write faces, as many as the label says, and of every third picture an invalid one."""
    lines = []
    for p in pictures:
        path = f"0--Parade/0_Parade_{p.name}.jpg"
        put(folder / "WIDER_train/images" / path, p)
        faces = [f"{4 + k} 3 9 8 0 0 0 {int(k == 1)} 0 0 \n" for k in range(p.label)]
        lines += [f"{path}\n", f"{p.label}\n", *(faces or ["0 0 0 0 0 0 0 0 0 0 \n"])]
    path = folder / "wider_face_split/wider_face_train_bbx_gt.txt"
    path.parent.mkdir()
    path.write_text("".join(lines))
    return path


CASES = [
    Case("ilsvrc", "ilsvrc", ilsvrc, keeps_order=False),
    Case("ilsvrc-devkit", "ilsvrc", devkit),
    Case("tiny_imagenet", "tiny_imagenet", tiny, keeps_order=False),
    Case("cub", "cub", cub),
    Case("celeba", "celeba", celeba, labels=False),
    Case("widerface", "widerface", widerface, labels=False),
]
