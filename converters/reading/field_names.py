"""Names of a format's own as names of fields."""

from __future__ import annotations

import keyword
import re

from fastdata.schema import RESERVED_NAMES

__all__ = ["safe_name"]


def safe_name(name: str) -> str:
    """Return a name as near to the given one as a field's can be."""
    text = re.sub(r"\W", "_", name.strip(), flags=re.ASCII).lstrip("_0123456789")[:98] or "column"
    return text + "_" if keyword.iskeyword(text) or text in RESERVED_NAMES else text
