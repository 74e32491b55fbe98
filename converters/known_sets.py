"""Datasets that a recipe packs: how each is recognised, and where its recipe is.

They have layouts of their own, and a few lines of Python read one: ``docs/recipes/datasets.md``.
Recognition only opens files whose names fit, and reads their first bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from .reading.image_files import is_image_name
from .reading.locations import first_bytes, is_folder, path_of

__all__ = ["KNOWN_SETS", "PAGE", "recipe_for"]

PAGE = "docs/recipes/datasets.md"
_START = 1 << 16
_MOST_FOLDERS = 32
"""Folders that are looked into on each level: class folders can be thousands."""
_MOST_FILES = 4
"""Files of fitting names that are opened."""


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
    if path is None:
        return ""
    if path.is_dir():
        look = _Look(os.fspath(path))
    elif path.is_file():
        look = _Look(os.fspath(path.parent), path.name)
    else:
        return ""
    for known in KNOWN_SETS:
        if look.fits(known):
            return (
                f"this looks like {known.title}, which a few lines of Python pack: "
                f"{PAGE}#{known.anchor}"
            )
    return ""


class _Look:
    """A folder, or one of its files; each folder in it is listed once for all datasets."""

    def __init__(self, top: str, file: str = "") -> None:
        self._top = top
        self._listings: dict[str, tuple[list[str], list[str]]] = {}
        if file:
            self._listings[top] = [], [file]

    def fits(self, known: KnownSet) -> bool:
        """Tell whether the files of a dataset are there."""
        for place in ("", "*/") if known.deep else ("",):
            if known.but and self._found(place + known.but):
                return False
            for names in known.names:
                found = [self._found(place + name) for name in names.split()]
                if all(found) and (not known.start or any(_begins(p, known) for p in found[-1])):
                    return True
        return False

    def _found(self, pattern: str) -> list[str]:
        """Return some of the paths that a pattern fits."""
        places = [self._top]
        *folders, last = pattern.split("/")
        for name in folders:
            places = [path for place in places for path in self._matching(place, name, True)]
        return [path for place in places for path in self._matching(place, last, False)]

    def _matching(self, folder: str, pattern: str, only_folders: bool) -> Iterator[str]:
        folders, files = self._listing(folder)
        names = folders[:_MOST_FOLDERS] if only_folders else [*folders, *files]
        fitting = [name for name in names if fnmatchcase(name.lower(), pattern.lower())]
        most = _MOST_FOLDERS if only_folders else _MOST_FILES
        return (os.path.join(folder, name) for name in fitting[:most])

    def _listing(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the folders in a folder, and its files except images."""
        if folder not in self._listings:
            folders: list[str] = []
            files: list[str] = []
            # A folder that cannot be listed has none; reading the source says why.
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if is_folder(entry):
                        folders.append(entry.name)
                    elif not is_image_name(entry.name):
                        files.append(entry.name)
            self._listings[folder] = sorted(folders), sorted(files)
        return self._listings[folder]


def _begins(path: str, known: KnownSet) -> bool:
    """Tell whether the first bytes of a file are those of a dataset."""
    text = first_bytes(Path(path), _START).decode("latin-1").removeprefix("\xef\xbb\xbf")
    return all(re.search(one, text, re.IGNORECASE) for one in known.start)
