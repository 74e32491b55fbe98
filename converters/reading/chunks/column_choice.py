"""Which columns of a table of samples are taken, and what their fields are called.

For formats whose samples all have the same columns, each of a known kind: FFCV, MDS, LitData.
An image, the first that is called like one if any is, becomes ``image`` and a number that is called
like a class ``label``, as everywhere in fastdata; the rest keep their names as far as a field can
be called so.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.schema import RESERVED_NAMES, Field, ImageField, ScalarField

from ..fields import check_names, field_of, named_field

__all__ = ["Column", "choose_columns", "field_name", "guessed"]

_IMAGES = ("image", "images", "img", "jpg", "jpeg", "png", "picture", "pic", "pil", "rgb")
_LABELS = ("label", "labels", "class", "class_id", "class_index", "cls", "target", "targets", "y")


class Column(NamedTuple):
    """A column as the format has it.

    Attributes
    ----------
    name : str
        Empty where columns have only positions.
    field : Field or None
        None where it cannot be taken.
    refusal : str
        Why not.
    """

    name: str
    field: Field | None
    refusal: str = ""


def choose_columns(
    columns: Sequence[Column],
    wanted: Sequence[str],
    fields: Mapping[str, Field | str],
    channels: int,
    place: str,
) -> tuple[dict[str, Field], list[int]]:
    """Return the fields, and the number of the column that each is read from.

    Parameters
    ----------
    columns : sequence of Column
    wanted : sequence of str
        ``field=column``, or a column that is called like its field; all columns if empty.
    fields : mapping
        The user's word on what fields are.
    channels : int
    place : str
        For messages.

    Raises
    ------
    OptionError
        If a column that is wanted is not there or cannot be taken.  With no word on what is
        wanted, that is so for every column: nothing is left out in silence.
    SourceError
        If two columns have one name.
    """
    names = [column.name or str(number) for number, column in enumerate(columns)]
    listing = ", ".join(names[:30])
    if len(set(names)) < len(names):
        raise SourceError(f"{place}: two columns have the same name: {listing}")
    if wanted:
        chosen = {}
        for field, _, name in (entry.partition("=") for entry in wanted):
            if (name or field) not in names:
                raise OptionError(
                    f"{place}: no column {name or field!r} for the field {field!r}; there are "
                    f"{listing}. Name what is wanted: --option columns=image=COLUMN,label=COLUMN"
                )
            chosen[field] = names.index(name or field)
    else:
        chosen = {name: number for number, name in enumerate(_usual(columns))}
    check_names(fields, list(chosen))
    for number in chosen.values():
        if columns[number].field is None:
            able = [n for n, column in zip(names, columns, strict=True) if column.field]
            raise OptionError(
                f"{place}: the column {names[number]!r} {columns[number].refusal}. Name those to "
                f"take without it: --option columns={','.join(able) or 'image=COLUMN'}"
            )
    settled = {}
    for name, number in chosen.items():
        own = columns[number].field
        assert own is not None
        settled[name] = named_field(fields[name], channels) if name in fields else own
    return settled, list(chosen.values())


def _usual(columns: Sequence[Column]) -> list[str]:
    """Return a field name a column."""
    names = [field_name(column.name, f"column{number}") for number, column in enumerate(columns)]
    if "image" not in names:
        images = [n for n, c in enumerate(columns) if isinstance(c.field, ImageField)]
        usual = [n for n in images if columns[n].name.lower() in _IMAGES]
        if images:
            names[(usual or images)[0]] = "image"
    if "label" not in names:
        labels = [_is_label(column) for column in columns]
        if any(labels):
            names[labels.index(True)] = "label"
    for number, name in enumerate(names):  # e.g. of "a b" and "a-b"
        while name in names[:number]:
            name += "_"
        names[number] = name
    return names


def _is_label(column: Column) -> bool:
    field = column.field
    if not isinstance(field, ScalarField) or "int" not in field.dtype:
        return False
    return not column.name or column.name.lower() in _LABELS


def field_name(name: str, otherwise: str) -> str:
    """Return a column's name as far as a field can have it."""
    text = re.sub(r"\W", "_", name.strip(), flags=re.ASCII).lstrip("_0123456789")[:90] or otherwise
    return text + "_" if keyword.iskeyword(text) or text in RESERVED_NAMES else text


def guessed(values: Sequence[Any], channels: int) -> Field | str:
    """Return the field for arrays or bytes, from some samples', or why they cannot be stored."""
    try:
        return field_of(values, channels)
    except (OptionError, SourceError) as error:
        return f"cannot be stored: {error}"
