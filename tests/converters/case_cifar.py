"""CIFAR as its authors wrote it: pickles of NumPy arrays, and the binary edition.

The pictures of the tests are not 32 x 32, so arrays are N x 3 x H x W, of which the reader
sees the size; test_cifar.py has those of CIFAR.
"""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import CLASSES, Case, Picture

__all__ = ["CASES", "archive"]


def batches(pictures: Sequence[Picture]) -> dict[str, bytes]:
    """Return the files of Python's edition."""
    files = {"batches.meta": {b"label_names": [name.encode() for name in CLASSES]}}
    cuts = np.linspace(0, len(pictures), 6).astype(int)
    for number, (begin, end) in enumerate(itertools.pairwise(cuts), 1):
        part = pictures[begin:end]
        content: dict[bytes, Any] = {
            b"batch_label": f"training batch {number} of 5".encode(),
            b"labels": [p.label for p in part],
            b"data": np.stack([p.pixels.transpose(2, 0, 1) for p in part]),
            b"filenames": [f"{p.name}.png".encode() for p in part],
        }
        files[f"data_batch_{number}"] = content
    return {name: pickle.dumps(content, 4) for name, content in files.items()}


def archive(path: Path, files: dict[str, bytes], folder: str, mode: str) -> Path:
    """Write files as they are downloaded."""
    with tarfile.open(path, f"w:{mode}", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def unpacked(folder: Path, pictures: Sequence[Picture]) -> Path:
    for name, data in batches(pictures).items():
        (folder / name).write_bytes(data)
    return folder


def downloaded(folder: Path, pictures: Sequence[Picture]) -> Path:
    return archive(
        folder / "cifar-10-python.tar.gz", batches(pictures), "cifar-10-batches-py", "gz"
    )


CASES = [
    Case("cifar", "cifar", unpacked, holds="pixels"),
    Case("cifar-tar-gz", "cifar", downloaded, holds="pixels", shuffles=False),
]
