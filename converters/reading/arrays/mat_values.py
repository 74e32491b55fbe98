"""The variables of a ``.mat`` file that lists images: numbers, text, cells and structs.

For arrays of pictures see ``mat_file.py``.  What a variable has is read one entry behind
the other, so that a list of images takes no memory.  Nothing is executed: what is no value (an
object, a function) is None.  Source: "MAT-File Format", MathWorks, chapter 1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError

from .mat_file import CLASSES, STORED, Take, element_at, mat_places

__all__ = ["mat_values", "whole_number"]

_DEPTH = 8
_MOST_BYTES, _MOST_ENTRIES = 16 << 20, 1 << 16
"""Of one value, and of a cell or struct array inside another."""
_MATRIX = 14
_CELL, _STRUCT, _TEXT = 1, 2, 4
_ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}


def mat_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the variables of a file of level 5.

    Numbers are arrays as MATLAB has them, text is str; of a cell array the value is an iterator of
    its cells, of a struct array one of dicts; inside others these are lists.

    Raises SourceError if it is no such file, or is damaged; the iterators raise it too.
    """
    for take, at, _ in mat_places(path):
        shape, number, name, at = _head(path, take, at)
        yield name, _value(path, take, at, shape, number, 0)


def whole_number(value: Any, what: str) -> int:
    """Return the one whole number that a value has.

    Raises SourceError if it is none; `what` begins the message.
    """
    if not isinstance(value, (np.ndarray, np.number)) or value.size != 1:
        raise SourceError(f"{what}: expected a whole number, found {value!r:.60}")
    number = value.item()
    if not math.isfinite(number) or number != int(number) or abs(number) >= 1 << 31:
        raise SourceError(f"{what}: expected a whole number, found {number}")
    return int(number)


def _part(path: Path, take: Take, at: int, size: int) -> bytes:
    if size > _MOST_BYTES:
        raise SourceError(f"{path}: a value claims {size:,} bytes, too many for a list of images")
    return take(at, size)


def _head(path: Path, take: Take, at: int) -> tuple[tuple[int, ...], int, str, int]:
    """Return shape, kind and name of an array, and where what it has begins."""
    _, _, start, at = element_at(take, at + 8)
    number = take(start, 1)[0]
    _, size, start, at = element_at(take, at)
    shape = struct.unpack(f"<{size // 4}i", _part(path, take, start, size // 4 * 4))
    _, size, start, at = element_at(take, at)
    name = _part(path, take, start, size).decode("utf-8", "replace")
    if min(shape, default=-1) < 0:
        raise SourceError(f"{path}: an array {name!r:.80} of shape {shape[:8]}: it is damaged")
    return shape, number, name, at


def _value(path: Path, take: Take, at: int, shape: tuple[int, ...], number: int, depth: int) -> Any:
    count = math.prod(shape)
    if depth > _DEPTH or (depth and count > _MOST_ENTRIES):
        raise SourceError(f"{path}: arrays in arrays, too deep or too many: it is damaged")
    if number == _CELL:
        cells = (value for value, _ in _values(path, take, at, count, depth))
        return list(cells) if depth else cells
    if number == _STRUCT:
        structs = _structs(path, take, at, count, depth)
        return list(structs) if depth else structs
    if number != _TEXT and number not in CLASSES:
        return None
    kind, size, start, _ = element_at(take, at)
    content = _part(path, take, start, size)
    if number == _TEXT:
        try:
            return content.decode(_ENCODINGS[kind]) if kind in _ENCODINGS else None
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: text that is none: {error}") from error
    if kind not in STORED or count * np.dtype(STORED[kind]).itemsize != size:
        raise SourceError(f"{path}: an array of shape {shape} has {size:,} bytes: it is damaged")
    return np.frombuffer(content, STORED[kind]).reshape(shape[::-1]).T


def _structs(path: Path, take: Take, at: int, count: int, depth: int) -> Iterator[dict[str, Any]]:
    _, _, start, at = element_at(take, at)
    (width,) = struct.unpack("<i", take(start, 4))
    _, size, start, at = element_at(take, at)
    text = _part(path, take, start, size)
    if width < 1 or not text:
        raise SourceError(f"{path}: a struct array without fields")
    names = [text[k : k + width].split(b"\0")[0].decode("utf-8", "replace") for k in
             range(0, size, width)]  # fmt: skip
    for _ in range(count):
        row = {}
        for name, (value, following) in zip(
            names, _values(path, take, at, len(names), depth), strict=True
        ):
            row[name], at = value, following
        yield row


def _values(path: Path, take: Take, at: int, count: int, depth: int) -> Iterator[tuple[Any, int]]:
    """Yield arrays one behind the other, and where the next one is."""
    for _ in range(count):
        kind, size, _, following = element_at(take, at)
        if kind != _MATRIX:
            raise SourceError(f"{path}: an element of kind {kind} where an array should be")
        value = None
        if size:
            shape, number, _, inner = _head(path, take, at)
            value = _value(path, take, inner, shape, number, depth + 1)
        yield value, following
        at = following
