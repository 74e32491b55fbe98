"""Frames of Zstandard inside a chunk, each some samples: LitData's ``LDFZ``.

==============  ==========================================================
8 bytes         ``LDFZ01`` and two null bytes
16 bytes        version (2), flags (2), samples n (4), samples a frame (4), frames m (4)
4 * (n + 1)     where each sample starts, in what all frames hold
24 * m          each frame: first sample (4), samples (4), place in the file (8), length (4),
                length of what it holds (4)
frames          one behind the other
==============  ==========================================================

Source: ``litdata/streaming/framed_zstd.py``, 0.2.76.
"""

from __future__ import annotations

import os
import struct
from typing import IO, Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..spans import MAX_RECORD, read_exactly
from ..zstd import inflate_zstd

__all__ = ["Frame", "FramesHead", "inflate_frame", "read_frame", "read_frames_head"]

_MAGIC = b"LDFZ01\0\0"
_HEAD = struct.Struct("<8sHHIII")
_FRAME = struct.Struct("<IIQII")


class FramesHead(NamedTuple):
    """What stands before the frames.

    Attributes
    ----------
    samples, frames : int
    starts : numpy.ndarray
        samples + 1, uint32.
    table : int
        Where the frames are described, in bytes.
    """

    samples: int
    frames: int
    starts: np.ndarray[Any, np.dtype[np.uint32]]
    table: int


class Frame(NamedTuple):
    """One frame: its samples, its place in the file, and the bytes that it holds."""

    first: int
    samples: int
    offset: int
    length: int
    holds: int


def read_frames_head(file: IO[bytes], path: str) -> FramesHead:
    """Read what stands before the frames.

    Raises
    ------
    SourceError
        If this is no such chunk, or it ends before its tables do.
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
    """Return what a frame holds.

    Raises
    ------
    SourceError
        If it is damaged, or not in the file.
    """
    size = os.fstat(file.fileno()).st_size
    if frame.offset + frame.length > size:
        raise SourceError(
            f"{path}: a frame of {frame.length:,} bytes at byte {frame.offset:,}, in a file of "
            f"{size:,}: it is damaged or cut short"
        )
    file.seek(frame.offset)
    stored = read_exactly(file, frame.length, path, frame.offset)
    return inflate_zstd(stored, min(frame.holds, MAX_RECORD))
