"""Which columns of a table of samples are taken, and what their fields are called.

For formats whose samples all have the same columns, each of a known kind: FFCV, MDS, LitData.
An image, the first that is called like one if any is, becomes ``image`` and a number that is called
like a class ``label``, as everywhere in fastdata; the rest keep their names as far as a field can
be called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField, ScalarField

from .field_names import IMAGES, LABELS, first_called, safe_name, unique_name
from .fields import field_of, resolve_fields
from .selection import COLUMNS, TableColumn, joined

__all__ = ["choose_columns", "guessed_column"]


def choose_columns(
    columns: Sequence[TableColumn],
    wanted: Sequence[str],
    fields: Mapping[str, Field | str],
    channels: int,
    place: str,
) -> tuple[dict[str, Field], list[int], list[str]]:
    """Return the fields, the number of the column that each is read from, and notes.

    `wanted` has the user's ``field=column``; empty takes all columns, and then all must be such as
    can be taken: nothing is left out in silence.  Columns without names are called 0, 1, ...
    Raises OptionError for a column that is not there or cannot be taken.
    """
    names = [column.name or str(number) for number, column in enumerate(columns)]
    if len(set(names)) < len(names):
        raise SourceError(f"{place}: two columns have the same name: {joined(names, 30)}")
    by_name = dict(zip(names, columns, strict=True))
    usual = zip(_usual(columns), names, strict=True)
    chosen = COLUMNS.parse(wanted) if wanted else dict(usual)
    COLUMNS.check(chosen, place, {name: column.refusal for name, column in by_name.items()})

    def own(name: str) -> Field:
        field = by_name[chosen[name]].field
        assert field is not None
        return field

    picked = [names.index(name) for name in chosen.values()]
    left = [name for number, name in enumerate(names) if number not in picked]
    return resolve_fields(chosen, fields, channels, own), picked, COLUMNS.left_out(left)


def _usual(columns: Sequence[TableColumn]) -> list[str]:
    """Return a field name a column."""
    names = [safe_name(column.name, f"column{number}") for number, column in enumerate(columns)]
    if "image" not in names:
        images = [n for n, c in enumerate(columns) if isinstance(c.field, ImageField)]
        usual = first_called((columns[n].name for n in images), IMAGES)
        if images:
            names[next((n for n in images if columns[n].name == usual), images[0])] = "image"
    if "label" not in names:
        numbers = [column.name for column in columns if _is_whole(column)]
        label = "" if "" in numbers else first_called(numbers, LABELS)
        if label is not None:
            at = next(n for n, c in enumerate(columns) if c.name == label and _is_whole(c))
            names[at] = "label"
    for number, name in enumerate(names):  # e.g. of "a b" and "a-b"
        names[number] = unique_name(name, names[:number])
    return names


def _is_whole(column: TableColumn) -> bool:
    return isinstance(column.field, ScalarField) and "int" in column.field.dtype


def guessed_column(
    name: str, values: Iterable[Any], channels: int, notes: list[str], *, leading: bool = False
) -> TableColumn:
    """Return a column with the field of some samples' values (`field_of`), or refused."""
    try:
        return TableColumn(name, field_of(list(values), channels, name, notes, leading=leading))
    except ValueError as error:
        return TableColumn(name, None, f"cannot be stored: {error}")
