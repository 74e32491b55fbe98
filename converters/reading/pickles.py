"""Pickles of NumPy arrays and builtins, read without executing anything.

`pickletools` parses the opcodes of a pickle.  Only the opcodes below are followed, those of dicts,
lists and tuples with numbers, text and arrays.  A call is recorded and never made.

Source: CPython's ``Lib/pickletools.py``, and ``ndarray.__reduce__`` of NumPy.  Protocols 2 to 4:
those of ``pickle.dump(..., 2)`` of Python 2 and of Python 3.0 to 3.13.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from types import SimpleNamespace as Call
from typing import Any, NamedTuple

from fastdata.errors import SourceError

__all__ = ["Place", "array_place", "read_pickle"]

_SHORT = 256
"""Byte strings from this length on are pixels: only their place is kept."""
_MOST_OPCODES = 1 << 21
"""CIFAR's largest batch has 200,000."""
_ARRAY = "numpy.core.multiarray._reconstruct"
_NAMES = (_ARRAY, "numpy.ndarray", "numpy.dtype")
_PUSHED = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_STRINGS = {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_OPERANDS = {
    "APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None,
    "TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3,
    "STACK_GLOBAL": 2, "REDUCE": 2, "BUILD": 2,
}  # fmt: skip
"""How many values an opcode takes from the stack; None: all behind the mark."""


class Place(NamedTuple):
    """A long byte string in the pickle."""

    offset: int
    length: int


def read_pickle(data: bytes) -> dict[str, Any]:
    """Return the dict in a pickle.

    It contains None, bool, int, float, str, list, tuple, dict, `Place`, and what `array_place`
    takes.  Keys are text, whichever Python wrote them, and so are short byte strings.  Raises
    SourceError if the pickle has anything else, is damaged, or ends early.
    """
    file = io.BytesIO(data)
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            name = opcode.name
            if count > _MOST_OPCODES:
                raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
            if name in _PUSHED:
                stack.append(argument)
            elif name in _STRINGS:
                stack.append(_string(argument, file.tell()))
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name == "GLOBAL":
                stack.append(_known(*str(argument).split(" ", 1)))
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _OPERANDS:
                number = _OPERANDS[name]
                start = marks.pop() if number is None else len(stack) - number
                values = stack[start:]
                del stack[start:]
                _apply(name, values, stack)
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise ValueError(f"arrays and builtins do not need the opcode {name}")
        if not isinstance(stack[-1], dict):
            raise ValueError(f"it holds a {type(stack[-1]).__name__}, not a dict")
        return stack[-1]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = str(error)[:200]
        early = "it ends early, or " * ("expected" in reason or "exhausted" in reason)
        raise SourceError(
            f"cannot be read as a pickle of arrays: {early}{reason!r} at byte {file.tell():,}"
        ) from error


def _apply(name: str, values: list[Any], stack: list[Any]) -> None:
    """Apply an opcode to its operands."""
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
    elif name.startswith("APPEND"):
        list.extend(stack[-1], values)
    elif name.startswith("SETITEM"):
        if not all(isinstance(key, str) for key in values[::2]):
            raise ValueError("a key is not text")
        dict.update(stack[-1], zip(values[::2], values[1::2], strict=True))
    elif name == "STACK_GLOBAL":
        stack.append(_known(*values))
    elif name == "REDUCE":
        stack.append(Call(function=values[0], arguments=values[1], state=None))
    else:  # BUILD
        stack.append(values[0])
        values[0].state = values[1]


def _string(value: str | bytes, end: int) -> str | Place:
    if len(value) >= _SHORT:
        return Place(end - len(value), len(value))
    data = value.encode("latin-1") if isinstance(value, str) else value
    return data.decode("utf-8", "replace")


def _known(module: str, name: str) -> str:
    """Return the name of a function or class of NumPy's arrays; ValueError for any other."""
    named = f"{module}.{name}".replace("numpy._core", "numpy.core")[:100]
    if named not in _NAMES:
        raise ValueError(
            f"it names {named}, and only NumPy arrays and builtins are read: nothing in it is "
            "executed. Write arrays again with protocol 3 or 4"
        )
    return named


def array_place(value: Any) -> tuple[tuple[int, ...], Place] | None:
    """Return shape and place of an array of uint8 in C order; None for anything else."""
    match value:
        case Call(function=name, state=(_, tuple(shape), Call(arguments=("u1", *_)), False, place)):
            known = name == _ARRAY and isinstance(place, Place)
            if known and all(type(length) is int and length >= 0 for length in shape):
                return shape, place
    return None
