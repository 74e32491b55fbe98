"""Check the directories of a TIFF, such as Exif has too, before Pillow reads them.

Pillow makes Python objects of their numbers: 20 MB of strip offsets took 34 s and 700 MB.  libtiff
decodes whole tiles, even where they are mostly outside the image: a file of 30 kB took 89 s.  It
decodes up to 100 scans of a JPEG in a TIFF: a file of 100 kB took 140 s.

Layout: TIFF 6.0, section 2; of BigTIFF, https://libtiff.gitlab.io/libtiff/specification/bigtiff.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from fastdata.codecs.jpeg import MOST_SCANS, count_scans
from fastdata.errors import ImageError

__all__ = ["check_tags", "check_tiff", "is_tiff"]

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
"""Bytes of a number, by type.  Pillow reads no other types; those that libtiff reads have 8."""

_TEXT = (1, 2, 7)
"""Types of bytes and text, which become one object of Python."""

_SIZE = (256, 257, 258, 259, 277, 278, 322, 323)
"""ImageWidth and ImageLength, BitsPerSample, Compression, SamplesPerPixel, RowsPerStrip, TileWidth
and TileLength."""

_OFFSETS = {273: "strips", 279: "strips", 324: "tiles", 325: "tiles"}
_KIND, _OTHERS = 254, 330
"""NewSubfileType, whose bit 0 is that of a thumbnail, and SubIFDs (Adobe's TIFF Supplement 1)."""

_PHOTOMETRIC, _PLANES = 262, 284
_LAB = 8
_LAYOUT = (*_SIZE, *_OFFSETS, _KIND, _OTHERS, _PHOTOMETRIC, _PLANES)
_JPEG = 7
"""Compression."""

_DIRECTORIES = (34665, 34853, 40965)
"""Tags that point to directories of Exif, GPS and interoperability.  Pillow reads all three."""

_MOST_TAGS = 4096
_MOST_NUMBERS = 300_000
"""Offsets and sizes of 150,000 strips.  A usual TransferFunction has 196,608 numbers."""


class _Tag(NamedTuple):
    number: int
    kind: int
    numbers: int
    value: int  # the first
    outside: int  # bytes, 0 if they are in the directory itself
    begin: int  # of the numbers, in the file
    is_main: bool  # of the first directory


def is_tiff(data: bytes | memoryview) -> bool:
    """Return whether Pillow takes this for a TIFF, by its first bytes."""
    start = bytes(data[:4])
    return start[:2] in (b"II", b"MM") and start[2:] in (b"*\0", b"\0*", b"+\0", b"\0+")


def check_tags(data: bytes | memoryview) -> dict[int, _Tag]:
    """Refuse directories that Pillow takes too long to read; return the tags of the layout."""
    layout: dict[int, _Tag] = {}
    numbers = size = 0
    for index, tag in enumerate(_tags(data)):
        if index == _MOST_TAGS:
            raise ImageError(f"its directory has more than {_MOST_TAGS:,} tags")
        size += tag.outside
        if size > len(data):
            raise ImageError(f"its tags have more than the {len(data):,} bytes of the file")
        numbers += tag.numbers * (tag.kind not in _TEXT or tag.number in _OFFSETS)
        if numbers > _MOST_NUMBERS:
            raise ImageError(
                f"tag {tag.number} of its directory has {tag.numbers:,} numbers; with it there are "
                f"more than {_MOST_NUMBERS:,}, and reading them would take too long"
            )
        if tag.is_main and tag.number in _LAYOUT and layout.setdefault(tag.number, tag) is not tag:
            raise ImageError(f"its directory has tag {tag.number} twice")
    return layout


def check_tiff(data: bytes | memoryview, max_pixels: int | None) -> int:
    """Refuse a TIFF that takes Pillow or libtiff too long; return the bytes of a strip or tile.

    `max_pixels` limits the pixels of all tiles, and of all scans; None if they are not decoded.
    """
    if bytes(data[:4]) == b"MM\0+":
        raise ImageError("a big-endian BigTIFF, which Pillow does not read")
    tags = check_tags(data)
    first = {number: tag.value for number, tag in tags.items()}
    width, height, bits, compression, samples, strip, tile_width, tile_height = (
        first.get(number, 0) for number in _SIZE
    )
    if _OTHERS in first and first.get(_KIND, 0) & 1:
        raise ImageError(
            "a camera raw file, or another TIFF that begins with a thumbnail of its picture; "
            "convert it to PNG or JPEG, e.g. `magick IN.dng OUT.png`"
        )
    in_planes = first.get(_PLANES) == 2 and samples > 1
    if in_planes and (first.get(_PHOTOMETRIC) == _LAB or (bits > 8 and compression in (0, 1))):
        raise ImageError(
            f"a TIFF with a plane of {bits} bits for each channel, which Pillow reads as "
            "other colours; write the channels of a pixel side by side, e.g. "
            "`gdal_translate -co INTERLEAVE=PIXEL IN.tif OUT.tif`"
        )
    strip = min(strip or height, height)
    strips = -(-height // max(1, strip))
    tiles = -(-width // max(1, tile_width)) * -(-height // max(1, tile_height))
    for number, name in _OFFSETS.items():
        most = (strips if name == "strips" else tiles) * max(1, samples)
        if number in tags and tags[number].numbers > most:
            raise ImageError(
                f"tag {number} has {tags[number].numbers:,} {name}, more than the {most:,} of an "
                f"image of {width} x {height} pixels"
            )
    pixels = tile_width * tile_height
    if max_pixels is not None and tiles * pixels > max_pixels:
        raise ImageError(
            f"{tiles:,} tiles of {tile_width} x {tile_height} pixels, of an image of {width} x "
            f"{height}, are more than the limit of {max_pixels} pixels (max_pixels)"
        )
    pixels = pixels or width * strip
    if max_pixels is not None and compression == _JPEG:
        _check_scans(data, tags, pixels, max_pixels)
    return pixels * (samples + (samples == 3)) * (2 if bits > 8 else 1)  # libtiff makes RGBA of RGB


def _check_scans(
    data: bytes | memoryview, tags: dict[int, _Tag], pixels: int, max_pixels: int
) -> None:
    """Refuse JPEGs with too many scans; each strip or tile is one, and several may share one."""
    counted: dict[int, int] = {}
    scans, left = 0, len(data)
    for offsets, sizes in ((273, 279), (324, 325)):
        starts = _numbers(data, tags.get(offsets))
        lengths = _numbers(data, tags.get(sizes)) + [0] * len(starts)
        for start, length in zip(starts, lengths, strict=False):
            if start not in counted:
                # Without a length, libtiff takes the rest of the file.
                jpeg = bytes(data[start : start + (length or len(data))])
                left -= len(jpeg)
                if left < 0:
                    raise ImageError("its strips or tiles overlap")
                counted[start] = count_scans(jpeg, 2, MOST_SCANS * max_pixels) - 1
            scans += counted[start]
    if scans * pixels > MOST_SCANS * max_pixels:
        raise ImageError(
            f"{scans:,} scans of strips or tiles of {pixels:,} pixels are {scans * pixels:,} in "
            f"all, more than the limit of {MOST_SCANS * max_pixels:,} ({MOST_SCANS} times "
            "max_pixels): decoding would take too long"
        )


def _numbers(data: bytes | memoryview, tag: _Tag | None) -> list[int]:
    if tag is None:
        return []
    order = "<" if bytes(data[:2]) == b"II" else ">"
    kind = np.dtype(f"{order}u{_SIZES.get(tag.kind, 8)}")
    return list(np.frombuffer(data, kind, tag.numbers, tag.begin).tolist())


def _tags(data: bytes | memoryview) -> Iterator[_Tag]:
    """Yield the tags of the directories that Pillow reads, as far as they are in the file."""
    order: Literal["little", "big"] = "little" if bytes(data[:2]) == b"II" else "big"
    sign, is_big = {"little": "<", "big": ">"}[order], data[2] == ord("+")
    pointer, number, entry = (
        struct.Struct(sign + code)
        for code in (("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s"))
    )
    try:
        starts = [*pointer.unpack_from(data, pointer.size)]
        for index, start in enumerate(starts):
            (count,) = number.unpack_from(data, start)
            for k in range(count):
                at = start + number.size + k * entry.size
                tag, kind, length, value = entry.unpack_from(data, at)
                one, begin = _SIZES.get(kind, 8), at + entry.size - pointer.size
                outside = one * length if one * length > pointer.size else 0
                if outside:
                    begin = int.from_bytes(value, order)
                    if begin + outside > len(data):  # damaged: Pillow passes it over
                        continue
                found = int.from_bytes(data[begin : begin + one], order)
                yield _Tag(tag, kind, length, found, outside, begin, index == 0)
                if tag in _DIRECTORIES:
                    starts.append(found)
    except (struct.error, OverflowError):
        return  # cut off: Pillow says so
