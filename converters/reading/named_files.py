"""Files whose names come from another system: ``images\\0.jpg``, or another form of accents."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

from fastdata.errors import SourceError

from .locations import path_inside

__all__ = ["find_named"]


def find_named(folder: Path | str, name: object) -> str:
    """Return the path of a file that data names, relative to a folder.

    The name is taken literally if there is such a file.  Else backslashes separate folders, and
    letters with accents are composed (NFC) or decomposed (NFD), as a Mac stores them.  Without any
    such file it is the literal path.  Raises SourceError if the name leads outside of the folder.
    """
    literal = path_inside(folder, name)
    assert isinstance(name, str)
    if (name.isascii() and "\\" not in name) or os.path.lexists(literal):
        return literal
    for text in dict.fromkeys((name, name.replace("\\", "/"))):
        try:
            path_inside(folder, text)
        except SourceError:  # only the literal name stays inside
            continue
        found = os.fspath(folder)
        for part in text.split("/"):
            forms = (part, *(unicodedata.normalize(form, part) for form in ("NFC", "NFD")))
            paths = (os.path.join(found, form) for form in forms)
            found = next(filter(os.path.lexists, paths), "")
            if not found:
                break
        else:
            return found
    return literal
