"""LitData: the chunks that ``litdata.optimize`` writes for its ``StreamingDataset``.

A folder has ``index.json``, with the columns of samples and their serialisation, and chunks
(``reading/chunks/chunk_source.py`` has their layout).  Whole chunks, samples, or frames of samples
(``litdata_chunks.py``) may be compressed with Zstandard.  Samples of plain values only are rows of
a table (``row_table.py``) with its own description of columns.

Sources: ``litdata/streaming/`` of ``Lightning-AI/litData``, 0.2.76: writer, item_loader,
serializers, framed_zstd; ``utilities/_pytree.py`` for the tree of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec
from .reading.box_forms import BoxesOption, parse_boxes
from .reading.chunks.chunk_source import ChunkIndex, ChunkReader, index_path, resolve_columns
from .reading.chunks.column_choice import RefusedColumnError, choose_columns
from .reading.chunks.litdata_chunks import NUMBERS, decode, frame_rows, names_of
from .reading.chunks.row_table import Tables
from .reading.class_names import named_classes
from .reading.compression import check_codec
from .reading.fields import resolve_boxes
from .reading.locations import first_bytes
from .reading.options import ClassFile, Option
from .reading.selection import TableColumn, left_out
from .reading.tables.rows import RowLayout
from .scan import Found, Input, ScanSource

__all__ = ["LitDataSource"]

_CODECS = {"chunk": "zstd", "batch": "frames", "sample": ""}
"""How chunks are compressed as a whole, by the level that an index names."""


class LitDataSource(ScanSource):
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
        boxes: BoxesOption = (),
    ) -> None:
        path = index_path(location)
        if path is None:
            raise SourceError(f"{location}: no index.json there, which LitData has beside chunks")
        index = ChunkIndex(path)
        config = index.content.get("config")
        encodings = tuple(index.list_of(config, "data_format", str))
        assert isinstance(config, dict)
        _check_kind(config, path)
        level = config.get("compression_level") or "chunk"
        codec = config.get("compression")
        if codec is not None and check_codec(str(codec), str(path)) != "zstd":
            raise SourceError(f"{path}: chunks compressed by {codec!r}; LitData knows zstd alone")
        if codec is not None and level not in _CODECS:
            raise SourceError(f"{path}: compression_level {level!r} is not known")
        chunks = index.list_of(index.content, "chunks", dict)
        if not chunks or not encodings:
            raise SourceError(f"{path}: lists no chunks, or no columns")
        for chunk in chunks:
            file = index.path_of(chunk.get("filename"))
            packed = _CODECS[level] if codec is not None else ""
            index.add(file, chunk.get("chunk_size"), "chunk_size", packed)
        inflate = codec is not None and level == "sample"
        reader = ChunkReader(encodings, (None,) * len(encodings), decode, inflate)
        names = names_of(config.get("data_spec"), len(encodings), path)
        tables = Tables.of(index)
        if tables is None:
            scan = index.scan(partial(_rows, index, None, ""))
            resolved, reader, forms, notes = resolve_columns(
                index, scan, reader, names, partial(_field_for, channels), columns, fields,
                channels, boxes,
            )  # fmt: skip
            schema = Schema(named_classes(resolved, "label", classes))
            reader = reader._replace(schema=schema)
        else:
            found = tables.columns(channels)
            resolved, picked, _ = choose_columns(found, columns, fields or {}, channels, str(path))
            chosen = tuple(found[number].name for number in picked)
            notes = _left_out(found, picked, config.get("types"))
            given, option = fields or {}, parse_boxes(boxes, whole=True)
            forms = resolve_boxes(resolved, tables.first(resolved, chosen), option, given, notes)
            schema = Schema(named_classes(resolved, "label", classes))
            tables = tables._replace(layout=RowLayout(schema, chosen, str(index.root), {}))
            # Of chunks without tables, of a writer without pyarrow.
            lacks = "" if set(chosen) <= set(names) else ", ".join(chosen)
            numbers = tuple(names.index(name) for name in chosen) if not lacks else ()
            reader = reader._replace(schema=schema, picked=numbers)
            scan = index.scan(partial(_rows, index, tables, lacks))
        super().__init__(scan, schema, reader, notes=notes, beside=[path], box_forms=forms)


def _left_out(found: Sequence[TableColumn], picked: Sequence[int], types: Any) -> list[str]:
    """Return the note on columns that are not taken, in a list."""
    left = [column.name for number, column in enumerate(found) if number not in picked]
    there = {column.name.partition(".")[0] for column in found}
    if isinstance(types, dict):
        left += [str(name) for name in types if name not in there]
    return left_out("columns", left)


def _rows(
    index: ChunkIndex,
    tables: Tables | None,
    lacks: str,
    input: Input,
    start: int,
    stop: int | None,
) -> Iterator[Found]:
    """Yield the samples of a chunk of any kind.

    lacks: names columns if chunks that are no tables do not have them all.
    """
    if tables is not None and tables.flags[input.number]:
        return tables.rows(input, start, stop)
    if lacks:
        raise SourceError(
            f"{input.path}: is not a table of rows as other chunks are, and lacks some of the "
            f"columns {lacks}"
        )
    if index.codecs[input.number] == "frames":
        return frame_rows(index, input, start, stop)
    return index.rows(lambda number: None, input, start, stop)


def _field_for(channels: int, encoding: str) -> Field | None:
    """Return the field for a column by its encoding, or None if its values determine it."""
    kind = encoding.partition(":")[0]
    if kind in ("jpeg", "pil", "image", "tifffile", "tiff"):
        return ImageField(channels=channels)
    if kind in NUMBERS:
        return ScalarField(np.dtype(NUMBERS[kind]).name)
    if kind in ("str", "text"):
        return StringField()
    if kind == "pickle":
        raise RefusedColumnError("is pickled, and reading it would run code from the file")
    arrays = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
    if kind not in ("bytes", "file", *arrays):
        raise RefusedColumnError(f"is serialised as {encoding!r}, of which no field can be made")
    return None


def _check_kind(config: dict[str, Any], index: Path) -> None:
    if config.get("encryption"):
        raise SourceError(f"{index}: the chunks are encrypted. Decrypt them with LitData first.")
    loader = config.get("item_loader") or "PyTreeLoader"
    if loader != "PyTreeLoader":
        raise SourceError(
            f"{index}: written for {loader}; chunks for PyTreeLoader, LitData's default, are read"
        )
