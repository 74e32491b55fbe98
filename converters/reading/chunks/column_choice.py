"""Which columns of a table of samples are taken, and what their fields are called.

For formats whose samples all have the same columns, each of a known kind: FFCV, MDS, LitData.
An image, the first that is called like one if any is, becomes ``image`` and a number that is called
like a class ``label``, as everywhere in fastdata; the rest keep their names as far as a field can
be called so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField

from ..field_names import IMAGES, LABELS, first_called, safe_name, unique_name
from ..fields import field_of, settle_fields
from ..selection import COLUMNS, listed

__all__ = ["Column", "choose_columns", "guessed"]


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
    if len(set(names)) < len(names):
        raise SourceError(f"{place}: two columns have the same name: {listed(names, 30)}")
    if wanted:
        chosen = {}
        for field, name in COLUMNS.parse(wanted).items():
            if name not in names:
                raise COLUMNS.missing(place, field, name, names)
            chosen[field] = names.index(name)
    else:
        chosen = {name: number for number, name in enumerate(_usual(columns))}
    for number in chosen.values():
        if columns[number].field is None:
            able = [name for name, column in zip(names, columns, strict=True) if column.field]
            raise COLUMNS.refused(place, names[number], columns[number].refusal, able)

    def own(name: str) -> Field:
        field = columns[chosen[name]].field
        assert field is not None
        return field

    return settle_fields(chosen, fields, channels, own), list(chosen.values())


def _usual(columns: Sequence[Column]) -> list[str]:
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


def _is_whole(column: Column) -> bool:
    return isinstance(column.field, ScalarField) and "int" in column.field.dtype


def guessed(values: Sequence[Any], channels: int) -> Field | str:
    """Return the field for arrays or bytes, from some samples', or why they cannot be stored."""
    try:
        return field_of(values, channels)
    except (OptionError, SourceError) as error:
        return f"cannot be stored: {error}"
