"""Pickles of NumPy arrays and builtins, read without executing anything.

This knows how lists, dicts, numbers, text and NumPy's arrays are pickled, and nothing else.
What any other class or function is called with is never looked at: naming it is an error.

It is no ``pickle.Unpickler`` with a ``find_class``, for two reasons.  That allocates what a pickle
claims: a memo number of four bytes takes 64 GB (1 GB for a pickle of 9 bytes was measured), and
there is no hook before it.  And it reads byte strings, of which here only the place is noted, so
that the pixels of a large pickle cost no memory.

Source: CPython's ``Lib/pickletools.py``; ``_reconstruct`` and ``scalar`` of NumPy's
``core/multiarray``, ``_frombuffer`` of its ``core/numeric``, and the state of ``ndarray`` and
``dtype`` (``__reduce__``, ``__setstate__``).  Protocols 2 to 5, which is what ``pickle.dump(...,
2)`` of Python 2 and all of Python 3 write by default.
"""

from __future__ import annotations

import re
import struct
from typing import IO, Any, NamedTuple

from fastdata.errors import SourceError

__all__ = ["PickledArray", "Stored", "read_pickle"]

_SHORT = 64
"""Strings below this are read; names are, and pixels are not."""

_MARK = object()
_DTYPE = re.compile(r"[<>|=]?[uib][1248]")
_CORES = ("numpy.core", "numpy._core")
_NAMED = {
    **{
        (f"{core}.multiarray", name): name for core in _CORES for name in ("_reconstruct", "scalar")
    },
    **{(f"{core}.numeric", "_frombuffer"): "_frombuffer" for core in _CORES},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}


_INTS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_STRINGS = {
    b"U": (1, False), b"T": (4, False), b"C": (1, False), b"B": (4, False), b"\x8e": (8, False),
    b"\x96": (8, False), b"\x8c": (1, True), b"X": (4, True), b"\x8d": (8, True),
}  # fmt: skip
_PUTS = {b"q": 1, b"r": 4}
_GETS = {b"h": 1, b"j": 4}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"\x88": True, b"\x89": False, b")": (), b"(": _MARK}


def read_pickle(file: IO[bytes], base: int, size: int) -> Any:
    """Return what a pickle of at most `size` bytes holds, which `file` is at the start of.

    That is made of None, bool, int, float, str, bytes, list, tuple, dict, `Stored` and
    `PickledArray`; `base`, where the pickle begins in its own file, is added to offsets.  Raises
    SourceError if the pickle names anything else, is damaged, or ends early.
    """
    machine = _Machine(file, base, size)
    try:
        while machine.step():
            pass
        return machine.stack[-1]
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SourceError):
            raise SourceError(f"{error} (at byte {machine.at:,})") from None
        raise _damaged(f"{type(error).__name__} at byte {machine.at:,}") from error


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
            raise _damaged("it ends early")
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
            raise _damaged(f"it ends within {length:,} bytes")
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
                raise _damaged("a mark is missing")
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
            _of_type(stack[-1], list).extend(values)
        elif code in (b"s", b"u"):
            values = [stack.pop(), stack.pop()][::-1] if code == b"s" else self.since_mark()
            _of_type(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
        elif code == b"\x8a":
            push(int.from_bytes(self.take(self.number(1)), "little", signed=True))
        elif code == b"G":
            push(struct.unpack(">d", self.take(8))[0])
        elif code == b"c":
            push(_known(self.line(), self.line()))
        elif code == b"\x93":
            name, module = stack.pop(), stack.pop()
            push(_known(module, name))
        elif code == b"R":
            arguments, function = stack.pop(), stack.pop()
            push(_call(_of_type(function, _Called).name, _of_type(arguments, tuple)))
        elif code == b"b":
            state = _of_type(stack.pop(), tuple)
            _build(stack[-1], state)
        elif code == b"\x80":
            if not 2 <= self.number(1) <= 5:
                raise _damaged("its protocol is not 2, 3, 4 or 5")
        elif code == b"\x95":
            self.take(8)  # of a frame, whose length is of no use here
        elif code == b".":
            return False
        else:
            raise _damaged(f"the operation {code!r} is none that arrays and builtins need")
        return True


class Stored(NamedTuple):
    """A string in the file."""

    offset: int  # in bytes
    length: int
    text: bool  # whether it is text, in UTF-8


class _Called(NamedTuple):
    """One of the few functions and classes that are known."""

    name: str


class PickledArray:
    """An array of integers, of a dtype as NumPy calls it."""

    dtype = ""
    shape: tuple[int, ...] = ()
    data: Stored | bytes = b""  # in C order

    def build(self, shape: Any, dtype: Any, fortran: Any, data: Any) -> PickledArray:
        """Set what it is, as far as that is an array of integers in C order."""
        if not isinstance(dtype, _Dtype) or fortran not in (False, 0, "C"):
            raise _damaged("an array that is not of integers in C order")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise _damaged("the shape of an array is none")
        if not isinstance(data, (Stored, bytes)) or (isinstance(data, Stored) and data.text):
            raise _damaged(
                "an array's bytes are written as text; write it anew with a protocol from 3 on"
            )
        self.dtype, self.shape, self.data = dtype.name, shape, data
        return self


class _Dtype:
    def __init__(self, name: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise _damaged("the type of an array is not one of integers")
        self.name = text


def _damaged(what: str) -> SourceError:
    """Return the error for a pickle that is none of arrays and builtins."""
    return SourceError(f"cannot be read as a pickle of arrays: {what}")


def _known(module: Any, name: Any) -> _Called:
    """Return what a pickle names, if that is one of the few that arrays need.

    Raises SourceError if it is anything else.
    """
    if (module, name) not in _NAMED:
        shown = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "?"
        raise SourceError(
            f"the pickle names {shown[:100]}, and only NumPy arrays and builtins are read: nothing "
            "in it is executed"
        )
    return _Called(_NAMED[module, name])


def _call(name: str, given: tuple[Any, ...]) -> Any:
    """Return what would come of calling one of them."""
    if name == "_reconstruct":
        return PickledArray()
    if name == "dtype":
        return _Dtype(given[0])
    if name == "_frombuffer":
        data, dtype, shape, order = given
        return PickledArray().build(shape, dtype, order, data)
    if name == "encode":
        if isinstance(given[0], Stored):
            return given[0]  # which an array refuses
        return _of_type(given[0], str).encode("latin-1")
    if name == "scalar":
        dtype, data = _of_type(given[0], _Dtype).name, _of_type(given[1], bytes)
        order = "big" if dtype[0] == ">" else "little"
        return int.from_bytes(data, order, signed="i" in dtype)  # type: ignore[arg-type]
    raise _damaged(f"{name} is called")


def _build(value: Any, state: tuple[Any, ...]) -> None:
    """Give an array or its type the state that was pickled."""
    if isinstance(value, PickledArray):
        _, shape, dtype, fortran, data = state
        value.build(shape, dtype, fortran, data)
    elif isinstance(value, _Dtype):
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise _damaged("the type of an array has no byte order")
        value.name = order.replace("=", "<") + value.name.lstrip("<>|=")
    else:
        raise _damaged(f"a {type(value).__name__} has a state")


def _of_type(value: Any, kind: type) -> Any:
    """Return a value that is of a type; an error says that it is not."""
    if not isinstance(value, kind):
        raise _damaged(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value
