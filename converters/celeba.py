"""CelebA: faces with attributes, identities and a split, in tables that name the images.

``list_attr_celeba``, ``identity_CelebA`` and ``list_eval_partition``, as ``.txt`` (its authors') or
``.csv`` (Kaggle's), beside ``img_align_celeba``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ScalarField

from .base import Deferred
from .reading.image_files import is_image_name
from .reading.image_list import ImageListSource
from .reading.lists.rows import join_flags, rows_by_key
from .reading.lists.text_table import TextTable
from .reading.options import Option
from .reading.selection import left_out

__all__ = ["CelebaSource"]

_ATTRIBUTES, _IDENTITY, _SPLIT = "list_attr_celeba", "identity_CelebA", "list_eval_partition"
_OTHERS = ("list_bbox_celeba", "list_landmarks_align_celeba", "list_landmarks_celeba")
_FOLDERS = ("img_align_celeba/img_align_celeba", "img_align_celeba", "img_celeba")
_SPLITS = ("train", "valid", "test")
_MOST_ATTRIBUTES = 62


class CelebaSource(ImageListSource):
    """Faces; fields ``image``, ``labels`` (attributes that it has), ``identity``, ``split``."""

    name = "celeba"
    summary = "CelebA: img_align_celeba with list_attr_celeba, identity_CelebA, list_eval_partition"
    parts = ("img_align_celeba", "list_attr_celeba.*")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        return _table(folder, _ATTRIBUTES) is not None and _folder(folder) is not None

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[str | None, Option("take only this split", _SPLITS)] = None,
    ) -> dict[str, Field]:
        attributes, images = _table(location, _ATTRIBUTES), _folder(location)
        if attributes is None or images is None:
            raise SourceError(
                f"{location}: expected {_ATTRIBUTES}.txt (or .csv) and {_FOLDERS[1]} in it"
            )
        self.root = images
        paths = {name: _table(location, name) for name in (_IDENTITY, _SPLIT)}
        if split is not None and paths[_SPLIT] is None:
            raise SourceError(f"split={split}: there is no {_SPLIT} in {location}")
        self.beside = [attributes, *(path for path in paths.values() if path is not None)]
        table = TextTable(attributes, is_image_name)
        titles = table.columns
        flags = join_flags(str(attributes), list(titles), list(titles), iter(table), 0)
        if len(flags.classes) > _MOST_ATTRIBUTES or len(flags.classes) != len(titles) - 1:
            raise SourceError(f"{attributes}: expected columns of 1 and -1, at most 62")
        order = {name: k for k, name in enumerate(flags.classes)}
        found: dict[str, Field] = {"labels": ArrayField("int64", (None,), classes=flags.classes)}
        if paths[_IDENTITY] is not None:
            found["identity"] = ScalarField("int64")
        if paths[_SPLIT] is not None and split is None:
            found["split"] = ScalarField(classes=_SPLITS)
        others = {path: _numbers(path) for path in self.beside[1:]}
        names = [name for name, path in paths.items() if path is not None]
        tables: dict[Path, Iterator[tuple[str, str]]] = {
            attributes: ((row[0], row[1]) for row in flags.rows), **others
        }  # fmt: skip
        for image, (labels, *rest) in rows_by_key(tables):
            row = dict(zip(names, map(int, rest), strict=True))
            of_split = row.get(_SPLIT, 0)
            if not 0 <= of_split < len(_SPLITS):
                raise SourceError(f"{paths[_SPLIT]}: {image} is of {of_split}, not 0, 1 or 2")
            if split is None or _SPLITS[of_split] == split:
                bits = sum(1 << order[label] for label in json.loads(labels))
                numbers = {"identity": row.get(_IDENTITY, 0), "split": of_split}
                self.add_inside(images, image, labels=bits, **numbers)
        self.notes += left_out("tables", (n for n in _OTHERS if _table(location, n) is not None))
        return found

    def values(self, files: list[str], numbers: dict[str, Any]) -> tuple[Any, ...] | Deferred:
        bits = numbers["labels"]
        numbers["labels"] = np.array(
            [k for k in range(_MOST_ATTRIBUTES) if bits >> k & 1], np.int64
        )
        return super().values(files, numbers)


def _numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and number of each image."""
    for row in TextTable(path, is_image_name):
        if len(row) != 2 or not row[1].strip().isdecimal():
            raise SourceError(f"{path}: expected an image and a number, found {row[:3]}")
        yield row[0], row[1]


def _table(top: Path, name: str) -> Path | None:
    """Return the table of a name; where Kaggle's is a text too, and in folders beside."""
    found = (
        top / f"{folder}{name}{s}" for folder in ("", "Anno/", "Eval/") for s in (".txt", ".csv")
    )
    return next((path for path in found if path.is_file()), None)


def _folder(top: Path) -> Path | None:
    places = (top / place / name for place in ("", "Img") for name in _FOLDERS)
    return next((path for path in places if path.is_dir()), None)
