"""Stored images of a shard: encoding, and decoding of the whole or of a window.

Training nearly always needs a crop.  A JPEG that fastdata encoded is cut in its compressed bytes
first (`fastdata.codecs.jpeg_segments`): the pixels are the same as after decoding the whole.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder, check_out, jpeg_decoder
from fastdata.codecs.image import decode_image, turbo_reads
from fastdata.codecs.image_header import size_of
from fastdata.codecs.jpeg import JpegHeader
from fastdata.codecs.jpeg_segments import (
    CutJpeg,
    add_segment_index,
    cut_jpeg,
    has_segments,
    restart_interval,
)
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import orient
from fastdata.errors import ImageError, OptionError
from fastdata.native import library as native

__all__ = [
    "check_header",
    "cut_if_worthwhile",
    "decode_stored",
    "decode_window",
    "encode_jpeg",
    "encode_png",
    "resize_jpeg",
    "transcode_jpeg",
]

_PNG_START = struct.Struct(">8sI4sIIBB")
"""Signature, and the image header chunk as far as width, height, bit depth, colour type."""

_WORTH_CUTTING_PIXELS = 12_000
"""Minimum of pixels outside the window: cutting rounds the window outwards, and a window of 3/4 of
64, 96 and 128 pixels took 25% more time when it was cut."""

_MAX_JPEG_SIDE = 65500
"""Of libjpeg."""

_DECODER = jpeg_decoder()


def encode_jpeg(pixels: Pixels, quality: int = 90) -> bytes:
    """Encode uint8, H x W x 3 (RGB) or H x W x 1, as JPEG with restart intervals and their index.

    Baseline, 4:2:0; `quality` is libjpeg's, 1 to 100.  The bytes are the same with the compiled
    library, which is a little faster (245 µs of 263 for a photograph), and without.
    """
    height, width, channels = pixels.shape
    if max(height, width) > _MAX_JPEG_SIDE:
        raise ImageError(f"{width} x {height} pixels are more than a JPEG can have (65,500 a side)")
    interval = _interval(width, channels)
    data = native.encode_jpeg(pixels, quality, interval)
    if data is not None:
        return data
    options = [
        cv2.IMWRITE_JPEG_QUALITY,
        quality,
        cv2.IMWRITE_JPEG_RST_INTERVAL,
        interval,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    ]
    return add_segment_index(_encode(".jpg", pixels, options))


def resize_jpeg(
    data: bytes,
    header: JpegHeader,
    factor: int,
    size: tuple[int, int],
    channels: int,
    quality: int,
) -> bytes | None:
    """Decode a JPEG, reduced by `factor`, resize it to `size`, and encode it as `encode_jpeg` does.

    Antialiased bilinear; without its orientation.  None where the compiled library refuses it or is
    not there.
    """
    if max(size) > _MAX_JPEG_SIDE:
        return None
    whole, interval = (header.height, header.width), _interval(size[1], channels)
    return native.resize_jpeg(data, whole, factor, size, channels, quality, interval)


def _interval(width: int, channels: int) -> int:
    return restart_interval(-(-width // (16 if channels == 3 else 8)))


def transcode_jpeg(data: bytes, header: JpegHeader, channels: int) -> bytes | None:
    """Transcode a JPEG file with restart intervals and their index, without changing a pixel.

    None without the compiled library or if it refuses the file
    (`fastdata.native.library.transcode_jpeg`), if the file has an index already, or if the result
    would not have the codec ``jpeg``.  A file that is not refused is intact.
    """
    if not header.is_plain_coded_anew or header.components > channels or has_segments(data, header):
        return None
    coded = native.transcode_jpeg(data, restart_interval(header.mcu_grid[1]))
    return coded if coded is not None and turbo_reads(coded) else None


def encode_png(pixels: Pixels) -> bytes:
    """Encode uint8, H x W x 3 (RGB) or H x W x 1, as PNG."""
    return _encode(".png", pixels, [])


def _encode(suffix: str, pixels: Pixels, options: list[int]) -> bytes:
    ordered = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.shape[2] == 3 else pixels
    done, data = cv2.imencode(suffix, ordered, options)
    if not done:
        raise ImageError(f"OpenCV could not encode {pixels.shape} as {suffix}")
    return data.tobytes()


def decode_stored(
    data: memoryview,
    codec: str,
    shape: tuple[int, int, int],
    *,
    mask: bool = False,
    decoder: JpegDecoder = _DECODER,
    out: Pixels | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Return an image of a shard, uint8, of `shape`: height, width and channels.

    `codec` is one of `fastdata.formats.layout.CODECS`, `decoder` is for "jpeg", and `out`
    (C-contiguous, of `shape`) is decoded into.  Without `out`, the result of "raw" is a read-only
    view of `data`.  `max_pixels` limits the scans of a JPEG.

    Holds the interpreter's lock only briefly; for any number of threads. The size in the bytes is
    compared with `shape` before anything is decoded, so no bytes make it take more memory than an
    image of `shape` does.  `ImageError` if they are not such an image of that shape.
    """
    if out is not None:
        check_out(out, shape)
    try:
        if codec == "raw":
            _check_raw(data, shape)
            pixels: Pixels = np.frombuffer(data, np.uint8).reshape(shape)
        elif codec == "jpeg":
            pixels = decoder.decode(data, shape[2], size=shape[:2], out=out, max_pixels=max_pixels)
        elif codec == "png":
            pixels = _decode_png(data, shape)
        else:
            whole = decode_image(
                bytes(data),
                shape[2],
                mask=mask,
                max_pixels=max_pixels,
                claimed_pixels=shape[0] * shape[1],
            )
            pixels = orient(whole.pixels, whole.orientation)
    except MemoryError as error:
        raise ImageError(f"there is not enough memory for an image of shape {shape}") from error
    _check_shape(pixels.shape, shape)
    if out is not None and codec != "jpeg":
        np.copyto(out, pixels)
    return pixels if out is None else out


def decode_window(
    data: memoryview,
    codec: str,
    shape: tuple[int, int, int],
    window: tuple[int, int, int, int],
    *,
    mask: bool = False,
    decoder: JpegDecoder = _DECODER,
    factor: int = 1,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Pixels, int]:
    """Decode a window (top, left, height, width) of a stored image; otherwise as `decode_stored`.

    `factor` (1, 2, 4, 8) is the reduction of a JPEG during decoding.  The result may be a view with
    rows that are not contiguous, for ``raw`` a read-only view of `data`.  The second result is the
    factor used: 1 except for JPEGs, and 1 for images with a side below 8 pixels.  With a factor f,
    the pixels are those of the picture at 1/f of its size, rows floor(top / f) to
    ceil((top + height) / f), and columns in the same way.
    """
    top, left, height, width = window
    bottom, right = top + height, left + width
    if not (0 <= top < bottom <= shape[0] and 0 <= left < right <= shape[1]):
        raise OptionError(
            f"the window (top, left, height, width) {window} is empty or not inside an image of "
            f"{shape[0]} x {shape[1]} pixels"
        )
    if codec != "jpeg":
        whole = decode_stored(data, codec, shape, mask=mask, max_pixels=max_pixels)
        return whole[top:bottom, left:right], 1
    if min(shape[:2]) < 8:
        factor = 1  # decoders cannot distinguish the scales of so small an image
    try:
        pixels, y, x = _decode_jpeg(data, shape, window, decoder, factor, max_pixels)
    except MemoryError as error:
        raise ImageError(f"there is not enough memory for an image of shape {shape}") from error
    rows = slice(top // factor - y, -(-bottom // factor) - y)
    columns = slice(left // factor - x, -(-right // factor) - x)
    return pixels[rows, columns], factor


def cut_if_worthwhile(
    data: memoryview, size: tuple[int, int], window: tuple[int, int, int, int], factor: int = 1
) -> CutJpeg | None:
    """Cut a window out of a JPEG of this height and width; None where that saves no time."""
    if size[0] * size[1] - window[2] * window[3] <= _WORTH_CUTTING_PIXELS:
        return None
    cut = cut_jpeg(data, window, factor)
    return cut if cut is not None and cut.whole == size else None


def _decode_jpeg(
    data: memoryview,
    shape: tuple[int, int, int],
    window: tuple[int, int, int, int],
    decoder: JpegDecoder,
    factor: int,
    max_pixels: int,
) -> tuple[Pixels, int, int]:
    """Return pixels that cover a window, and where in the reduced picture the first one lies."""
    height, width, channels = shape
    exact = decoder.decode_window(data, channels, (height, width), window, factor)
    if exact is not None:
        return exact, window[0] // factor, window[1] // factor
    cut = cut_if_worthwhile(data, (height, width), window, factor)
    if cut is not None:
        size = cut.height, cut.width
        try:
            pixels = decoder.decode(cut.data, channels, factor=factor, size=size)
            return pixels, cut.top // factor, cut.left // factor
        except ImageError:
            pass  # damaged, or cut by a wrong index: decoding the whole shows which
    size = height, width
    whole = decoder.decode(data, channels, factor=factor, size=size, max_pixels=max_pixels)
    return whole, 0, 0


def check_header(data: memoryview, codec: str, shape: tuple[int, int, int]) -> None:
    """Compare the size that a stored image claims with that in the columns; decode nothing.

    Raises `ImageError` if they differ, or the image cannot be read as far as that.
    """
    if 0 in shape:
        raise ImageError(f"the columns say {shape}, which is not an image")
    if codec == "raw":
        _check_raw(data, shape)
    elif codec == "png":
        _check_png(data, shape)
    else:
        height, width = size_of(data, turned=codec == "file")
        _check_shape((height, width, shape[2]), shape)


def _check_raw(data: memoryview, shape: tuple[int, int, int]) -> None:
    if 0 in shape or len(data) != shape[0] * shape[1] * shape[2]:
        raise ImageError(f"{len(data)} bytes are not a raw image of shape {shape}")


def _check_shape(found: tuple[int, ...], shape: tuple[int, int, int]) -> None:
    if found != shape:
        raise ImageError(f"the image has shape {found}, the columns say {shape}")


def _check_png(data: memoryview, shape: tuple[int, int, int]) -> None:
    # OpenCV decodes any format, of any size, and would make colours of grey and grey of colours.
    colour_type = 2 if shape[2] == 3 else 0
    expected = _PNG_START.pack(
        b"\x89PNG\r\n\x1a\n", 13, b"IHDR", shape[1], shape[0], 8, colour_type
    )
    start = bytes(data[: len(expected)])
    if start != expected:
        raise ImageError(
            f"it begins with {start!r}; an 8-bit PNG of shape {shape} with {expected!r}"
        )


def _decode_png(data: memoryview, shape: tuple[int, int, int]) -> Pixels:
    _check_png(data, shape)
    flag = cv2.IMREAD_COLOR_RGB if shape[2] == 3 else cv2.IMREAD_GRAYSCALE
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise ImageError(f"the PNG cannot be decoded: {error}") from error
    if pixels is None:
        raise ImageError("the PNG cannot be decoded")
    return np.asarray(pixels, np.uint8).reshape(*pixels.shape[:2], shape[2])
