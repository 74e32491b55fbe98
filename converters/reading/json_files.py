"""JSON from files: small objects that describe a dataset, and large ones entry by entry.

For ``{"images": [{...}, ...], "annotations": [...]}``, one entry and a window of the file are in
memory.  Each entry comes with its place in bytes, so that it can be read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular, read_regular

__all__ = ["Member", "json_entries", "json_members", "read_object"]

# -- small files ------------------------------------------------------------------------


def read_object(path: Path, most_bytes: int = 64 << 20) -> dict[str, Any]:
    """Return the object that a file has."""
    size = path.stat().st_size
    if size > most_bytes:
        raise SourceError(f"{path}: {size:,} bytes of JSON; at most {most_bytes:,} are believed")
    try:
        found = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}). Mend or remove it.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path}: not a JSON object but a {type(found).__name__}")
    return found


# -- large files, entry by entry --------------------------------------------------------


_WINDOW = 1 << 15
_LARGEST = 64 << 20
"""Bytes that one entry may have: a crowd of COCO's has 100 kB."""

_SLACK = 32
"""More characters than any sign that can be cut in two: a number apart, ``\\ud83d\\ude00``."""

_SPACE = " \t\r\n"
_BOM = b"\xef\xbb\xbf"
_SCAN = json.JSONDecoder().raw_decode


class Member(NamedTuple):
    """A member of the object, or one entry of a member that is an array."""

    key: str  # of the member
    start: int  # start, end: where in the file it is, in bytes
    end: int
    value: Any


def json_members(path: Path) -> Iterator[Member]:
    """Yield the members of the object in a file, in the file's order."""
    with open(path, "rb", opener=open_regular) as file:
        window = _Window(path, file)
        window.expect("{")
        if window.next() == "}":
            return
        while True:
            key = window.value("").value
            if not isinstance(key, str):
                raise window.broken("expected a name")
            window.expect(":")
            if window.next() == "[":
                yield from _entries(window, key)
            else:
                yield window.value(key)
            if window.expect(",}") == "}":
                return


def json_entries(path: Path, largest: int) -> Iterator[Member]:
    """Yield the entries of the array in a file; each has at most `largest` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        yield from _entries(_Window(path, file, largest), "")


def _entries(window: _Window, key: str) -> Iterator[Member]:
    window.expect("[")
    if window.next() == "]":
        window.expect("]")
        return
    while True:
        yield window.value(key)
        if window.expect(",]") == "]":
            return


class _Window:
    """A piece of the file as text of one character a byte, whatever these bytes mean.

    JSON's own signs are ASCII, and no byte of a longer UTF-8 sequence looks like one.
    """

    def __init__(self, path: Path, file: IO[bytes], largest: int = 0) -> None:
        self._path, self._file, self._largest = path, file, largest or _LARGEST
        self._text = ""
        self._base = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        self._at = 0
        file.seek(self._base)

    def broken(self, reason: str, at: int | None = None) -> SourceError:
        """Return the error for the current place."""
        place = self._base + (self._at if at is None else at)
        return SourceError(f"{self._path}: no sound JSON at byte {place:,}: {reason}")

    def next(self) -> str:
        """Return the next character except white space; "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def expect(self, wanted: str) -> str:
        """Consume the next character, which must be a wanted one."""
        found = self.next()
        if not found or found not in wanted:
            shown = repr(found) if found else "the end of the file"
            raise self.broken(f"expected {' or '.join(wanted)}, found {shown}")
        self._at += 1
        return found

    def value(self, key: str) -> Member:
        """Return the value that begins here, and go behind it."""
        self.next()
        while True:
            try:
                value, end = _SCAN(self._text, self._at)
            except json.JSONDecodeError as error:
                # What fails at the end of the window may be merely cut off there.
                cut = "Unterminated string" in error.msg or error.pos + _SLACK > len(self._text)
                place = self._base + error.pos
                if not cut or not self._more():
                    raise self.broken(error.msg, place - self._base) from None
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits; "[[[[..."
                raise self.broken(f"{type(error).__name__}: {error}") from None
            else:
                if end < len(self._text) or not self._more():  # else a number may go on
                    break
        part = self._text[self._at : end]
        self._check(len(part))
        start = self._base + self._at
        if not part.isascii():
            try:
                value = json.loads(part.encode("latin-1").decode("utf-8"))
            except ValueError as error:
                raise self.broken(f"no UTF-8: {error}") from None
        self._at = end
        return Member(key, start, start + len(part), value)

    def _check(self, length: int) -> None:
        if length > self._largest:
            raise self.broken(f"an entry of more than {self._largest:,} bytes")

    def _more(self) -> bool:
        """Drop the parsed text, and read as much as is left, or a window."""
        rest = self._text[self._at :]
        self._check(len(rest))
        data = self._file.read(max(_WINDOW, len(rest)))
        if data:
            self._base += self._at
            self._text = rest + data.decode("latin-1")
            self._at = 0
        return bool(data)
