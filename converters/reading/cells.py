"""Values as text: the cells of a manifest, as export writes and packing reads them.

The types of a CSV's columns are in a second file: for ``manifest.csv`` it is
``manifest.schema.json``, ``{"fields": [...], "exported": CHECKSUM}`` with the fields of
`Schema.to_json`, and the checksum of the CSV that an export has written.  With it, class
numbers, dtypes, bytes and arrays are restored exactly; without it, columns are guessed.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, BytesField, Field, ScalarField, Schema

from .fields import nested_array

__all__ = [
    "ClassCells",
    "cell_of",
    "parse_array",
    "parse_bytes",
    "read_schema",
    "schema_path",
    "write_schema",
]


class ClassCells:
    """The cell for each class: its name, or its number where that does not tell.

    A blank cell is a missing one, and a name that stands twice is not one class's.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self._count = count = Counter(classes)
        self._cells = [
            name if name.strip() and count[name] == 1 else _unlike(number, count)
            for number, name in enumerate(classes)
        ]

    def cell(self, number: float) -> str | int | float | bool:
        """Return the cell for a number, which need not be that of a class."""
        if 0 <= number < len(self._cells):
            return self._cells[int(number)]
        return number if str(number) not in self._count else _unlike(int(number), self._count)


def _unlike(number: int, names: Container[str]) -> str:
    """Return a number as text that is not the name of a class: 3, 03, 003, ..."""
    texts = (f"{number:0{width}}" for width in itertools.count(1))
    return next(text for text in texts if text not in names)


def cell_of(
    value: Any, field: Field, classes: ClassCells | None = None
) -> str | int | float | bool:
    """Return a value as the cell of a CSV.

    Bytes are base64, arrays are nested JSON lists.

    classes: those of the field, if it has classes.
    """
    if isinstance(field, ScalarField):
        number: int | float | bool = value.item()
        return number if classes is None else classes.cell(number)
    if isinstance(field, BytesField):
        return base64.b64encode(value).decode("ascii")
    if isinstance(field, ArrayField):
        if value.size == 0 and value.ndim > 1:
            return json.dumps({"shape": value.shape})  # which lists cannot say
        return json.dumps(value.tolist())
    return str(value)


def parse_bytes(cell: str) -> bytes:
    """Return the bytes of a base64 cell."""
    try:
        return base64.b64decode(cell, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{cell[:40]!r} is not base64: {error}") from error


def parse_array(cell: str, field: ArrayField) -> np.ndarray[Any, Any]:
    """Return the array of a cell with a JSON list.

    An empty list says nothing of the dimensions inside it; the field does, or
    else ``{"shape": [...]}`` in the place of the list.
    """
    content = json.loads(cell)
    if isinstance(content, dict):
        return np.zeros(content["shape"], field.dtype)
    return nested_array(content, field)


def schema_path(manifest: Path) -> Path:
    """Return where the schema of a manifest is."""
    return manifest.with_suffix(".schema.json")


def write_schema(manifest: Path, schema: Schema, exported: str) -> None:
    """Write the schema of a manifest, and the checksum of the manifest."""
    document = {"fields": schema.to_json(), "exported": exported}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    with open(schema_path(manifest), "x", encoding="utf-8") as file:
        file.write(text + "\n")


def read_schema(manifest: Path) -> Schema | None:
    """Return the schema of a manifest, or None."""
    path = schema_path(manifest)
    try:
        return Schema.from_json(json.loads(read_regular(path))["fields"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, FormatError) as error:
        raise SourceError(
            f"{path}: this is no schema ({error}). Mend it, or remove it to have the columns "
            f"of {manifest.name} guessed."
        ) from error
