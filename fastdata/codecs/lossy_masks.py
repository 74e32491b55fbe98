"""Masks in files whose compression changes pixels: JPEG, lossy WebP, AVIF, JPEG 2000.

Class numbers do not survive it: 0, 1, 2 and 11 become 0, 1, 2, 4, 7 and 11.  Such files are
refused, except JPEGs of masks with two values, 0 and 255: a threshold restores these.

A JPEG has two values if all of this is true:

* Blocks of 8 x 8 pixels without contrast have the value that quantisation makes of 0 or of 255.
* At most 1 pixel in 20 is between 32 and 223.
* In blocks with contrast, a third of the dark pixels is exactly 0, and a third of the bright ones
  is exactly 255.  The decoder clips noise around 0 and 255, and does not clip noise around class
  numbers.
* In each dark area inside a border of 255, a fifth of the pixels is exactly 0.
"""

from __future__ import annotations

import threading

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import encode_png
from fastdata.codecs.image import decode_image
from fastdata.codecs.jpeg import is_jpeg, tidy_jpeg
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image, orient
from fastdata.codecs.tiff import check_tags, is_tiff
from fastdata.errors import ImageError

__all__ = [
    "THRESHOLD_NOTE",
    "ClassNumbersLostError",
    "thresholded",
    "took_threshold",
    "without_loss",
]

THRESHOLD_NOTE = "a JPEG of two values as a mask: pixels of 128 and more became 255, all others 0"

_REMEDY = (
    "Save the masks as PNG, from their original files; JPEGs are read only if they have the two "
    "values 0 and 255"
)

_COMPRESSION = 259
_TIFF_KINDS = {6: "JPEG", 7: "JPEG", 34712: "JPEG 2000", 50001: "WebP"}
"""Compressions of TIFF that Pillow reads and that may change pixels."""
_PIL_KINDS = {"AVIF": "AVIF", "JPEG": "JPEG", "JPEG2000": "JPEG 2000", "MPO": "JPEG"}

_NEAR = 32
_MOST_BETWEEN = 0.05
_LEAST_EXACT = 0.35
_LEAST_ENCLOSED = 0.2
_LEAST_PIXELS = 16
"""Smaller enclosed areas are too small to tell."""
_MOST_COLOUR = 16
_CLEAR = 0.01
"""Share of blocks of other values that shows class numbers, and not an odd mask."""

_here = threading.local()


class ClassNumbersLostError(ImageError):
    """A mask has more than two values and was compressed with loss, so all masks are in doubt."""


def took_threshold() -> bool:
    """Return whether this thread has applied a threshold since the last call."""
    took: bool = getattr(_here, "took", False)
    _here.took = False
    return took


def without_loss(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return the file of a mask; of a JPEG with two values a PNG with 0 and 255, upright.

    `ClassNumbersLostError` if the file was compressed with loss and clearly has more values;
    another `ImageError` if that is not clear.
    """
    if not _is_jpeg_mask(_lossy_kind(data)):
        return data
    decoded = decode_image(data, 3, max_pixels=max_pixels)
    with open_image(tidy_jpeg(data)) as image:
        step = _luma_step(image)
    return encode_png(orient(_two_valued(decoded.pixels, step), decoded.orientation))


def thresholded(image: Image.Image) -> Pixels | None:
    """Return the pixels, H x W x 1, of a mask in a PIL image of a lossy file; None for others.

    Raises as `without_loss`.
    """
    kind = _PIL_KINDS.get(image.format or "", "")
    if image.format == "TIFF" and image.info.get("compression") in ("jpeg", "tiff_jpeg"):
        kind = "JPEG in TIFF"
    if not _is_jpeg_mask(kind):
        return None
    return _two_valued(np.asarray(image.convert("RGB")), _luma_step(image))


def _is_jpeg_mask(kind: str) -> bool:
    """Tell a JPEG from a file without loss, ""; refuse other formats."""
    if kind not in ("JPEG", ""):
        raise ClassNumbersLostError(f"a mask as {kind}, which changes class numbers. {_REMEDY}")
    return bool(kind)


def _lossy_kind(data: bytes) -> str:
    """Return the format of a file that may have lost something; "" for others."""
    if is_jpeg(data):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "lossy WebP" if _has_lossy_frame(data) else ""
    if data[4:8] == b"ftyp" and (b"avif" in data[8:64] or b"avis" in data[8:64]):  # its brands
        return "AVIF"
    if data[4:8] == b"jP  " or data[:4] == b"\xff\x4f\xff\x51":
        return "JPEG 2000"
    if is_tiff(data):
        tag = check_tags(data).get(_COMPRESSION)
        kind = _TIFF_KINDS.get(tag.value if tag else 0, "")
        return f"{kind} in TIFF" if kind else ""
    return ""


def _has_lossy_frame(data: bytes) -> bool:
    """Return whether a WebP has a chunk ``VP8``, also in a frame of an animation."""
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"VP8 ":
            return True
        at += 24 if name == b"ANMF" else 8 + size + size % 2  # the frame's own chunks follow
    return False


def _luma_step(image: Image.Image) -> int:
    """Return the quantisation step of the mean brightness of a block of a JPEG."""
    tables = getattr(image, "quantization", None) or {0: [1]}
    return max(1, int(tables.get(0, [1])[0]))


def _two_valued(pixels: Pixels, step: int) -> Pixels:
    """Return the mask, H x W x 1, with 0 and 255 alone; `pixels` are the RGB pixels of a JPEG."""
    if int((pixels.max(axis=2) - pixels.min(axis=2)).max()) > _MOST_COLOUR:
        raise ImageError(f"a mask as JPEG with colours, which JPEG changes. {_REMEDY}")
    grey: NDArray[np.uint8] = np.ascontiguousarray(pixels[:, :, 1])
    black, white = (_stored(value, step) for value in (0, 255))
    blocks = _blocks(grey)
    flat = (blocks == blocks[:, :1]).all(axis=1)
    values = blocks[flat, 0]
    others = values[(values != black) & (values < white - 8)]
    if len(others) >= _CLEAR * len(blocks):
        shown = ", ".join(map(str, np.unique(others)[:8].tolist()))
        raise ClassNumbersLostError(
            f"a mask as JPEG, with areas of {shown}: JPEG changes class numbers. {_REMEDY}"
        )
    if int(grey.max(initial=0)) <= _NEAR:  # nothing is white: it is black, or has small numbers
        clear = bool((grey == black).all()) and _stored(1, step) != black
    else:
        clear = not len(others) and _has_noise_of_two_values(grey, blocks[~flat], black, white)
    if not clear:
        raise ImageError(f"a mask as JPEG that is not clearly one of two values. {_REMEDY}")
    _here.took = True
    return np.where(grey >= 128, 255, 0).astype(np.uint8)[:, :, None]


def _stored(value: int, step: int) -> int:
    """Return the decoded value of an area after quantisation (ITU-T T.81, A.3.4)."""
    level = round((value - 128) * 8 / step) * step / 8 + 128
    return int(min(max(np.floor(level + 0.5), 0), 255))


def _blocks(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the 8 x 8 blocks of a picture, [n, 64]; those at the edges repeat the last pixels."""
    height, width = grey.shape
    padded = np.pad(grey, ((0, -height % 8), (0, -width % 8)), mode="edge")
    rows, columns = padded.shape[0] // 8, padded.shape[1] // 8
    blocks = padded.reshape(rows, 8, columns, 8).swapaxes(1, 2)
    return np.asarray(blocks.reshape(-1, 64), np.uint8)


def _has_noise_of_two_values(
    grey: NDArray[np.uint8], edges: NDArray[np.uint8], black: int, white: int
) -> bool:
    """Tell whether the pixels of blocks with contrast are 0 and 255 with noise around them."""
    between = (grey > _NEAR) & (grey < 255 - _NEAR)
    if between.mean() > _MOST_BETWEEN:
        return False
    dark, bright = edges[edges <= _NEAR], edges[edges >= 255 - _NEAR]
    for exact in (dark <= black, bright >= white):
        if exact.size and exact.mean() < _LEAST_EXACT:
            return False
    count, areas = cv2.connectedComponents((grey < 128).astype(np.uint8), connectivity=4)
    pixels = np.bincount(areas.ravel(), minlength=count)
    exactly = np.bincount(areas[grey <= black], minlength=count)
    doubtful = (pixels >= _LEAST_PIXELS) & (exactly < _LEAST_ENCLOSED * pixels)
    return not bool(doubtful[1:].any())  # area 0 is all bright pixels
