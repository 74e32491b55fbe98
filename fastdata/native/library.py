"""The compiled library: found and loaded once a process, and called with NumPy arrays.

Each task takes one call, without the interpreter's lock.  The library refuses crops that it does
not fully understand; the caller makes these in another way, and reports errors.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.installing import BUILD_AGAIN

__all__ = [
    "CROP",
    "FILE",
    "JPEG",
    "OTHER_CODEC",
    "RAW",
    "compiled",
    "copy_rows",
    "decode_jpeg",
    "decode_resized",
    "encode_jpeg",
    "library",
    "loaded_library",
    "look_up_planes",
    "render_crops",
    "resize",
    "resize_jpeg",
    "transcode_jpeg",
]

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_INT32, _INT64 = ctypes.c_int32, ctypes.c_int64

VERSION = 8
"""Of the interface; ``VERSION`` in crops.c is the same."""

FILE = Path(__file__).with_name("_native.so")
"""Of any Python: nothing of Python's API is in it (setup.py)."""

Pixels: TypeAlias = NDArray[np.uint8]

CROP = np.dtype(
    [
        ("data", np.uint64),
        ("size", np.uint64),
        *(
            (name, np.int32)
            for name in (
                *("codec", "height", "width", "factor", "top", "left", "rows", "columns"),
                *("target_rows", "target_columns", "part_top", "part_left"),
                *("antialias", "flip", "status"),
            )
        ),
    ],
    align=True,
)
"""One crop, as ``fd_crop`` in crops.c.

``data``, ``size``, ``codec``
    Address and length of the stored bytes, and the codec's number in
    `fastdata.formats.layout.CODECS`.
``height``, ``width``
    Of the whole image.
``factor``
    1, 2, 4 or 8: the reduction of a JPEG during decoding, as in libjpeg-turbo, or the past
    reduction of a raw image, which then has ``ceil(height / factor)`` x ``ceil(width / factor)``
    stored pixels.
``top``, ``left``, ``rows``, ``columns``
    The window, in pixels of the whole image and inside it; reduced, its edges may lie between
    pixels.  It may exceed a raw image that is neither reduced nor resized; pixels beyond are zero.
``target_rows``, ``target_columns``, ``part_top``, ``part_left``
    The size to which the window is resized, and the begin of the output in it; a size of 0 is the
    output's.  Only pixels that the output needs are decoded.
``antialias``, ``flip``
    Whether the resize is antialiased, and whether the result is mirrored.  Without `antialias`,
    reduced pixels are not resized: the output is those that the window touches.
``status``
    The result: 0 for success.
"""

RAW, JPEG, OTHER_CODEC = 0, 1, -1


@functools.cache
def compiled() -> bool:
    """Return whether the compiled library is there and to be used."""
    return library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library; None where it is not there, or not to be used for images.

    It is not used where ``FASTDATA_NATIVE=0`` is set, nor on processors with neither AVX2 nor
    NEON, where other libraries are faster.
    """
    loaded = loaded_library()
    return loaded if loaded is not None and loaded.fd_is_fast() else None


@functools.cache
def loaded_library() -> ctypes.CDLL | None:
    """Return the compiled library for uses other than speed; None without one.

    Warns
    -----
    RuntimeWarning
        If it does not fit these Python files: built before they changed, or for another machine.
    """
    if os.environ.get("FASTDATA_NATIVE") == "0" or not FILE.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(FILE))
        version = int(loaded.fd_version())
    except (AttributeError, OSError) as error:
        _warn(str(error))
        return None
    if version != VERSION:
        _warn(f"its version is {version}, not {VERSION}")
        return None
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "fd_render_crops": (None, [_POINTER, _INT64, _POINTER, *[_INT32] * 4]),
        "fd_look_up": (None, [_POINTER, _INT64, _INT64, _INT32, _POINTER, _INT32, _POINTER]),
        "fd_gather_rows": (None, [_POINTER, _POINTER, _INT64, _SIZE, _POINTER]),
        "fd_read_soon": (None, [_POINTER, _POINTER, _POINTER, _INT64]),
        "fd_watch_map": (_POINTER, [_POINTER, _SIZE, ctypes.c_char_p, ctypes.c_char_p]),
        "fd_unwatch_map": (None, [_POINTER]),
        "fd_transcode_jpeg": (_POINTER, [ctypes.c_char_p, _SIZE, _INT32, _POINTER]),
        "fd_encode_jpeg": (_POINTER, [_POINTER, *[_INT32] * 5, _POINTER]),
        "fd_resize_jpeg": (_POINTER, [ctypes.c_char_p, _SIZE, *[_INT32] * 8, _POINTER]),
        "fd_free": (None, [_POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def _warn(reason: str) -> None:
    warnings.warn(
        f"fastdata's compiled library {FILE} is not used, as it does not fit ({reason}); "
        f"everything works, but slower. Install fastdata again to rebuild it: {BUILD_AGAIN} (in "
        "the repository's folder: pip install -e .)",
        RuntimeWarning,
        stacklevel=5,
    )


def render_crops(crops: NDArray[Any], out: Pixels) -> NDArray[np.intp]:
    """Decode windows, resize them bilinearly, mirror them, into `out`, uint8 [n, H, W, C].

    Its memory is contiguous, or that of contiguous planes, [n, C, H, W].

    `crops` is an array of `CROP` [n], whose ``data`` must stay valid during the call and whose
    ``status`` is written to.  C is 3 or 1, for raw images also 2 or 4.  Returns the places, intp,
    of crops that were not made, whose part of `out` is undefined: damaged, of a kind that is left
    to others, or out of memory.

    For any number of threads; without the interpreter's lock.  Bytes are not trusted, but ``data``
    and ``size`` are.
    """
    native = loaded_library()
    assert native is not None, "the caller asks whether it is there"
    assert crops.dtype == CROP, crops.dtype
    assert crops.flags.c_contiguous, crops.strides
    planar = not out.flags.c_contiguous
    assert not planar or out.transpose(0, 3, 1, 2).flags.c_contiguous, out.strides
    assert len(crops) == len(out), (len(crops), len(out))
    if out.size:
        _, height, width, channels = out.shape
        native.fd_render_crops(
            crops.ctypes.data, len(crops), out.ctypes.data, height, width, channels, planar
        )
    return np.flatnonzero(crops["status"])


def look_up_planes(pixels: Pixels, table: NDArray[Any] | None, out: NDArray[Any]) -> None:
    """Write ``table[pixels[..., c], c]`` to `out`, [n, H, W, C] in the memory of planes.

    `pixels` are uint8 of the same shape, C-contiguous; `table` is [256, C] of the dtype of `out`,
    or None: pixels as they are.  Without the interpreter's lock.
    """
    planes = out.transpose(0, 3, 1, 2)
    assert pixels.flags.c_contiguous, pixels.strides
    assert planes.flags.c_contiguous, planes.strides
    native = loaded_library()
    if native is None:
        values = pixels if table is None else table[pixels, np.arange(pixels.shape[-1])]
        planes[...] = values.transpose(0, 3, 1, 2)
        return
    count, height, width, channels = pixels.shape
    where = None if table is None else table.ctypes.data
    native.fd_look_up(
        pixels.ctypes.data, count, height * width, channels, where, out.itemsize, out.ctypes.data
    )


def copy_rows(
    memory: NDArray[np.uint8], offsets: NDArray[np.int64], length: int, out: Pixels
) -> None:
    """Copy ``memory[offsets[k] : offsets[k] + length]``, all inside, to ``out[k]`` for every k.

    Long rows are written past the cache: 21 GB/s in one core where `memcpy` makes 16.
    """
    native = library()
    assert native is not None, "the caller asks whether it is there"
    assert out.flags.c_contiguous, out.strides
    assert out.shape == (len(offsets), length), out.shape
    places = np.ascontiguousarray(offsets, np.int64)
    native.fd_gather_rows(
        memory.ctypes.data, places.ctypes.data, len(places), length, out.ctypes.data
    )


def decode_jpeg(
    data: bytes | memoryview,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    out: Pixels,
    factor: int = 1,
) -> bool:
    """Decode a window (top, left, height, width) of a JPEG of this height and width into `out`.

    By a `factor` of 2, 4 or 8 it is reduced while it is decoded; `out` is then of the reduced
    pixels that the window touches.  False where it was refused: damaged, or a kind of JPEG that is
    left to others.
    """
    return _one(np.frombuffer(data, np.uint8), JPEG, size, window, out, factor=factor)


def decode_resized(
    data: bytes | memoryview,
    size: tuple[int, int],
    out: Pixels,
    *,
    factor: int = 1,
    target: tuple[int, int] = (0, 0),
    part: tuple[int, int] = (0, 0),
) -> bool:
    """Decode a JPEG of this height and width and resize it, antialiased, into `out`.

    `factor` is the reduction during decoding.  The whole image becomes `target` pixels (height,
    width), by default the size of `out`, which begins at `part` (top, left).  False if the JPEG was
    refused, as by `decode_jpeg`.
    """
    return _one(
        np.frombuffer(data, np.uint8),
        JPEG,
        size,
        (0, 0, *size),
        out,
        antialias=True,
        factor=factor,
        target=target,
        part=part,
    )


def encode_jpeg(pixels: Pixels, quality: int, interval: int) -> bytes | None:
    """Encode uint8 [H, W, 3] (RGB, 4:2:0) or [H, W, 1] as a JPEG with the segment index.

    The file is libjpeg-turbo's, bit for bit, with a restart marker after every `interval` MCUs, and
    the index behind its JFIF segment.  None where the library is not there, memory runs out, or an
    index cannot have all segments.  For any number of threads; without the interpreter's lock.
    """
    native = loaded_library()
    if native is None:
        return None
    pixels = np.ascontiguousarray(pixels)
    size = _SIZE()
    memory = native.fd_encode_jpeg(
        pixels.ctypes.data, *pixels.shape, quality, interval, ctypes.byref(size)
    )
    return None if not memory else _taken(native, memory, size.value)


def resize_jpeg(
    data: bytes,
    size: tuple[int, int],
    factor: int,
    resized: tuple[int, int],
    channels: int,
    quality: int,
    interval: int,
) -> bytes | None:
    """Decode a JPEG of this height and width, resize it, and encode the result.

    What `decode_resized` and `encode_jpeg` do, in one call: what Python does around a call takes
    about 50 us with caches that were filled with pixels meanwhile.  `resized` is the new height and
    width.  None where one of the two refuses.
    """
    native = loaded_library()
    if native is None:
        return None
    made = _SIZE()
    memory = native.fd_resize_jpeg(
        *(data, len(data), *size, factor, *resized, channels, quality, interval),
        ctypes.byref(made),
    )
    return None if not memory else _taken(native, memory, made.value)


def _taken(native: ctypes.CDLL, memory: int, size: int) -> bytes:
    """Return the bytes that a call has made, and free its memory."""
    try:
        return ctypes.string_at(memory, size)
    finally:
        native.fd_free(memory)


def transcode_jpeg(data: bytes, interval: int) -> bytes | None:
    """Transcode a JPEG without changing a pixel, with a restart marker every `interval` MCUs.

    The result is baseline, with the segment index, its own Huffman tables, and no metadata except
    those of colour.  None without the library, or if it refuses the file: damaged, or of an
    unsupported kind (arithmetic codes, 12 bits, four colours, missing bits of coefficients, tables
    of 16 bits).  A file that is not refused is intact.

    Thread-safe; without the interpreter's lock; the same bytes on any processor.  Takes about 6
    bytes of memory per byte of the file; with several scans also 2 per coefficient, which is 3 per
    pixel if chroma is halved in both directions.
    """
    native = loaded_library()
    if native is None:
        return None
    size = _SIZE()
    memory = native.fd_transcode_jpeg(data, len(data), interval, ctypes.byref(size))
    return None if not memory else _taken(native, memory, size.value)


def resize(
    image: Pixels,
    out: Pixels,
    *,
    antialias: bool,
    factor: int = 1,
    size: tuple[int, int] | None = None,
    window: tuple[int, int, int, int] | None = None,
) -> bool:
    """Resize an image, uint8 [H, W, C], bilinearly into `out`; False if memory ran out.

    A reduced image is of a picture of `size` (height, width), `factor` times as large, rounded up.
    `window` (top, left, height, width) is what of the picture is resized.
    """
    image = np.ascontiguousarray(image)
    size = size or (image.shape[0], image.shape[1])
    return _one(image, RAW, size, window or (0, 0, *size), out, antialias=antialias, factor=factor)


def _one(
    data: NDArray[np.uint8],
    codec: int,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    out: Pixels,
    *,
    antialias: bool = False,
    factor: int = 1,
    target: tuple[int, int] = (0, 0),
    part: tuple[int, int] = (0, 0),
) -> bool:
    crop = (
        *(data.ctypes.data, data.nbytes, codec, *size, factor, *window),
        *(*target, *part, antialias, False, 0),
    )
    return len(render_crops(np.array([crop], CROP), out[None])) == 0
