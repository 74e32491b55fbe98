"""Pickles of NumPy arrays and builtins, read without executing anything.

`pickletools` reads the operations of a pickle.  Only those are followed that lists, dicts, numbers,
text and NumPy's arrays need; naming any other class or function is an error.

Source: CPython's ``Lib/pickletools.py``; ``_reconstruct`` and ``scalar`` of NumPy's
``core/multiarray``, ``_frombuffer`` of its ``core/numeric``, and the state of ``ndarray`` and
``dtype`` (``__reduce__``, ``__setstate__``).  Protocols 2 to 5, which is what ``pickle.dump(...,
2)`` of Python 2 and all of Python 3 write by default.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastdata.errors import SourceError

from ..forward_reader import ForwardReader

__all__ = ["PickledArray", "Stored", "read_pickle"]

_SHORT = 64
"""Strings of bytes below this are names; others are arrays."""
_KEPT = 16 << 20
"""Longer ones, such as the pixels, are not kept, only their places."""
_AHEAD = 1 << 16
_MARK = object()


class Stored(NamedTuple):
    """A string of bytes in the file."""

    offset: int
    length: int
    data: bytes  # empty if it is long


class PickledArray:
    """An array of integers in C order, or only its type."""

    dtype = ""  # as NumPy calls it
    shape: tuple[int, ...] = ()
    data: Stored | bytes = b""


class _Piece:
    """A piece of a file; a pickle that claims more gets none, before any is allocated."""

    def __init__(self, front: ForwardReader, start: int, size: int) -> None:
        self._front, self.at, self._end = front, start, start + size
        self._ahead = io.BytesIO()

    def read(self, count: int) -> bytes:
        if count > self._end - self.at:
            return b""
        data = self._ahead.read(count)
        if (missing := count - len(data)) > 0:
            at = self.at + len(data)
            more, _ = self._front.read_some(at, max(missing, min(_AHEAD, self._end - at)))
            data, self._ahead = data + more[:missing], io.BytesIO(more[missing:])
        self.at += len(data)
        return data

    def readline(self) -> bytes:
        line = b""
        while len(line) < 200 and not line.endswith(b"\n") and (one := self.read(1)):
            line += one
        return line


def read_pickle(front: ForwardReader, start: int, size: int) -> Any:
    """Return the value in a pickle of `size` bytes that begins at `start` of a file.

    It is made of None, bool, int, float, str, bytes, list, tuple, dict, `Stored` and
    `PickledArray`.  Raises SourceError if the pickle names anything else, is damaged, or ends
    early.
    """
    file = _Piece(front, start, size)
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        argument: Any
        for operation, argument, _ in pickletools.genops(file):  # type: ignore[arg-type]
            name = operation.name
            if name == "STOP":
                return stack[-1]
            if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _PUSHED:
                stack.append(_PUSHED[name](argument, file.at))
            elif name in _MADE:
                stack.append(_MADE[name](*_taken(operation.stack_before, stack)))
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"the operation {name} is none that arrays and builtins need")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = str(error)[:200]
        early = "it ends early, or " * ("expected" in reason or "exhausted" in reason)
        raise SourceError(
            f"cannot be read as a pickle of arrays: {early}{reason!r} at byte {file.at - start:,}"
        ) from error
    raise SourceError("cannot be read as a pickle of arrays: it ends early")


def _taken(kinds: list[pickletools.StackObject], stack: list[Any]) -> list[Any]:
    """Remove the operands of an operation from the stack, and return them."""
    values: list[Any] = []
    count = len(kinds)
    if pickletools.stackslice in kinds:
        count = kinds.index(pickletools.markobject)
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
        values = stack[at + 1 :]
        del stack[at:]
    for _ in range(count):
        values.insert(0, stack.pop())
    return values


def _string(value: Any, end: int) -> bytes | Stored:
    data = value.encode("latin-1") if isinstance(value, str) else bytes(value)
    kept = data if len(data) <= _KEPT else b""
    return data if len(data) < _SHORT else Stored(end - len(data), len(data), kept)


def _extended(into: list[Any], *values: Any) -> list[Any]:
    list.extend(into, values)  # a TypeError if it is none
    return into


def _updated(into: dict[Any, Any], *values: Any) -> dict[Any, Any]:
    dict.update(into, zip(values[::2], values[1::2], strict=True))
    return into


def _known(module: Any, name: Any) -> Callable[..., Any]:
    """Return the stand-in of a function or class that a pickle names; ValueError if none."""
    named = f"{module}.{name}".replace("numpy._core", "numpy.core")[:100]
    if named not in _FUNCTIONS:
        raise ValueError(
            f"it names {named}, and only NumPy arrays and builtins are read: nothing in it is "
            "executed. Write arrays again with protocol 3 or later"
        )
    return _FUNCTIONS[named]


def _reduced(function: Any, arguments: Any) -> Any:
    if function not in _FUNCTIONS.values():
        raise ValueError("a value is called that is not a function")
    return function(*arguments)


def _dtype(name: Any, *_: Any) -> PickledArray:
    dtype = PickledArray()
    dtype.dtype = name.decode("latin-1") if isinstance(name, bytes) else str(name)
    if not re.fullmatch(r"[<>|=]?[uib][1248]", dtype.dtype):
        raise ValueError("the type of an array is not one of integers")
    return dtype


def _scalar(dtype: PickledArray, data: bytes) -> int:
    order = "big" if dtype.dtype[0] == ">" else "little"
    return int.from_bytes(data, order, signed="i" in dtype.dtype)  # type: ignore[arg-type]


def _built(value: PickledArray, state: tuple[Any, ...]) -> PickledArray:
    """Give an array or its type the state that was pickled."""
    if not value.dtype:
        _, shape, dtype, fortran, data = state
        if fortran not in (False, 0, "C") or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array that is not of integers in C order")
        if not isinstance(data, (Stored, bytes)):
            raise ValueError("the content of an array is not bytes")
        value.dtype, value.shape, value.data = dtype.dtype, tuple(shape), data
    else:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise ValueError("the type of an array has no byte order")
        value.dtype = order.replace("=", "<") + value.dtype.lstrip("<>|=")
    return value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: PickledArray(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": lambda data, dtype, shape, order: _built(
        PickledArray(), (1, shape, dtype, order, data)
    ),
    "numpy.ndarray": lambda *_: PickledArray(),
    "numpy.dtype": _dtype,
}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_STRINGS = ("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8")
_PUSHED: dict[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(_NUMBERS + _TEXTS, lambda argument, _: argument),
    **dict.fromkeys(_STRINGS, _string),
    "GLOBAL": lambda argument, _: _known(*argument.split(" ", 1)),
}
"""What operations push on the stack, from their argument and their end in the file."""
_MADE: dict[str, Callable[..., Any]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), lambda *values: values),
    **dict.fromkeys(("APPEND", "APPENDS"), _extended),
    **dict.fromkeys(("SETITEM", "SETITEMS"), _updated),
    "STACK_GLOBAL": _known,
    "REDUCE": _reduced,
    "BUILD": _built,
}
"""What operations make of values that they take from the stack."""
