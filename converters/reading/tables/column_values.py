"""What columns of tables hold, looked at before packing: images, and labels of text."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .arrow_types import arrow, is_bytes, table_errors
from .blocks import Blocks

__all__ = ["first_bytes_of", "texts_of"]

_PEEK = 16


class Tables(Protocol):
    """Files of tables, as a `TableSource` has them."""

    @property
    def paths(self) -> Sequence[Path]: ...

    def blocks(self, file: int) -> Iterator[int | str]:
        """Yield the number of rows of each block; where one is lost, why."""
        ...

    def batches(self, file: int, block: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of a block as pyarrow.RecordBatch."""
        ...


def first_bytes_of(tables: Tables, schema: Any) -> dict[str, bytes]:
    """Return the first values of columns of bytes, by which images are recognised."""
    names = [f.name for f in schema if is_bytes(f.type) and schema.names.count(f.name) == 1]
    starts: dict[str, bytes] = {}
    for file, block in itertools.islice(_first_blocks(tables), _PEEK):
        if len(starts) == len(names):
            break
        with contextlib.suppress(*table_errors()):  # the next may be whole
            for batch in tables.batches(file, block, names):
                batch.validate(full=True)
                for name in names:
                    values = batch.column(batch.schema.names.index(name)).drop_null()
                    if name not in starts and len(values):
                        starts[name] = values[0].as_py()
                break
    return starts


def _first_blocks(tables: Tables) -> Iterator[tuple[int, int]]:
    for file in range(len(tables.paths)):
        with contextlib.suppress(*table_errors()):
            for block, rows in enumerate(tables.blocks(file)):
                if not isinstance(rows, str) and rows:
                    yield file, block


def texts_of(tables: Tables, blocks: Blocks, column: str) -> Iterator[str]:
    """Yield the texts of a column, each at least once; reads that column of all files."""
    unique = arrow(".compute").unique
    for block in map(blocks.__getitem__, range(len(blocks))):
        if block.lost:
            continue
        with contextlib.suppress(*table_errors()):  # its rows are rejected later
            for batch in tables.batches(block.file, block.number, [column]):
                batch.validate(full=True)
                values = batch.column(batch.schema.names.index(column))
                if hasattr(values, "dictionary_decode"):
                    values = values.dictionary_decode()
                yield from filter(None, unique(values).to_pylist())
