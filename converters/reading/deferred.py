"""What workers read of a sample: the packing process sends them places in files.

* A span is a value's place: `FileSpan` an image file's, which the packer reads itself,
  `ValueSpan` an array's, text's or bytes'.
* `DeferredValues` are values of which some are spans.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..base import Deferred
from .spans import MAX_RECORD, FileSpan, read_at

__all__ = ["DeferredValues", "ValueSpan", "array_of", "json_text"]


class ValueSpan(NamedTuple):
    """A value that lies in a file as it is in memory; `dtype` and `shape` are of arrays."""

    path: str
    offset: int  # in bytes, as is the length
    length: int
    kind: Literal["array", "bytes", "json", "text"] = "array"
    dtype: str = ""  # with the byte order, as numpy.dtype.str
    shape: tuple[int, ...] = ()

    def read(self) -> Any:
        """Return the value; raises SourceError or ValueError if it is not what it should be."""
        data = read_at(self.path, self.offset, self.length)
        if self.kind == "array":
            return array_of(data, self.dtype, self.shape)
        if self.kind == "json":
            return json_text(data)
        return data.decode() if self.kind == "text" else data


class DeferredValues(Deferred):
    """Values that the worker reads where they are spans.

    `forms` has for each value what brings it into its form once it is read, or None.
    """

    def __init__(
        self, values: tuple[Any, ...], forms: Sequence[Callable[[Any], Any] | None] = ()
    ) -> None:
        self.values, self.forms = values, forms

    def load(self) -> tuple[Any, ...]:
        forms = self.forms or [None] * len(self.values)
        values = zip(map(_read, self.values), forms, strict=True)
        return tuple(value if form is None else form(value) for value, form in values)


def _read(value: Any) -> Any:
    # Image files stay spans: the packer reads them, and copies them as they are where it may.
    return value.read() if hasattr(value, "read") and type(value) is not FileSpan else value


def array_of(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the array that bytes are; raises SourceError if its shape has more or fewer."""
    # Python's integers: a shape out of a file may overflow NumPy's.
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if expected != len(data) or expected > MAX_RECORD:
        raise SourceError(
            f"an array of {dtype} with shape {shape} has {expected:,} bytes, not {len(data):,}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def json_text(data: bytes) -> str:
    """Return JSON as text, which a null byte ends; raises ValueError if it is no JSON."""
    text = data.partition(b"\0")[0].decode()
    try:
        json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    return text
