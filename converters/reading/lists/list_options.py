"""What the options of a list say, and what a list's columns become by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import OptionError
from fastdata.schema import Field, ImageField

from ..cells import read_schema
from ..field_names import safe_name
from ..selection import COLUMNS, listed

__all__ = ["Chosen", "choose", "known_fields", "label_separator"]

_SIGNS = {"bar": "|", "blank": " ", "semicolon": ";", "comma": ","}


class Chosen(NamedTuple):
    """Columns that are taken."""

    names: list[str]  # of their fields
    titles: list[str]  # what the list calls them
    indices: list[int]  # their numbers in the list


def choose(place: Path, titles: list[str], columns: Sequence[str], notes: list[str]) -> Chosen:
    """Return what the option ``columns=`` takes; all columns without it."""
    if not columns:
        labelled = any(title.strip().lower() == "label" for title in titles)
        names = [
            "label" if title.strip().lower() == "class" and not labelled else safe_name(title)
            for title in titles
        ]
        return Chosen(names, titles, list(range(len(titles))))
    chosen = COLUMNS.parse(columns)
    for field, title in chosen.items():
        if title not in titles:
            raise COLUMNS.missing(place, field, title, titles)
    notes += COLUMNS.left_out(title for title in titles if title not in chosen.values())
    taken = list(chosen.values())
    return Chosen(list(chosen), taken, [titles.index(title) for title in taken])


def known_fields(place: Path, names: list[str], channels: int) -> dict[str, Field]:
    """Return the fields of the columns that a schema beside the list tells."""
    schema = read_schema(place)
    known = schema.items() if schema is not None else ()
    fields = {name: field for name, field in known if name in names}
    if channels == 1:
        grey, colour = ImageField(channels=1), ImageField(channels=3)
        fields = {name: grey if field == colour else field for name, field in fields.items()}
    return fields


def label_separator(labels: str, names: Sequence[str], kinds: Sequence[set[type]] | None) -> str:
    """Return what stands between the labels of a sample; "" where it has one.

    kinds: of columns of JSON, where lists stand for themselves.
    """
    if labels == "columns":
        return "json"
    if labels:
        sign = _SIGNS.get(labels.strip(), labels)
        if sign not in _SIGNS.values():
            raise OptionError(f"labels={labels}: expected {', '.join(_SIGNS)} or columns")
        if not {"label", "labels"} & set(names):
            raise OptionError(
                f"labels={labels}: there is no column of labels; there are {listed(names)}. Say "
                "which: --option columns=image=COLUMN,labels=COLUMN"
            )
        return sign
    listed_kinds = zip(names, kinds or (), strict=False)
    return "json" * any(n in ("label", "labels") and list in kind for n, kind in listed_kinds)
