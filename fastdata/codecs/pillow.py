"""Image files by way of Pillow: which are opened, how much memory that takes, their pixels.

Pillow has more than 40 readers, and finds the one by a file's first bytes, not by its name.  Some
start a program (EPS: Ghostscript), read other files, or have never been looked at with malice in
mind.  So only those of `FORMATS` are asked, and nothing else of fastdata calls ``Image.open``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from fastdata.codecs import Pixels
from fastdata.codecs.jpeg import check_scans, is_jpeg, orientation_in, read_jpeg_header
from fastdata.codecs.kinds import odd_kind
from fastdata.codecs.limits import MAX_PIXELS, check_memory, check_pixels
from fastdata.codecs.tiff import check_tiff, is_tiff
from fastdata.errors import ImageError

__all__ = [
    "FORMATS",
    "decode_with_pil",
    "open_image",
    "orient",
    "pil_header",
    "pil_orientation",
    "reduced_by_pil",
    "row_bands",
    "to_pixels",
    "unoriented",
]

_PLUGINS = {
    "AVIF": "Avif",
    "BMP": "Bmp",
    "GIF": "Gif",
    "JPEG": "Jpeg",
    "JPEG2000": "Jpeg2K",
    "MPO": "Mpo",
    "PNG": "Png",
    "PPM": "Ppm",
    "TGA": "Tga",
    "TIFF": "Tiff",
    "WEBP": "WebP",
}

FORMATS = tuple(_PLUGINS)
"""What Pillow calls the formats that are opened; docs/converters/images.md lists them."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_ORIENTATION_TAG = 0x0112
"""Exif 2.3, 4.6.4 A."""

_SIZE_TAGS = 256, 257
_BITS_TAG, _PHOTOMETRIC_TAG, _SAMPLE_FORMAT_TAG = 258, 262, 339
"""TIFF 6.0, sections 8 and 19."""

_FIRST_FRAME = "only the first frame or page of an animation or a file of several pages is packed"

_PLAIN_PNM = re.compile(rb"P[123]\s")
_COMMENT = re.compile(rb"(?:#[^\r\n]*[\r\n]?)+")

_BAND_PIXELS = 1 << 20
"""Pixels that are converted in one step: a large image needs no second copy."""

_SAMPLE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
"""Bytes that a pixel has in Pillow's memory, by mode; 4 in all others."""

_DECODER_BYTES = {"AVIF": 5, "WEBP": 9}
"""Further bytes a pixel that a decoder takes, as measured with Pillow 13."""

_JPEG2000_BYTES = 4.5
"""Bytes that OpenJPEG takes for one sample of a pixel: it computes in 32 bits."""

_WEBP_BYTES = 7
"""Bytes a pixel that OpenCV takes for a lossless file, with the pixels that it returns."""


class _WhileReading:
    """Matches every warning in a thread that is reading an image, and none in others."""

    def __init__(self) -> None:
        self.here = threading.local()

    def match(self, text: str) -> bool:
        return getattr(self.here, "reading", False)


_while_reading = _WhileReading()
_QUIET = ("ignore", _while_reading, Warning, None, 0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow from warning, of odd metadata and of many pixels, in this thread.

    `warnings.catch_warnings` would change the filters of all threads, and leave them changed where
    two threads leave it in another order than they came.
    """
    # The first filter that matches counts, and the user may have put others before ours.
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    if not filters or filters[0] is not _QUIET:
        with contextlib.suppress(ValueError):
            filters.remove(_QUIET)
        filters.insert(0, _QUIET)
    before = _while_reading.match("")
    _while_reading.here.reading = True
    try:
        yield
    finally:
        _while_reading.here.reading = before


@functools.cache
def _formats() -> list[str]:
    """Return those of `FORMATS` that the installed Pillow has."""
    for plugin in _PLUGINS.values():
        with contextlib.suppress(ImportError):  # older than the format
            importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return [name for name in _PLUGINS if name in Image.OPEN]


@contextlib.contextmanager
def open_image(data: bytes | memoryview, max_pixels: int | None = None) -> Iterator[Image.Image]:
    """Open an image file, quietly; errors until the end of the block become `ImageError`.

    More than `max_pixels` are refused, and JPEGs with too many scans of so many, if it is given.
    Anything that decodes the image gives it.
    """
    try:
        if _PLAIN_PNM.match(data):
            # Pillow copies a block of 1 MB for each comment in it.
            data = _COMMENT.sub(b"", data)
        elif is_tiff(data):
            # A tile may well be larger than a small image, whose own pixels are the limit.
            check_tiff(data, max_pixels and max(max_pixels, MAX_PIXELS))
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as image:
            if max_pixels is not None:
                check_pixels(image.height, image.width, max_pixels)
                if is_jpeg(data):
                    check_scans(data, image.size[::-1], max_pixels)
            yield image
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError:  # whose text has the address of an object
        raise _unknown(data) from None
    except Image.DecompressionBombError as error:
        raise ImageError(str(error)) from error
    except Exception as error:  # Pillow's plugins raise nearly anything on damaged files
        kind = odd_kind(data) if is_jpeg(data) else ""
        what = f"not decoded, {kind}" if kind else "cannot be decoded"
        raise ImageError(f"{what}: {type(error).__name__}: {error}") from error


def _unknown(data: bytes | memoryview) -> ImageError:
    start = bytes(data[: len(_LFS_POINTER)])
    if start == _LFS_POINTER:
        return ImageError("a Git LFS pointer, not the file itself; `git lfs pull` brings it")
    kind, damage = odd_kind(data), _damage(data)
    if kind and not ("TIFF" in kind and damage and "pixel mode" not in damage):
        return ImageError(f"not an image of a known format but {kind}")
    if damage:
        return ImageError(f"not opened, since it is damaged or of an unusual kind: {damage}")
    return ImageError(f"not an image of a known format: it begins with {start[:8]!r}")


def _damage(data: bytes | memoryview) -> str:
    """Return why Pillow does not open a file that begins as one of `FORMATS`; "" for others."""
    for name in _formats():
        factory, accepts = Image.OPEN[name]
        if accepts is not None and accepts(bytes(data[:16])) is True:
            try:
                with _quiet():
                    factory(io.BytesIO(data), "").close()
            except Exception as error:
                return f"{name}, {str(error) or type(error).__name__}"
    return ""


def pil_orientation(image: Image.Image) -> int:
    """Return the orientation that an image is still to be turned by, 1 to 8.

    Pillow itself turns a TIFF as it loads it.  Damaged Exif counts as none, and does not cost the
    picture.
    """
    if image.format == "TIFF":
        found = image.getexif().get(_ORIENTATION_TAG, 1)
        return found if found in range(2, 9) else 1
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # it may come after the pixels
    exif = image.info.get("exif")
    if exif is None:
        with contextlib.suppress(ValueError):
            lines = image.info.get("Raw profile type exif", "").split("\n")
            exif = bytes.fromhex("".join(lines[3:]))
    xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp", b"")
    return orientation_in(exif or b"", xmp.encode() if isinstance(xmp, str) else xmp)


def pil_header(image: Any) -> tuple[int, int, int]:
    """Return height and width of an image as its file has them, and its orientation."""
    width, height = image.size
    if image.format == "TIFF":  # Pillow may give the size of the upright picture
        width, height = (int(image.tag_v2[tag]) for tag in _SIZE_TAGS)
    return height, width, pil_orientation(image)


def decode_with_pil(
    data: bytes,
    channels: int,
    *,
    mask: bool = False,
    max_pixels: int,
    notes: list[str] | None = None,
) -> tuple[Pixels, int]:
    """Return upright pixels, and the orientation that has turned them.

    Takes memory for the decoder and one copy of the pixels.  Adds remarks to `notes`.
    """
    with open_image(data, max_pixels) as image:
        moves = data[12:16] == b"VP8X" and data[20] & 2
        still_webp = image.format == "WEBP" and not moves and not mask
        check_memory(
            image.size[::-1],
            _WEBP_BYTES if still_webp else _bytes_a_pixel(image, data, channels),
        )
        largest = _pgm_largest(image) if mask else None
        bits = data[24] if image.format == "PNG" else _tiff_bits(image)
        if notes is not None and _has_frames(image, data):
            notes.append(_FIRST_FRAME)
        turned = pil_orientation(image)  # decodes a PNG without Exif
        pixels = _decode_webp(data, image.size, channels) if still_webp else None
        left = turned
        if pixels is None:
            image.load()
            if image.format == "TIFF":
                left = pil_orientation(image)
            pixels = to_pixels(image, channels, mask=mask, largest=largest, bits=bits)
        if notes is not None and bits == 16 and not mask:
            notes += _depth_notes(image, data, pixels)
    del image  # its memory
    return (pixels if left == 1 else orient(pixels, left)), turned


def _bytes_a_pixel(image: Any, data: bytes, channels: int) -> float:
    """Return what decoding takes at its peak: while it decodes, or while it converts."""
    bands = len(image.getbands())
    kept: float = _DECODER_BYTES.get(image.format, 0) + _SAMPLE_BYTES.get(image.mode, 4)
    decoding: float = 0
    if image.format == "JPEG2000":
        kept += _JPEG2000_BYTES * bands
    elif image.format == "TIFF":
        decoding = check_tiff(data, None) / (image.width * image.height)
    elif image.format == "PPM" and image.tile[0][0] != "raw":  # decoded in Python, in two copies
        decoding = 2 * bands * (4 if image.mode == "I" else 1)
    elif is_jpeg(data) and not read_jpeg_header(data).has_one_scan:  # the coefficients
        decoding = 2 * bands
    return kept + max(decoding, channels)


def _decode_webp(data: bytes, size: tuple[int, int], channels: int) -> Pixels | None:
    """Decode a WebP without animation by OpenCV; None if it refuses.

    Both use libwebp, and give the same pixels.  Pillow opens every file as an animation, and takes
    16 bytes a pixel; OpenCV takes 7.
    """
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    if pixels is None or pixels.shape != (size[1], size[0], 3) or pixels.dtype != np.uint8:
        return None
    if channels == 3:
        return np.asarray(pixels, np.uint8)
    grey = np.empty((*pixels.shape[:2], 1), np.uint8)
    for rows in _row_slices(*pixels.shape[:2]):
        grey[rows, :, 0] = np.asarray(Image.fromarray(pixels[rows]).convert("L"))
    return grey


def reduced_by_pil(data: bytes | memoryview, channels: int, factor: int) -> Pixels:
    """Decode a JPEG by Pillow, at full, 1/2, 1/4 or 1/8 size; it does not notice damage.

    The caller has counted its pixels and scans.
    """
    with open_image(data) as image:
        if image.format not in ("JPEG", "MPO"):
            raise ImageError("not a JPEG")
        # "L" asks libjpeg for the brightness; convert("L") would come by way of RGB.
        image.draft(
            "RGB" if channels == 3 else "L", (image.width // factor, image.height // factor)
        )
        return to_pixels(image, channels)


def _pgm_largest(image: Image.Image) -> int | None:
    """Return the largest value of a PGM that Pillow will scale; before it loads it."""
    decoder, _, _, arguments = (*getattr(image, "tile", ()), ("", None, 0, None))[0]
    return arguments[-1] if decoder.startswith("ppm") and isinstance(arguments, tuple) else None


def _tiff_bits(image: Image.Image) -> int:
    """Return the bits a sample of an opened TIFF; 8 for other images."""
    return int(max(getattr(image, "tag_v2", {}).get(_BITS_TAG, (8,))))


def _is_signed(image: Image.Image) -> bool:
    return bool(getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT_TAG, (1,))[0] == 2)


def _has_frames(image: Any, data: bytes) -> bool:
    if image.format != "GIF":
        return bool(getattr(image, "is_animated", False))
    # Pillow looks for a second frame by going there.
    with contextlib.suppress(ImageError), open_image(data) as again:
        return bool(getattr(again, "is_animated", False))
    return False


def _depth_notes(image: Any, data: bytes, pixels: Pixels) -> list[str]:
    """Return the remarks on a PNG or TIFF of 16 bits a sample; `pixels` are the high 8."""
    found, used = [], 12
    at = data.find(b"sBIT", 8, data.find(b"IDAT")) if image.format == "PNG" else -1
    if at > 0:  # PNG 1.2, 4.2.6
        used = max(data[at + 4 : at + 4 + int.from_bytes(data[at - 4 : at], "big")], default=used)
    if used < 16 and pixels.max() < 1 << max(0, used - 8):
        found.append(
            f"of 16 bits a sample only the lower {used} are used, and the high 8 are packed, so "
            f"the picture is dark; multiply the values by {1 << (16 - used)} first"
        )
    if image.format == "TIFF" and image.tag_v2.get(_PHOTOMETRIC_TAG) == 0:
        found.append(
            "a TIFF of 16 bits says that 0 is white, and 0 is packed as black, as Pillow and "
            "OpenCV read it; invert the values first"
        )
    return found


# -- pixels ------------------------------------------------------------------------------


def _row_slices(height: int, width: int) -> Iterator[slice]:
    rows = max(1, _BAND_PIXELS // max(width, 1))
    return (slice(top, min(top + rows, height)) for top in range(0, height, rows))


def row_bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Yield the rows of an image, some at a time, with their numbers; whole if it is small."""
    height, width = image.height, image.width
    for rows in _row_slices(height, width):
        whole = rows == slice(0, height)
        yield rows, image if whole else image.crop((0, rows.start, width, rows.stop))


def to_pixels(
    image: Image.Image,
    channels: int,
    *,
    mask: bool = False,
    largest: int | None = None,
    bits: int | None = None,
) -> Pixels:
    """Convert a PIL image to uint8, H x W x C, by the table of `fastdata.codecs.image`.

    `largest` is the value of white in a PGM that is a mask.  `bits` is the bits a sample of its
    file, by default those of an opened TIFF.
    """
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    bits = _tiff_bits(image) if bits is None else bits
    for rows, band in row_bands(image):
        pixels[rows] = _converted(band, image.format, channels, mask, largest, bits)
    if image.mode == "L" and _is_signed(image) and not (mask and pixels.max() < 128):
        raise ImageError(
            "a TIFF of signed samples of 8 bits, which "
            f"{'has a class below 0' if mask else 'have no defined range of brightness'}; write it "
            "with unsigned samples"
        )
    return pixels


def _converted(
    image: Image.Image, kind: str | None, channels: int, mask: bool, largest: int | None, bits: int
) -> Pixels:
    """Convert some rows; `kind` is the format of the file that they are of."""
    mode = image.mode
    deep = mode.startswith("I;16") or (mode == "I" and kind in ("PNG", "PPM"))
    if deep or largest is not None or (mask and mode in ("I", "F")):
        values = np.array(image)
        if largest is not None:  # as the file has them
            white = 65535 if mode == "I" else 255
            values = np.rint(values * (largest / white))
        if not mask:
            return (values.astype(np.int64) >> (4 if bits == 12 else 8)).astype(np.uint8)[
                :, :, None
            ]
        if not ((values >= 0) & (values <= 255) & (values == np.rint(values))).all():
            raise ImageError(
                f"mask values from {values.min():g} to {values.max():g} do not fit 8 bits: they "
                "must be whole numbers from 0 to 255"
            )
        return values.astype(np.uint8)[:, :, None]
    if mode in ("I", "F"):
        bits = 32 if bits == 8 else bits
        raise ImageError(f"mode {mode!r} ({bits} bits a sample) has no defined range of brightness")
    if mask:
        if mode not in ("P", "L", "1"):
            raise ImageError(f"a mask has one channel of class numbers; this has mode {mode!r}")
        numbers = np.array(image, dtype=np.uint8)[:, :, None]
        if mode == "L" and bits in (2, 4):  # Pillow makes 255 of the largest
            numbers //= 255 // ((1 << bits) - 1)
        return numbers
    if mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    converted = image.convert("RGB" if channels == 3 else "L")
    return np.asarray(converted).reshape(image.height, image.width, channels)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an Exif orientation, as ``ImageOps.exif_transpose`` does."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def unoriented(
    window: tuple[int, int, int, int], size: tuple[int, int], orientation: int
) -> tuple[int, int, int, int]:
    """Return where a window (top, left, height, width) of an upright picture was before `orient`.

    `size` is the height and width of the upright picture.
    """
    top, left, height, width = window
    if orientation in (2, 3, 6, 7):
        left = size[1] - left - width
    if orientation in (3, 4, 7, 8):
        top = size[0] - top - height
    return (top, left, height, width) if orientation < 5 else (left, top, width, height)
