"""The batches of CIFAR: files of images with their labels, in the two editions that there are.

Python's is a pickle of ``{"data": N x 3072, "labels": [...]}``, or, of CIFAR-100,
``"fine_labels"`` and ``"coarse_labels"``; the binary one is records of a label, or of a coarse
and a fine one, and 3,072 bytes of pixels.  Both are the red plane, the green and the blue.
Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..forward_reader import BLOCK_BYTES, ForwardReader
from .pickled import read_pickle
from .pickledarray import PickledArray, Stored

__all__ = ["Batch", "BatchName", "batch_name", "binary_batch", "pickled_batch", "read_names"]

_PIXELS = 3072
_NAME = re.compile(
    r"(?:(?P<train>data_batch_(?P<number>\d{1,4})|train)|(?P<test>test_batch|test))(?P<binary>\.bin)?"
)

Labels = dict[str, "np.ndarray[Any, np.dtype[np.int64]]"]
ReadPiece = Callable[[int, int], bytes]


class BatchName(NamedTuple):
    """What a file's name says of it.

    Attributes
    ----------
    split : {"train", "test"}
    number : int
        0 where it has none.
    binary : bool
    hundred : bool
        Whether it is one of CIFAR-100's.
    """

    split: str
    number: int
    binary: bool
    hundred: bool


class Batch(NamedTuple):
    """Images in a file.

    Attributes
    ----------
    name : str
        Of the file.
    split : {"train", "test"}
    num_images : int
    offset : int
        Of the first record.
    shape : tuple of int
        Of one image's pixels, 3 x H x W or H x W x 3.
    labels : dict
        Of each field of labels; empty where they stand before the pixels.
    leading : tuple of str
        The fields whose labels stand before the pixels, one byte each.
    failure : str
        Why there are not all, or none; that counts as a sample.
    """

    name: str
    split: str
    num_images: int = 0
    offset: int = 0
    shape: tuple[int, ...] = (3, 32, 32)
    labels: Labels = {}  # noqa: RUF012
    leading: tuple[str, ...] = ()
    failure: str = ""

    @property
    def num_samples(self) -> int:
        """How many samples and rejects come of it."""
        return self.num_images + bool(self.failure)

    def blocks(
        self, file: ForwardReader, start: int, stop: int
    ) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.uint8]], dict[str, Any]]]:
        """Yield blocks of images: number of the first, pixels (N x H x W x 3), labels.

        Raises
        ------
        SourceError
            If the file ends early.
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
    """Return what a file name says; None if no file of CIFAR is called so."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    number = int(match["number"] or 0)
    split = "train" if match["train"] else "test"
    hundred = name.partition(".")[0] in ("train", "test")
    return BatchName(split, number, bool(match["binary"]), hundred)


def binary_batch(name: str, kind: BatchName, offset: int, size: int) -> Batch:
    """Return a batch of the binary edition.

    Parameters
    ----------
    offset, size : int
        Where in its file it is.
    """
    leading = ("coarse_label", "label") if kind.hundred else ("label",)
    count, rest = divmod(size, len(leading) + _PIXELS)
    failure = f"{name} ends {rest:,} bytes behind its last whole image" if rest else ""
    if not count:
        failure = f"{name} has no whole image"
    return Batch(name, kind.split, count, offset, leading=leading, failure=failure)


def pickled_batch(
    name: str, kind: BatchName, file: IO[bytes], offset: int, size: int, read: ReadPiece
) -> Batch:
    """Return a batch of Python's edition; one that cannot be read has a `failure`.

    Parameters
    ----------
    file : file
        At the pickle's first byte.
    offset, size : int
        Where in its file the pickle is.
    read : callable
        Takes offset and length; returns a piece of the file.
    """
    try:
        found = _texts(read_pickle(file, offset, size))
        data = found.get("data")
        if not isinstance(data, PickledArray) or not isinstance(data.data, Stored):
            raise SourceError(f"no array 'data' of images in it; it has {_names(found)}")
        shape = _shape_of(data)
        count = data.shape[0]
        labels = {
            field: _labels_of(found[key], count, key, read)
            for key, field in (
                ("labels", "label"), ("fine_labels", "label"), ("coarse_labels", "coarse_label")
            )
            if key in found
        }  # fmt: skip
        if "label" not in labels:
            raise SourceError(f"no list 'labels' or 'fine_labels' in it; it has {_names(found)}")
    except SourceError as error:
        return Batch(name, kind.split, failure=f"{name}: {error}")
    return Batch(name, kind.split, count, data.data.offset, shape, labels)


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


def _labels_of(given: Any, count: int, key: str, read: ReadPiece) -> Any:
    try:
        if isinstance(given, PickledArray):
            stored = given.data
            data = read(stored.offset, stored.length) if isinstance(stored, Stored) else stored
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


def _texts(found: Any) -> dict[str, Any]:
    """Return a dict with its keys as text, whichever Python wrote them."""
    if not isinstance(found, dict):
        raise SourceError(f"holds a {type(found).__name__}, not a dict")
    return {
        k.decode("latin-1") if isinstance(k, bytes) else str(k)[:99]: v for k, v in found.items()
    }


def _names(found: dict[str, Any]) -> str:
    return ", ".join(list(found)[:10]) or "nothing"


def read_names(file: IO[bytes], size: int) -> dict[str, tuple[str, ...]]:
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
