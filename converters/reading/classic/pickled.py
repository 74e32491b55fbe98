"""Pickles of NumPy arrays and builtins, read without executing anything.

This knows how lists, dicts, numbers, text and NumPy's arrays are pickled, and nothing else.
What any other class or function is called with is never looked at: naming it is an error.
Byte strings are not read, only where they are is kept; so the pixels of a large pickle cost
no memory.  Source: CPython's ``Lib/pickletools.py`` and ``numpy/core/multiarray``'s
``_reconstruct``.  Protocols 2 to 5, which is what ``pickle.dump(..., 2)`` of Python 2 and
all of Python 3 write by default.
"""

from __future__ import annotations

import struct
from typing import IO, Any

from fastdata.errors import SourceError

from .pickledarray import Called, Stored, build, call, damaged, known, of_type

__all__ = ["read_pickle"]

_SHORT = 64
"""Strings below this are read; names are, and pixels are not."""

_MARK = object()


def read_pickle(file: IO[bytes], base: int, size: int) -> Any:
    """Return what a pickle holds.

    Parameters
    ----------
    file : file
        At the pickle's first byte; only read forward.
    base : int
        What is added to offsets: where in its own file the pickle begins.
    size : int
        How many bytes the pickle may have.

    Returns
    -------
    object
        Of None, bool, int, float, str, bytes, list, tuple, dict, `Stored` and `PickledArray`.

    Raises
    ------
    SourceError
        If it names anything else, is damaged, or ends early.
    """
    machine = _Machine(file, base, size)
    try:
        while machine.step():
            pass
        return machine.stack[-1]
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SourceError):
            raise SourceError(f"{error} (at byte {machine.at:,})") from None
        raise damaged(f"{type(error).__name__} at byte {machine.at:,}") from error


class _Machine:
    """The machine that a pickle is a program for."""

    def __init__(self, file: IO[bytes], base: int, size: int) -> None:
        self.file, self.base, self.size = file, base, size
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        data = self.file.read(count) if self.at + count <= self.size else b""
        if len(data) < count:
            raise damaged("it ends early")
        self.at += count
        return data

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def string(self, length: int, *, text: bool) -> Any:
        if length < _SHORT:
            data = self.take(length)
            return data.decode() if text else data
        stored = Stored(self.base + self.at, length, text)
        if self.at + length > self.size:
            raise damaged(f"it ends within {length:,} bytes")
        while length:
            length -= len(self.take(min(length, 1 << 16)))
        return stored

    def line(self) -> str:
        data = bytearray()
        while len(data) < 200 and (byte := self.take(1)) != b"\n":
            data += byte
        return data.decode("latin-1")

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise damaged("a mark is missing")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def step(self) -> bool:
        """Do one operation; False at the last."""
        code = self.take(1)
        push, stack = self.stack.append, self.stack
        if code in _INTS:
            count, signed = _INTS[code]
            push(int.from_bytes(self.take(count), "little", signed=signed))
        elif code in _STRINGS:
            count, text = _STRINGS[code]
            push(self.string(self.number(count), text=text))
        elif code in _PUTS:
            self.memo[self.number(_PUTS[code])] = stack[-1]
        elif code in _GETS:
            push(self.memo[self.number(_GETS[code])])
        elif code in _CONSTANTS:
            push(_CONSTANTS[code])
        elif code in _TUPLES:
            values = [stack.pop() for _ in range(_TUPLES[code])]
            push(tuple(reversed(values)))
        elif code == b"\x94":
            self.memo[len(self.memo)] = stack[-1]
        elif code == b"}":
            push({})
        elif code == b"]":
            push([])
        elif code == b"t":
            push(tuple(self.since_mark()))
        elif code in (b"a", b"e"):
            values = [stack.pop()] if code == b"a" else self.since_mark()
            of_type(stack[-1], list).extend(values)
        elif code in (b"s", b"u"):
            values = [stack.pop(), stack.pop()][::-1] if code == b"s" else self.since_mark()
            of_type(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
        elif code == b"\x8a":
            push(int.from_bytes(self.take(self.number(1)), "little", signed=True))
        elif code == b"G":
            push(struct.unpack(">d", self.take(8))[0])
        elif code == b"c":
            push(known(self.line(), self.line()))
        elif code == b"\x93":
            name, module = stack.pop(), stack.pop()
            push(known(module, name))
        elif code == b"R":
            arguments, function = stack.pop(), stack.pop()
            push(call(of_type(function, Called).name, of_type(arguments, tuple)))
        elif code == b"b":
            state = of_type(stack.pop(), tuple)
            build(stack[-1], state)
        elif code == b"\x80":
            if not 2 <= self.number(1) <= 5:
                raise damaged("its protocol is not 2, 3, 4 or 5")
        elif code == b"\x95":
            self.take(8)  # of a frame, whose length is of no use here
        elif code == b".":
            return False
        else:
            raise damaged(f"the operation {code!r} is none that arrays and builtins need")
        return True


_INTS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_STRINGS = {
    b"U": (1, False), b"T": (4, False), b"C": (1, False), b"B": (4, False), b"\x8e": (8, False),
    b"\x96": (8, False), b"\x8c": (1, True), b"X": (4, True), b"\x8d": (8, True),
}  # fmt: skip
_PUTS = {b"q": 1, b"r": 4}
_GETS = {b"h": 1, b"j": 4}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"\x88": True, b"\x89": False, b")": (), b"(": _MARK}
