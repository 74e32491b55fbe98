"""Decode any image file to 8-bit pixels, or say why it cannot be.

One defined result for every input, whatever its name says it is:

=====================  ========================================================
JPEG                   libjpeg-turbo (simplejpeg), damage is an error
CMYK, YCCK, odd JPEG   PIL's conversion to RGB; also samplings without a name
all else               PIL, first frame or page
alpha                  dropped, as ``Image.convert("RGB")`` does
palette                looked up; in a mask the indices are the classes
1 bit                  0 and 255; in a mask 0 and 1
16 bits a sample       the high byte
PGM of other ranges    its largest value is white; in a mask the values are the classes
32 bits a sample       refused
Exif orientation       applied
=====================  ========================================================
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from fastdata.codecs import Pixels
from fastdata.codecs.jpeg import JpegHeader, read_jpeg_header, tidy_jpeg
from fastdata.errors import ImageError

__all__ = [
    "MAX_PIXELS",
    "Decoded",
    "check_end",
    "check_pixels",
    "contiguous",
    "dct_scale",
    "decode_image",
    "decode_jpeg",
    "is_jpeg",
    "orient",
    "pil_errors_explained",
    "pil_orientation",
    "quiet_pil",
    "reduced_by_pil",
    "to_pixels",
    "turbo_decodes",
    "turbo_reads",
]

MAX_PIXELS = 178_956_970
"""Default limit against decompression bombs: the one at which PIL refuses."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_HARMLESS = ("extraneous bytes before marker", "Invalid SOS parameters")
"""libjpeg warnings after which the picture is whole.  Other software writes
such files; several of ImageNet's are among them."""

_ORIENTATION_TAG = 0x0112
"""Exif 2.3, 4.6.4 A."""

_warnings_lock = threading.Lock()

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


def is_jpeg(data: bytes | memoryview) -> bool:
    """Return whether this is a JPEG, by its first bytes."""
    return bytes(data[:3]) == b"\xff\xd8\xff"


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Refuse an image of more than `max_pixels` pixels."""
    if height * width > max_pixels:
        raise ImageError(
            f"{width} x {height} pixels are more than the limit of {max_pixels} (max_pixels)"
        )


def decode_image(
    data: bytes,
    channels: int = 3,
    *,
    mask: bool = False,
    max_pixels: int = MAX_PIXELS,
    header: JpegHeader | None = None,
    scale: Callable[[int, int], int] | None = None,
) -> Decoded:
    """Decode a whole image file to RGB (3 channels) or grey (1); `ImageError` says why not.

    Pixels of a `mask` are class numbers, to be taken over as they are.  More than `max_pixels` are
    refused before they are decoded.  `header` is of a JPEG, where it has been read already.
    `scale` returns, given oriented height and width, 1, 2, 4 or 8: by how much a JPEG may be
    reduced while it is decoded.
    """
    if len(data) == 0:
        raise ImageError("the file is empty")
    if is_jpeg(data):
        header = header or read_jpeg_header(data)
        check_pixels(header.height, header.width, max_pixels)
        if turbo_decodes(header) and not mask:  # class numbers have no luma and no average
            size = header.height, header.width
            factor = scale(*(size if header.orientation < 5 else size[::-1])) if scale else 1
            pixels = decode_jpeg(data, header, channels, factor)
            return Decoded(pixels, size, factor, header.orientation)
        # PIL refuses pictures whose metadata is broken, so it does not see any.
        pixels, _ = _decode_with_pil(tidy_jpeg(data), channels, mask, max_pixels)
        return Decoded(pixels, pixels.shape[:2], orientation=header.orientation)
    pixels, turned = _decode_with_pil(data, channels, mask, max_pixels)
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


def reduced_by_pil(data: bytes | memoryview, channels: int, factor: int) -> Pixels:
    """Decode a JPEG by PIL, at full, 1/2, 1/4 or 1/8 size; it does not notice damage."""
    try:
        with quiet_pil():
            opened = Image.open(io.BytesIO(data), formats=("JPEG",))
        with opened as image:
            # "L" asks libjpeg for the brightness; convert("L") would come by way of RGB.
            mode = "RGB" if channels == 3 else "L"
            image.draft(mode, (image.width // factor, image.height // factor))
            pixels = np.array(image.convert(mode))
    except Exception as error:  # PIL's plugins raise nearly anything on damaged files
        raise ImageError(f"broken JPEG: {type(error).__name__}: {error}") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def check_end(data: bytes, header: JpegHeader) -> None:
    """Refuse a JPEG without an end-of-image marker."""
    tail = max(header.scan_offset, len(data) - _TAIL_BYTES)
    if data.rfind(b"\xff\xd9", tail) < 0 and data.find(b"\xff\xd9", header.scan_offset) < 0:
        raise ImageError("the JPEG is truncated: it has no end-of-image marker")


def pil_orientation(image: Image.Image) -> int:
    """Return what `ImageOps.exif_transpose` goes by; before PIL loads, and turns, a TIFF."""
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return orientation if orientation in range(2, 9) else 1


def _decode_with_pil(data: bytes, channels: int, mask: bool, max_pixels: int) -> tuple[Pixels, int]:
    """Return upright pixels, and the orientation by which they were turned."""
    with pil_errors_explained(data):
        with quiet_pil():
            opened = Image.open(io.BytesIO(data))
        with opened as image:
            check_pixels(image.height, image.width, max_pixels)
            with quiet_pil():
                turned = pil_orientation(image)
            largest = _pgm_largest(image) if mask else None
            image.load()
            with quiet_pil():
                upright = ImageOps.exif_transpose(image)
            if largest is not None:
                upright = _unscaled(upright, largest)
            upright.format = image.format  # a copy has none; old releases of PIL open I;16 as I
            pixels = to_pixels(upright, channels, mask=mask)
            return (pixels // _png_grey_step(data) if mask else pixels), turned


@contextlib.contextmanager
def pil_errors_explained(data: bytes) -> Iterator[None]:
    """Turn what PIL raises into an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        if data.startswith(_LFS_POINTER):
            raise ImageError(
                "a Git LFS pointer, not the file itself; `git lfs pull` brings it"
            ) from None
        raise ImageError(f"not an image of a known format: it begins with {data[:8]!r}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(str(error)) from error
    except Exception as error:  # PIL's plugins raise nearly anything on damaged files
        raise ImageError(f"cannot be decoded: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def quiet_pil() -> Iterator[None]:
    """Keep PIL from warning of odd metadata.

    Filters of warnings belong to the process, so threads take turns here; decoding,
    which takes time, is done outside.
    """
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pgm_largest(image: Image.Image) -> int | None:
    """Return the largest value of a PGM that PIL will scale; before PIL loads it."""
    decoder, _, _, arguments = (*getattr(image, "tile", ()), ("", None, 0, None))[0]
    return arguments[-1] if decoder.startswith("ppm") and isinstance(arguments, tuple) else None


def _unscaled(image: Image.Image, largest: int) -> Image.Image:
    """Return the values of a PGM as its file has them."""
    scaled = np.array(image)
    white = 65535 if image.mode == "I" else 255
    values = np.rint(scaled * (largest / white))
    return Image.fromarray(values.astype(np.int32 if image.mode == "I" else np.uint8))


def _png_grey_step(data: bytes) -> int:
    """Return by how much PIL multiplies values of a grey PNG of 2 or 4 bits to fill 8."""
    if not data.startswith(b"\x89PNG") or len(data) < 26 or data[25] != 0:
        return 1
    return {2: 85, 4: 17}.get(data[24], 1)


def to_pixels(image: Image.Image, channels: int, *, mask: bool = False) -> Pixels:
    """Convert a PIL image to uint8, H x W x C, by the table above."""
    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "PPM")):
        values = np.array(image).astype(np.int64)
        if mask:
            if values.max(initial=0) > 255:
                raise ImageError(f"mask values up to {values.max()} do not fit 8 bits")
        else:
            values >>= 8
        grey = values.astype(np.uint8)[:, :, None]
        return grey if channels == 1 else np.repeat(grey, 3, axis=2)
    if mode in ("I", "F"):
        raise ImageError(f"mode {mode!r} (32 bits a sample) has no defined range of brightness")
    if mask:
        if mode not in ("P", "L", "1"):
            raise ImageError(f"a mask has one channel of class numbers; this has mode {mode!r}")
        return np.array(image, dtype=np.uint8)[:, :, None]
    if mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    pixels = np.array(image.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(pixels.shape[0], pixels.shape[1], channels)


def contiguous(pixels: Pixels) -> Pixels:
    """Return pixels, H x W x C, in one piece.

    Where they lie as planes (C x H x W in memory) OpenCV brings them together, for 320 x 320
    pixels in 15 us where NumPy takes 350.
    """
    if pixels.flags.c_contiguous or pixels.shape[2] != 3 or not pixels[:, :, 0].flags.c_contiguous:
        return np.ascontiguousarray(pixels)
    return np.asarray(cv2.merge([pixels[:, :, channel] for channel in range(3)]), np.uint8)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an Exif orientation, as ``ImageOps.exif_transpose`` does."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def dct_scale(height: int, width: int, target: tuple[int, int], margin: float) -> int:
    """Return the largest of 8, 4, 2, 1 that leaves `margin` times the target.

    Only these are vectorised in libjpeg-turbo.
    """
    left = min(height / target[0], width / target[1]) / margin
    return next((factor for factor in (8, 4, 2) if factor <= left), 1)
