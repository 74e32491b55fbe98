"""What a location must have for a format to be asked whether it reads it.

A location is in one of some forty formats.  Most others are ruled out here, by names of files and
folders and from one listing of each folder, before their modules are imported, which takes longer
than all the asking.  `Source.recognises` then looks into the files, and need not ask again what
stands here.  The formats of other packages are always asked.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from .reading.locations import folder_at, is_pattern, path_of
from .reading.splits import has_folders_of_images, has_images
from .tree import DiskTree, Tree, join

__all__ = ["FORMATS", "LISTS", "Look", "Signs"]

_ANY = ("*",)
_SPLITS = ("train*", "val*", "dev*", "test*")
"""All of `reading.splits.SPLIT_NAMES`."""


class Signs(NamedTuple):
    """What locations a format takes.

    folder: patterns, one of which fits a file or folder in a folder of this format; without
        wildcards they are matched exactly, with them whatever the case.
    file: patterns, one of which fits the name of a file of this format.
    pattern, python: whether it takes a pattern that stands for files, or an object of Python's.
    images: where images may be that are not the dataset; "beside" its files, but not in folders.
    """

    folder: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    pattern: bool = False
    python: bool = False
    images: Literal["anywhere", "beside", "nowhere"] = "anywhere"


def _inside(places: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """Return names in a folder itself and in some of those in it."""
    return tuple(os.path.join(place, name) for place in ("", *places) for name in names)


def _files(*names: str, images: Literal["beside", "nowhere"]) -> Signs:
    """Return the signs of a format of files, which are no dataset where they lie with images."""
    return Signs(names, _ANY, pattern=True, images=images)


LISTS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson")
"""Suffixes of lists of images."""
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_ZARR = (".zgroup", ".zarray", "zarr.json", "attributes.json")

FORMATS = {
    "archive": _files("*.tar*", "*.tgz*", "*.zip*", images="nowhere"),
    "arrow": _files(*_inside(("*", "*/*"), "*.arrow", "*.feather", "*.ipc"), images="nowhere"),
    "beton": Signs(file=_ANY),
    "cifar": Signs(("data_batch_*", "train*", "test*", "cifar-10*"), _ANY),
    "coco": Signs(("*.json", "annotations/*.json", "*/_annotations.coco.json"), _ANY),
    "fastdata": Signs(("manifest.json",), _ANY, pattern=True, python=True),
    "hdf5": _files("*.h5*", "*.hdf*", "*.he5*", images="beside"),
    "hf_folder": Signs(_inside(("*", "data/*"), *_METADATA)),
    "idx": Signs(_inside(("raw",), "*idx*"), _ANY),
    "ilsvrc": Signs(("val", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")),
    "imagefolder": Signs(python=True),
    "litdata": Signs(("index.json",), ("index.json",)),
    "lmdb": Signs(("data.mdb",), _ANY),
    "masks": Signs(_ANY),
    "mds": Signs(("index.json", "*.mds*", "*/index.json"), ("index.json",)),
    "mvtec": Signs(_inside(("*",), "ground_truth")),
    "numpy": _files("*.npy*", "*.npz*", images="nowhere"),
    "parquet": _files(*_inside(("*", "*/*"), "*.parquet", "*.pq"), images="nowhere"),
    "recordio": _files("*.rec*", images="beside"),
    "tfrecord": _files("*", images="beside"),
    "torch": _files("*.pt*", images="beside"),
    "voc": Signs(
        (
            *_inside(("VOC*", "VOCdevkit/VOC*"), "JPEGImages"),
            *_inside(_SPLITS, "*.xml", "annotation*", "xml*", "label*"),
        )
    ),
    "webdataset": _files("*.tar*", "*.tgz*", images="nowhere"),
    "yolo": Signs(
        ("*.yaml", "*.yml", "*.names", "classes.txt", *_inside(_SPLITS, "labels")),
        ("*.yaml", "*.yml"),
    ),
    "zarr": Signs(_inside(("*",), *_ZARR)),
    # These recognise much that is in a more special format, and are asked last.
    "dataset": Signs(python=True),
    "manifest": Signs(
        tuple(os.path.join(place, f"*{suffix}") for place in ("", *_SPLITS) for suffix in LISTS),
        _ANY,
    ),
    "flat": Signs(_ANY),
    "folder": Signs(_ANY),
    "iterable": Signs(python=True),
}
"""fastdata's own formats, in the order in which they are asked."""


class Look:
    """A location, looked at once for all formats."""

    def __init__(self, location: Any) -> None:
        self._path, folder = path_of(location), folder_at(location)
        self._is_pattern = is_pattern(location)
        self._tree = None if folder is None else DiskTree(folder)

    def fits(self, signs: Signs) -> bool:
        """Tell whether the location may be in a format."""
        if self._path is None:
            return signs.python
        if self._tree is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be listed
                if signs.images == "nowhere" and self._has_images:
                    return False
                if signs.images == "beside" and self._has_folders_of_images:
                    return False
                return any(self._has(self._tree, "", sign) for sign in signs.folder)
            return False
        if self._is_pattern:
            return signs.pattern
        name = self._path.name
        return self._path.is_file() and any(fnmatchcase(name, sign) for sign in signs.file)

    @functools.cached_property
    def _has_images(self) -> bool:
        return self._path is not None and has_images(self._path)

    @functools.cached_property
    def _has_folders_of_images(self) -> bool:
        return has_folders_of_images(self._path)

    def _has(self, tree: Tree, folder: str, sign: str) -> bool:
        """Tell whether there is something in a folder that a pattern fits."""
        if sign == "*":
            return True
        if not glob.has_magic(sign):
            return os.path.lexists(os.path.join(tree.place, folder, sign))
        first, _, rest = sign.partition("/")
        found = tree.folder(folder)
        if not rest:
            return any(fnmatchcase(n.lower(), first) for n in (*found.others, *found.folders))
        inner = [name for name in found.folders if fnmatchcase(name.lower(), first.lower())]
        return any(self._has(tree, join(folder, name), rest) for name in inner)
