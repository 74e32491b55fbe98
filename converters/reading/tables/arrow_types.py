"""Types of Arrow's columns, and what pyarrow raises.

pyarrow is imported when first needed; its objects are typed ``Any``.
"""

from __future__ import annotations

from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import SCALAR_DTYPES

from ..refusals import require

__all__ = [
    "arrow",
    "dtype_of",
    "is_bytes",
    "is_image_struct",
    "is_list",
    "is_text",
    "plain",
    "storage",
    "table_errors",
    "type_of",
]

_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64", "uint64": "int64"}


def arrow(module: str = "") -> Any:
    """Import pyarrow, or a module of it."""
    return require(f"pyarrow{module}", "parquet", "reading Parquet and Arrow files")


def table_errors() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises for files that are damaged."""
    return (arrow().ArrowException, OSError, ValueError, KeyError, SourceError, MemoryError)


def type_of(schema: Any, name: str) -> Any:
    """Return the type of the first column of a name; by number, as damaged names may have a NUL."""
    return schema.field(schema.names.index(name)).type


def storage(type_: Any) -> Any:
    """Return the type that an extension type is stored as."""
    return getattr(type_, "storage_type", type_)


def is_bytes(type_: Any) -> bool:
    return str(type_) in ("binary", "large_binary", "binary_view")


def is_text(type_: Any) -> bool:
    return str(type_) in ("string", "large_string", "string_view")


def is_list(type_: Any) -> bool:
    pa = arrow()
    return isinstance(type_, (pa.ListType, pa.LargeListType, pa.FixedSizeListType))


def is_image_struct(type_: Any) -> bool:
    """Tell whether this is how ``datasets`` keeps an image: bytes and a path."""
    if not arrow(".types").is_struct(type_):
        return False
    children = {child.name: child.type for child in type_}
    path = children.get("path")
    return (
        {"bytes"} <= set(children) <= {"bytes", "path"}
        and is_bytes(children["bytes"])
        # Where no image has a path, and no schema was given, the column's type is null.
        and (path is None or is_text(path) or arrow(".types").is_null(path))
    )


def dtype_of(type_: Any) -> str:
    """Return the dtype that numbers of a type are stored with; "" of other types."""
    name = str(type_)
    name = _DTYPES.get(name, name)
    return name if name in SCALAR_DTYPES else ""


def plain(type_: Any) -> Any:
    """Return the type of what a dictionary holds: files may number it by larger integers."""
    return type_.value_type if arrow(".types").is_dictionary(type_) else type_
