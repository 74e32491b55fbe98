"""Whether a table is the one that an export says it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastdata.schema import ArrayField, BytesField, Field, ImageField, Schema, StringField

from ..exported import Exported
from .arrow_types import dtype_of, is_bytes, is_image_struct, is_list, is_text, storage, type_of

__all__ = ["check_columns"]


def check_columns(
    exported: Exported, fields: Schema, needed: Iterable[str], schema: Any, file: Path
) -> None:
    """Refuse a table that has other columns than an export names.

    Parameters
    ----------
    exported : Exported
    fields : Schema
        As it is settled.
    needed : iterable of str
        Columns that must be there.
    schema : pyarrow.Schema
    file : Path
        With that schema.

    Raises
    ------
    SourceError
        If a column is missing, stands twice, or is of a type that its field has not.
    """
    for column in needed:
        if schema.names.count(column) != 1:
            raise exported.misfit(f"{file} has not one column {column!r}, as it should")
    for name, column in exported.stored_as.items():
        type_ = type_of(schema, column)
        if not _holds(type_, fields[name]):
            raise exported.misfit(
                f"the column {column!r} of {file} is {type_}, not what the field {name!r} is "
                "made of"
            )


def _holds(type_: Any, field: Field) -> bool:
    """Tell whether a column is of a type that values of a field are kept in."""
    type_ = storage(type_)
    if isinstance(field, ImageField):
        return is_image_struct(type_) or is_bytes(type_)
    if isinstance(field, StringField):
        return is_text(type_)
    if isinstance(field, BytesField):
        return is_bytes(type_)
    for _ in field.shape if isinstance(field, ArrayField) else ():
        if not is_list(type_):
            return False
        type_ = storage(type_.value_type)
    return bool(dtype_of(type_))
