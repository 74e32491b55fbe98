"""LitData: the chunks that ``litdata.optimize`` writes for its ``StreamingDataset``.

A folder has ``index.json``, with the columns of samples and their serialisation, and chunks
(``reading/chunks/chunk_source.py`` has their layout).  Whole chunks, samples, or frames of samples
(``litdata_chunks.py``) may be compressed with Zstandard.  Samples of plain values only are rows of
a table (``row_table.py``) with its own description of columns.

Sources: ``litdata/streaming/`` of ``Lightning-AI/litData``, 0.2.76: writer, item_loader,
serializers, framed_zstd; ``utilities/_pytree.py`` for the tree of columns.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import mirror_of, open_regular
from fastdata.schema import Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, Reject, Sample, reject_reason
from .reading.chunks.chunk_source import ChunkDecoder, ChunkSource, index_path
from .reading.chunks.column_choice import RefusedColumnError, choose_columns, guessed_field
from .reading.chunks.litdata_chunks import (
    NUMBERS,
    decode,
    inflate_frame,
    names_of,
    read_frame,
    read_frames_head,
)
from .reading.chunks.row_table import RowTable, has_table, table_columns
from .reading.class_names import named_classes
from .reading.compression import check_codec
from .reading.locations import first_bytes, map_files, printable
from .reading.options import ClassFile, Option
from .reading.scanned import Place
from .reading.selection import TableColumn
from .reading.tables.arrow_types import table_errors
from .reading.tables.rows import RowLayout

__all__ = ["LitDataSource"]

_MOST_OPEN = 16


class LitDataSource(ChunkSource):
    """A folder of LitData's chunks."""

    name = "litdata"
    summary = "chunks of LitData (litdata.optimize), plain or zstd"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        index = index_path(location)
        return index is not None and b'"chunk_bytes"' in first_bytes(index)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: Annotated[
            tuple[str, ...],
            Option(
                "FIELD=COLUMN or COLUMN (in tuples 0, 1, ..., in others outer.inner); default: all"
            ),
        ] = (),
        classes: ClassFile = None,
    ) -> None:
        content = self.open_index(location, "LitData has beside chunks")
        index, self._channels = self.index, channels
        config = content.get("config")
        encodings = tuple(self.list_of(config, "data_format", str))
        assert isinstance(config, dict)
        _check_kind(config, index)
        level = config.get("compression_level") or "chunk"
        codec = config.get("compression")
        if codec is not None and check_codec(str(codec), str(index)) != "zstd":
            raise SourceError(f"{index}: chunks compressed by {codec!r}; LitData knows zstd alone")
        if codec is not None and level not in ("chunk", "batch", "sample"):
            raise SourceError(f"{index}: compression_level {level!r} is not known")
        self._framed = codec is not None and level == "batch"
        chunks = self.list_of(content, "chunks", dict)
        if not chunks or not encodings:
            raise SourceError(f"{index}: lists no chunks, or no columns")
        self.paths = [self.path_of(chunk.get("filename")) for chunk in chunks]
        self.counts = [self.count_of(chunk, "chunk_size") for chunk in chunks]
        self.codecs = ["zstd" if codec is not None and level != "sample" else ""] * len(chunks)
        decoder = ChunkDecoder(
            encodings,
            (None,) * len(encodings),
            decode,
            inflate=codec is not None and level == "sample",
        )
        names = names_of(config.get("data_spec"), len(encodings), index)
        # A cache of the instance, so that files are closed with it: an open chunk of a store takes
        # space on the disk.
        most = _MOST_OPEN if mirror_of(self.index) is None else 1
        self._open = functools.lru_cache(most)(RowTable)
        self._tables, self._others = map_files(has_table, self.paths), True
        if any(self._tables):
            self.decoder, types = decoder, config.get("types")
            self._resolve_rows(names, types, columns, fields or {}, channels, classes)
        else:
            self.resolve(names, decoder, columns, fields or {}, channels, classes)

    def field_for(self, encoding: str, values: Callable[[], list[Any]]) -> Field:
        kind = encoding.partition(":")[0]
        if kind in ("jpeg", "pil", "image", "tifffile", "tiff"):
            return ImageField(channels=self._channels)
        if kind in NUMBERS:
            return ScalarField(np.dtype(NUMBERS[kind]).name)
        if kind in ("str", "text"):
            return StringField()
        if kind == "pickle":
            raise RefusedColumnError("is pickled, and reading it would run code from the file")
        arrays = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
        if kind not in ("bytes", "file", *arrays):
            raise RefusedColumnError(
                f"is serialised as {encoding!r}, of which no field can be made"
            )
        return guessed_field(values(), self._channels)

    # -- chunks that are tables of rows ------------------------------------------------------

    def _resolve_rows(
        self,
        names: Sequence[str],
        types: Any,
        columns: tuple[str, ...],
        fields: FieldSpec,
        channels: int,
        classes: str | None,
    ) -> None:
        """Determine `schema` and plans from the first table that can be read."""
        found = self._first_columns(channels)
        resolved, picked, _ = choose_columns(found, columns, fields, channels, str(self.index))
        self.schema = Schema(named_classes(resolved, "label", classes))
        chosen = tuple(found[number].name for number in picked)
        self._rows = RowLayout(self.schema, chosen, str(self.root), {})
        left = [column.name for number, column in enumerate(found) if number not in picked]
        there = {column.name.partition(".")[0] for column in found}
        if isinstance(types, dict):
            left += [str(name) for name in types if name not in there]
        if left:
            self.notes.append(f"columns left out: {', '.join(left)}")
        # For chunks without tables, of a writer without pyarrow.
        self._others = set(chosen) <= set(names)
        numbers = tuple(names.index(name) for name in chosen) if self._others else ()
        self.decoder = self.decoder._replace(schema=self.schema, picked=numbers)

    def _first_columns(self, channels: int) -> list[TableColumn]:
        failure = ""
        for file in (file for file, table in enumerate(self._tables) if table):
            try:
                return table_columns(self._table(file), channels)
            except table_errors() as error:
                failure = failure or str(error)
        raise SourceError(f"{self.index}: no sample can be read: {failure}")

    def _table(self, file: int) -> RowTable:
        table = self._open(str(self.paths[file]))
        self._count(file, table.rows)
        return table

    def samples_of(self, file: int) -> Iterator[Sample | Reject]:
        if not self._tables[file]:
            yield from super().samples_of(file)
            return
        try:
            table = self._table(file)
        except (OSError, SourceError) as error:
            reject = Reject.of(printable(os.fspath(self.paths[file])), error)
            yield reject._replace(reason=self._lost(file, reject.reason))
            return
        for first, end in table.batches():
            try:
                read = table.reader(first, self._rows)
            except SourceError as error:
                reason = reject_reason(self.key(file, first), error)
                yield from (Reject(self.key(file, row), reason) for row in range(first, end))
                continue
            for row in range(first, end):
                yield self._sample(file, row, functools.partial(read, row - first))

    def _sample(self, file: int, row: int, read: Callable[[], tuple[Any, ...]]) -> Sample | Reject:
        try:
            return Sample(self.key(file, row), read())
        except table_errors() as error:
            return Reject.of(self.key(file, row), error)

    def _lost(self, file: int, error: object) -> str:
        return f"{error}; its {self.counts[file]:,} samples are lost"

    def compressed(self, file: int) -> bool:
        return super().compressed(file) and not self._tables[file]

    def scan(self, file: int) -> Iterator[Place | Reject]:
        if not self._tables[file]:
            yield from super().scan(file)
            return
        try:
            rows = self._table(file).rows
        except SourceError as error:
            raise SourceError(self._lost(file, error)) from error
        yield from (Place(file, row, 0) for row in range(rows))

    def at(self, place: Place) -> Sample | Reject:
        if not self._tables[place.file]:
            return super().at(place)
        row = place.offset
        return self._sample(place.file, row, lambda: self._table(place.file).row(row, self._rows))

    def verify(self, file: int) -> None:
        if not self._others:
            raise SourceError(
                f"{self.paths[file]}: is not a table of rows as other chunks are, and lacks some "
                f"of the columns {', '.join(self._rows.columns)}"
            )

    # -- chunks that are not -----------------------------------------------------------------

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        if not self._framed:
            yield from super().stream(file)
            return
        self.verify(file)
        with open(self.paths[file], "rb", buffering=0, opener=open_regular) as raw:
            yield from self._framed_samples(file, raw)

    def _framed_samples(self, file: int, raw: IO[bytes]) -> Iterator[Sample | Reject]:
        path = str(self.paths[file])
        head = read_frames_head(raw, path)
        self._count(file, head.samples)
        done = 0
        for number in range(head.frames):
            frame = read_frame(raw, path, head, number)
            if frame.first != done or not 0 < frame.samples <= head.samples - done:
                break
            done += frame.samples
            starts = head.starts[frame.first : done + 1].tolist()
            key = self.key(file, starts[0])
            try:
                data = inflate_frame(raw, path, frame)
            except SourceError as error:
                reason = reject_reason(key, error)
                yield Reject(key, f"{reason}; the {frame.samples:,} samples of a frame are lost")
                continue
            for begin, end in itertools.pairwise(starts):
                if starts[0] <= begin <= end <= starts[0] + len(data):
                    yield self.inflated(file, begin, data[begin - starts[0] : end - starts[0]])
                else:
                    reason = f"the sample is at bytes {begin:,} to {end:,}, outside its frame"
                    yield Reject(self.key(file, begin), f"{reason}: it is damaged")
        if done < head.samples:
            reason = f"{path}: damaged frames; {head.samples - done:,} samples are lost"
            yield Reject(self.key(file, 0), reason)


def _check_kind(config: dict[str, Any], index: Path) -> None:
    if config.get("encryption"):
        raise SourceError(f"{index}: the chunks are encrypted. Decrypt them with LitData first.")
    loader = config.get("item_loader") or "PyTreeLoader"
    if loader != "PyTreeLoader":
        raise SourceError(
            f"{index}: written for {loader}; chunks for PyTreeLoader, LitData's default, are read"
        )
