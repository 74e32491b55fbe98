"""Columns of Arrow tables as fields, by their types; and how pyarrow is imported.

pyarrow is imported when it is first needed; its objects are typed ``Any``.

What Hugging Face's ``datasets`` says of columns, in the entry ``huggingface`` of the schema's
metadata, is followed: which are images, how classes are called, how large arrays are.  Source:
``datasets/features/features.py`` (``Features.from_dict``), ``features/image.py``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    BytesField,
    ImageField,
    ScalarField,
    StringField,
)

from ..class_names import check_different
from ..field_names import (
    INDEX_COLUMNS,
    LABELS,
    first_called,
    is_image_name,
    is_mask_name,
    safe_name,
    unique_name,
)
from ..fields import image_field
from ..image_files import is_image_bytes
from ..refusals import require
from ..selection import COLUMNS, TableColumn, left_out

__all__ = [
    "arrow",
    "choose_columns",
    "class_names_of",
    "dtype_of",
    "features_of",
    "is_bytes",
    "is_list",
    "kinds_of",
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


def features_of(schema: Any) -> dict[str, Any]:
    """Return what ``datasets`` says of columns in a schema's metadata; nothing if it is silent."""
    return _features((schema.metadata or {}).get(b"huggingface", b""))


@functools.lru_cache(2)  # the same in all files of a set
def _features(description: bytes) -> dict[str, Any]:
    try:
        features = json.loads(description)["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names_of(
    features: Mapping[str, Any], column: str, place: object
) -> tuple[str, ...] | None:
    """Return the names of classes that ``datasets`` gives for a column of a file, if any."""
    feature = features.get(column)
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    if not isinstance(names, list) or not names:
        return None
    check_different(map(str, names), f"{place}, column {column!r}")
    return tuple(map(str, names))


def choose_columns(
    schema: Any,
    wanted: Sequence[str],
    kinds: Mapping[str, TableColumn],
    notes: list[str],
    place: str,
) -> dict[str, str]:
    """Return the column that each field is read from: those `wanted`, else all that fit.

    A note says what is left out.  Raises OptionError if a column is not there, or cannot be read,
    SourceError if nothing is wanted and there is no image.
    """
    if wanted:
        chosen = COLUMNS.parse(wanted)
        COLUMNS.check(chosen, place, {name: column.refusal for name, column in kinds.items()})
        return chosen
    notes += left_out("columns of row numbers", [name for name in kinds if name in INDEX_COLUMNS])
    kinds = {name: kind for name, kind in kinds.items() if name not in INDEX_COLUMNS}
    fits = {name: kind.field for name, kind in kinds.items() if kind.field is not None}
    images = [n for n, f in fits.items() if isinstance(f, ImageField) and not f.mask]
    masks = [n for n, f in fits.items() if isinstance(f, ImageField) and f.mask]
    if not images:
        types = (f"{name}: {type_of(schema, name)}" for name in kinds)
        raise SourceError(
            COLUMNS.unclear(place, "no column of images", types)
            + " An image is a struct of bytes and path, or an image file's bytes in a binary "
            "column. Where a column names image files, pack the table as a list: "
            "pyarrow.csv.write_csv(pyarrow.parquet.read_table(FILE), 'list.csv')"
        )
    named = {images[0]: "image"} if len(images) == 1 else {}
    if len(masks) == 1:
        named[masks[0]] = "mask"
    scalar = [n for n, f in fits.items() if isinstance(f, (ScalarField, StringField))]
    label = first_called(scalar, LABELS)
    with_classes = [n for n, f in fits.items() if isinstance(f, ScalarField) and f.classes]
    if label is None and len(with_classes) == 1:
        label = with_classes[0]
    if label is not None and "label" not in kinds:
        named[label] = "label"
    order = [*images, *masks, *([label] if label else []), *fits]
    chosen = {}
    for column in dict.fromkeys(order):
        others = {name for other, name in named.items() if other != column}
        chosen[unique_name(named.get(column) or safe_name(column), {*chosen, *others})] = column
    reasons = [
        f"{name} ({kind.refusal.removeprefix('is ')})"
        for name, kind in kinds.items()
        if kind.field is None
    ]
    notes += COLUMNS.left_out(reasons)
    return chosen


def kinds_of(
    schema: Any, features: Mapping[str, Any], starts: Mapping[str, bytes], channels: int
) -> dict[str, TableColumn]:
    """Return what each column can become.

    `features` is what ``datasets`` says; `starts` has the first value of each column of bytes.
    """
    kinds: dict[str, TableColumn] = {}
    for name in schema.names:
        if name in kinds:
            kinds[name] = TableColumn(name, None, "is a column that stands twice")
            continue
        feature = features.get(name)
        feature = feature if isinstance(feature, dict) else {}
        type_ = type_of(schema, name)
        kinds[name] = _kind(type_, name, feature, starts.get(name, b""), channels)
    return kinds


def _kind(
    type_: Any, name: str, feature: Mapping[str, Any], start: bytes, channels: int
) -> TableColumn:
    types = arrow(".types")
    type_ = storage(type_)
    says = feature.get("_type")
    if is_image_struct(type_) or (is_bytes(type_) and (says == "Image" or is_image_bytes(start))):
        return TableColumn(name, image_field(name, channels))
    if is_bytes(type_):
        return TableColumn(name, BytesField())
    if types.is_dictionary(type_):
        return _kind(type_.value_type, name, feature, start, channels)
    if is_text(type_):
        return TableColumn(name, StringField())
    if dtype := dtype_of(type_):
        classes = class_names_of({name: feature}, name, "features") if "int" in dtype else None
        return TableColumn(name, ScalarField(dtype, classes=classes))
    shape: list[int | None] = []
    while is_list(type_):
        shape.append(type_.list_size if types.is_fixed_size_list(type_) else None)
        type_ = storage(type_.value_type)
    if not shape:
        return TableColumn(name, None, f"is {type_}, which no field holds")
    if is_image_struct(type_) or is_bytes(type_):
        return TableColumn(name, None, "is a list of images, which is not read")
    if dtype := dtype_of(type_):
        pixels = is_mask_name(name) or (is_image_name(name) and dtype[:5] in ("uint8", "float"))
        if len(shape) > 1 and pixels:
            return TableColumn(name, image_field(name, channels))
        declared = feature.get("shape")
        if isinstance(declared, list) and len(declared) == len(shape):
            shape = [n if isinstance(n, int) and 0 <= n < 2**31 else None for n in declared]
        try:
            return TableColumn(name, ArrayField(dtype, tuple(shape)))
        except OptionError as error:
            return TableColumn(name, None, f"is {error}")
    return TableColumn(name, None, f"is a list of {type_}, which no field holds")
