"""Text of data that is shown: in a terminal, or on a page."""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: object) -> str:
    r"""Return text that moves no cursor and turns no line around: such characters as escapes.

    Lone surrogates, of file names that are no UTF-8, are escaped too: the result can always be
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
