"""What somebody probably meant who wrote a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the known name that is nearest; "" if none is near."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1)
    return f" Did you mean {names[found[0]]!r}?" if found else ""
