"""Restart segments of JPEGs: their index, and cutting a window out of the compressed bytes.

A JPEG with restart intervals is a row of independently coded *segments*, so
a crop can be cut out of its compressed bytes: no other decoder-side trick
saves as much (1.4-1.5x over decoding 256 px photographs whole).  Finding the
segments means looking at every byte, so their lengths are kept in the file, in
an APP9 segment that every decoder skips.

Layout of that segment, big-endian as all of JPEG: marker ``FF E9``, length
(u16), ``b"fastdata\\0"``, version (u8, 1), part number (u8, from 0), number of
parts (u8), then lengths in bytes (u16) of the coded segments, restart markers
not counted.  An index longer than a JPEG segment goes on in the next part.

A cut is a JPEG again, for any decoder: the
header with another size, the segments that cover the window, restart markers
counted anew.  Decoding it gives the same pixels as decoding the whole and
cropping, bit for bit: where chroma is subsampled, decoders look one chroma
sample to each side when they enlarge it, so there the window is widened by a
pixel before it is rounded out to segments.

Cutting runs once a sample under the interpreter's lock, so headers are parsed
once for all images that share one, and what there is to do for each segment
is done by NumPy.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.jpeg import JpegHeader, read_jpeg_header
from fastdata.errors import ImageError

__all__ = [
    "INDEX_PREFIX_BYTES",
    "CutJpeg",
    "add_segment_index",
    "cut_jpeg",
    "has_segments",
    "index_spans",
    "restart_interval",
]

_Numbers: TypeAlias = NDArray[np.uint16]
_Sizes: TypeAlias = NDArray[np.int64]

_INDEX_MARKER = b"\xff\xe9"
_NAME = b"fastdata\0"
_PREFIX = struct.Struct(">2sH9sBBB")
INDEX_PREFIX_BYTES = _PREFIX.size
"""Marker, length, name, version, part, parts: what is before the lengths in a part."""

_LENGTHS_A_PART = (65535 - (_PREFIX.size - 2)) // 2

_MAX_HEADER_BYTES = 4096
"""fastdata's headers have about 650 bytes; a longer one is not worth remembering."""

_EOI = b"\xff\xd9"
_SIZE = struct.Struct(">HH")

_MARKERS = (0xFFD0 + (np.arange(1 << 16) - 1) % 8).astype(">u2")
"""The restart marker before segment k > 0."""


def restart_interval(mcus_in_a_row: int) -> int:
    """Return how many MCUs to put between restart markers.

    2, since it cuts columns finely at +2.3% of size; it must divide the MCUs
    of a row so that rows begin with a segment, else 3 or 1.
    """
    return next(n for n in (2, 3, 1) if mcus_in_a_row % n == 0)


def _segment_lengths(data: bytes, header: JpegHeader) -> NDArray[np.intp]:
    """Return the lengths of the coded segments of a single-scan JPEG, by their restart markers.

    Raises `ImageError` if there are not as many as size and interval ask for.
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

    The index is put behind SOI and the JFIF segment, if there is one.
    """
    header = read_jpeg_header(data)
    exact = _segment_lengths(data, header)
    if len(exact) > 255 * _LENGTHS_A_PART or exact.max() > 65535:
        return data  # it does not fit into an index; the JPEG is decoded whole
    lengths = exact.astype(">u2")
    at = 2
    if data[2:4] == b"\xff\xe0":
        at = 4 + int.from_bytes(data[4:6], "big")
    parts = -(-len(lengths) // _LENGTHS_A_PART)
    pieces = [data[:at]]
    for part in range(parts):
        body = lengths[part * _LENGTHS_A_PART : (part + 1) * _LENGTHS_A_PART].tobytes()
        size = _PREFIX.size - 2 + len(body)
        pieces.append(_PREFIX.pack(_INDEX_MARKER, size, _NAME, 1, part, parts))
        pieces.append(body)
    pieces.append(data[at:])
    return b"".join(pieces)


def index_spans(data: bytes | memoryview) -> list[tuple[int, int]] | None:
    """Return where the APP9 segments of the index are, from marker to behind the segment.

    The lengths are `INDEX_PREFIX_BYTES` behind each marker.  None where there is no whole
    index of this version before the scan.
    """
    position, total = 2, 1
    spans: list[tuple[int, int]] = []
    while len(spans) < total:
        if position + INDEX_PREFIX_BYTES > len(data) or data[position] != 0xFF:
            return None
        marker, size, name, version, part, parts = _PREFIX.unpack_from(data, position)
        end = position + 2 + size
        if marker == _INDEX_MARKER and name == _NAME:
            if (version, part) != (1, len(spans)) or part >= parts or size % 2 or end > len(data):
                return None
            spans.append((position, end))
            total = parts
        elif marker == b"\xff\xda":
            return None
        position = end
    return spans


def has_segments(data: bytes, header: JpegHeader) -> bool:
    """Return whether a JPEG has restart intervals as fastdata makes them, with their index."""
    wanted = restart_interval(header.mcu_grid[1])
    return header.restart_interval == wanted and _read(data) is not None


class CutJpeg(NamedTuple):
    """A part of a JPEG, itself a JPEG file, with its place in the whole image in pixels."""

    data: bytes
    top: int  # a multiple of 8, as is `left`
    left: int
    height: int
    width: int
    whole: tuple[int, int]  # height and width of the whole image, as its header has them


class _Layout(NamedTuple):
    """What a header, without its index, says of where segments lie in the image.

    They lie in a grid of `rows` x `columns` cells of `cell_height` x `cell_width`
    pixels, those at the image's right and lower edges perhaps smaller.
    """

    height: int
    width: int
    rows: int
    columns: int
    cell_height: int
    cell_width: int
    mcu_height: int
    mcu_width: int
    subsampled_rows: bool
    subsampled_columns: bool
    before_size: bytes
    after_size: bytes


def cut_jpeg(
    data: bytes | memoryview, window: tuple[int, int, int, int], factor: int = 1
) -> CutJpeg | None:
    """Cut out what is needed to decode a window (top, left, height, width) of a whole JPEG file.

    None where the file must be decoded whole: it has no index that fits it, rows of
    MCUs do not begin with a segment, the window is not inside the image, or nothing
    would be saved.

    Nothing in the file is trusted; damage within segments is for the decoder to find.  `factor`
    is by how much it will be reduced while it is decoded: the cut then has all pixels
    of the reduced picture that the window touches.  For any number of threads.
    """
    segments = _read(data)
    if segments is None:
        return None
    layout, sizes, ends = segments
    cells = _cells(layout, window, factor)
    if cells is None:
        return None
    top, bottom, left, right = cells
    y, x = top * layout.cell_height, left * layout.cell_width
    height = min(bottom * layout.cell_height, layout.height) - y
    width = min(right * layout.cell_width, layout.width) - x
    if factor == 1:
        height, width = _trim(layout, window, y, x, height, width)
    header = b"".join((layout.before_size, _SIZE.pack(height, width), layout.after_size))
    cut = _join(header, data, sizes, ends, cells)
    if cut is None:
        return None
    return CutJpeg(cut, y, x, height, width, (layout.height, layout.width))


def _read(data: bytes | memoryview) -> tuple[_Layout, _Sizes, _Sizes] | None:
    """Return the layout, and of all segments in its grid the size and the sum of sizes so far.

    Sizes are in bytes, with the marker before the segment; before the first one, where
    none is, are the header's last two bytes.
    """
    spans = index_spans(data)
    if spans is None or data[-2:] != _EOI:
        return None
    first, behind = spans[0][0], spans[-1][1]
    if len(spans) == 1:
        head, body = bytes(data[:first]), data[first + INDEX_PREFIX_BYTES : behind]
    else:
        begins, behinds = zip(*spans, strict=True)
        gaps = zip((0, *behinds), begins, strict=False)
        head = b"".join(data[begin:end] for begin, end in gaps)
        body = b"".join(data[begin + INDEX_PREFIX_BYTES : end] for begin, end in spans)
    sizes = np.frombuffer(body, ">u2").astype(np.int64)
    if len(sizes) == 0:
        return None
    sizes += 2
    ends = sizes.cumsum()
    scan = len(data) - int(ends[-1])
    if not behind < scan <= behind + _MAX_HEADER_BYTES or first > _MAX_HEADER_BYTES:
        return None
    layout = _layout(head + data[behind:scan])
    if layout is None or layout.rows * layout.columns != len(sizes):
        return None
    grid = layout.rows, layout.columns
    return layout, sizes.reshape(grid), ends.reshape(grid)


# Photographs of one dataset differ in nothing but size: for 2,048 sizes this takes 4 MB.
@lru_cache(maxsize=2048)
def _layout(header: bytes) -> _Layout | None:
    """Parse a header; None where its segments cannot be cut out."""
    try:
        found = read_jpeg_header(header)
    except ImageError:
        return None
    count, interval = found.components, found.restart_interval
    # One scan must have all components, or there are more scans than this one.
    scan = header[-8 - 2 * count :]
    if (
        found.frame != 0xC0
        or found.scan_offset != len(header)
        or scan[:5] != bytes((0xFF, 0xDA, 0, 6 + 2 * count, count))
        or interval == 0
    ):
        return None
    mcu_height, mcu_width = found.mcu_size
    _, mcu_columns = found.mcu_grid
    if mcu_columns % interval == 0:
        cell_height, cell_width = mcu_height, mcu_width * interval
    elif interval % mcu_columns == 0:
        cell_height, cell_width = mcu_height * (interval // mcu_columns), mcu_width * mcu_columns
    else:
        return None
    horizontal, vertical = zip(*found.sampling, strict=True)
    size = found.frame_offset + 3
    return _Layout(
        found.height,
        found.width,
        -(-found.height // cell_height),
        -(-found.width // cell_width),
        cell_height,
        cell_width,
        mcu_height,
        mcu_width,
        min(vertical) < max(vertical),
        min(horizontal) < max(horizontal),
        header[:size],
        header[size + _SIZE.size :],
    )


def _cells(
    layout: _Layout, window: tuple[int, int, int, int], factor: int
) -> tuple[int, int, int, int] | None:
    """Return the first and end rows, and the first and end columns, of the cells to cut out."""
    y, x, height, width = window
    if y < 0 or x < 0 or height < 1 or width < 1:
        return None
    if y + height > layout.height or x + width > layout.width:
        return None
    rows, columns = layout.rows, layout.columns
    # Chroma is enlarged after reduction, so that a pixel's neighbour is `factor` pixels away.
    around_y = factor if layout.subsampled_rows else 0
    around_x = factor if layout.subsampled_columns else 0
    top = max(y - around_y, 0) // layout.cell_height
    bottom = min(-(-(y + height + around_y) // layout.cell_height), rows)
    left = max(x - around_x, 0) // layout.cell_width
    right = min(-(-(x + width + around_x) // layout.cell_width), columns)
    # libjpeg-turbo enlarges chroma of two columns or less in another way than wider ones;
    # and decoders cannot distinguish all scales by the size of an image below 8 pixels.
    cut_height = min(bottom * layout.cell_height, layout.height) - top * layout.cell_height
    cut_width = min(right * layout.cell_width, layout.width) - left * layout.cell_width
    if cut_width <= 4 * factor:
        left, right = (left - 1, right) if left else (left, min(right + 1, columns))
    if factor > 1 and cut_height < 8:
        top = max(top - 1, 0)
    if (bottom - top) * (right - left) == rows * columns:
        return None
    return top, bottom, left, right


def _trim(
    layout: _Layout, window: tuple[int, int, int, int], y: int, x: int, height: int, width: int
) -> tuple[int, int]:
    """Return the size of a cut without what lies behind the window in its last MCUs.

    Their coded bytes stay, as many MCUs as there were; but pixels beyond the size
    that the header claims are neither enlarged nor converted: 7% fewer.
    """
    needed_height = window[0] + window[2] + layout.subsampled_rows - y
    needed_width = window[1] + window[3] + layout.subsampled_columns - x
    least_height = (height - 1) // layout.mcu_height * layout.mcu_height + 1
    least_width = (width - 1) // layout.mcu_width * layout.mcu_width + 1
    height = min(height, max(needed_height, least_height))
    # Narrower, libjpeg-turbo would enlarge chroma in another way.
    width = min(width, max(needed_width, least_width, 5 if layout.subsampled_columns else 1))
    return height, width


def _join(
    header: bytes,
    data: bytes | memoryview,
    sizes: _Sizes,
    ends: _Sizes,
    cells: tuple[int, int, int, int],
) -> bytes | None:
    """Put the cut together; None where there is no marker before one of its segments."""
    top, bottom, left, right = cells
    rows, columns = slice(top, bottom), slice(left, right)
    # The segments of a row lie one behind the other: one slice a row.
    coded = memoryview(data)[-2 - int(ends[-1, -1]) :]
    lasts = ends[rows, right - 1]
    firsts = ends[rows, left] - sizes[rows, left]
    pieces = [coded[a:b] for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    before, pieces[0] = pieces[0][:2], pieces[0][2:]
    cut = bytearray().join((header, *pieces, _EOI))

    # Where the markers between the segments are now.
    places = sizes[rows, columns].cumsum()[:-1]
    places += len(header) - 2
    # Every two neighbouring bytes as one number, for a marker may begin anywhere.
    pairs: _Numbers = np.ndarray((len(cut) - 1,), ">u2", cut, strides=(1,))
    expected = _markers(sizes.size).reshape(sizes.shape)[rows, columns].tobytes()
    if pairs[places].tobytes() != expected[2:]:
        return None
    if (top or left) and before != expected[:2]:
        return None
    pairs[places] = _markers(len(places) + 1)[1:]
    return bytes(cut)


def _markers(segments: int) -> _Numbers:
    if segments <= len(_MARKERS):
        return _MARKERS[:segments]
    return np.resize(_MARKERS, segments).astype(_MARKERS.dtype)  # resize loses the byte order
