"""One file of images in IDX and the file of their labels, read side by side in blocks."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fastdata.codecs.image import MAX_PIXELS
from fastdata.errors import SourceError

from ..forward_reader import BLOCK_BYTES, ForwardReader
from ..locations import printable
from .idxfile import IdxHead, IdxPair, is_images, read_head

__all__ = ["IdxPart"]


class IdxPart(NamedTuple):
    """Images, and their labels if they have some.

    Attributes
    ----------
    pair : IdxPair
    head : IdxHead
        Of the images.
    labels : IdxHead or None
    num_samples : int
        What `blocks` comes to; an end that is missing counts as one.
    """

    pair: IdxPair
    head: IdxHead
    labels: IdxHead | None
    num_samples: int

    @classmethod
    def of(cls, pair: IdxPair) -> IdxPart:
        """Look at two files.

        Raises
        ------
        SourceError
            If they are not images and labels, or not of one number.
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
        labels = read_head(pair.labels) if pair.labels is not None else None
        if pair.labels is not None:
            if labels is None or labels.dtype.startswith(">f") or 0 in labels.shape:
                raise SourceError(f"{pair.labels}: no labels in IDX")
            if labels.shape[0] != head.shape[0]:
                raise SourceError(
                    f"{pair.labels} has {labels.shape[0]:,} labels and {pair.images.name} "
                    f"{head.shape[0]:,} images: one of them is damaged, or of something else"
                )
        count = head.shape[0]
        if not head.compressed:
            there = (pair.images.stat().st_size - head.offset) // head.item_bytes
            count = min(count, there + 1)
        return cls(pair, head, labels, count)

    def key(self, row: int) -> str:
        """Return the name of a sample."""
        return f"{printable(os.fspath(self.pair.images.name))}[{row}]"

    def first_labels(self) -> bytes:
        """Return the first ten labels, as far as each is one byte."""
        if self.labels is None or self.labels.item_bytes != 1 or self.pair.labels is None:
            return b""
        with ForwardReader(self.pair.labels, compressed=self.labels.compressed) as file:
            return file.read_some(self.labels.offset, 10)[0]

    def blocks(self, start: int, stop: int | None = None) -> Iterator[tuple[int, Any, Any]]:
        """Yield blocks of images `start` to `stop`: number, pixels (N x H x W [x C]), labels (N).

        Labels are None where there are none.  Without `stop`, all is read to the end, and
        that nothing comes behind it is seen to.

        Raises
        ------
        SourceError
            Where one of the files ends early or is damaged, behind what was whole.
        """
        head, labels = self.head, self.labels
        with contextlib.ExitStack() as stack:
            images = stack.enter_context(
                ForwardReader(self.pair.images, compressed=head.compressed)
            )
            marks = None
            if labels is not None and self.pair.labels is not None:
                marks = stack.enter_context(
                    ForwardReader(self.pair.labels, compressed=labels.compressed)
                )
            step = max(1, BLOCK_BYTES // head.item_bytes)
            last = head.shape[0] if stop is None else stop
            while start < last:
                count = min(step, last - start)
                data, reason = _rows(images, head, start, count)
                found = None
                if marks is not None and labels is not None:
                    table, failure = _rows(marks, labels, start, count)
                    found = table.reshape(len(table), math.prod(labels.shape[1:]))[:, 0]
                    reason = reason or failure
                    data = data[: len(found)]
                if len(data):
                    yield start, data, found
                if reason:
                    raise SourceError(reason)
                start += count
            if stop is None and (more := _more(images, head) or _more(marks, labels)):
                raise SourceError(more)


def _more(file: ForwardReader | None, head: IdxHead | None) -> str:
    if file is None or head is None:
        return ""
    return file.more_at(head.offset + head.shape[0] * head.item_bytes)


def _rows(file: ForwardReader, head: IdxHead, start: int, count: int) -> tuple[Any, str]:
    size = head.item_bytes
    data, reason = file.read_some(head.offset + start * size, count * size)
    whole = len(data) // size
    array = np.frombuffer(data[: whole * size], head.dtype)
    return array.reshape(whole, *head.shape[1:]), reason
