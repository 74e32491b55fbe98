"""Where the images of a shard lie in its file, and what of it may become a hole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.formats.layout import FOOTER_BYTES
from fastdata.formats.reader import ShardReader

__all__ = ["PAGE_BYTES", "Extents"]

PAGE_BYTES = 1 << 12
"""Of a file: smaller holes are none."""

GAP_BYTES = 1 << 14
"""Images that are so close to each other are read at once: LMDB fills the last page of each."""

Range = tuple[int, int]
"""First byte of a file, and the one behind the last."""


class Extents:
    """The images of a shard, and all that is no image, by their places in the file.

    `starts` and `ends` are int64 [n], ascending by start; `rows` says of which sample each is, and
    -1 for what is no image.  For any number of threads.
    """

    def __init__(self, reader: ShardReader) -> None:
        header, end = reader.header, reader.file_bytes
        columns = header.columns.values()
        first, last = reader.header_range
        starts = [np.array([c.offset for c in columns] + [first, end - FOOTER_BYTES], np.int64)]
        lengths = [np.array([c.nbytes for c in columns] + [last - first, FOOTER_BYTES], np.int64)]
        rows = [np.full(len(starts[0]), -1, np.int64)]
        for name in header.schema.images:
            starts.append(reader.column(f"{name}.offset").astype(np.int64))
            lengths.append(reader.column(f"{name}.length").astype(np.int64))
            rows.append(np.arange(len(reader)))
        # What a damaged column says may lie anywhere; whoever reads it says what is wrong.
        all_starts = np.concatenate(starts).clip(0, end)
        all_ends = (all_starts + np.concatenate(lengths).clip(0, end)).clip(0, end)
        order = all_starts.argsort(kind="stable")
        self.starts, self.ends = all_starts[order], all_ends[order]
        self.rows = np.concatenate(rows)[order]
        self.file_bytes = end

    def of(self, first: int, last: int) -> NDArray[np.intp]:
        """Return the numbers of the extents of samples `first` to `last` - 1."""
        return np.flatnonzero((self.rows >= first) & (self.rows < last))

    def sizes(self, count: int) -> NDArray[np.int64]:
        """Return the bytes of the images of each of `count` samples, int64 [count]."""
        sizes = np.zeros(count, np.int64)
        images = self.rows >= 0
        np.add.at(sizes, self.rows[images], (self.ends - self.starts)[images])
        return sizes

    def ranges(self, first: int, last: int) -> list[Range]:
        """Return what to read for samples `first` to `last` - 1: few ranges, with small gaps."""
        at = self.of(first, last)
        if not len(at):
            return []
        return list(_merged(self.starts[at], self.ends[at], GAP_BYTES))

    def holes(self, first: int, last: int, present: NDArray[np.bool_]) -> list[Range]:
        """Return what nobody needs once samples `first` to `last` - 1 are not `present` any more.

        Whole pages that have bytes of these samples, and none of others that are there, nor of
        columns or header.  `present`, bool [samples of the shard], has these as False.
        """
        at = self.of(first, last)
        if not len(at):
            return []
        kept = (self.rows < 0) | present[self.rows]
        starts = self.starts[kept]
        ends = np.maximum.accumulate(self.ends[kept])
        following = np.searchsorted(starts, self.starts[at], side="right")
        bounded: Any = np.concatenate(([0], ends))
        low = np.maximum(bounded[following], self.starts[at] // PAGE_BYTES * PAGE_BYTES)
        high = np.minimum(
            np.append(starts, self.file_bytes)[following],
            -(-self.ends[at] // PAGE_BYTES) * PAGE_BYTES,
        )
        low, high = -(-low // PAGE_BYTES) * PAGE_BYTES, high // PAGE_BYTES * PAGE_BYTES
        whole = low < high
        if not whole.any():
            return []
        return list(_merged(low[whole], high[whole], 0))


def _merged(starts: NDArray[Any], ends: NDArray[Any], gap: int) -> Iterator[Range]:
    """Yield ranges, ascending by start, as one where they are no further apart than `gap`."""
    reached = np.maximum.accumulate(ends)
    heads = np.flatnonzero(np.concatenate(([True], starts[1:] > reached[:-1] + gap)))
    lasts = np.append(heads[1:], len(starts)) - 1
    yield from zip(starts[heads].tolist(), reached[lasts].tolist(), strict=True)
