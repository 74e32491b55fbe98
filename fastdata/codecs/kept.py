"""How an image file is kept as it is: its codec, and the size of its upright picture.

What packing with ``codec="keep"`` writes into a shard beside the bytes, told by the file's
header, without decoding it.  Nothing that is told here is believed later: who decodes the file
compares the picture's size with it.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import NamedTuple

from fastdata.codecs.image import (
    MAX_PIXELS,
    check_end,
    check_pixels,
    decode_image,
    is_jpeg,
    orient,
    size_by_pil,
    turbo_decodes,
    turbo_reads,
)
from fastdata.codecs.jpeg import JpegHeader, read_jpeg_header
from fastdata.errors import ImageError
from fastdata.regular_files import open_regular

__all__ = ["Kept", "keeps_jpeg", "read_kept", "read_kept_of"]

_PNG = b"\x89PNG\r\n\x1a\n"
_TURNING = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")
"""What a PNG that may be turned has in it, uncompressed."""

_START_BYTES = 1 << 16
"""The header of nearly every JPEG is in so many, its thumbnail included."""


class Kept(NamedTuple):
    """An image file as it is kept.

    Attributes
    ----------
    codec : {"jpeg", "file"}
        "file" is whatever has to be turned, converted or decoded by PIL.
    height, width : int
        Of the upright picture.
    orientation : int
        The Exif orientation, 1 to 8, that decoding applies.
    """

    codec: str
    height: int
    width: int
    orientation: int = 1


def keeps_jpeg(data: bytes, header: JpegHeader, channels: int, *, mask: bool) -> bool:
    """Tell whether a JPEG is kept with the codec ``jpeg``, else with ``file``."""
    plain = header.is_plain and header.components <= channels and not mask
    return plain and turbo_reads(data)


def read_kept(
    data: bytes,
    channels: int,
    *,
    mask: bool = False,
    max_pixels: int = MAX_PIXELS,
    whole: bool = True,
) -> Kept:
    """Return how an image file is kept.

    Parameters
    ----------
    data : bytes
    channels : {3, 1}
    mask : bool
    max_pixels : int
        An image of more pixels is refused.
    whole : bool
        False where `data` is only the start of a JPEG.

    Raises
    ------
    ImageError
        If it is no image, too large, or cut off.
    """
    if not data:
        raise ImageError("the file is empty")
    if is_jpeg(data):
        header = read_jpeg_header(data)
        size = header.height, header.width
        check_pixels(*size, max_pixels)
        if turbo_decodes(header) and not mask:
            if whole:
                check_end(data, header)
            codec = "jpeg" if keeps_jpeg(data, header, channels, mask=mask) else "file"
            turned = header.orientation
            return Kept(codec, *(size if turned < 5 else size[::-1]), turned)
    elif data.startswith(_PNG) and not any(mark in data for mark in _TURNING):
        if len(data) < 24:
            raise ImageError("the PNG is cut off in its header")
        width, height = struct.unpack_from(">II", data, 16)
        check_pixels(height, width, max_pixels)
        return Kept("file", height, width)
    found = size_by_pil(data, max_pixels)
    if found is None:  # only decoding tells
        picture = decode_image(data, channels, mask=mask, max_pixels=max_pixels)
        turned = max(picture.orientation, picture.turned)
        height, width = orient(picture.pixels, picture.orientation).shape[:2]
        return Kept("file", height, width, turned)
    height, width, turned = found
    return Kept("file", height, width, turned)


def read_kept_of(
    path: Path, channels: int, *, mask: bool = False, max_pixels: int = MAX_PIXELS
) -> Kept:
    """Return how an image file is kept, reading of a JPEG only its start.

    Raises
    ------
    ImageError
        As `read_kept`; but that a JPEG is cut off is not noticed.
    OSError
        If it cannot be read.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        data = file.read(_START_BYTES) or b""
        if is_jpeg(data):
            with contextlib.suppress(ImageError):
                return read_kept(data, channels, mask=mask, max_pixels=max_pixels, whole=False)
        data += file.read() or b""
    return read_kept(data, channels, mask=mask, max_pixels=max_pixels)
