""".mat files of MATLAB's, from its description of the format: no code that the reader uses."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from cases import Case, Picture

__all__ = ["CASES", "cells", "mat5", "mat73", "matrix", "structs", "svhn", "text"]

_CLASS = {"uint8": (9, 2), "float64": (6, 9), "uint16": (11, 4), "int32": (12, 5)}


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(name: str, array: np.ndarray, *, as_bytes: bool = False) -> bytes:
    """Return an array element; `as_bytes` stores whole doubles as MATLAB does."""
    number, kind = _CLASS[array.dtype.name]
    if as_bytes:
        array, kind = array.astype(np.uint8), 2
    data = array.tobytes(order="F")
    label = name.encode()
    named = struct.pack("<HH4s", 1, len(label), label) if len(label) < 5 else element(1, label)
    parts = (
        element(6, struct.pack("<II", number, 0)),
        element(5, struct.pack(f"<{array.ndim}i", *array.shape)),
        named,
        struct.pack("<HH4s", kind, len(data), data) if len(data) < 5 else element(kind, data),
    )
    return element(14, b"".join(parts))


def array_of(kind: int, shape: tuple[int, ...], content: bytes, name: str = "") -> bytes:
    """Return an array element of a cell array (1), a struct array (2) or text (4)."""
    parts = (
        element(6, struct.pack("<II", kind, 0)),
        element(5, struct.pack(f"<{len(shape)}i", *shape)),
        element(1, name.encode()),
        content,
    )
    return element(14, b"".join(parts))


def text(value: str) -> bytes:
    return array_of(4, (1, len(value)), element(4, value.encode("utf-16-le")))


def cells(name: str, values: Sequence[bytes]) -> bytes:
    return array_of(1, (1, len(values)), b"".join(values), name)


def structs(name: str, rows: Sequence[dict[str, bytes]], keys: Sequence[str] = ()) -> bytes:
    """Return a struct array; `keys` are its fields, where it has no rows."""
    names = b"".join(key.encode().ljust(32, b"\0") for key in keys or rows[0])
    head = struct.pack("<HHi", 5, 4, 32) + element(1, names)
    content = head + b"".join(value for row in rows for value in row.values())
    return array_of(2, (1, len(rows)), content, name)


def mat5(path: Path, *matrices: bytes, compressed: bool = False) -> Path:
    packed = [zlib.compress(each) for each in matrices]
    body = (
        b"".join(struct.pack("<II", 15, len(each)) + each for each in packed)
        if compressed
        else b"".join(matrices)
    )
    head = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    path.write_bytes(head + body)
    return path


def mat73(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write HDF5 with dimensions the other way round, behind 512 bytes of text."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            chunks = (1, *array.shape[-2::-1])
            data = np.ascontiguousarray(array.T)
            file.create_dataset(name, data=data, chunks=chunks if array.ndim > 2 else None)
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def svhn(pictures: Sequence[Picture]) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels H x W x C x N and labels N x 1, 10 for a zero."""
    pixels = np.stack([p.pixels for p in pictures], axis=-1)
    return pixels, np.array([[p.label or 10] for p in pictures], np.uint8)


def plain(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = svhn(pictures)
    return mat5(folder / "train_32x32.mat", matrix("X", pixels), matrix("y", labels))


def splits(folder: Path, pictures: Sequence[Picture]) -> Path:
    half = len(pictures) // 2
    for name, part in (("train", pictures[:half]), ("test", pictures[half:])):
        pixels, labels = svhn(part)
        double = matrix("y", labels.astype(np.float64), as_bytes=True)
        mat5(folder / f"{name}_32x32.mat", matrix("X", pixels), double, compressed=True)
    return folder


def newest(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = svhn(pictures)
    return mat73(folder / "a.mat", {"images": pixels, "labels": labels % 10})


CASES = [
    Case("mat", "mat", plain, holds="pixels"),
    Case("mat-compressed", "mat", splits, holds="pixels", shuffles=False),
    Case("mat-7.3", "mat", newest, holds="pixels"),
]
