"""The batches of CIFAR: files of images with their labels, in the two editions that there are.

Python's is a pickle of ``{"data": N x 3072, "labels": [...]}``, or, of CIFAR-100,
``"fine_labels"`` and ``"coarse_labels"``; the binary one is records of a label, or of a coarse
and a fine one, and 3,072 bytes of pixels.  Both are the red plane, the green and the blue.
They are in a folder, in the archive as downloaded, or one alone.  An archive is looked through
once, from its front; the pixels are passed over, and nothing is unpacked.
Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..arrays.columns import ArrayColumn, StoredColumn
from ..compression import compression_of, inflated_start
from ..forward_reader import ForwardReader
from ..locations import first_bytes
from ..spans import check_length
from ..tar.archive import members
from .pickled import PickledArray, Stored, read_pickle

__all__ = ["Batch", "BatchName", "CifarFiles", "batch_name", "cifar_folder", "is_cifar", "look_at"]

_PIXELS = 3072
_NAME = re.compile(
    r"(?:(?P<train>data_batch_(?P<number>\d{1,4})|train)|(?P<test>test_batch|test))(?P<binary>\.bin)?"
)
_FIELDS = {"labels": "label", "fine_labels": "label", "coarse_labels": "coarse_label"}
"""Fields of the lists of labels in Python's edition."""
_FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary")
_TEXTS = {
    "batches.meta.txt": "label_names",
    "fine_label_names.txt": "fine_label_names",
    "coarse_label_names.txt": "coarse_label_names",
}
_PICKLES = ("batches.meta", "meta")
_LARGEST = 1 << 20
"""Size limit of a file of names."""
_STEP = 64
"""Records that are read at once."""


class BatchName(NamedTuple):
    """The properties in a file's name."""

    split: str
    number: int  # 0 where it has none
    binary: bool
    hundred: bool  # whether it is one of CIFAR-100's


class Batch(NamedTuple):
    """Images in a file, or in a member of an archive."""

    name: str
    kind: BatchName
    file: Path
    pixels: ArrayColumn | None = None
    labels: Mapping[str, Sequence[int]] = MappingProxyType({})  # by field
    failure: str = ""  # why there are not all, or none


class CifarFiles(NamedTuple):
    """What is at a location."""

    batches: list[Batch]
    names: dict[str, tuple[str, ...]]  # lists of class names, as CIFAR calls them
    failure: str  # why an archive could not be looked at to its end


def batch_name(name: str) -> BatchName | None:
    """Return the properties in a file name; None if it is not one of CIFAR."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    split = "train" if match["train"] else "test"
    hundred = name.partition(".")[0] in ("train", "test")
    return BatchName(split, int(match["number"] or 0), bool(match["binary"]), hundred)


def is_cifar(path: Path) -> bool:
    """Tell whether this is a batch, the downloaded archive, or a folder with batches."""
    if not path.is_file():
        return cifar_folder(path) is not None
    start = first_bytes(path, 1 << 14)
    if compression_of(start):
        start = inflated_start(start, 512)
    name = start[:100].split(b"\0")[0].decode("latin-1")
    return _is_batch(path) or (start[257:262] == b"ustar" and name.split("/")[0] in _FOLDERS)


def cifar_folder(path: Path) -> Path | None:
    """Return the folder with the batches: this one, or one of CIFAR's in it; None if neither."""
    for folder in (path, *(path / name for name in _FOLDERS)):
        if folder.is_dir() and any(map(_is_batch, map(folder.joinpath, os.listdir(folder)))):
            return folder
    return None


def _is_batch(path: Path) -> bool:
    """Tell whether a file is called like a batch and begins like one."""
    kind = batch_name(path.name)
    if kind is None or not path.is_file():
        return False
    if not kind.binary:
        start = first_bytes(path, 12)
        return start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and start[2:3] in b"}\x95"
    # train.bin may be anything
    return not kind.hundred or (path.parent / "fine_label_names.txt").is_file()


def look_at(path: Path) -> CifarFiles:
    """Look at all batches at a location. Raises SourceError if there are none."""
    found = CifarFiles([], {}, "")
    compressed = False
    if path.is_dir() or batch_name(path.name):
        folder = path.parent if path.is_file() else cifar_folder(path)
        for file in sorted(folder.iterdir()) if folder else ():
            whole = batch_name(file.name) is None or (path.is_dir() and _is_batch(file))
            if file.is_file() and (whole or file == path):
                with ForwardReader(file, compressed=False) as front:
                    _add(found, front, file.name, 0, file.stat().st_size, None)
    else:
        compressed = compression_of(first_bytes(path, 16)) != ""
        with ForwardReader(path, compressed=compressed) as front:
            try:
                shared = ForwardReader(path, compressed=True) if compressed else None
                for member in members(front):
                    if member.kind == "file":
                        name = os.fsdecode(member.name).rpartition("/")[2]
                        _add(found, front, name, member.offset, member.size, shared)
            except SourceError as error:
                found = found._replace(failure=str(error))
    if not found.batches:
        raise SourceError(
            f"{path}: no batches of CIFAR there{found.failure and f' ({found.failure})'}. Expected "
            "data_batch_1 to data_batch_5 and test_batch, or train and test, or these with .bin"
        )
    if not compressed:
        found.batches.sort(key=lambda b: (b.kind.split != "train", b.kind.number, b.name))
    return found


def _add(
    found: CifarFiles,
    file: ForwardReader,
    name: str,
    offset: int,
    size: int,
    shared: ForwardReader | None,
) -> None:
    """Add a batch, or a file of names; other files are none of CIFAR's."""
    if kind := batch_name(name):
        batch = Batch(name, kind, file.path)
        try:
            check_length(size, name, offset)
            found.batches.append(
                (_records if kind.binary else _pickled)(batch, file, offset, size, shared)
            )
        except SourceError as error:
            found.batches.append(batch._replace(failure=f"{name}: {error}"))
    elif name in _PICKLES and size <= _LARGEST:
        with contextlib.suppress(SourceError):  # without it classes have no names
            for key, values in _texts(read_pickle(file, offset, size)).items():
                if key.endswith("label_names") and isinstance(values, list):
                    found.names[key] = tuple(map(_text, values))
    elif name in _TEXTS and size <= _LARGEST:
        lines = file.read(offset, size).decode("utf-8", "replace").split("\n")
        if texts := tuple(line.strip() for line in lines if line.strip()):
            found.names[_TEXTS[name]] = texts


def _records(
    batch: Batch, file: ForwardReader, offset: int, size: int, shared: ForwardReader | None
) -> Batch:
    """Return a batch of the binary edition, with all labels."""
    fields = ("coarse_label", "label") if batch.kind.hundred else ("label",)
    lead = len(fields)
    stride = lead + _PIXELS
    count, rest = divmod(size, stride)
    failure = f"{batch.name} ends {rest:,} bytes behind its last whole image" if rest else ""
    failure = failure if count else f"{batch.name} has no whole image"
    found = bytearray()
    for first in range(0, count, _STEP):
        length = min(_STEP, count - first) * stride
        data, damage = file.read_some(offset + first * stride, length)
        rows = np.frombuffer(data[: len(data) // stride * stride], np.uint8).reshape(-1, stride)
        found += rows[:, :lead].tobytes()
        if damage:
            failure = damage
            break
    table = np.frombuffer(found, np.uint8).reshape(-1, lead)
    shape = (len(table), 3, 32, 32)
    pixels = StoredColumn(file.path, offset + lead, shape, distance=stride, front=shared)
    labels = {field: table[:, k].tolist() for k, field in enumerate(fields)}
    return batch._replace(pixels=pixels, labels=labels, failure=failure)


def _pickled(
    batch: Batch, file: ForwardReader, offset: int, size: int, shared: ForwardReader | None
) -> Batch:
    found = _texts(read_pickle(file, offset, size))
    names, data = ", ".join(list(found)[:10]) or "nothing", found.get("data")
    if not isinstance(data, PickledArray) or not isinstance(data.data, Stored):
        raise SourceError(f"no array 'data' of images in it; it has {names}")
    count, *shape = data.shape or (0,)
    if len(shape) == 1:
        side = math.isqrt(shape[0] // 3)
        shape = [3, side, side]
    stored = data.data
    if data.dtype.lstrip("|<>=") != "u1" or math.prod(data.shape) != stored.length:
        raise SourceError(
            f"'data' is {data.shape} of {data.dtype} in {stored.length:,} bytes; expected uint8"
        )
    if len(shape) != 3 or shape[0] != 3 or count * math.prod(shape) != stored.length:
        raise SourceError(f"'data' is of {data.shape}; expected N x 3072, or N x 3 x H x W")
    labels = {
        field: _labels_of(found[key], count, key) for key, field in _FIELDS.items() if key in found
    }
    if "label" not in labels:
        raise SourceError(f"no list 'labels' or 'fine_labels' in it; it has {names}")
    pixels = StoredColumn(file.path, stored.offset, (count, *shape), front=shared)
    return batch._replace(pixels=pixels, labels=labels)


def _labels_of(given: Any, count: int, key: str) -> list[int]:
    if isinstance(given, PickledArray):
        data = given.data.data if isinstance(given.data, Stored) else given.data
        given = np.frombuffer(data, given.dtype).tolist()
    if not isinstance(given, list) or not all(
        type(label) is int and abs(label) < 2**63 for label in given
    ):
        raise SourceError(f"{key!r} is not a list of whole numbers")
    if len(given) != count:
        raise SourceError(f"has {count:,} images and {len(given):,} {key}")
    return given


def _texts(found: Any) -> dict[str, Any]:
    """Return a dict with its keys as text, whichever Python wrote them."""
    if not isinstance(found, dict):
        raise SourceError(f"holds a {type(found).__name__}, not a dict")
    return {_text(key): value for key, value in found.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)[:99]
