"""Datasets that a recipe packs: how each is recognised, and where its recipe is.

They have layouts of their own, and a few lines of Python read one: ``docs/recipes/datasets.md``.
Recognition only opens files whose names fit, and reads their first bytes.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .reading.image_files import is_image_name
from .reading.locations import first_bytes, is_folder, path_of, printable

__all__ = ["KNOWN_SETS", "PAGE", "START", "recipe_for", "recipe_in"]

PAGE = "docs/recipes/datasets.md"
START = 1 << 16
_MOST_FOLDERS, _MOST_FILES, _OPENED = 16, 1000, 16
"""Folders that are looked into on each level, names in a folder, and files that are opened."""


class KnownSet(NamedTuple):
    """A dataset, or a kind of annotation, and the heading of its recipe.

    names: alternatives; each is a list of patterns, separated by blanks, which must all be there.
    start: expressions that must all be in the first bytes of a file that the last pattern fits.
    but: a pattern that must not be there.
    deep: whether a folder of the location may have these files instead.
    """

    title: str
    anchor: str
    names: tuple[str, ...]
    start: tuple[str, ...] = ()
    but: str = ""
    deep: bool = True


_LENGTH = r"[\x80-\xff]{0,3}[\x01-\x7f]"
_DATUM = (
    rf"\x08[\x01\x03]\x10{_LENGTH}\x18{_LENGTH}\x22"  # channels, height, width, data
    rf"|\x22{_LENGTH}(\xff\xd8\xff|\x89PNG)"
)
_OBJECT, _OBJECTS = r"\A\s*\{", r"\A\s*\[\s*\{"
_PAIRS = tuple(
    f"*{good}*/data.mdb *{degraded}*/data.mdb"
    for good, degraded in (("hr", "lr"), ("gt", "lq"), ("sharp", "blur"), ("clean", "noisy"))
)

KNOWN_SETS = (
    KnownSet("CUB-200-2011", "cub-200-2011", ("images.txt image_class_labels.txt",)),
    KnownSet("CelebA", "celeba", ("list_attr_celeba.txt", "list_attr_celeba.csv")),
    KnownSet("WIDER FACE", "wider-face", ("wider_face_*_bbx_gt.txt",)),
    KnownSet("Flowers 102", "flowers-102", ("imagelabels.mat",)),
    KnownSet("Stanford Cars", "stanford-cars", ("cars_*annos*.mat", "cars_meta.mat")),
    KnownSet("Stanford Dogs", "stanford-dogs", ("train_list.mat", "images/n0*-* annotation/n0*-*")),
    KnownSet("SVHN", "svhn", ("digitStruct.mat", "*_32x32.mat")),
    KnownSet("the binary edition of CIFAR", "cifar-binary",
             ("data_batch_1.bin", "train.bin fine_label_names.txt")),
    KnownSet("Tiny ImageNet", "tiny-imagenet", ("wnids.txt",)),
    KnownSet("a .mat file of MATLAB", "mat-files", ("*.mat",), (r"\AMATLAB ",), deep=False),
    KnownSet("an LMDB of Caffe's Datum messages", "caffe-datum-lmdb", ("*.mdb",), (_DATUM,)),
    KnownSet("two LMDBs of pairs", "paired-lmdb", _PAIRS),
    KnownSet("labels of LabelMe", "labelme", ("*.json",),
             (_OBJECT, r'"shapes"\s*:\s*\[', r'"(imagePath|points)"\s*:')),
    KnownSet("labels of CVAT", "cvat", ("*.xml",), ("<annotations>", r"<(image|meta|version)\b")),
    KnownSet("a table of run lengths", "run-length-tables", ("*.csv",),
             (r'\A([^\n]*[,"])?(encodedpixels|rle|rle_mask)[,"\r\n]',)),
    KnownSet("an export of Label Studio", "label-studio", ("*.json",),
             (_OBJECTS, r'"annotations"\s*:\s*\[', r'"result"\s*:\s*\[')),
    KnownSet("VisDrone", "visdrone", ("images annotations/*.txt",),
             (r"\A(-?[\d.]+,){7}-?[\d.]+,?\s",)),
    KnownSet("KITTI", "kitti", ("label_2", "image_2"), but="semantic"),
    KnownSet("DOTA", "dota", ("labeltxt*",)),
    KnownSet("BDD100K", "bdd100k", ("*.json", "labels/*/*.json"),
             (_OBJECTS, r'"labels"\s*:\s*\[', r'"category"\s*:\s*"')),
    KnownSet("SageMaker Ground Truth", "sagemaker", ("*.manifest",),
             (r'\A\s*\{[^\n]*"source-ref"',)),
)  # fmt: skip
"""The first that fits is named.  Names are compared without regard to case."""


def recipe_for(location: Any) -> str:
    """Return "this looks like ..." with the place of its recipe, or "" if there is none.

    location: a file or a folder on this machine; a file is judged by its name and first bytes.
    """
    path = path_of(location)
    if path is None or not path.exists():
        return ""
    top, names = (path, _names(path)) if path.is_dir() else (path.parent, [path.name])
    return recipe_in(names, lambda name: first_bytes(top / name, START))


def recipe_in(names: list[str], head: Callable[[str], bytes]) -> str:
    """Return the same for files and folders by their names, those of an archive for example.

    names: relative to the top; images may be left out.
    head: returns the first `START` bytes of a file.
    """
    for known in KNOWN_SETS:
        if sign := _sign(known, names, head):
            return (
                f"this looks like {known.title} ({sign}), which a few lines of Python pack: "
                f"{PAGE}#{known.anchor}"
            )
    return ""


def _names(top: Path, levels: int = 2) -> list[str]:
    """Return folders, and files except images, of a folder and of the levels below it."""
    folders: list[str] = []
    files: list[str] = []
    # A folder that cannot be listed has none; reading the source says why.
    with contextlib.suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if is_folder(entry):
                folders.append(entry.name)
            elif not is_image_name(entry.name):
                files.append(entry.name)
    found = [*folders, *sorted(files)[:_MOST_FILES]]
    for folder in sorted(folders)[:_MOST_FOLDERS] if levels else ():
        found += [f"{folder}/{name}" for name in _names(top / folder, levels - 1)]
    return found


def _sign(known: KnownSet, names: list[str], head: Callable[[str], bytes]) -> str:
    """Return the first file that shows that it is this dataset; "" if it is another."""

    def found(pattern: str) -> list[str]:
        start = "(.*/)?" if known.deep else "(?!.*/)"
        fits = re.compile(start + fnmatch.translate(pattern), re.IGNORECASE).match
        return list(filter(fits, names))

    def begins(name: str) -> bool:
        text = head(name).decode("latin-1").removeprefix("\xef\xbb\xbf")
        return all(re.search(one, text, re.IGNORECASE) for one in known.start)

    if known.but and found(known.but):
        return ""
    for alternative in known.names:
        *_, last = there = list(map(found, alternative.split()))
        if all(there) and (not known.start or any(map(begins, last[:_OPENED]))):
            return printable(there[0][0])
    return ""
