"""Decode any image file to 8-bit pixels, or say why it cannot be.

One defined result for every input, whatever its name says it is:

=====================  ========================================================
JPEG                   libjpeg-turbo (simplejpeg), damage is an error
CMYK, YCCK, odd JPEG   PIL's conversion to RGB; also samplings without a name
all else               PIL, first frame or page
alpha                  dropped, as ``Image.convert("RGB")`` does
palette                looked up; in a mask the indices are the classes
1, 2, 4 bits           0 to 255, evenly; in a mask the values are the classes
12 bits (TIFF)         the high 8
16 bits a sample       the high 8
PGM of other ranges    its largest value is white; in a mask the values are the classes
32 bits a sample       refused
orientation            applied, of Exif or else XMP
=====================  ========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import simplejpeg

from fastdata.codecs import Pixels
from fastdata.codecs.jpeg import JpegHeader, check_scans, is_jpeg, read_jpeg_header, tidy_jpeg
from fastdata.codecs.limits import MAX_PIXELS, check_memory, check_pixels
from fastdata.codecs.pillow import decode_with_pil, reduced_by_pil
from fastdata.errors import ImageError

__all__ = [
    "Decoded",
    "check_end",
    "contiguous",
    "dct_scale",
    "decode_image",
    "decode_jpeg",
    "turbo_decodes",
    "turbo_reads",
]

_HARMLESS = ("extraneous bytes before marker", "Invalid SOS parameters")
"""libjpeg warnings after which the picture is whole.  Other software writes
such files; several of ImageNet's are among them."""

_COEFFICIENT_BYTES = 6
"""A pixel of a JPEG with several scans, whose coefficients are all kept until the last."""

_TAIL_BYTES = 1 << 16
"""How far from the end the end-of-image marker is looked for first: some files
have padding.  "Motion photos" have a whole film behind it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Pixels, uint8 [H, W, C], not yet oriented.

    `size` is the height and width of the picture as its file has it, `factor` (1, 2, 4, 8) by how
    much it was reduced while it was decoded.  `orientation` is the Exif orientation still to be
    applied by `orient`; `turned` the one that has been applied already: then `size` is that after
    it.
    """

    pixels: Pixels
    size: tuple[int, int]
    factor: int = 1
    orientation: int = 1
    turned: int = 1

    @property
    def extent(self) -> tuple[float, float]:
        """Height and width of the picture in these pixels; see `resize_pixels`."""
        return self.size[0] / self.factor, self.size[1] / self.factor


def decode_image(
    data: bytes,
    channels: int = 3,
    *,
    mask: bool = False,
    max_pixels: int = MAX_PIXELS,
    claimed_pixels: int | None = None,
    header: JpegHeader | None = None,
    scale: Callable[[int, int], int] | None = None,
    notes: list[str] | None = None,
) -> Decoded:
    """Decode a whole image file to RGB (3 channels) or grey (1); `ImageError` says why not.

    Pixels of a `mask` are class numbers, to be taken over as they are.  More than `max_pixels` are
    refused before they are decoded, and JPEGs with too many scans of so many.  More pixels than
    `claimed_pixels`, which the columns of a shard say, are refused too.  `header` is of a JPEG,
    where it has been read already.  `scale` returns, given oriented height and width, 1, 2, 4 or
    8: by how much a JPEG may be reduced while it is decoded.  Remarks for the user are added to
    `notes`.
    """
    if len(data) == 0:
        raise ImageError("the file is empty")
    limit = max_pixels if claimed_pixels is None else min(claimed_pixels, max_pixels)
    if is_jpeg(data):
        header = header or read_jpeg_header(data)
        size = header.height, header.width
        check_pixels(*size, limit)
        check_scans(data, size, max_pixels, header)
        if turbo_decodes(header) and not mask:  # class numbers have no luma and no average
            factor = scale(*(size if header.orientation < 5 else size[::-1])) if scale else 1
            kept = 0 if header.has_one_scan else _COEFFICIENT_BYTES
            check_memory(size, kept + channels / factor**2)
            pixels = decode_jpeg(data, header, channels, factor)
            return Decoded(pixels, size, factor, header.orientation)
        # PIL refuses pictures whose metadata is broken, so it does not see any.
        pixels, _ = decode_with_pil(tidy_jpeg(data), channels, mask=mask, max_pixels=max_pixels)
        return Decoded(pixels, pixels.shape[:2], orientation=header.orientation)
    pixels, turned = decode_with_pil(data, channels, mask=mask, max_pixels=limit, notes=notes)
    return Decoded(pixels, pixels.shape[:2], turned=turned)


def turbo_decodes(header: JpegHeader) -> bool:
    """Return whether libjpeg-turbo decodes a JPEG; PIL decodes the others."""
    return (
        header.frame in (0xC0, 0xC1, 0xC2) and header.precision == 8 and header.components in (1, 3)
    )


def turbo_reads(data: bytes | memoryview) -> bool:
    """Return whether TurboJPEG, and with it every decoder of shards, reads a JPEG as it is.

    It refuses stray bytes between markers, broken colour profiles, and samplings that it has no
    name for; simplejpeg one more, 4:4:1.
    """
    try:
        simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):
        return False
    return True


def decode_jpeg(data: bytes, header: JpegHeader, channels: int, factor: int = 1) -> Pixels:
    """Decode a grey, YCbCr or RGB JPEG at full, 1/2, 1/4 or 1/8 size.

    Strictly, but for samplings that only PIL knows.
    """
    if not turbo_reads(data):
        data = tidy_jpeg(data)
        header = read_jpeg_header(data)
    options: dict[str, Any] = {"colorspace": "RGB" if channels == 3 else "GRAY"}
    if factor > 1:
        options["min_height"] = -(-header.height // factor)
        options["min_width"] = -(-header.width // factor)
        options["min_factor"] = factor
    check_end(data, header)
    if not turbo_reads(data):
        return reduced_by_pil(data, channels, factor)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, **options)
        return pixels
    except ValueError as error:
        if not any(text in str(error) for text in _HARMLESS):
            raise ImageError(f"broken JPEG: {error}") from error
    try:
        pixels = simplejpeg.decode_jpeg(data, strict=False, **options)
        return pixels
    except ValueError as error:
        raise ImageError(f"broken JPEG: {error}") from error


def check_end(data: bytes, header: JpegHeader) -> None:
    """Refuse a JPEG without an end-of-image marker."""
    tail = max(header.scan_offset, len(data) - _TAIL_BYTES)
    if data.rfind(b"\xff\xd9", tail) < 0 and data.find(b"\xff\xd9", header.scan_offset) < 0:
        raise ImageError("the JPEG is truncated: it has no end-of-image marker")


def contiguous(pixels: Pixels) -> Pixels:
    """Return pixels, H x W x C, in one piece.

    Where they lie as planes (C x H x W in memory) OpenCV brings them together, for 320 x 320
    pixels in 15 us where NumPy takes 350.
    """
    if pixels.flags.c_contiguous or pixels.shape[2] != 3 or not pixels[:, :, 0].flags.c_contiguous:
        return np.ascontiguousarray(pixels)
    return np.asarray(cv2.merge([pixels[:, :, channel] for channel in range(3)]), np.uint8)


def dct_scale(height: int, width: int, target: tuple[int, int], margin: float) -> int:
    """Return the largest of 8, 4, 2, 1 that leaves `margin` times the target.

    Only these are vectorised in libjpeg-turbo.
    """
    left = min(height / target[0], width / target[1]) / margin
    return next((factor for factor in (8, 4, 2) if factor <= left), 1)
