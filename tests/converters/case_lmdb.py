"""LMDB files of image files, as lmdb writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lmdb
from cases import Case, Picture

__all__ = ["CASES", "write_lmdb"]


def write_lmdb(path: Path, pairs: Iterable[tuple[bytes, bytes]], **options: Any) -> Path:
    """Write keys and values with lmdb, in the layout of LMDB 0.9 unless options say so."""
    options = {"map_size": 4 << 30, "lib_version": 0, **options}
    with (
        lmdb.open(str(path), **options) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in pairs:
            transaction.put(key, value)
    return path


def pairs(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((p.name.encode(), p.data) for p in pictures)
    path = write_lmdb(folder / "train_HR.lmdb", content)
    lines = (f"{p.name}.png ({','.join(map(str, p.pixels.shape))}) 1\n" for p in pictures)
    (path / "meta_info.txt").write_text("".join(lines))
    return path


def one_file(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((p.name.encode(), p.data) for p in pictures)
    return write_lmdb(folder / "a.lmdb", content, subdir=False, lock=False, lib_version=1)


def data_file(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock.mdb"]


CASES = [
    Case("lmdb-basicsr", "lmdb", pairs, labels=False, damage=data_file),
    Case("lmdb-file", "lmdb", one_file, labels=False),
]
