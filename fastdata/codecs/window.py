"""Decode a window of an image out of a shard, and of a JPEG little more than that.

What training asks for is nearly always a crop.  A JPEG that fastdata encoded is
cut in its compressed bytes first (`fastdata.codecs.jpeg_crop`); pixels are the same
as those of decoding the whole and cropping, only sooner.
"""

from __future__ import annotations

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.codecs.encode import decode_stored
from fastdata.codecs.jpeg_crop import CutJpeg, cut_jpeg
from fastdata.errors import ImageError, OptionError

__all__ = ["cut_if_worthwhile", "decode_window"]

_DECODER = jpeg_decoder()

_WORTH_CUTTING_PIXELS = 12_000
"""Outside the window.  Fewer take no longer to decode than to cut away, for which the window
is rounded out; a window of 3/4 of 64, 96 and 128 pixels took 25% more time when it was cut."""


def decode_window(
    data: memoryview,
    codec: str,
    shape: tuple[int, int, int],
    window: tuple[int, int, int, int],
    *,
    mask: bool = False,
    decoder: JpegDecoder = _DECODER,
    factor: int = 1,
) -> tuple[Pixels, int]:
    """Decode a window of a stored image.

    Parameters
    ----------
    data : memoryview
        The stored bytes.
    codec : {"raw", "jpeg", "png", "file"}
    shape : tuple of int
        Height, width and channels that the whole image must have.
    window : tuple of int
        Top, left, height and width in pixels; inside the image, not empty.
    mask : bool
        Whether it is a mask.
    decoder : JpegDecoder
        For the codec ``jpeg``.
    factor : {1, 2, 4, 8}
        By how much a JPEG is to be reduced while it is decoded.

    Returns
    -------
    pixels : numpy.ndarray
        uint8, height x width x channels; perhaps a view whose rows are not contiguous,
        and of ``raw`` a read-only one of `data`.  Where the returned factor f is not 1:
        of the picture at 1/f of its size, rows floor(top / f) to ceil((top + height) / f),
        columns likewise.
    factor : int
        The one used: 1 for all but JPEGs, and for images with a side below 8 pixels.

    Raises
    ------
    ImageError
        If the bytes are not such an image of that shape.
    OptionError
        If `window` is not inside the image, or there is no such factor.

    Notes
    -----
    For any number of threads; the interpreter's lock is held for about 20 µs.
    The size in the bytes is compared with `shape` before anything is decoded, so
    no bytes make it take more memory than an image of `shape` does.
    """
    top, left, height, width = window
    bottom, right = top + height, left + width
    if not (0 <= top < bottom <= shape[0] and 0 <= left < right <= shape[1]):
        raise OptionError(
            f"the window (top, left, height, width) {window} is empty or not inside an image of "
            f"{shape[0]} x {shape[1]} pixels"
        )
    if codec != "jpeg":
        whole = decode_stored(data, codec, shape, mask=mask)
        return whole[top:bottom, left:right], 1
    if min(shape[:2]) < 8:
        factor = 1  # decoders cannot tell the scales of so small an image apart
    try:
        pixels, y, x = _decode_jpeg(data, shape, window, decoder, factor)
    except MemoryError:
        raise ImageError(f"there is not enough memory for an image of shape {shape}") from None
    rows = slice(top // factor - y, -(-bottom // factor) - y)
    columns = slice(left // factor - x, -(-right // factor) - x)
    return pixels[rows, columns], factor


def cut_if_worthwhile(
    data: memoryview, size: tuple[int, int], window: tuple[int, int, int, int], factor: int = 1
) -> CutJpeg | None:
    """Cut a window out of a JPEG of this height and width, where that saves time.

    Other parameters are those of `fastdata.codecs.jpeg_crop.cut_jpeg`.

    Returns
    -------
    CutJpeg or None
        None where the whole is to be decoded.
    """
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
) -> tuple[Pixels, int, int]:
    """Return pixels that cover a window, and where in the reduced picture the first one lies."""
    height, width, channels = shape
    if factor == 1:
        exact = decoder.decode_window(data, channels, (height, width), window)
        if exact is not None:
            return exact, window[0], window[1]
    cut = cut_if_worthwhile(data, (height, width), window, factor)
    if cut is not None:
        size = cut.height, cut.width
        try:
            pixels = decoder.decode(cut.data, channels, factor=factor, size=size)
            return pixels, cut.top // factor, cut.left // factor
        except ImageError:
            pass  # damaged, or cut by an index that lies: decoding the whole tells
    return decoder.decode(data, channels, factor=factor, size=(height, width)), 0, 0
