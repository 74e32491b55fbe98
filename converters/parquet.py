"""Parquet files with a column of images, as Hugging Face's hub has them.

An image is a struct of ``bytes`` and ``path``, or the bytes of an image file in a binary
column.  Sources: the specification of Apache Parquet (``github.com/apache/parquet-format``), read
by pyarrow; ``datasets/features/image.py``.

Rows are read row group by row group and in these batch by batch, a few megabytes at a time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import Mirror, mirror_of

from .base import Deferred, IndexedSource, Sample
from .reading.locations import first_bytes, stat_of
from .reading.splits import table_files
from .reading.tables.arrow_fields import arrow, table_errors
from .reading.tables.rows import RowLayout, row_reader
from .reading.tables.table_source import Block, TableSource

__all__ = ["ParquetSource", "row_counts"]

_SUFFIXES = (".parquet", ".pq")
_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1024
_BUFFER = 1 << 20
_OBJECT_BUFFER = 8 << 20
_MOST_SHUFFLED = 256 << 20


class ParquetSource(TableSource):
    """Parquet files with images; each row is a sample."""

    name = "parquet"
    summary = "Parquet files with a column of images, as on Hugging Face's hub"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = table_files(location, _SUFFIXES)
        # img2dataset writes a table beside each tar file, which has the same captions.
        if files and all(path.with_suffix(".tar").exists() for path in files):
            return False
        return bool(files) and first_bytes(files[0], 4) in (_MAGIC, _ENCRYPTED)

    @classmethod
    def files_of(cls, location: Any) -> list[Path]:
        arrow(".parquet")
        return table_files(location, _SUFFIXES)

    def look(self, path: Path) -> tuple[Any, dict[str, Any], Iterator[int | str]]:
        metadata, schema = _footer(path)
        return schema, {}, row_counts(metadata)

    def batches(self, path: Path, block: int, columns: Sequence[str]) -> Iterator[Any]:
        return _batches(path, block, columns)

    def row(self, index: int, block: Block) -> Sample:
        split, row = self._split_numbers[block.file], index - block.start
        values = DeferredRow(
            str(self.paths[block.file]), block.number, row, split, self.layout_of(block.file)
        )
        return Sample(self.key_at(index), values)

    def indexed(self) -> IndexedSource:
        """Return itself, unless row groups are too large to read one for each sample."""
        largest = 0
        for path in self.paths:
            with contextlib.suppress(*table_errors()):  # a file that cannot be read is a reject
                metadata = _footer(path)[0]
                groups = map(metadata.row_group, range(metadata.num_row_groups))
                largest = max([largest, *(group.total_byte_size for group in groups)])
        if largest > (_MOST_SHUFFLED if self.mirror is None else _BATCH_BYTES):
            raise OptionError(
                f"shuffle needs to read a row group for each sample, and the largest here has "
                f"{largest >> 20:,} MB. Pack in order, the loader shuffles too; or write the files "
                "with row groups of some hundred rows."
            )
        return self


class DeferredRow(Deferred):
    """A row that the worker reads from its row group."""

    def __init__(self, path: str, group: int, row: int, split: int, layout: RowLayout) -> None:
        self.path, self.group, self.row = path, group, row
        self.split, self.layout = split, layout

    def load(self) -> tuple[Any, ...]:
        """Read batches up to the one with the row."""
        before = 0
        for batch in _batches(Path(self.path), self.group, self.layout.needed):
            if self.row < before + batch.num_rows:
                part = batch.slice(self.row - before, 1)
                self.stored_key, values = row_reader(part, self.layout, self.split)(0)
                return values
            before += batch.num_rows
        raise SourceError(f"{self.path}: row group {self.group} has only {before} rows")


def row_counts(metadata: Any) -> Iterator[int | str]:
    """Yield the rows of each row group of a file; behind them, why these are not all."""
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    yield from rows
    if sum(rows) != metadata.num_rows:
        yield f"the file claims {metadata.num_rows:,} rows, and its row groups {sum(rows):,}"


def _footer(path: Path) -> tuple[Any, Any]:
    return _cached_footer(str(path), *stat_of(path))


@functools.lru_cache(2)
def _cached_footer(path: str, size: int, changed: int) -> tuple[Any, Any]:
    """Return metadata and Arrow schema of a file; cached for shuffled reading."""
    if first_bytes(Path(path), 4) == _ENCRYPTED:
        raise SourceError(f"{path}: the file is encrypted; decrypt it first")
    with arrow(".parquet").ParquetFile(_file_at(path)) as file:
        return file.metadata, file.schema_arrow


def _file_at(path: str) -> str | RangedFile:
    """Return what pyarrow reads a file by."""
    mirror = mirror_of(path)
    return path if mirror is None else RangedFile(mirror, path)


class RangedFile(io.RawIOBase):
    """An object of a store as a file; each `read` is a request, since pyarrow has buffers."""

    def __init__(self, mirror: Mirror, path: str) -> None:
        self._mirror, self._path, self._size = mirror, path, os.stat(path).st_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or those up to the end of the file."""
        stop = self._size if size < 0 else min(self._size, self._at + size)
        data = self._mirror.read(self._path, self._at, stop) if self._at < stop else b""
        self._at += len(data)
        return data


def _batches(path: Path, group: int, columns: Sequence[str]) -> Iterator[Any]:
    metadata = _footer(path)[0]
    # The size of all columns: pyarrow ends the process at a damaged size of a single column.
    rows = metadata.row_group(group)
    each = max(1, rows.total_byte_size // max(1, rows.num_rows))
    # No threads: workers are forked.  A buffer, else a whole row group is read at once.
    file = _file_at(str(path))
    with arrow(".parquet").ParquetFile(
        file,
        metadata=metadata,
        pre_buffer=False,
        buffer_size=_BUFFER if isinstance(file, str) else _OBJECT_BUFFER,
        page_checksum_verification=True,
    ) as table:
        yield from table.iter_batches(
            batch_size=max(1, min(_BATCH_ROWS, _BATCH_BYTES // each)),
            row_groups=[group],
            columns=list(columns),
            use_threads=False,
        )
