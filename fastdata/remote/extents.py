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

    `starts` and `ends` are int64 [n], ascending by start; `rows`, int32 [n], says of which sample
    each is, and -1 for what is no image.  For any number of threads.
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
        self.rows = np.concatenate(rows)[order].astype(np.int32)
        self.file_bytes = end
        is_plain = bool((np.diff(self.ends) >= 0).all())
        self._reached = self.ends if is_plain else np.maximum.accumulate(self.ends)
        by_row = self.rows.argsort(kind="stable")
        self._by_row = by_row.astype(np.int32)
        self._first_of_row = np.searchsorted(self.rows[by_row], np.arange(len(reader) + 1))

    def of(self, first: int, last: int) -> NDArray[np.int32]:
        """Return the numbers of the extents of samples `first` to `last` - 1, ascending."""
        of_rows = self._by_row[self._first_of_row[first] : self._first_of_row[last]]
        return np.sort(of_rows)

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
        page_of_start = self.starts[at] // PAGE_BYTES * PAGE_BYTES
        page_of_end = -(-self.ends[at] // PAGE_BYTES) * PAGE_BYTES
        # What ends before the first of these pages, or begins after the last, bounds none of them.
        near = slice(
            np.searchsorted(self._reached, page_of_start[0], side="right"),
            np.searchsorted(self.starts, page_of_end.max()),
        )
        rows = self.rows[near]
        kept = (rows < 0) | present[rows]
        starts = self.starts[near][kept]
        ends = np.maximum.accumulate(self.ends[near][kept])
        following = np.searchsorted(starts, self.starts[at], side="right")
        bounded: Any = np.concatenate(([0], ends))
        low = np.maximum(bounded[following], page_of_start)
        high = np.minimum(np.append(starts, self.file_bytes)[following], page_of_end)
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
