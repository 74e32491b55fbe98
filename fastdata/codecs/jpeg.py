"""Read the header of a JPEG: size, kind and orientation, before decoding it.

Needed before any decoder is called: to refuse absurd sizes, to choose a
decoder and a DCT scale, and to know whether the file can be kept as it is.
Markers and their contents: ITU-T T.81 (JPEG), annex B; Exif 2.3, 4.6.4; XMP, part 3, 1.1.3.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fastdata.errors import ImageError

__all__ = [
    "MOST_SCANS",
    "JpegHeader",
    "check_scans",
    "count_scans",
    "is_jpeg",
    "orientation_in",
    "read_jpeg_header",
    "tidy_jpeg",
]

_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_ORIENTATION_TAG = 0x0112
_EXIF = re.compile(rb"^(?:Exif\0\0)+")
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
"""Pillow's pattern, so that it and this see the same orientation."""

_INTEGERS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
"""TIFF's types of integers, except BYTE, which Pillow reads as text."""

_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
MOST_SCANS = 20
"""Limit for an image of `max_pixels`; a smaller one may have more.  Encoders make about 10."""
_SCAN_BYTES = 10
"""Bytes of the shortest scan: a header for one component, without data."""
_COUNTED_SCANS = 100_000
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""All markers except those within the coded data, and fill bytes."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say."""

    height: int  # in pixels as coded, before orientation
    width: int
    precision: int  # bits a sample
    sampling: tuple[tuple[int, int], ...]  # horizontal and vertical factor of each component
    frame: int  # SOF marker's second byte: 0xC0 baseline, 0xC1 extended, 0xC2 progressive
    restart_interval: int  # MCUs between restart markers, 0 for none
    adobe_transform: int | None  # of the Adobe segment: 0 RGB or CMYK, 1 YCbCr, 2 YCCK
    orientation: int  # of Exif, else of XMP, 1 to 8; 1 where there is none
    scan_components: int  # colour components of the first scan
    frame_offset: int  # where the frame header (SOF) begins, with its length, behind the marker
    scan_offset: int  # where the first scan's entropy-coded bytes begin

    @property
    def components(self) -> int:
        """Number of colour components."""
        return len(self.sampling)

    @property
    def mcu_size(self) -> tuple[int, int]:
        """Height and width in pixels of an MCU of an interleaved scan."""
        if self.components == 1:
            return 8, 8
        return 8 * max(v for _, v in self.sampling), 8 * max(h for h, _ in self.sampling)

    @property
    def mcu_grid(self) -> tuple[int, int]:
        """Number of rows of MCUs, and of MCUs in a row."""
        rows, columns = self.mcu_size
        return -(-self.height // rows), -(-self.width // columns)

    @property
    def has_one_scan(self) -> bool:
        """Whether decoders stop after the first scan: it has all components in full."""
        return self.frame not in _PROGRESSIVE and self.scan_components == len(self.sampling)

    @property
    def is_plain(self) -> bool:
        """Whether it is a baseline, upright, 8-bit grey or YCbCr image."""
        return self.frame == 0xC0 and self.is_plain_coded_anew

    @property
    def is_plain_coded_anew(self) -> bool:
        """Whether it is plain, except perhaps for the entropy code."""
        return (
            self.precision == 8
            and self.orientation == 1
            and (self.components == 1 or (self.components == 3 and self.adobe_transform != 0))
        )


def is_jpeg(data: bytes | memoryview) -> bool:
    """Return whether this is a JPEG, by its first bytes."""
    return bytes(data[:3]) == b"\xff\xd8\xff"


def check_scans(
    data: bytes | memoryview,
    size: tuple[int, int],
    max_pixels: int,
    header: JpegHeader | None = None,
) -> None:
    """Refuse a JPEG, of this height and width, whose scans take too long to decode.

    Each scan takes a pass over all coefficients, but only 10 bytes of the file: a progressive JPEG
    of 1.2 MB with 1,000 scans took 109 s.  Scans x pixels may be at most 20 x `max_pixels`.
    """
    most = MOST_SCANS * max_pixels // max(1, size[0] * size[1])
    if len(data) // _SCAN_BYTES <= most:  # too short for more
        return
    header = header or read_jpeg_header(data)
    if header.has_one_scan:
        return
    scans = count_scans(bytes(data), header.scan_offset, max(most + 1, _COUNTED_SCANS))
    if scans > most:
        raise ImageError(
            f"{scans:,} scans{' or more' * (scans >= _COUNTED_SCANS)} of {size[1]} x {size[0]} "
            f"pixels are {scans * size[0] * size[1]:,} in all, more than the limit of "
            f"{MOST_SCANS * max_pixels:,} (20 times max_pixels): decoding would take too long"
        )


def count_scans(data: bytes, position: int, enough: int) -> int:
    """Return the number of scans up to the end of the image; `position` is in the first."""
    scans = 1
    while scans < enough and (found := _MARKER.search(data, position)):
        marker, position = data[found.start() + 1], found.end()
        if marker == 0xD9:
            break
        scans += marker == 0xDA
        position += int.from_bytes(data[position : position + 2], "big")
    return scans


def read_jpeg_header(data: bytes | memoryview) -> JpegHeader:
    """Parse the markers of a JPEG up to its first scan; `ImageError` if it breaks before that."""
    try:
        return _parse(data)
    except ImageError:
        raise
    except IndexError as error:
        raise ImageError("broken JPEG header (a segment is shorter than what it has)") from error
    except ValueError as error:
        raise ImageError(f"broken JPEG header ({error})") from error


def _parse(data: bytes | memoryview) -> JpegHeader:
    if bytes(data[:2]) != b"\xff\xd8":
        raise ValueError("it does not begin with SOI")
    frame: tuple[int, int, int, int, tuple[tuple[int, int], ...], int] | None = None
    restart_interval, adobe, exif, xmp = 0, None, b"", b""
    for marker, position, end in _segments(data):
        body = position + 2
        if marker in _FRAME_MARKERS:
            count = data[body + 5]
            sampling = tuple(
                (data[k] >> 4, data[k] & 15) for k in range(body + 7, body + 7 + 3 * count, 3)
            )
            height = data[body + 1] << 8 | data[body + 2]
            width = data[body + 3] << 8 | data[body + 4]
            frame = (height, width, data[body], marker, sampling, position)
        elif marker == 0xDD:
            restart_interval = data[body] << 8 | data[body + 1]
        elif marker == 0xEE and bytes(data[body : body + 5]) == b"Adobe" and end - position >= 14:
            adobe = data[body + 11]
        elif marker == 0xE1 and bytes(data[body : body + 6]) == b"Exif\0\0":
            # Pillow reads several as one, so the first directory counts.
            exif += bytes(data[body + 6 : end])
        elif marker == 0xE1 and bytes(data[body : body + len(_XMP)]) == _XMP:
            xmp = bytes(data[body + len(_XMP) : end])
        elif marker == 0xF7:
            raise ImageError("JPEG-LS; convert it to PNG, e.g. `ffmpeg -i IN.jls OUT.png`")
        elif marker == 0xDA:
            if frame is None:
                raise ValueError("a scan comes before the frame header")
            height, width, precision, kind, sampling, start = frame
            if not (height and width and sampling):
                raise ValueError(f"size {width} x {height} with {len(sampling)} components")
            if any(not (1 <= h <= 4 and 1 <= v <= 4) for h, v in sampling):
                raise ValueError(f"sampling factors {sampling}")
            return JpegHeader(
                height=height,
                width=width,
                precision=precision,
                sampling=sampling,
                frame=kind,
                restart_interval=restart_interval,
                adobe_transform=adobe,
                orientation=orientation_in(exif, xmp) if exif or xmp else 1,
                scan_components=data[body],
                frame_offset=start,
                scan_offset=end,
            )
    raise ValueError("it ends before its first scan")


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin (of the length) and end of the segments up to the first scan's header.

    Stray bytes before a marker are passed over, as libjpeg does.
    """
    position = 2
    while True:
        stray = position
        while data[position] != 0xFF:
            position += 1
            if position == len(data):
                raise ValueError(f"no marker at byte {stray}")
        while data[position] == 0xFF:
            position += 1
        marker = data[position]
        position += 1
        if marker == 0 or marker in _WITHOUT_LENGTH:
            continue
        if marker == 0xD9:
            return
        length = data[position] << 8 | data[position + 1]
        if length < 2 or position + length > len(data):
            raise ValueError(f"segment 0xFF{marker:02X} at byte {position} has length {length}")
        yield marker, position, position + length
        position += length
        if marker == 0xDA:
            return


def tidy_jpeg(data: bytes) -> bytes:
    """Return a JPEG with the same pixels, without metadata and stray bytes before its first scan.

    Libraries stumble over broken metadata.  The Exif orientation is lost with it.
    """
    scan = read_jpeg_header(data).scan_offset
    pieces = [b"\xff\xd8"]
    for marker, begin, end in _segments(data):
        start = data[begin + 2 : begin + 7]
        # Only these two determine how colours are decoded.
        colours = {0xE0: b"JFIF\0", 0xEE: b"Adobe"}.get(marker) == start and end - begin >= 14
        if colours or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            pieces += [bytes((0xFF, marker)), data[begin:end]]
    return b"".join((*pieces, data[scan:]))


def orientation_in(exif: bytes, xmp: bytes) -> int:
    """Return the orientation of Exif, or of XMP if Exif has none; 1 if it is absent or absurd.

    Not by ``PIL.Image.Exif``, which warns of damage, is slow for it, and loses the orientation.
    """
    exif = _EXIF.sub(b"", exif)
    found: int | None = None
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is not None and exif[2:4] in (b"*\0", b"\0*"):
        with contextlib.suppress(struct.error):  # it ends within its directory
            (directory,) = struct.unpack_from(f"{order}I", exif, 4)
            (entries,) = struct.unpack_from(f"{order}H", exif, directory)
            for entry in range(entries):
                at = directory + 2 + 12 * entry
                tag, kind, count = struct.unpack_from(f"{order}HHI", exif, at)
                if tag == _ORIENTATION_TAG and kind in _INTEGERS and count:
                    (found,) = struct.unpack_from(f"{order}{_INTEGERS[kind]}", exif, at + 8)
                    break
    if found is None and (match := _XMP_ORIENTATION.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1
