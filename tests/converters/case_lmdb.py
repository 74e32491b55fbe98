"""LMDB files as lmdb writes them: of image files, and of Caffe's Datum messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lmdb
from case_tfrecord import message, varint
from cases import Case, Picture

__all__ = ["CASES", "datum", "write_lmdb"]


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


def number(field: int, value: int) -> bytes:
    """Return a number as a field of a protobuf message."""
    return varint(field << 3) + varint(value)


def datum(picture: Picture, *, encoded: bool, label: int | None = None) -> bytes:
    """Return a Datum by the wire format, as Caffe's convert_imageset fills it."""
    label = picture.label if label is None else label
    if encoded:
        return message(4, picture.data) + number(5, label) + number(7, 1)
    planes = picture.pixels[:, :, ::-1].transpose(2, 0, 1)
    head = b"".join(number(1 + k, n) for k, n in enumerate(planes.shape))
    return head + message(4, planes.tobytes()) + number(5, label) + number(7, 0)


def pairs(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((p.name.encode(), p.data) for p in pictures)
    path = write_lmdb(folder / "train_HR.lmdb", content)
    lines = (f"{p.name}.png ({','.join(map(str, p.pixels.shape))}) 1\n" for p in pictures)
    (path / "meta_info.txt").write_text("".join(lines))
    return path


def labelled(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((f"{p.name}_{p.label}".encode(), p.data) for p in pictures)
    return write_lmdb(folder / "a.lmdb", content, subdir=False, lock=False, lib_version=1)


def encoded(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((f"{p.name}_x.jpg".encode(), datum(p, encoded=True)) for p in pictures)
    return write_lmdb(folder / "a_lmdb", content)


def raw(folder: Path, pictures: Sequence[Picture]) -> Path:
    content = ((p.name.encode(), datum(p, encoded=False)) for p in pictures)
    return write_lmdb(folder / "a_lmdb", content)


def data_file(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock.mdb"]


CASES = [
    Case("lmdb-basicsr", "lmdb", pairs, labels=False, damage=data_file),
    Case("lmdb-labelled", "lmdb", labelled, options={"label_pattern": "_(.*)"}),
    Case("caffe-encoded", "caffe", encoded, damage=data_file),
    Case("caffe-raw", "caffe", raw, holds="pixels", damage=data_file),
]
