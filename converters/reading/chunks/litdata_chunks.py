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
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..compression import inflate_zstd
from ..deferred import array_of
from ..spans import MAX_RECORD, read_exactly
from .chunk_source import raw_image

__all__ = [
    "NUMBERS",
    "Frame",
    "FramesHead",
    "decode",
    "inflate_frame",
    "names_of",
    "read_frame",
    "read_frames_head",
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


class FramesHead(NamedTuple):
    """What stands before the frames."""

    samples: int
    frames: int
    starts: np.ndarray[Any, np.dtype[np.uint32]]  # samples + 1, uint32
    table: int  # where the frames are described, in bytes


class Frame(NamedTuple):
    """One frame: its samples, its place in the file, and the bytes that it holds."""

    first: int
    samples: int
    offset: int
    length: int
    holds: int


def read_frames_head(file: IO[bytes], path: str) -> FramesHead:
    """Read what stands before the frames.

    Raises SourceError if this is no such chunk, or it ends before its tables do.
    """
    magic, version, _, count, _, frames = _HEAD.unpack(read_exactly(file, _HEAD.size, path, 0))
    if magic != _MAGIC or version != 1:
        raise SourceError(f"{path}: no chunk of frames (LDFZ01, version 1), as its index says")
    table = _HEAD.size + 4 * (count + 1)
    size = os.fstat(file.fileno()).st_size
    if table + frames * _FRAME.size > size:
        raise SourceError(
            f"{path}: ends at byte {size:,}, within the tables of its {count:,} samples, which are "
            "all lost"
        )
    starts = np.frombuffer(read_exactly(file, 4 * (count + 1), path, _HEAD.size), "<u4")
    return FramesHead(count, frames, starts, table)


def read_frame(file: IO[bytes], path: str, head: FramesHead, number: int) -> Frame:
    """Read where a frame is."""
    at = head.table + number * _FRAME.size
    file.seek(at)
    return Frame(*_FRAME.unpack(read_exactly(file, _FRAME.size, path, at)))


def inflate_frame(file: IO[bytes], path: str, frame: Frame) -> bytes:
    """Return what a frame holds. Raises SourceError if it is damaged, or not in the file."""
    size = os.fstat(file.fileno()).st_size
    if frame.offset + frame.length > size:
        raise SourceError(
            f"{path}: a frame of {frame.length:,} bytes at byte {frame.offset:,}, in a file of "
            f"{size:,}: it is damaged or cut short"
        )
    file.seek(frame.offset)
    stored = read_exactly(file, frame.length, path, frame.offset)
    return inflate_zstd(stored, min(frame.holds, MAX_RECORD))
