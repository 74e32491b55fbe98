"""How MDS encodes the values of a column: ``streaming/base/format/mds/encodings.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.errors import SourceError

from .raw_values import array_of, json_text, raw_image

__all__ = ["SCALARS", "array_type_of", "decode"]

SCALARS = {
    "int": "<i8",
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_VALUES = {8: "<u1", 9: "<i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
_VALUES |= {64: "<u8", 65: "<i8", 66: "<f8"}


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises
    ------
    ValueError
        If the bytes are none of that encoding.
    """
    kind, _, about = encoding.partition(":")
    if kind in ("jpeg", "png", "bytes"):
        return data
    if kind == "pil":
        return raw_image(data)
    if kind in SCALARS:
        return array_of(data, SCALARS[kind], (1,))[0]
    if kind == "json":
        return json_text(data)
    if kind == "ndarray":
        return _decode_array(about, data)
    text = data.decode()
    if kind == "str_int":
        return int(text)
    return float(text) if kind == "str_float" else text


def array_type_of(about: str) -> tuple[str, tuple[int, ...] | None]:
    """Return dtype and shape of ``ndarray:DTYPE:SHAPE``; empty or None where samples say them."""
    name, _, shape = about.partition(":")
    if name and name not in SCALARS:
        raise SourceError(f"an array of {name!r} cannot be read")
    try:
        lengths = tuple(int(length) for length in shape.split(",")) if shape else None
    except ValueError as error:
        raise SourceError(f"{shape[:40]!r} is no shape of an array") from error
    if lengths is not None and not all(0 < length < 2**31 for length in lengths):
        raise SourceError(f"{shape[:40]!r} is no shape of an array")
    return SCALARS.get(name, ""), lengths


def _decode_array(about: str, data: bytes) -> np.ndarray[Any, Any]:
    dtype, shape = array_type_of(about)
    at = 0
    if not dtype:
        if not data or data[0] not in _VALUES:
            raise SourceError(f"an array of the unknown dtype {data[:1]!r}")
        dtype, at = _VALUES[data[0]], 1
    if shape is None:
        head = data[at] if len(data) > at else 0
        width = 1 << head % 4
        lengths = data[at + 1 : at + 1 + (head >> 2) * width]
        if len(lengths) < (head >> 2) * width or not lengths:
            raise SourceError("an array without a shape")
        shape = tuple(np.frombuffer(lengths, f"<u{width}").tolist())
        at += 1 + len(lengths)
    return array_of(data[at:], dtype, shape)
