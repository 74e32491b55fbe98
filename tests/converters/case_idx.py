"""IDX files from their description: no code that the reader uses.

The pictures have three channels, which IDX writes as a fourth dimension.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import Case, Picture

__all__ = ["CASES", "idx"]

TYPES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    """Return an array as an IDX file."""
    head = bytes([0, 0, TYPES[array.dtype.name], array.ndim])
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return head + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


def arrays(pictures: Sequence[Picture]) -> tuple[bytes, bytes]:
    pixels = np.stack([p.pixels for p in pictures])
    return idx(pixels), idx(np.array([p.label for p in pictures], np.uint8))


def plain(folder: Path, pictures: Sequence[Picture]) -> Path:
    images, labels = arrays(pictures)
    (folder / "train-images-idx4-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    return folder


def gzipped(folder: Path, pictures: Sequence[Picture]) -> Path:
    images, labels = arrays(pictures)
    (folder / "t10k-images-idx4-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder / "t10k-images-idx4-ubyte.gz"


CASES = [
    Case("idx", "idx", plain, holds="pixels"),
    Case("idx-gzip", "idx", gzipped, holds="pixels", shuffles=False),
]
