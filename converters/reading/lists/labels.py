"""Labels in the cells of a list: one label, several labels with a separator, or a list."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastdata.errors import OptionError, SourceError

__all__ = ["labels_of", "sign_between", "sign_named"]

_LIST = "list"
"""The value of a sign if cells are lists, as JSON or Python writes them."""

_SIGNS = {"bar": "|", "comma": ",", "semicolon": ";", "blank": " ", "none": ""}


def sign_named(labels: str) -> str:
    """Return the sign that the option ``labels=`` names; "" for ``none``."""
    sign = _SIGNS.get(labels.strip(), labels)
    if sign not in _SIGNS.values():
        raise OptionError(f"labels={labels}: expected {', '.join(_SIGNS)}")
    return sign


def sign_between(place: str, name: str, cells: Sequence[str]) -> tuple[str, str]:
    """Return the sign between the labels of a column, "" if a cell is one label, and a note.

    A comma or semicolon separates labels if most of the parts are in other cells, too:
    ``tench, Tinca tinca`` is one name.

    cells: the different cells that are not empty.
    """
    if all(cell[:1] == "[" and cell[-1:] == "]" for cell in cells):
        first = next((cell for cell in cells if "{" in cell), None)
        if first is not None:
            raise SourceError(
                f"{place}: the cells of {name!r} are lists of objects, not labels: {first:.60}. "
                "Leave them out: --option columns=image=COLUMN"
            )
        return _LIST, f"the cells of {name!r} are lists of labels"
    for word, sign in _SIGNS.items():
        several = [cell for cell in cells if sign and sign in cell]
        if not several:
            continue
        count = Counter(part for cell in cells for part in set(labels_of(cell, sign)))
        parts = {part for cell in several for part in labels_of(cell, sign)}
        shared = 2 * sum(count[part] > 1 for part in parts) > len(parts)
        example = f"cells of {name!r} such as {several[0]!r:.60} are one"
        if sign == " ":  # words of one name, more likely than not
            note = f"{example} class each (--option labels=blank: a class for each word)"
            return "", note if shared else ""
        if sign == "|" or shared:
            return sign, (
                f"the cells of {name!r} have several labels, with {sign!r} between them (--option "
                "labels=none: each combination is a class)"
            )
        return "", (
            f"{example} label each (--option labels={word}: labels with {sign!r} between them)"
        )
    return "", ""


def labels_of(cell: str, sign: str) -> list[str]:
    """Return the labels in a cell; a blank stands for any white space."""
    if sign == _LIST:
        parts = _listed(cell) if cell.strip() else []
    else:
        parts = cell.split() if sign == " " else cell.split(sign)
    return [part.strip() for part in map(str, parts) if part.strip()]


_ENTRY = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\[\],'"\s]+)""")


def _listed(cell: str) -> Sequence[Any]:
    """Return the entries of a list as JSON or Python writes it."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(cell)
        return found if isinstance(found, list) else [found]
    return ["".join(entry) for entry in _ENTRY.findall(cell)]
