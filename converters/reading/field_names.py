"""Names of a format's own as names of fields."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container

from fastdata.schema import RESERVED_NAMES

__all__ = ["safe_name", "unique_name"]

_LONGEST = 90
"""Of the hundred characters that a name may have; the rest is for `unique_name`."""


def safe_name(name: str, otherwise: str = "column") -> str:
    """Return a name as near to the given one as a field's can be.

    otherwise: what a name becomes of which nothing is left.
    """
    text = re.sub(r"\W", "_", name.strip(), flags=re.ASCII).lstrip("_0123456789")
    text = text[:_LONGEST] or otherwise
    return text + "_" if keyword.iskeyword(text) or text in RESERVED_NAMES else text


def unique_name(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the given one, or with underscores behind it."""
    while name in taken:
        name += "_"
    return name
