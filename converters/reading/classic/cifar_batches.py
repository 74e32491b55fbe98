"""The batches of CIFAR: files of images with their labels, in the two editions that there are.

Python's is a pickle of ``{"data": N x 3072, "labels": [...]}``, or, of CIFAR-100,
``"fine_labels"`` and ``"coarse_labels"``; the binary one is records of a label, or of a coarse
and a fine one, and 3,072 bytes of pixels.  Both are the red plane, the green and the blue.
They are in a folder, in the archive as downloaded, or one alone.  An archive is looked through
once, from its front; the pixels are passed over, and nothing is unpacked.
Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import io
import math
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ...base import reject_reason
from ..compression import compression_of, inflated_start, open_inflated
from ..forward_reader import BLOCK_BYTES, ForwardReader
from ..locations import first_bytes
from .pickled import PickledArray, Stored, read_pickle

__all__ = [
    "Batch",
    "BatchName",
    "CifarFiles",
    "batch_name",
    "cifar_folder",
    "is_archive",
    "is_batch",
    "look_at",
]

_PIXELS = 3072
_NAME = re.compile(
    r"(?:(?P<train>data_batch_(?P<number>\d{1,4})|train)|(?P<test>test_batch|test))(?P<binary>\.bin)?"
)

Labels = dict[str, "np.ndarray[Any, np.dtype[np.int64]]"]
_FIELDS = {"labels": "label", "fine_labels": "label", "coarse_labels": "coarse_label"}
"""Fields of the lists of labels in Python's edition."""


FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python", "cifar-100-binary")
_TEXTS = {
    "batches.meta.txt": "label_names",
    "fine_label_names.txt": "fine_label_names",
    "coarse_label_names.txt": "coarse_label_names",
}
_PICKLES = ("batches.meta", "meta")
_LARGEST = 1 << 20
"""Size limit of a file of names."""


class BatchName(NamedTuple):
    """The properties in a file's name."""

    split: str
    number: int  # 0 where it has none
    binary: bool
    hundred: bool  # whether it is one of CIFAR-100's


class Batch(NamedTuple):
    """Images in a file, or in a member of an archive."""

    file: Path
    name: str  # of the batch
    split: str
    num_images: int = 0
    offset: int = 0  # of the first record
    shape: tuple[int, ...] = (3, 32, 32)  # of one image's pixels, 3 x H x W or H x W x 3
    # Of each field of labels; empty where they stand before the pixels
    labels: Labels = {}  # noqa: RUF012
    leading: tuple[str, ...] = ()  # the fields whose labels stand before the pixels, one byte each
    failure: str = ""  # why there are not all, or none; that counts as a sample

    @property
    def num_samples(self) -> int:
        """The number of its samples and rejects."""
        return self.num_images + bool(self.failure)

    def blocks(
        self, file: ForwardReader, start: int, stop: int
    ) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.uint8]], dict[str, Any]]]:
        """Yield blocks of images: number of the first, pixels (N x H x W x 3), labels.

        Raises SourceError if the file ends early.
        """
        lead = len(self.leading)
        stride = lead + math.prod(self.shape)
        step = max(1, BLOCK_BYTES // stride)
        while start < stop:
            count = min(step, stop - start)
            data, reason = file.read_some(self.offset + start * stride, count * stride)
            whole = len(data) // stride
            rows = np.frombuffer(data[: whole * stride], np.uint8).reshape(whole, stride)
            pixels = rows[:, lead:].reshape(whole, *self.shape)
            if self.shape[0] == 3:
                pixels = pixels.transpose(0, 2, 3, 1)
            labels: dict[str, Any]
            labels = {name: values[start : start + whole] for name, values in self.labels.items()}
            labels |= {name: rows[:, k] for k, name in enumerate(self.leading)}
            yield start, pixels, labels
            if reason:
                raise SourceError(reason)
            start += count


def batch_name(name: str) -> BatchName | None:
    """Return the properties in a file name; None if it is not one of CIFAR."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    number = int(match["number"] or 0)
    split = "train" if match["train"] else "test"
    hundred = name.partition(".")[0] in ("train", "test")
    return BatchName(split, number, bool(match["binary"]), hundred)


def _batch(
    path: Path, name: str, kind: BatchName, file: IO[bytes], offset: int, size: int
) -> Batch:
    """Return the batch that `file` is at the start of, at `offset` of the file at `path`.

    One that cannot be read has a `failure`.
    """
    batch = Batch(path, name, kind.split, offset=offset)
    if kind.binary:
        leading = ("coarse_label", "label") if kind.hundred else ("label",)
        count, rest = divmod(size, len(leading) + _PIXELS)
        failure = f"{name} ends {rest:,} bytes behind its last whole image" if rest else ""
        if not count:
            failure = f"{name} has no whole image"
        return batch._replace(num_images=count, leading=leading, failure=failure)
    buffered: Any = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
    try:
        found = _texts(read_pickle(buffered, offset, size))
        data = found.get("data")
        if not isinstance(data, PickledArray) or not isinstance(data.data, Stored):
            raise SourceError(f"no array 'data' of images in it; it has {_names(found)}")
        shape, count = _shape_of(data), data.shape[0]
        labels = {
            field: _labels_of(found[key], count, key, path)
            for key, field in _FIELDS.items()
            if key in found
        }
        if "label" not in labels:
            raise SourceError(f"no list 'labels' or 'fine_labels' in it; it has {_names(found)}")
    except SourceError as error:
        return batch._replace(failure=f"{name}: {error}")
    return batch._replace(num_images=count, offset=data.data.offset, shape=shape, labels=labels)


def _shape_of(data: PickledArray) -> tuple[int, ...]:
    """Return the shape of one image."""
    assert isinstance(data.data, Stored)
    if data.dtype.lstrip("|<>=") != "u1" or math.prod(data.shape) != data.data.length:
        raise SourceError(
            f"'data' is {data.shape} of {data.dtype} in {data.data.length:,} bytes; expected uint8"
        )
    one = data.shape[1:]
    if len(one) == 1:
        side = math.isqrt(one[0] // 3)
        one = (3, side, side)
    if (
        len(one) == 3
        and 3 in (one[0], one[2])
        and math.prod(one) * data.shape[0] == data.data.length
    ):
        return one
    raise SourceError(f"'data' is of {data.shape}; expected N x 3072, or N x 3 x H x W")


def _labels_of(given: Any, count: int, key: str, path: Path) -> Any:
    try:
        if isinstance(given, PickledArray):
            stored = given.data
            data = _stored_bytes(path, stored) if isinstance(stored, Stored) else stored
            labels = np.frombuffer(data, given.dtype).astype(np.int64)
        else:
            if not all(type(label) is int for label in given):
                raise ValueError
            labels = np.array(given, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise SourceError(f"{key!r} is no list of whole numbers") from None
    if len(labels) != count:
        raise SourceError(f"has {count:,} images and {len(labels):,} {key}")
    return labels


def _stored_bytes(path: Path, stored: Stored) -> bytes:
    with ForwardReader(path, compressed=_is_compressed(path)) as file:
        data, reason = file.read_some(stored.offset, stored.length)
    if reason:
        raise SourceError(reason)
    return data


def _is_compressed(path: Path) -> bool:
    return compression_of(first_bytes(path, 16)) != ""


def _texts(found: Any) -> dict[str, Any]:
    """Return a dict with its keys as text, whichever Python wrote them."""
    if not isinstance(found, dict):
        raise SourceError(f"holds a {type(found).__name__}, not a dict")
    return {
        k.decode("latin-1") if isinstance(k, bytes) else str(k)[:99]: v for k, v in found.items()
    }


def _names(found: dict[str, Any]) -> str:
    return ", ".join(list(found)[:10]) or "nothing"


def _read_names(file: IO[bytes], size: int) -> dict[str, tuple[str, ...]]:
    """Return the lists of names in a ``batches.meta`` or ``meta``; none of one that is damaged."""
    try:
        found = _texts(read_pickle(file, 0, size))
    except SourceError:
        return {}
    lists: dict[str, tuple[str, ...]] = {}
    for key, values in found.items():
        if key.endswith("label_names") and isinstance(values, list):
            texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
            if all(isinstance(text, str) for text in texts):
                lists[key] = tuple(texts)
    return lists


class CifarFiles(NamedTuple):
    """What is at a location."""

    batches: list[Batch]
    compressed: bool  # whether this file can be read only from its front
    names: dict[str, tuple[str, ...]]  # Lists of class names, as CIFAR calls them
    failure: str  # why an archive could not be looked at to its end


def cifar_folder(location: str | os.PathLike[str]) -> Path | None:
    """Return the folder with the batches: this one, or one of CIFAR's in it; None if neither."""
    path = Path(location)
    for folder in (path, *(path / name for name in FOLDERS)):
        if folder.is_dir() and any(is_batch(folder / name) for name in _candidates(folder)):
            return folder
    return None


def _candidates(folder: Path) -> list[str]:
    names = [
        entry.name for entry in os.scandir(folder) if entry.is_file() and batch_name(entry.name)
    ]
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, int, str]:
    kind = batch_name(name)
    assert kind is not None
    return kind.split != "train", kind.number, name


def is_batch(path: Path) -> bool:
    """Tell whether a file is called like a batch and begins like one."""
    kind = batch_name(path.name)
    if kind is None or not path.is_file():
        return False
    if not kind.binary:
        start = first_bytes(path, 12)
        return start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and start[2:3] in b"}\x95"
    if kind.hundred:  # train.bin may be anything
        return (path.parent / "fine_label_names.txt").is_file()
    return path.stat().st_size > 0


def is_archive(path: Path) -> bool:
    """Return whether a file is the downloaded archive, by the name of its first member."""
    start = first_bytes(path, 1 << 14)
    if compression_of(start):
        start = inflated_start(start, 512)
    name = start[:100].split(b"\0")[0].decode("latin-1")
    return start[257:262] == b"ustar" and name.split("/")[0] in FOLDERS


def look_at(location: str | os.PathLike[str]) -> CifarFiles:
    """Look at all batches at a location. Raises SourceError if there are none."""
    path = Path(location)
    if path.is_file() and batch_name(path.name) is None:
        found = _in_archive(path)
    else:
        found = _in_folder(path)
    if not found.batches:
        reason = f" ({found.failure})" if found.failure else ""
        raise SourceError(
            f"{path}: no batches of CIFAR there{reason}. Expected "
            "data_batch_1 to data_batch_5 and test_batch, or train and test, or these with .bin"
        )
    return found


def _in_folder(path: Path) -> CifarFiles:
    alone = path.is_file()
    folder = path.parent if alone else cifar_folder(path)
    if folder is None:
        return CifarFiles([], False, {}, "")
    batches = []
    for name in [path.name] if alone else _candidates(folder):
        kind = batch_name(name)
        if kind is None or not (alone or kind.binary or is_batch(folder / name)):
            continue
        file = folder / name
        size = file.stat().st_size
        with open(file, "rb", opener=open_regular) as opened:
            batches.append(_batch(file, name, kind, opened, 0, size))
    names: dict[str, tuple[str, ...]] = {}
    for name in (*_PICKLES, *_TEXTS):
        file = folder / name
        if file.is_file() and file.stat().st_size <= _LARGEST:
            with open(file, "rb", opener=open_regular) as opened:
                names |= _names_in(name, opened, file.stat().st_size)
    return CifarFiles(batches, False, names, "")


def _in_archive(path: Path) -> CifarFiles:
    compressed = _is_compressed(path)
    batches: list[Batch] = []
    names: dict[str, tuple[str, ...]] = {}
    failure = ""
    try:
        with open_inflated(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in _files_of(tar):
                name = member.name.rpartition("/")[2]
                kind, opened = batch_name(name), tar.extractfile(member)
                if opened is None:
                    continue
                if kind is not None:
                    offset, size = member.offset_data, member.size
                    batches.append(_batch(path, name, kind, opened, offset, size))
                elif (name in _PICKLES or name in _TEXTS) and member.size <= _LARGEST:
                    names |= _names_in(name, opened, member.size)
            if _rest_of(stream).strip(b"\0"):
                failure = f"{path}: what comes behind byte {tar.offset:,} is no tar"
    except SourceError as error:
        failure = str(error)
    except (OSError, tarfile.TarError, ValueError) as error:
        failure = f"{path}: {reject_reason(path, error)}"
    if not compressed:
        batches.sort(key=lambda batch: _order(batch.name))
    return CifarFiles(batches, compressed, names, failure)


def _files_of(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # else it remembers each
        if member.isreg():
            yield member


def _rest_of(stream: IO[bytes]) -> bytes:
    """Read a stream to its end; return what in it is not zeros, as far as that matters."""
    found = b""
    while piece := stream.read(1 << 16):
        found = found or piece.strip(b"\0")[:1]
    return found


def _names_in(name: str, file: IO[bytes], size: int) -> dict[str, tuple[str, ...]]:
    if name in _PICKLES:
        return _read_names(file, size)
    lines = file.read(_LARGEST).decode("utf-8", "replace").split("\n")
    texts = tuple(line.strip() for line in lines if line.strip())
    return {_TEXTS[name]: texts} if texts else {}
