"""Columns of LitData's samples: what they are called, and what their bytes hold.

Sources: ``litdata/streaming/serializers.py`` and ``utilities/_pytree.py``, 0.2.76.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError

from .raw_values import array_of, raw_image

__all__ = ["NUMBERS", "decode", "names_of"]

NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
_NUMPY = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_NUMPY_BOOL = 13
# The same type stands under two names there, e.g. torch.float32 and torch.float.
_TORCH = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1"}
_TORCH |= {13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 19: "?", 20: "<u2"}


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises
    ------
    ValueError
        If the bytes are none of that serialiser.
    """
    kind, _, about = encoding.partition(":")
    if kind in NUMBERS:
        return array_of(data, NUMBERS[kind], (1,))[0]
    if kind == "pil":
        return raw_image(data)
    if kind in ("str", "text"):
        return data.decode()
    if kind == "numpy":
        return _array(data, "<", _numpy_type)
    if kind == "tensor":
        # Big-endian; older versions wrote it like numpy's.
        order = "<" if len(data) >= 8 and int.from_bytes(data[4:8], "big") > 64 else ">"
        return _array(data, order, _torch_type)
    if kind in ("no_header_numpy", "no_header_tensor"):
        number = int(about) if about.isdecimal() else -1
        dtype = (_numpy_type if kind == "no_header_numpy" else _torch_type)(number)
        return array_of(data, dtype, (len(data) // np.dtype(dtype).itemsize,))
    return data


def _array(data: bytes, order: str, type_of: Any) -> np.ndarray[Any, Any]:
    """Return an array before which its type, its dimensions and its shape stand."""
    if len(data) < 8:
        raise SourceError(f"an array of {len(data)} bytes has no head")
    number, rank = struct.unpack_from(f"{order}2I", data)
    if rank > 64 or len(data) < 8 + 4 * rank:
        raise SourceError(f"an array of {len(data)} bytes claims {rank} dimensions")
    shape = struct.unpack_from(f"{order}{rank}I", data, 8)
    return array_of(data[8 + 4 * rank :], type_of(number), shape)


def _numpy_type(number: int) -> str:
    if number == _NUMPY_BOOL:
        return "?"
    if not 0 <= number < len(_NUMPY):
        raise SourceError(f"an array of LitData's dtype number {number} cannot be read")
    return _NUMPY[number]


def _torch_type(number: int) -> str:
    if number not in _TORCH:
        raise SourceError(f"a tensor of LitData's dtype number {number} cannot be read")
    return _TORCH[number]


def names_of(spec: Any, count: int, index: Path) -> list[str]:
    """Return the names of columns from the tree that samples are."""
    if spec is None:
        return [""] * count
    try:
        found = list(_leaves(json.loads(spec)[1], ()))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"{index}: data_spec cannot be read: {error!r}") from error
    if len(found) != count:
        raise SourceError(f"{index}: data_spec has {len(found)} columns and data_format {count}")
    return found


def _leaves(node: dict[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    children = node["children_spec"]
    if node["type"] is None:
        # Positions alone are no names: columns of a tuple are named by what they are.
        yield ".".join(above) if any(not part.isdecimal() for part in above) else ""
        return
    named = json.loads(node["context"]) if "dict" in node["type"].lower() else None
    keys = [str(key) for key in named] if isinstance(named, list) else map(str, range(10**6))
    for key, child in zip(keys, children, strict=False):
        yield from _leaves(child, (*above, key))
