"""Restart intervals in JPEGs, and the index of the segments between them.

A JPEG with restart intervals is a row of independently coded *segments*, so
a crop can be cut out of its compressed bytes: no other decoder-side trick
saves as much (1.4-1.5x over decoding 256 px photographs whole).  Finding the
segments means looking at every byte, so their lengths are kept in the file, in
an APP9 segment that every decoder skips.

Layout of that segment, big-endian as all of JPEG: marker ``FF E9``, length
(u16), ``b"fastdata\\0"``, version (u8, 1), part number (u8, from 0), number of
parts (u8), then lengths in bytes (u16) of the coded segments, restart markers
not counted.  An index longer than a JPEG segment goes on in the next part.
"""

from __future__ import annotations

import struct

import numpy as np

from fastdata.codecs.jpeg import JpegHeader, read_jpeg_header
from fastdata.errors import ImageError

__all__ = [
    "INDEX_PREFIX_BYTES",
    "add_segment_index",
    "index_spans",
    "read_segment_index",
    "restart_interval",
]

_MARKER = b"\xff\xe9"
_NAME = b"fastdata\0"
_PREFIX = struct.Struct(">2sH9sBBB")
INDEX_PREFIX_BYTES = _PREFIX.size
"""Marker, length, name, version, part, parts: what stands before the lengths in a part."""

_LENGTHS_A_PART = (65535 - (_PREFIX.size - 2)) // 2


def restart_interval(mcus_in_a_row: int) -> int:
    """Return how many MCUs to put between restart markers.

    2, since it cuts columns finely at +2.3% of size; it must divide the MCUs
    of a row so that rows begin with a segment, else 3 or 1.
    """
    return next(n for n in (2, 3, 1) if mcus_in_a_row % n == 0)


def segment_lengths(data: bytes, header: JpegHeader) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Find the coded segments of a single-scan JPEG by their restart markers.

    Raises
    ------
    ImageError
        If there are not as many as size and interval ask for.
    """
    if not data.endswith(b"\xff\xd9"):
        raise ImageError("the JPEG does not end with EOI")
    coded = np.frombuffer(data, np.uint8, len(data) - 2 - header.scan_offset, header.scan_offset)
    escapes = np.flatnonzero(coded[:-1] == 0xFF)
    markers = escapes[(coded[escapes + 1] & 0xF8) == 0xD0]
    rows, columns = header.mcu_grid
    expected = -(-rows * columns // header.restart_interval)
    if len(markers) + 1 != expected:
        raise ImageError(f"the JPEG has {len(markers) + 1} restart segments, not {expected}")
    starts = np.concatenate(([0], markers + 2))
    ends = np.concatenate((markers, [len(coded)]))
    return ends - starts


def add_segment_index(data: bytes) -> bytes:
    """Return a baseline JPEG with restart intervals with its index put in.

    The index stands behind SOI and the JFIF segment, if there is one.
    """
    header = read_jpeg_header(data)
    found = segment_lengths(data, header)
    lengths = found.astype(">u2")
    if len(found) > 255 * _LENGTHS_A_PART or found.max() > 65535:
        return data  # cannot be written down; it is decoded whole
    at = 2
    if data[2:4] == b"\xff\xe0":
        at = 4 + int.from_bytes(data[4:6], "big")
    parts = -(-len(lengths) // _LENGTHS_A_PART)
    pieces = [data[:at]]
    for part in range(parts):
        body = lengths[part * _LENGTHS_A_PART : (part + 1) * _LENGTHS_A_PART].tobytes()
        size = _PREFIX.size - 2 + len(body)
        pieces.append(_PREFIX.pack(_MARKER, size, _NAME, 1, part, parts))
        pieces.append(body)
    pieces.append(data[at:])
    return b"".join(pieces)


def index_spans(data: bytes | memoryview) -> list[tuple[int, int]] | None:
    """Return where the APP9 segments of the index begin and end.

    Returns
    -------
    list of (int, int)
        From each marker to behind the segment, within `data`; the lengths stand
        `INDEX_PREFIX_BYTES` behind each marker.  None where there is no whole index of
        this version before the scan.
    """
    position, total = 2, 1
    spans: list[tuple[int, int]] = []
    while len(spans) < total:
        if position + INDEX_PREFIX_BYTES > len(data) or data[position] != 0xFF:
            return None
        marker, size, name, version, part, parts = _PREFIX.unpack_from(data, position)
        end = position + 2 + size
        if marker == _MARKER and name == _NAME:
            if (version, part) != (1, len(spans)) or part >= parts or size % 2 or end > len(data):
                return None
            spans.append((position, end))
            total = parts
        elif marker == b"\xff\xda":
            return None
        position = end
    return spans


def read_segment_index(
    data: bytes | memoryview,
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return where each coded segment begins, and where the last one ends.

    Returns
    -------
    numpy.ndarray of int64, shape (segments + 1,)
        Offsets into `data`; a segment ends 2 bytes (a restart marker) before
        the next begins, the last one at the last entry less 2.  None where
        the JPEG has no index, or one that does not fit it.

    Raises
    ------
    ImageError
        If there is an index but the JPEG breaks before its first scan.
    """
    spans = index_spans(data)
    if spans is None:
        return None
    body = b"".join(data[start + INDEX_PREFIX_BYTES : end] for start, end in spans)
    lengths = np.frombuffer(body, ">u2").astype(np.int64) + 2
    scan = read_jpeg_header(data).scan_offset
    starts: np.ndarray[tuple[int], np.dtype[np.int64]] = np.concatenate(([0], np.cumsum(lengths)))
    return starts + scan if starts[-1] + scan == len(data) else None
