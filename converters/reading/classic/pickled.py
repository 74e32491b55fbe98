"""Pickles of NumPy arrays and builtins, read without executing anything.

`pickletools` reads the operations of a pickle.  Only those are followed that lists, dicts, numbers,
text and NumPy's arrays need; what any other class or function is called with is never looked at:
naming it is an error.  Long strings, such as the pixels, are not kept: only their places are.

Source: CPython's ``Lib/pickletools.py``; ``_reconstruct`` and ``scalar`` of NumPy's
``core/multiarray``, ``_frombuffer`` of its ``core/numeric``, and the state of ``ndarray`` and
``dtype`` (``__reduce__``, ``__setstate__``).  Protocols 2 to 5, which is what ``pickle.dump(...,
2)`` of Python 2 and all of Python 3 write by default.
"""

from __future__ import annotations

import pickletools
import re
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
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_STRINGS = {
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Bounded:
    """A file of `size` bytes; a pickle that claims more gets none, before any is allocated."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left, self.at = file, size, 0

    def read(self, count: int) -> bytes:
        if count > self._left:
            return b""
        data = self._file.read(count)
        self._left, self.at = self._left - len(data), self.at + len(data)
        return data

    def readline(self) -> bytes:
        data = self._file.readline(min(self._left, 200))
        self._left, self.at = self._left - len(data), self.at + len(data)
        return data


def read_pickle(file: IO[bytes], base: int, size: int) -> Any:
    """Return what a pickle of at most `size` bytes holds, which `file` is at the start of.

    That is made of None, bool, int, float, str, bytes, list, tuple, dict, `Stored` and
    `PickledArray`; `base`, where the pickle begins in its own file, is added to offsets.  Raises
    SourceError if the pickle names anything else, is damaged, or ends early.
    """
    bounded = _Bounded(file, size)
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(bounded):  # type: ignore[arg-type]
            if operation.name == "STOP":
                return stack[-1]
            _follow(operation.name, argument, stack, memo, base + bounded.at)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SourceError):
            raise SourceError(f"{error} (at byte {bounded.at:,})") from None
        early = (
            "it ends early, or " if "expected" in str(error) or "exhausted" in str(error) else ""
        )
        raise _damaged(f"{early}{str(error)[:100]!r} at byte {bounded.at:,}") from error
    raise _damaged("it ends early")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any], end: int) -> None:
    """Do one operation; `end` is where it ends in the file."""
    push = stack.append
    if name in _VALUES:
        push(argument)
    elif name in _STRINGS:
        text = name.endswith(("UNICODE", "UNICODE8"))
        if isinstance(argument, str) and not text:  # Python 2's, as Latin-1
            argument = argument.encode("latin-1") if len(argument) < _SHORT else argument
        length = len(argument)
        push(argument if length < _SHORT else Stored(end - length, length, text))
    elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        push(memo[argument])
    elif name in _CONSTANTS:
        push(_CONSTANTS[name])
    elif name in _TUPLES:
        push(tuple(reversed([stack.pop() for _ in range(_TUPLES[name])])))
    elif name in ("EMPTY_DICT", "EMPTY_LIST"):
        push({} if name == "EMPTY_DICT" else [])
    elif name == "TUPLE":
        push(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        values = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        _of_type(stack[-1], list).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        one = name == "SETITEM"
        values = [stack.pop(), stack.pop()][::-1] if one else _since_mark(stack)
        _of_type(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
    elif name == "GLOBAL":
        push(_known(*argument.split(" ", 1)))
    elif name == "STACK_GLOBAL":
        called, module = stack.pop(), stack.pop()
        push(_known(module, called))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        push(_call(_of_type(function, _Called).name, _of_type(arguments, tuple)))
    elif name == "BUILD":
        state = _of_type(stack.pop(), tuple)
        _build(stack[-1], state)
    elif name == "PROTO":
        if not 2 <= argument <= 5:
            raise _damaged("its protocol is not 2, 3, 4 or 5")
    elif name != "FRAME":
        raise _damaged(f"the operation {name} is none that arrays and builtins need")


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise _damaged("a mark is missing")
    values = stack[at + 1 :]
    del stack[at:]
    return values


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
