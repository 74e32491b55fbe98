"""Text that is safe to show, in a terminal or on a page, whatever it comes from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

__all__ = ["printable", "printable_lines", "safe_repr"]


def printable(text: object) -> str:
    r"""Return text without control characters: those and ones that turn the direction, as escapes.

    Lone surrogates, of file names that are not UTF-8, are escaped too: the result can always be
    encoded.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        character
        if character.isprintable()
        else " "
        if character.isspace()
        else character.encode("ascii", "backslashreplace").decode()
        if ord(character) > 127
        else f"\\x{ord(character):02x}"
        for character in shown
    )


def printable_lines(text: object) -> str:
    """Return text of several lines, each of them `printable`."""
    return "\n".join(map(printable, str(text).split("\n")))


def safe_repr(thing: Any, describe: Callable[[Any], str] = repr) -> str:
    """Return ``describe(thing)``, or the name of its type where that raises, as users' code may."""
    try:
        return describe(thing)
    except Exception:
        return f"a {type(thing).__name__}"


def _with_printable_arguments(record: logging.LogRecord) -> bool:
    """Make what a message of the log shows of names and errors printable."""
    kinds = (str, PurePath, BaseException)
    if isinstance(record.args, tuple):
        record.args = tuple(
            printable_lines(one) if isinstance(one, kinds) else one for one in record.args
        )
    return True


logging.getLogger("fastdata").addFilter(_with_printable_arguments)
