"""JPEG decoders: one behaviour, several libraries.

===========  =====================================================================
native       fastdata's own (`fastdata.native`), the fastest, and the only one that decodes
             just a window; needs a C compiler at the installation
simplejpeg   libjpeg-turbo's TurboJPEG, the fastest of the others; always installed
jpeg4py      the system's TurboJPEG; the extra ``jpeg``
opencv       OpenCV's libjpeg-turbo; does not notice damage in coded data
pil          PIL's libjpeg-turbo, the slowest; does not notice it either
===========  =====================================================================

All give the same pixels, bit for bit, at full size and at every factor: each is, or computes
as, libjpeg-turbo with the accurate inverse DCT and smooth ("fancy") chroma upsampling.
(So are PIL's own wheels; a PIL built with another libjpeg may differ in the last bits,
see ``PIL.features.check("libjpeg_turbo")``.)

A JPEG that a library refuses is decoded by simplejpeg, which distinguishes harmless
oddities from damage (`fastdata.codecs.image.decode_jpeg`).  So all accept the same files,
except for damage that OpenCV and PIL do not notice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import cv2
import numpy as np
import simplejpeg

from fastdata.codecs import Pixels
from fastdata.codecs.image import check_end, decode_jpeg
from fastdata.codecs.jpeg import check_scans, read_jpeg_header
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import reduced_by_pil
from fastdata.errors import ImageError, MissingExtraError, OptionError
from fastdata.installing import BUILD_AGAIN, install_line
from fastdata.native.library import compiled
from fastdata.native.library import decode_jpeg as decode_compiled

__all__ = ["DecoderName", "JpegDecoder", "check_out", "jpeg_decoder"]

DecoderName: TypeAlias = Literal["auto", "native", "simplejpeg", "jpeg4py", "opencv", "pil"]

Data: TypeAlias = bytes | memoryview
_Shape: TypeAlias = tuple[int, int, int]


def check_out(out: Pixels, shape: _Shape) -> None:
    """Refuse an array into which an image of this shape cannot be decoded."""
    if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise OptionError(
            f"out must be uint8, C-contiguous and of shape {shape}; it is {out.dtype} of "
            f"shape {out.shape} with strides {out.strides}"
        )


class JpegDecoder(ABC):
    """Decodes grey, YCbCr and RGB JPEGs of 8 bits.

    Has no state: for any number of threads, and pickled by its name.  The interpreter's
    lock is released while the library decodes.
    """

    name: ClassVar[str]

    def decode(
        self,
        data: Data,
        channels: int,
        *,
        factor: int = 1,
        size: tuple[int, int] | None = None,
        out: Pixels | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> Pixels:
        """Return a JPEG's pixels, ceil(height / factor) x ceil(width / factor) x channels.

        `channels` is 3 (RGB) or 1 (grey: the brightness of a colour JPEG).  A `factor` of 2, 4
        or 8 reduces by a smaller inverse DCT; both sides must then have 8 pixels or more.  `size`
        is the height and width that the JPEG must have before reduction; without it, the bytes
        decide how much memory is allocated.  `out` is C-contiguous and of the result's shape.
        Raises `ImageError` if this is not such a JPEG of that size, has more scans than
        `max_pixels` allow, ends early, or is damaged.
        """
        shape = self._shape(data, channels, factor, size)
        check_scans(data, size or (shape[0] * factor, shape[1] * factor), max_pixels)
        if out is not None:
            check_out(out, shape)
        pixels = self._decode(data, shape, factor, out)
        if pixels is None:
            pixels = decode_jpeg(bytes(data), read_jpeg_header(data), channels, factor)
        if out is None or pixels is out:
            return pixels
        np.copyto(out, pixels)
        return out

    def decode_window(
        self,
        data: Data,
        channels: int,
        size: tuple[int, int],
        window: tuple[int, int, int, int],
        factor: int = 1,
    ) -> Pixels | None:
        """Decode a window (top, left, height, width) of a JPEG of this height and width.

        With a `factor`, the reduced pixels that the window touches.  None if the library decodes
        only whole images, or refuses this one.
        """
        return None

    def _shape(
        self, data: Data, channels: int, factor: int, size: tuple[int, int] | None
    ) -> _Shape:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)  # 1.6 µs
        except (ValueError, KeyError) as error:
            height, width, colours = _unusual(data, error)
        if size is not None and (height, width) != size:
            raise ImageError(
                f"the image has shape {(height, width, channels)}, the columns say "
                f"{(*size, channels)}"
            )
        if colours not in ("YCbCr", "Gray", "RGB"):
            raise ImageError(f"the JPEG is {colours}; only YCbCr, grey and RGB are decoded here")
        if factor not in (1, 2, 4, 8) or (factor > 1 and min(height, width) < 8):
            raise OptionError(
                f"factor is {factor}; it must be 1, 2, 4 or 8, and 1 for images with a side below "
                f"8 pixels (this has {width} x {height})"
            )
        if data[-2:] != b"\xff\xd9":
            check_end(bytes(data), read_jpeg_header(data))
        return -(-height // factor), -(-width // factor), channels

    @abstractmethod
    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        """Decode to `shape`, into `out` where the library can; None where it refuses."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return jpeg_decoder, (self.name,)

    def __repr__(self) -> str:
        return f"jpeg_decoder({self.name!r})"


def _unusual(data: Data, error: Exception) -> tuple[int, int, str]:
    """Return height, width and colours of a JPEG that TurboJPEG does not read as it is."""
    try:
        header = read_jpeg_header(data)
    except ImageError:
        header = None
    if header is None or header.frame not in (0xC0, 0xC1, 0xC2) or header.precision != 8:
        raise ImageError(f"the JPEG cannot be decoded: {error}") from error
    colours = {1: "Gray", 3: "YCbCr"}.get(header.components, f"of {header.components} colours")
    return header.height, header.width, colours


class _Native(JpegDecoder):
    name = "native"

    def __init__(self) -> None:
        if not compiled():
            raise MissingExtraError(
                "the JPEG decoder 'native' is part of fastdata's compiled library, which was not "
                "built, or is not for this processor, or is turned off by FASTDATA_NATIVE=0. "
                "Install a C compiler (apt-get install gcc libc6-dev) and fastdata again "
                f"({BUILD_AGAIN}); or use the decoder 'simplejpeg'"
            )

    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        size = shape[:2] if factor == 1 else simplejpeg.decode_jpeg_header(data)[:2]
        pixels = np.empty(shape, np.uint8) if out is None else out
        return pixels if decode_compiled(data, size, (0, 0, *size), pixels, factor) else None

    def decode_window(
        self,
        data: Data,
        channels: int,
        size: tuple[int, int],
        window: tuple[int, int, int, int],
        factor: int = 1,
    ) -> Pixels | None:
        self._shape(data, channels, factor, size)  # before memory is taken for such a window
        top, left, height, width = window
        rows = -(-(top + height) // factor) - top // factor
        columns = -(-(left + width) // factor) - left // factor
        pixels = np.empty((rows, columns, channels), np.uint8)
        return pixels if decode_compiled(data, size, window, pixels, factor) else None


class _SimpleJpeg(JpegDecoder):
    name = "simplejpeg"

    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        height, width, channels = shape
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(
                data,
                "RGB" if channels == 3 else "GRAY",
                min_height=height,
                min_width=width,
                min_factor=factor,
                buffer=out,
            )
        except (ValueError, KeyError):
            return None
        return pixels if out is None else out


class _Jpeg4py(JpegDecoder):
    name = "jpeg4py"

    def __init__(self) -> None:
        try:
            import jpeg4py

            jpeg4py.JPEG(np.zeros(0, np.uint8))  # loads the library
        except (ImportError, OSError) as error:
            raise MissingExtraError(
                f"the JPEG decoder 'jpeg4py' is not installed ({error}). Install it by "
                f"{install_line('jpeg')}, and libjpeg-turbo for it by "
                "apt-get install libturbojpeg0; or use the decoder 'simplejpeg'"
            ) from error
        self._module = jpeg4py

    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        # TurboJPEG chooses the scale by the size of the array.
        pixels = np.empty(shape, np.uint8) if out is None else out
        layout = self._module.TJPF_RGB if shape[2] == 3 else self._module.TJPF_GRAY
        try:
            self._module.JPEG(np.frombuffer(data, np.uint8)).decode(pixels, layout)
        except self._module.JPEGRuntimeError:
            return None
        return pixels


class _OpenCV(JpegDecoder):
    name = "opencv"

    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        flags = cv2.IMREAD_COLOR_RGB if shape[2] == 3 else cv2.IMREAD_GRAYSCALE
        flags |= _OPENCV_REDUCED[factor] | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error:
            return None
        return None if pixels is None else np.asarray(pixels, np.uint8).reshape(shape)


_OPENCV_REDUCED = {
    1: 0,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
}
"""Flags of the reduction alone; whether colours are decoded is another bit."""


class _Pil(JpegDecoder):
    name = "pil"

    def _decode(self, data: Data, shape: _Shape, factor: int, out: Pixels | None) -> Pixels | None:
        try:
            return reduced_by_pil(data, shape[2], factor).reshape(shape)
        except (ImageError, ValueError):
            return None


_DECODERS: dict[str, type[JpegDecoder]] = {
    kind.name: kind for kind in (_Native, _SimpleJpeg, _Jpeg4py, _OpenCV, _Pil)
}


def jpeg_decoder(name: DecoderName = "auto") -> JpegDecoder:
    """Return the JPEG decoder of that name; "auto" is the fastest that is installed.

    `MissingExtraError`, which says how to install it, if it is not; `OptionError` if there is none.
    """
    if name == "auto":
        name = "native" if compiled() else "simplejpeg"
    kind = _DECODERS.get(name)
    if kind is None:
        raise OptionError(
            f"there is no JPEG decoder {name!r}; there are auto, {', '.join(_DECODERS)}"
        )
    return kind()
