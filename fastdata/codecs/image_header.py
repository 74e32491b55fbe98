"""The header of an image file: size, orientation, and the codec for a shard.

Decoding does not trust these values: it compares them with the picture.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import NamedTuple

from fastdata.codecs.image import check_end, turbo_decodes, turbo_reads
from fastdata.codecs.jpeg import JpegHeader, check_scans, is_jpeg, read_jpeg_header
from fastdata.codecs.limits import MAX_PIXELS, check_pixels
from fastdata.codecs.pillow import open_image, pil_header
from fastdata.errors import ImageError
from fastdata.regular_files import open_regular

__all__ = [
    "ImageHeader",
    "claimed_by",
    "is_stored_as_jpeg",
    "read_image_header",
    "read_image_header_of",
    "size_of",
]

_PNG = b"\x89PNG\r\n\x1a\n"
_TURNING = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")
"""What a PNG that may be turned has in it, uncompressed."""

_START_BYTES = 1 << 16
"""The header of nearly every JPEG is in so many, its thumbnail included."""


def claimed_by(data: bytes | memoryview) -> tuple[int, int, int]:
    """Return height, width and Exif orientation, 1 to 8, that a file claims for its picture.

    Height and width are those before it is turned.  `ImageError` if it is not an image.
    """
    if is_jpeg(data):
        header = read_jpeg_header(data)
        return header.height, header.width, header.orientation
    try:
        with open_image(data) as image:
            return pil_header(image)
    except ImageError as error:
        raise ImageError(f"its header cannot be read: {error}") from error


def size_of(data: bytes | memoryview, *, turned: bool = True) -> tuple[int, int]:
    """Return height and width of the picture that a file claims to hold, upright if `turned`."""
    height, width, orientation = claimed_by(data)
    return (width, height) if turned and orientation >= 5 else (height, width)


class ImageHeader(NamedTuple):
    """An image file as packing with ``codec="keep"`` stores it, by its header.

    The codec "file" is whatever has to be turned, converted or decoded by PIL, others are "jpeg".
    Height and width are of the upright picture; decoding applies the Exif `orientation`, 1 to 8.
    """

    codec: str
    height: int
    width: int
    orientation: int = 1


def is_stored_as_jpeg(data: bytes, header: JpegHeader, channels: int, *, mask: bool) -> bool:
    """Return whether a JPEG that is kept as it is has the codec ``jpeg``, else ``file``."""
    plain = header.is_plain and header.components <= channels and not mask
    return plain and turbo_reads(data)


def read_image_header(
    data: bytes,
    channels: int,
    *,
    mask: bool = False,
    max_pixels: int = MAX_PIXELS,
    whole: bool = True,
) -> ImageHeader:
    """Return the header of an image file; `ImageError` if it is none, too large, or cut off.

    Where `whole` is False, `data` is only the start of a JPEG.
    """
    if not data:
        raise ImageError("the file is empty")
    if is_jpeg(data):
        header = read_jpeg_header(data)
        size = header.height, header.width
        check_pixels(*size, max_pixels)
        if turbo_decodes(header) and not mask:
            if whole:
                if not header.has_one_scan:
                    check_scans(data, size, max_pixels, header)
                check_end(data, header)
            codec = "jpeg" if is_stored_as_jpeg(data, header, channels, mask=mask) else "file"
            turned = header.orientation
            return ImageHeader(codec, *(size if turned < 5 else size[::-1]), turned)
    elif data.startswith(_PNG) and not any(mark in data for mark in _TURNING):
        if len(data) < 24:
            raise ImageError("the PNG is cut off in its header")
        width, height = struct.unpack_from(">II", data, 16)
        check_pixels(height, width, max_pixels)
        return ImageHeader("file", height, width)
    with open_image(data, max_pixels) as image:
        height, width, turned = pil_header(image)
    if turned >= 5:
        height, width = width, height
    return ImageHeader("file", height, width, turned)


def read_image_header_of(
    path: Path, channels: int, *, mask: bool = False, max_pixels: int = MAX_PIXELS
) -> ImageHeader:
    """Return the header of an image file; only the start of a JPEG is read.

    Raises as `read_image_header`, or `OSError`, but does not detect truncated JPEGs.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        data = file.read(_START_BYTES) or b""
        if is_jpeg(data):
            with contextlib.suppress(ImageError):
                return read_image_header(
                    data, channels, mask=mask, max_pixels=max_pixels, whole=False
                )
        data += file.read() or b""
    return read_image_header(data, channels, mask=mask, max_pixels=max_pixels)
