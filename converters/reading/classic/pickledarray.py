"""The arrays in a pickle: what their functions are called with, without calling these.

Source: ``_reconstruct`` and ``scalar`` of NumPy's ``core/multiarray``, ``_frombuffer`` of its
``core/numeric``, and the state of ``ndarray`` and ``dtype`` (``__reduce__``, ``__setstate__``).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fastdata.errors import SourceError

__all__ = ["Called", "PickledArray", "Stored", "build", "call", "damaged", "known", "of_type"]

_DTYPE = re.compile(r"[<>|=]?[uib][1248]")
_CORES = ("numpy.core", "numpy._core")
_KNOWN = {
    **{
        (f"{core}.multiarray", name): name for core in _CORES for name in ("_reconstruct", "scalar")
    },
    **{(f"{core}.numeric", "_frombuffer"): "_frombuffer" for core in _CORES},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}


class Stored(NamedTuple):
    """A string in the file.

    Attributes
    ----------
    offset, length : int
        In bytes.
    text : bool
        Whether it is text, in UTF-8.
    """

    offset: int
    length: int
    text: bool


class Called(NamedTuple):
    """One of the few functions and classes that are known."""

    name: str


class PickledArray:
    """An array of integers.

    Attributes
    ----------
    dtype : str
        As NumPy calls it.
    shape : tuple of int
    data : Stored or bytes
        In C order.
    """

    dtype = ""
    shape: tuple[int, ...] = ()
    data: Stored | bytes = b""

    def build(self, shape: Any, dtype: Any, fortran: Any, data: Any) -> PickledArray:
        """Set what it is, as far as that is an array of integers in C order."""
        if not isinstance(dtype, _Dtype) or fortran not in (False, 0, "C"):
            raise damaged("an array that is not of integers in C order")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise damaged("the shape of an array is none")
        if not isinstance(data, (Stored, bytes)) or (isinstance(data, Stored) and data.text):
            raise damaged(
                "an array's bytes are written as text; write it anew with a protocol from 3 on"
            )
        self.dtype, self.shape, self.data = dtype.name, shape, data
        return self


class _Dtype:
    def __init__(self, name: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise damaged("the type of an array is not one of integers")
        self.name = text


def damaged(what: str) -> SourceError:
    """Return the error for a pickle that is none of arrays and builtins."""
    return SourceError(f"cannot be read as a pickle of arrays: {what}")


def known(module: Any, name: Any) -> Called:
    """Return what a pickle names, if that is one of the few that arrays need.

    Raises
    ------
    SourceError
        If it is anything else.
    """
    if (module, name) not in _KNOWN:
        shown = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "?"
        raise SourceError(
            f"the pickle names {shown[:100]}, and only NumPy arrays and builtins are read: nothing "
            "in it is executed"
        )
    return Called(_KNOWN[module, name])


def call(name: str, given: tuple[Any, ...]) -> Any:
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
        return of_type(given[0], str).encode("latin-1")
    if name == "scalar":
        dtype, data = of_type(given[0], _Dtype).name, of_type(given[1], bytes)
        order = "big" if dtype[0] == ">" else "little"
        return int.from_bytes(data, order, signed="i" in dtype)  # type: ignore[arg-type]
    raise damaged(f"{name} is called")


def build(value: Any, state: tuple[Any, ...]) -> None:
    """Give an array or its type the state that was pickled."""
    if isinstance(value, PickledArray):
        _, shape, dtype, fortran, data = state
        value.build(shape, dtype, fortran, data)
    elif isinstance(value, _Dtype):
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise damaged("the type of an array has no byte order")
        value.name = order.replace("=", "<") + value.name.lstrip("<>|=")
    else:
        raise damaged(f"a {type(value).__name__} has a state")


def of_type(value: Any, kind: type) -> Any:
    """Return a value that is of a type; an error says that it is not."""
    if not isinstance(value, kind):
        raise damaged(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value
