"""What LitData's chunks hold: the columns of samples, and frames of Zstandard around samples.

A chunk of frames (``LDFZ``) is:

==============  ==========================================================
8 bytes         ``LDFZ01`` and two null bytes
16 bytes        version (2), flags (2), samples n (4), samples a frame (4), frames m (4)
4 * (n + 1)     where each sample starts, in what all frames hold
24 * m          each frame: first sample (4), samples (4), place in the file (8), length (4),
                length of what it holds (4)
frames          one behind the other
==============  ==========================================================

Sources: ``serializers.py`` and ``framed_zstd.py`` of ``litdata/streaming/``, 0.2.76, and
``utilities/_pytree.py``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError

from ...base import Reject, reject_reason
from ...scan import Found, Input, Row
from ..compression import inflate_zstd
from ..deferred import array_of
from ..spans import MAX_RECORD
from .chunk_source import ChunkIndex, raw_image

__all__ = [
    "NUMBERS",
    "decode",
    "frame_rows",
    "names_of",
]

NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
_NUMPY = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_NUMPY_BOOL = 13
# The same type stands under two names there, e.g. torch.float32 and torch.float.
_TORCH = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1"}
_TORCH |= {13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 19: "?", 20: "<u2"}


_MAGIC = b"LDFZ01\0\0"
_HEAD = struct.Struct("<8sHHIII")
_FRAME = struct.Struct("<IIQII")


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises ValueError if the bytes are none of that serialiser.
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


def frame_rows(index: ChunkIndex, input: Input, start: int, stop: int | None) -> Iterator[Found]:
    """Yield the samples of a chunk of frames, in memory."""
    magic, version, _, count, _, frames = _HEAD.unpack(input.exactly(0, _HEAD.size))
    if magic != _MAGIC or version != 1:
        raise SourceError(f"{input.path}: no chunk of frames (LDFZ01, version 1)")
    table = _HEAD.size + 4 * (count + 1)
    size = input.size or 0
    if table + frames * _FRAME.size > size:
        raise SourceError(
            f"{input.path}: ends at byte {size:,}, within the tables of its {count:,} samples, "
            "which are all lost"
        )
    index.check_count(input.number, count)
    places = np.frombuffer(input.exactly(_HEAD.size, 4 * (count + 1)), "<u4")
    done = 0
    for number in range(frames):
        at = input.exactly(table + number * _FRAME.size, _FRAME.size)
        first, samples, offset, length, holds = _FRAME.unpack(at)
        if first != done or not 0 < samples <= count - done:
            break
        done += samples
        starts = places[first : done + 1].tolist()
        begins = starts[0]
        try:
            data = inflate_zstd(input.exactly(offset, length), min(holds, MAX_RECORD))
        except SourceError as error:
            reason = reject_reason(input.key(begins), error)
            lost = f"{reason}; the {samples:,} samples of a frame are lost"
            yield begins, begins, Reject(input.key(begins), lost)
            continue
        for begin, end in pairwise(starts):
            if begins <= begin <= end <= begins + len(data):
                piece = data[begin - begins : end - begins]
                yield begin, end, Row(input.key(begin), (piece,))
            else:
                reason = f"the sample is at bytes {begin:,} to {end:,}, outside its frame"
                yield begin, begin, Reject(input.key(begin), f"{reason}: it is damaged")
    if done < count:
        reason = f"{input.path}: damaged frames; {count - done:,} samples are lost"
        yield 0, 0, Reject(input.key(0), reason)
