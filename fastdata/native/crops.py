"""Crops by the compiled library: stored bytes to pixels, a whole task in one call.

What a task costs around its pixels is paid once: one call, without the interpreter's lock.
The library makes what it fully understands, and refuses the rest crop by crop; the caller
does that in another way, and reports what is wrong with it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.native.library import library

__all__ = [
    "CROP",
    "JPEG",
    "OTHER_CODEC",
    "RAW",
    "copy_rows",
    "decode_jpeg",
    "render_crops",
    "resize",
]

Pixels: TypeAlias = NDArray[np.uint8]

CROP = np.dtype(
    [
        ("data", np.uint64),
        ("size", np.uint64),
        ("codec", np.int32),
        ("height", np.int32),
        ("width", np.int32),
        ("top", np.int32),
        ("left", np.int32),
        ("rows", np.int32),
        ("columns", np.int32),
        ("antialias", np.int32),
        ("flip", np.int32),
        ("status", np.int32),
    ]
)
"""One crop, as ``fd_crop`` in crops.c.

``data`` and ``size`` are address and length in bytes of what is stored, ``codec`` its number in
`fastdata.formats.layout.CODECS`, ``height`` and ``width`` the whole image's; then the window,
inside the image; then whether its resize is antialiased, and whether the result is mirrored.
``status`` is the answer: 0 where it was made.
"""

RAW, JPEG, OTHER_CODEC = 0, 1, -1


def render_crops(crops: NDArray[Any], out: Pixels) -> NDArray[np.intp]:
    """Decode windows, resize them bilinearly, mirror them, into one array.

    Parameters
    ----------
    crops : ndarray of `CROP`, shape [n]
        ``data`` must stay valid during the call.  ``status`` is written to.
    out : ndarray of uint8, shape [n, H, W, C]
        C-contiguous; C is 3 or 1, for raw images also 2 or 4.

    Returns
    -------
    ndarray of intp
        Places of the crops that were not made, whose part of `out` is undefined: damaged, of a kind
        that is left to others, or out of memory.

    Notes
    -----
    For any number of threads; without the interpreter's lock.  Bytes are not trusted, but
    ``data`` and ``size`` are.
    """
    compiled = library()
    assert compiled is not None, "the caller asks whether it is there"
    assert crops.dtype == CROP, crops.dtype
    assert crops.flags.c_contiguous, crops.strides
    assert out.flags.c_contiguous, out.strides
    assert len(crops) == len(out), (len(crops), len(out))
    if out.size:
        _, height, width, channels = out.shape
        compiled.fd_render_crops(
            crops.ctypes.data, len(crops), out.ctypes.data, height, width, channels
        )
    return np.flatnonzero(crops["status"])


def copy_rows(
    memory: NDArray[np.uint8], offsets: NDArray[np.int64], length: int, out: Pixels
) -> None:
    """Copy ``memory[offsets[k] : offsets[k] + length]``, all inside, to ``out[k]`` for every k.

    Long rows are written past the cache: 21 GB/s in one core where `memcpy` makes 16.
    """
    compiled = library()
    assert compiled is not None, "the caller asks whether it is there"
    assert out.flags.c_contiguous, out.strides
    assert out.shape == (len(offsets), length), out.shape
    places = np.ascontiguousarray(offsets, np.int64)
    compiled.fd_gather_rows(
        memory.ctypes.data, places.ctypes.data, len(places), length, out.ctypes.data
    )


def decode_jpeg(
    data: bytes | memoryview,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    out: Pixels,
) -> bool:
    """Decode a window (top, left, height, width) of a JPEG of this height and width into `out`.

    Returns
    -------
    bool
        False where it was refused: damaged, or a kind of JPEG that is left to others.
    """
    return _one(np.frombuffer(data, np.uint8), JPEG, size, window, False, False, out)


def resize(image: Pixels, out: Pixels, *, antialias: bool) -> bool:
    """Resize an image, uint8 [H, W, C], bilinearly into `out`; False if memory ran out."""
    image = np.ascontiguousarray(image)
    height, width, _ = image.shape
    return _one(image, RAW, (height, width), (0, 0, height, width), antialias, False, out)


def _one(
    data: NDArray[np.uint8],
    codec: int,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    antialias: bool,
    flip: bool,
    out: Pixels,
) -> bool:
    crop = (data.ctypes.data, data.nbytes, codec, *size, *window, antialias, flip, 0)
    return len(render_crops(np.array([crop], CROP), out[None])) == 0
