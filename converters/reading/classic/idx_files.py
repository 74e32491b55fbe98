"""The IDX files of MNIST: an array each, images and their labels side by side.

A file begins with two zeros, a byte for the type of its numbers, one for the number of
dimensions, and these as 32-bit integers, most significant byte first; then come the numbers.
Source: "The IDX file format" on http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.errors import SourceError

from ...base import Reject
from ..arrays.array_source import Part
from ..arrays.columns import StoredColumn
from ..compression import compression_of, inflated_start
from ..forward_reader import ForwardReader
from ..locations import first_bytes, printable

__all__ = ["IdxHead", "IdxPair", "find_pairs", "is_images", "part_of", "read_head"]

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_BYTES = {"u1": 1, "i1": 1, ">i2": 2, ">i4": 4, ">f4": 4, ">f8": 8}
_GZIP_RATIO = 1032
"""Deflate makes nothing smaller than by this factor (``zlib.net/zlib_tech.html``)."""

_NAME = re.compile(
    r"(?P<set>.+?)[-_.]?(?P<what>images|labels)[-_.]idx\d[-_.][a-z]+(\.gz)?", re.IGNORECASE
)
_SPLIT = re.compile(r"(?P<dataset>.*?)[-_.]?(?P<split>train|t10k|test)", re.IGNORECASE)


class IdxHead(NamedTuple):
    """What the first bytes of a file say."""

    dtype: str  # as NumPy calls it
    shape: tuple[int, ...]
    offset: int  # of the first number
    compressed: bool

    @property
    def item_bytes(self) -> int:
        """Bytes of one image, or of one row of labels."""
        return math.prod(self.shape[1:]) * _BYTES[self.dtype]


class IdxPair(NamedTuple):
    """Images and their labels."""

    dataset: str  # E.g. emnist-letters; empty where file names do not say.
    split: str
    images: Path
    labels: Path | None


def read_head(path: Path) -> IdxHead | None:
    """Return the head of a file; None if it is not an IDX file.

    Raises SourceError if the file has another size than in its head.
    """
    start = first_bytes(path)
    compressed = compression_of(start) == "gzip"
    if compressed:
        start = inflated_start(start, 64)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
        return None
    offset = 4 + 4 * start[3]
    if not 1 <= start[3] <= 4 or len(start) < offset:
        return None
    shape = tuple(int.from_bytes(start[k : k + 4], "big") for k in range(4, offset, 4))
    head = IdxHead(_TYPES[start[2]], shape, offset, compressed)
    claimed = offset + shape[0] * head.item_bytes
    size = path.stat().st_size
    if not compressed and claimed < size:
        raise SourceError(
            f"{path}: has {size:,} bytes, and its head says that it has {claimed:,} "
            f"({' x '.join(map(str, shape))}): it is damaged"
        )
    if compressed and claimed > _GZIP_RATIO * size:
        raise SourceError(
            f"{path}: its head says that it holds {claimed:,} bytes, which cannot be in "
            f"{size:,} that are compressed: it is damaged"
        )
    return head


def is_images(head: IdxHead | None) -> bool:
    """Tell whether a file holds pixels: N x H x W, or N x H x W x C, of uint8."""
    return head is not None and head.dtype == "u1" and len(head.shape) in (3, 4)


def find_pairs(location: str | os.PathLike[str]) -> list[IdxPair]:
    """Return the images at a location, which is a file, a folder, or one with a folder ``raw``.

    A decompressed file is preferred to its compressed copy.
    """
    path = Path(location)
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        beside = _files_of(path.parent) if match else {}
        labels = beside.get(match["set"].lower(), {}).get("labels") if match else None
        return [IdxPair(*_parts_of(match["set"] if match else ""), path, labels)]
    # torchvision has the files in MNIST/raw.
    folder = path / "raw" if (path / "raw").is_dir() and not _files_of(path) else path
    if not folder.is_dir():
        return []
    return [
        IdxPair(*_parts_of(name), files["images"], files.get("labels"))
        for name, files in sorted(_files_of(folder).items())
        if "images" in files
    ]


def _files_of(folder: Path) -> dict[str, dict[str, Path]]:
    """Return images and labels by the name of their dataset."""
    found: dict[str, dict[str, Path]] = {}
    # Backwards, so that the name without .gz comes last and stays.
    for name in sorted((e.name for e in os.scandir(folder) if e.is_file()), reverse=True):
        match = _NAME.fullmatch(name)
        if match:
            found.setdefault(match["set"].lower(), {})[match["what"].lower()] = folder / name
    return found


def _parts_of(name: str) -> tuple[str, str]:
    """Return dataset and split of a name such as ``emnist-letters-train``."""
    match = _SPLIT.fullmatch(name)
    if not match:
        return name.lower(), "train"
    return match["dataset"].lower(), "train" if match["split"].lower() == "train" else "test"


def part_of(pair: IdxPair, form: Callable[[Any], Any] | None) -> Part:
    """Return the rows of images, and of their labels if they have some.

    form: what changes the pixels of an image.  Raises SourceError if the files are not images and
    labels, or not of one number.
    """
    head = read_head(pair.images)
    if head is None or not is_images(head):
        shown = "no IDX file" if head is None else f"{head.shape} of {head.dtype}"
        raise SourceError(
            f"{pair.images}: is {shown}; expected images, N x H x W or N x H x W x C, of uint8"
        )
    if head.shape[0] == 0:
        raise SourceError(f"{pair.images}: has no images")
    if (
        0 in head.shape
        or math.prod(head.shape[1:3]) > MAX_PIXELS
        or head.shape[3:] not in ((), (1,), (3,))
    ):
        raise SourceError(f"{pair.images}: says that its images are {head.shape[1:]}: damaged")
    found = [(pair.images, head)]
    if pair.labels is not None:
        labels = read_head(pair.labels)
        if labels is None or labels.dtype.startswith(">f") or 0 in labels.shape:
            raise SourceError(f"{pair.labels}: no labels in IDX")
        if labels.shape[0] != head.shape[0]:
            raise SourceError(
                f"{pair.labels} has {labels.shape[0]:,} labels and {pair.images.name} "
                f"{head.shape[0]:,} images: one of them is damaged, or of something else"
            )
        found.append((pair.labels, labels))
    name, count, lost = printable(os.fspath(pair.images.name)), head.shape[0], ""
    for path, each in found:
        size = path.stat().st_size
        if not each.compressed and (there := (size - each.offset) // each.item_bytes) < count:
            count, lost = there, f"{path}: the file ends at byte {size:,}; the rest is lost"
    columns = [
        StoredColumn(
            path,
            each.offset,
            # A label of QMNIST is several numbers; the first is the class.
            (count, *each.shape[1:]) if each is head else (count,),
            each.dtype,
            distance=each.item_bytes,
            front=ForwardReader(path, compressed=True) if each.compressed else None,
            ends=True,
        )
        for path, each in found
    ]
    rejects = (Reject(f"{name}[{count}]", lost),) if lost else ()
    forms = (form, *[None] * len(columns[1:])) if form else ()
    return Part(name, tuple(columns), forms, rejects)
