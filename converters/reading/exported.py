"""``fastdata.json``: the description in the folder of an export.

::

    {"fastdata": "export", "version": 1, "format": "tfrecord",
     "fields": [...],                                   as `Schema.to_json` has them
     "stored_as": {"image": "image/encoded", ...},      where each field is, as the format's
                                                        own option names it
     "files": ["shard-000000.tar", ...],                the other files of the export
     "packed_with": {...}}                              options of the pack, or null

With it nothing is guessed, and samples have the keys that the export wrote.  Without it the
files are read like any others.  It is not trusted: an entry that does not fit is an error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.bounds import strict_json
from fastdata.errors import FormatError, SourceError
from fastdata.formats.layout import check_options
from fastdata.schema import ArrayField, Field, ImageField, Schema

from ..base import FieldSpec
from .fields import resolve_fields
from .json_files import read_object

__all__ = ["SIDE_FILE", "Exported", "array_of", "needs_shape", "read_exported", "write_exported"]

SIDE_FILE = "fastdata.json"


class Exported(NamedTuple):
    """What an export says of itself."""

    path: Path  # of the file that says it
    schema: Schema
    stored_as: Mapping[str, str]  # where each field is, in the schema's order
    packed_with: Mapping[str, Any] | None  # the options that the dataset was packed with

    def resolve_fields(self, fields: FieldSpec | None, channels: int) -> dict[str, Field]:
        """Return the fields, with the user's choices."""

        def own(name: str) -> Field:
            field = self.schema[name]
            if channels == 1 and isinstance(field, ImageField):
                return dataclasses.replace(field, channels=1)
            return field

        return resolve_fields(self.schema, fields, channels, own)

    def check_place(
        self, place: str, alternatives: Iterable[str], known: Container[str], file: Path
    ) -> None:
        """Refuse names that the first samples of a file do not have."""
        if not any(name in known for name in alternatives):
            raise self.misfit(f"it names {place!r}, which the first samples of {file} have not")

    def misfit(self, what: str) -> SourceError:
        """Return the error for files that differ from the description."""
        return _error(self.path, what)


def write_exported(
    root: Path,
    format: str,
    schema: Schema,
    stored_as: Mapping[str, str],
    packed_with: Mapping[str, Any] | None,
    files: Sequence[str],
) -> None:
    """Write the file into a folder."""
    document = {
        "fastdata": "export",
        "version": 1,
        "format": format,
        "fields": schema.to_json(),
        "stored_as": stored_as,
        "packed_with": packed_with,
        "files": files,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (root / SIDE_FILE).write_text(text + "\n", encoding="utf-8")


def read_exported(paths: Sequence[Path], format: str) -> Exported | None:
    """Return the description of some files, or None.

    paths: those in several folders must belong to exports with equal descriptions.
    format: the format for reading them.
    """
    folders = list(dict.fromkeys(path.parent for path in paths))
    found = [_read(folder / SIDE_FILE, format) for folder in folders]
    for folder, other in zip(folders, found, strict=True):
        if (other is None) != (found[0] is None) or (
            other is not None and found[0] is not None and other[1:3] != found[0][1:3]
        ):
            raise SourceError(
                f"{folder}: its {SIDE_FILE} and that of {folders[0]} differ, or one is missing: "
                "these are not shards of one dataset. Pack them apart, then merge."
            )
    return found[0] if found else None


def _read(path: Path, format: str) -> Exported | None:
    if not path.exists():
        return None
    document = read_object(path)
    places, options = document.get("stored_as"), document.get("packed_with")
    try:
        for name, wanted in (("fastdata", "export"), ("version", 1), ("format", format)):
            if document.get(name) != wanted:
                raise ValueError(
                    f"its {name!r} is {str(document.get(name))[:40]!r}, not {wanted!r}"
                )
        schema = Schema.from_json(document.get("fields"))
        if not isinstance(places, dict) or set(places) != set(schema):
            raise ValueError(f'"stored_as" does not say where {", ".join(schema)} are')
        if not all(isinstance(place, str) and place for place in places.values()):
            raise ValueError('"stored_as" has an entry that is no name')
        if options is not None and not isinstance(options, dict):
            raise ValueError('"packed_with" is no object')
        if options is not None:  # it becomes a part of a header
            options = check_options(strict_json(json.dumps(options).encode()))
    except (ValueError, FormatError) as error:
        raise _error(path, str(error)) from error
    return Exported(path, schema, {name: places[name] for name in schema}, options)


def _error(path: Path, what: str) -> SourceError:
    return SourceError(
        f"{path}: {what}. Export again, or remove it to have the fields guessed from the files."
    )


def needs_shape(field: Field) -> bool:
    """Tell whether the shape of an array does not follow from its field and its entries."""
    if not isinstance(field, ArrayField):
        return False
    return field.shape.count(None) > 1 or (None in field.shape and 0 in field.shape)


def array_of(entries: Any, field: ArrayField, shape: Sequence[int] | None, name: str) -> Any:
    """Return entries that lie one behind the other as an array.

    shape: where `needs_shape`.
    """
    if shape is None:
        shape = [-1 if length is None else length for length in field.shape]
    elif len(shape) > 32 or any(length < 0 for length in shape):
        raise ValueError(f"{name!r} has the shape {list(shape)[:8]}, which no array has")
    try:
        return entries.reshape(tuple(shape))
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from error
