"""Images that MDS and LitData write as PIL has them: pixels, and what they are before these."""

from __future__ import annotations

import struct

from PIL import Image

from fastdata.errors import SourceError

__all__ = ["raw_image"]

_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 3, "HSV": 3, "LAB": 3, "YCbCr": 3}
_PIXEL_BYTES |= {"RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}
_RAW_HEAD = 12


def raw_image(data: bytes) -> Image.Image:
    """Return the image whose width, height and mode stand before its pixels.

    Three numbers of 4 bytes, the last the length of the mode's name (``RGB``); the name;
    the pixels.  So MDS and LitData write images of PIL's that are no files.

    Raises SourceError if the pixels are more or fewer than the head says, or the mode is not known.
    """
    if len(data) < _RAW_HEAD:
        raise SourceError(f"an image of {len(data)} bytes has no head")
    width, height, named = struct.unpack_from("<3I", data)
    mode = data[_RAW_HEAD : _RAW_HEAD + named].decode("ascii", "replace")
    pixels = data[_RAW_HEAD + named :]
    if mode == "1":
        expected = (width + 7) // 8 * height
    elif mode in _PIXEL_BYTES:
        expected = width * height * _PIXEL_BYTES[mode]
    else:
        raise SourceError(f"an image of PIL's mode {mode[:20]!r} cannot be read")
    if expected != len(pixels) or not expected:
        raise SourceError(
            f"an image of {width} x {height} {mode} has {expected:,} bytes, not {len(pixels):,}"
        )
    return Image.frombytes(mode, (width, height), pixels)
