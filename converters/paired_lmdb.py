"""Two LMDBs side by side whose keys pair up: good and degraded images, as BasicSR has them.

::

    DIV2K_train_HR_sub.lmdb/              data.mdb, meta_info.txt
    DIV2K_train_LR_bicubic_X4_sub.lmdb/   data.mdb, meta_info.txt

Source: ``docs/DatasetPreparation.md`` of ``github.com/XPixelGroup/BasicSR``, and
``paired_paths_from_lmdb`` there, which wants the same keys in both.
"""

from __future__ import annotations

import os
import re
from array import array
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, Schema

from .base import FieldSpec, IndexedSource, Reject, Sample
from .reading.fingerprints import FileSource
from .reading.image_files import is_image_bytes
from .reading.lmdb_files import (
    META_INFO,
    LmdbIndex,
    first_values,
    is_ours,
    keys_of_meta_info,
    lmdb_at,
    missing_keys,
)
from .reading.locations import folder_at, printable
from .reading.options import Option
from .reading.refusals import already_packed, refuse_fields
from .reading.selection import joined, left_out
from .reading.spans import close_files

__all__ = ["PairedLmdbSource"]

_ROLES = {
    "gt": {"gt", "gts", "hr", "hq", "sharp", "clean", "high", "target", "groundtruth"},
    "lq": {"lq", "lqs", "lr", "blur", "blurry", "noisy", "low", "input", "rainy", "hazy"},
}


class PairedLmdbSource(FileSource, IndexedSource):
    """Pairs of images by their keys; fields ``gt`` and ``lq``, each of sizes of its own."""

    name = "paired_lmdb"
    summary = "two LMDBs side by side, of good and degraded images (BasicSR's gt and lq)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        if lmdb_at(location) is not None:
            return False
        roles = [_role(path.name) for path in _databases(Path(location))]
        return "gt" in roles and "lq" in roles

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        gt: Annotated[
            str | None, Option("the folder of the good images; default: called HR, GT, sharp, ...")
        ] = None,
        lq: Annotated[
            str | None, Option("the folder of the degraded ones; default: called LR, LQ, blur, ...")
        ] = None,
    ) -> None:
        refuse_fields(fields, self.name)
        folder = folder_at(location)
        if folder is None:
            raise SourceError(f"{location}: expected the folder in which the two databases are")
        chosen = {"gt": _chosen(folder, "gt", gt), "lq": _chosen(folder, "lq", lq)}
        self.paths = [path / "data.mdb" for path in chosen.values()]
        self.beside = [path / META_INFO for path in chosen.values() if (path / META_INFO).is_file()]
        self._names = [printable(path.name) for path in chosen.values()]
        self._indexes = [LmdbIndex(path) for path in self.paths]
        self._pairs = [array("q"), array("q")]
        self._join()
        self._lost = self._missing()
        self.num_samples = len(self._pairs[0]) + len(self._lost)
        if not any(a >= 0 and b >= 0 for a, b in zip(*self._pairs, strict=True)):
            raise SourceError(
                f"{folder}: {' and '.join(self._names)} have no key in common; pairs have the same"
            )
        others = [path.name for path in _databases(folder) if path not in chosen.values()]
        self.notes = [
            f"pairs of {self._names[0]} (gt) and {self._names[1]} (lq), each with its own size: "
            "--resize none keeps both",
            *left_out("databases", map(printable, others), "--option lq=NAME takes another"),
        ]
        self.schema = Schema({"gt": ImageField(channels), "lq": ImageField(channels)})

    def _join(self) -> None:
        """Pair the entries by their keys, which both have in order; -1 where one has none."""
        gt, lq = self._indexes
        others = iter([row for row in range(len(lq)) if row not in lq.rejects])
        other = next(others, None)
        for row in range(len(gt)):
            if row in gt.rejects:  # its key is not known
                self._add(row, -1)
                continue
            while other is not None and lq.keys[other] < gt.keys[row]:
                self._add(-1, other)
                other = next(others, None)
            if other is not None and lq.keys[other] == gt.keys[row]:
                self._add(row, other)
                other = next(others, None)
            else:
                self._add(row, -1)
        for rest in (*(() if other is None else (other,)), *others, *sorted(lq.rejects)):
            self._add(-1, rest)

    def _add(self, gt: int, lq: int) -> None:
        self._pairs[0].append(gt)
        self._pairs[1].append(lq)

    def _missing(self) -> list[str]:
        """Return the keys that a list beside a database names and neither has."""
        named = dict.fromkeys(key for path in self.beside for key in keys_of_meta_info(path))
        for index in self._indexes:
            named = dict.fromkeys(missing_keys(index.keys, named))
        return list(named)

    def __getitem__(self, index: int) -> Sample | Reject:
        if index >= len(self._pairs[0]):
            raise ValueError(f"{META_INFO} names this key, which neither database has")
        rows = [pairs[index] for pairs in self._pairs]
        for found, row in zip(self._indexes, rows, strict=True):
            if row in found.rejects:
                return found.rejects[row]
        for row, name in zip(rows, self._names, strict=True):
            if row < 0:
                raise ValueError(f"{name} has no such key")
        spans = (found.span(row) for found, row in zip(self._indexes, rows, strict=True))
        return Sample(self.key_at(index), tuple(spans))

    def key_at(self, index: int) -> str:
        if index >= len(self._pairs[0]):
            return self._lost[index - len(self._pairs[0])]
        gt, lq = (pairs[index] for pairs in self._pairs)
        return self._indexes[0].keys[gt] if gt >= 0 else self._indexes[1].keys[lq]


def _role(name: str) -> str:
    """Return which of a pair a folder is called like; empty if neither, or both."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    found = [role for role, known in _ROLES.items() if words & known]
    return found[0] if len(found) == 1 else ""


def _databases(folder: Path) -> list[Path]:
    """Return the folders with an LMDB of image files."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = lmdb_at(entry.path) if entry.is_dir() else None
        if path is not None and not is_ours(path):
            values = first_values(path)
            if not values or any(map(is_image_bytes, values)):
                found.append(Path(entry.path))
    close_files()
    return found


def _chosen(folder: Path, role: str, name: str | None) -> Path:
    """Return the folder of a database.

    Raises OptionError if it is not clear which it is. Raises SourceError if it is fastdata's own.
    """
    if name is not None:
        path = folder / name
        data = lmdb_at(path)
        if data is None or not path.is_dir():
            raise OptionError(f"{role}={name}: no folder with an LMDB: {path}")
        if is_ours(data):
            raise already_packed(path)
        return path
    databases = _databases(folder)
    found = [path for path in databases if _role(path.name) == role]
    if len(found) != 1:
        names = joined(printable(path.name) for path in databases)
        raise OptionError(
            f"{folder}: {len(found) or 'none'} of its databases, {names}, may be {role}; name it: "
            f"--option {role}=FOLDER"
        )
    return found[0]
