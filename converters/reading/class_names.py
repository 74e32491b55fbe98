"""Names of classes that a format does not bring, from a file of the user's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from fastdata.errors import OptionError
from fastdata.schema import Field, ScalarField

__all__ = ["named_classes", "read_class_names"]

_LARGEST = 64 << 20


def read_class_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read names of classes from a text file, one a line, the first for class 0.

    Raises
    ------
    OptionError
        If the file is missing, is no UTF-8 text, or has an empty line before its end.
    """
    try:
        if os.path.getsize(path) > _LARGEST:
            raise OptionError(f"classes={os.fspath(path)}: too large for a list of names")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"classes={os.fspath(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"classes={os.fspath(path)}: not a text in UTF-8") from error
    names = tuple(line.strip() for line in text.rstrip().splitlines())
    if not names or not all(names):
        raise OptionError(f"classes={os.fspath(path)}: expected a name on every line")
    return names


def named_classes(
    fields: Mapping[str, Field], name: str, path: str | os.PathLike[str] | None
) -> dict[str, Field]:
    """Return fields in which the numbers of one field have the names that a file gives.

    Raises
    ------
    OptionError
        If there is no such field of whole numbers.
    """
    if path is None:
        return dict(fields)
    field = fields.get(name)
    if not isinstance(field, ScalarField) or "int" not in field.dtype:
        raise OptionError(f"classes={os.fspath(path)}: there is no field {name!r} of class numbers")
    return {**fields, name: dataclasses.replace(field, classes=read_class_names(path))}
