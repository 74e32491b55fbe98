"""Values that lie in a file as they are in memory, for the worker to read.

Where a sample's values are only images in files and numbers, the sample says so and costs a
worker nothing more.  Else it is `Pieces`, in which a `Piece` stands for what must be read and
given a form first: pixels, an array, text, bytes.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from fastdata.errors import SourceError

from ...base import Deferred
from ..spans import MAX_RECORD, FileSpan

__all__ = ["Piece", "Pieces", "array_of", "json_text", "raw_image"]

_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 3, "HSV": 3, "LAB": 3, "YCbCr": 3}
_PIXEL_BYTES |= {"RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}
_RAW_HEAD = 12


class Piece(NamedTuple):
    """A value that the worker reads.

    Attributes
    ----------
    span : FileSpan
    kind : {"bytes", "json", "array"}
    dtype : str
    shape : tuple of int
        Of an array, H x W x 3 of pixels.
    """

    span: FileSpan
    kind: Literal["bytes", "json", "array"]
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def load(self) -> Any:
        """Read the value.

        Raises
        ------
        SourceError, ValueError
            If the file ends before, or it is not what it should be.
        """
        data = self.span.read()
        if self.kind == "array":
            return array_of(data, self.dtype, self.shape)
        return json_text(data) if self.kind == "json" else data


class Pieces(Deferred):
    """The values of a sample, some of them `Piece`."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def load(self) -> tuple[Any, ...]:
        """Read the pieces."""
        return tuple(v.load() if isinstance(v, Piece) else v for v in self.values)


def array_of(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of bytes that are one.

    Raises
    ------
    SourceError
        If they are more or fewer than its shape says.
    """
    # Python's integers: a shape out of a file may overflow NumPy's.
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if expected != len(data) or expected > MAX_RECORD:
        raise SourceError(
            f"an array of {dtype} with shape {shape} has {expected:,} bytes, not {len(data):,}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def json_text(data: bytes) -> str:
    """Return JSON as text, once it is known to be JSON; a null byte ends it.

    Raises
    ------
    ValueError
        If it is not.
    """
    text = data.partition(b"\0")[0].decode()
    try:
        json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    return text


def raw_image(data: bytes) -> Image.Image:
    """Return the image whose width, height and mode stand before its pixels.

    Three numbers of 4 bytes, the last the length of the mode's name (``RGB``); the name;
    the pixels.  So MDS and LitData write images of PIL's that are no files.

    Raises
    ------
    SourceError
        If the pixels are more or fewer than the head says, or the mode is not known.
    """
    if len(data) < _RAW_HEAD:
        raise SourceError(f"an image of {len(data)} bytes has no head")
    width, height, named = struct.unpack_from("<3I", data)
    mode = data[_RAW_HEAD : _RAW_HEAD + named].decode("ascii", "replace")
    pixels = data[_RAW_HEAD + named :]
    if mode == "1":
        expected = (width + 7) // 8 * height
    elif mode in _PIXEL_BYTES:
        expected = width * height * _PIXEL_BYTES[mode]
    else:
        raise SourceError(f"an image of PIL's mode {mode[:20]!r} cannot be read")
    if expected != len(pixels) or not expected:
        raise SourceError(
            f"an image of {width} x {height} {mode} has {expected:,} bytes, not {len(pixels):,}"
        )
    return Image.frombytes(mode, (width, height), pixels)
