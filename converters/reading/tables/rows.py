"""A row of a batch of an Arrow table as the values of a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.schema import ArrayField, BytesField, Field, ImageField, Schema, StringField

from ..exported import array_of, needs_shape
from ..locations import path_inside
from ..spans import FileSpan
from .arrow_fields import arrow, dtype_of, is_list, storage

__all__ = ["KEY", "MappedTable", "RowLayout", "row_reader"]

KEY = "key"
"""Column with the keys of what fastdata exported."""


class RowLayout(NamedTuple):
    """How a row becomes a sample."""

    schema: Schema
    columns: tuple[str, ...]  # of each field; "" for the split
    root: str  # the folder below which files may be read that rows name
    # Of fields whose column has names of classes, or other numbers than the schema: their numbers
    numbers: Mapping[str, Mapping[Any, int]]
    exported: bool = False  # whether fastdata wrote the table, with keys and with shapes of arrays

    @property
    def needed(self) -> list[str]:
        """The columns that are read."""
        columns = [column for column in self.columns if column]
        if self.exported:
            fields = zip(self.schema.values(), self.columns, strict=True)
            columns += [f"{column}.shape" for field, column in fields if needs_shape(field)]
            columns.append(KEY)
        return list(dict.fromkeys(columns))


class MappedTable(NamedTuple):
    """The memory map of a table's file, in which the bytes of a batch may be."""

    path: str
    address: int  # of the map
    size: int


def row_reader(
    batch: Any, layout: RowLayout, split: int, mapped: MappedTable | None = None
) -> Callable[[int], tuple[str | None, tuple[Any, ...]]]:
    """Return a function from a row's number in the batch to its key, if it has one, and its values.

    Bytes of images that lie in a mapped file become a `FileSpan`.  The function raises
    ValueError for a row that does not fit.

    Raises pyarrow.ArrowInvalid if the batch contradicts itself; else reading it could crash.
    """
    batch.validate(full=True)
    columns: list[Callable[[int], Any]] = []
    for (name, field), column in zip(layout.schema.items(), layout.columns, strict=True):
        if column == "":
            columns.append(lambda row: split)
            continue
        array = batch.column(batch.schema.names.index(column))
        array = getattr(array, "storage", array)
        places: list[int] | None = None
        if hasattr(array, "dictionary"):
            # Not decoded: one value of 1 MB may stand in each of 100,000 rows.
            used = array.indices.dictionary_encode("encode")
            array, places = array.dictionary.take(used.dictionary), used.indices.to_pylist()
        read = _column(array, column, field, layout, layout.numbers.get(name), mapped)
        if places is not None:
            read = _at_places(read, places)
        if layout.exported and needs_shape(field) and isinstance(field, ArrayField):
            shapes = batch.column(batch.schema.names.index(f"{column}.shape"))
            read = _shaped(array, shapes, column, field)
        columns.append(read)
    keys = batch.column(batch.schema.names.index(KEY)) if layout.exported else None

    def values(row: int) -> tuple[str | None, tuple[Any, ...]]:
        key = None if keys is None else str(_given(keys[row].as_py(), KEY))
        return key, tuple([read(row) for read in columns])

    return values


def _at_places(read: Callable[[int], Any], places: list[int]) -> Callable[[int], Any]:
    """Return a function from a row's number to a value that stands at another place."""
    return lambda row: read(places[row])


def _pixels(array: Any, name: str) -> Callable[[int], Any]:
    """Return a function from a row's number to pixels in nested lists, of the column's type."""
    type_ = storage(array.type)
    while is_list(type_):
        type_ = storage(type_.value_type)
    dtype = dtype_of(type_)
    return lambda row: np.array(_given(array[row].as_py(), name), dtype)


def _column(
    array: Any,
    name: str,
    field: Field,
    layout: RowLayout,
    numbers: Mapping[Any, int] | None,
    mapped: MappedTable | None,
) -> Callable[[int], Any]:
    if isinstance(field, ImageField) and is_list(storage(array.type)):
        return _pixels(array, name)
    if isinstance(field, ImageField):
        return _images(array, name, layout.root, mapped)
    if is_list(storage(array.type)) and not is_list(storage(array.type.value_type)):
        return lambda row: _given(array[row].values, name).to_numpy(zero_copy_only=False)
    if isinstance(field, (ArrayField, BytesField)):
        return lambda row: _given(array[row].as_py(), name)
    values = array.to_pylist()
    if numbers is not None:
        return lambda row: _number(_given(values[row], name), name, numbers)
    if isinstance(field, StringField):
        return lambda row: "" if values[row] is None else values[row]
    return lambda row: _given(values[row], name)


def _given(value: Any, name: str) -> Any:
    if value is None:
        raise ValueError(f"the column {name!r} is null in this row")
    return value


def _shaped(array: Any, shapes: Any, name: str, field: ArrayField) -> Callable[[int], Any]:
    """Return a function to arrays whose lists do not tell their shape where they are empty."""

    def read(row: int) -> Any:
        values = np.array(_given(array[row].as_py(), name), field.dtype)
        shape = _given(shapes[row].as_py(), f"{name}.shape")
        return array_of(values.reshape(-1), field, shape, name)

    return read


def _number(value: Any, name: str, numbers: Mapping[Any, int]) -> int:
    if value not in numbers:
        raise ValueError(f"{name!r} is {str(value)[:60]!r}, which is none of its classes")
    return numbers[value]


def _images(array: Any, name: str, root: str, mapped: MappedTable | None) -> Callable[[int], Any]:
    paths: Any = None
    if arrow(".types").is_struct(array.type):
        # flatten() rather than field(): a null struct makes its entries null.
        entries = dict(zip([child.name for child in array.type], array.flatten(), strict=True))
        array, paths = entries["bytes"], entries.get("path")

    places = _places(array, mapped)
    valid = array.is_valid().to_numpy(zero_copy_only=False)

    def read(row: int) -> Any:
        if valid[row]:
            return places(row)
        path = paths[row].as_py() if paths is not None else None
        if path is None:
            raise ValueError(f"the image {name!r} is null in this row")
        return Path(path_inside(root, path))

    return read


def _places(array: Any, mapped: MappedTable | None) -> Callable[[int], FileSpan | bytes]:
    """Return a function to a row's bytes, or where in the file they are.

    It copies less than a scalar's ``as_py``: of photographs, half.
    """
    array = array.cast(arrow().large_binary())  # which copies the bytes of views only
    _, ends, data = array.buffers()
    if data is None or ends is None:
        return lambda row: b""
    places = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    if mapped is not None:
        offset, path = data.address - mapped.address, mapped.path
        if offset >= 0 and offset + data.size <= mapped.size:
            return lambda row: FileSpan(path, offset + places[row], places[row + 1] - places[row])
    view = memoryview(data)
    return lambda row: bytes(view[places[row] : places[row + 1]])
