"""Carry out planned geometry on the CPU, into memory that the caller owns.

`render` carries out any geometry, one image after another.  `render_stack` takes windows and
flips of many small raw images at once.  `flip_rows` is for images that are otherwise made.

Bilinear resizes are fastdata's own, where its library was compiled (`fastdata.native`).  Without
it, an enlargement is done by OpenCV, bilinear by IPP where OpenCV was built with it; what shrinks,
where skipping source pixels aliases, by PyTorch's antialiased uint8 resize
(``docs/design/loading.md`` has what they take).  ``antialias=True`` is PyTorch's always.

OpenCV and PyTorch release the GIL here, and images of this size are below the
sizes at which either starts threads of its own: their process-wide thread
settings are left alone.

Image by image takes some 3 µs of Python each, more than a 32 x 32 image needs to be read, cut
and mirrored.  Where a whole batch is of one size and only cut and flipped, the same pixels come
from a few NumPy calls over all of it: 0.8 µs an image of 32 x 32 x 3 with
`RandomCrop(32, padding=4)` and a flip, nearly all of it without the GIL.  Large images gain
nothing: 224 x 224 of 256 x 256 takes 29 µs in a stack, 21 µs by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.resize import resize_pixels
from fastdata.native.library import compiled
from fastdata.native.library import resize as resize_compiled
from fastdata.transforms.geometry import (
    Geometry,
    Ints,
    PaddingMode,
    Program,
    Scale,
    Window,
    antialiases,
    inside_places,
)
from fastdata.transforms.render_warp import warp_image
from fastdata.transforms.warps import Warp

__all__ = ["CHUNK_BYTES", "StackPlan", "flip_rows", "render", "render_stack", "stack_plan"]

CHUNK_BYTES = 1 << 19
"""Source pixels that are worked on at a time.

Two such buffers are in use, which stay in a second-level cache of 1 MB
and are large enough for the NumPy calls' own cost not to show.  Measured, µs an
image of 32 x 32 x 3: 64 kB 1.3, 128 kB 0.9, 256 kB 0.8, 512 kB 0.75.
"""

ALONE_BYTES = 1 << 14
"""An image of more is flipped by itself.  Measured, µs for 128 images of 32 x 32 x 3: 196 by
themselves, 45 together; of 64 x 64: 227 and 128; of 96 x 96: 265 and 269."""

_IPP = getattr(cv2, "ipp", None)  # the oldest builds of OpenCV do not have it

Pixels = NDArray[np.uint8]


def render(program: Program, image: Pixels, out: Pixels, *, mask: bool = False) -> None:
    """Write what `program` makes of `image`, uint8 [H, W, C], to `out`, uint8 [H', W', C].

    `out` is C-contiguous, of the size that the program ends with, and no part of `image`, which
    is never written to.  A `mask` is resized by nearest neighbour, as class numbers need it.
    Thread-safe.

    The last operation writes to `out` and a flip happens there, while the pixels are in the
    cache: 6 µs for 224 x 224 x 3, where a second buffer would cost 38 µs.
    """
    operations, flip, upside_down, transpose = program
    last = -1 if transpose else len(operations) - 1
    for number, operation in enumerate(operations):
        target = out if number == last else None
        if isinstance(operation, Window):
            image = _cut(image, operation, target, mask)
        elif isinstance(operation, Warp):
            image = warp_image(image, operation, target, mask=mask)
        else:
            image = _resize(image, operation, target, mask)
    if transpose:
        cv2.transpose(image, dst=out)
        image = out
    if flip or upside_down:
        code = -1 if flip and upside_down else int(flip)
        cv2.flip(image, code, dst=out)  # swaps pixels, so image may be out
    elif image is not out:
        np.copyto(out, image)


def _cut(image: Pixels, window: Window, out: Pixels | None, mask: bool) -> Pixels:
    """Return the window: a view where it lies inside the image, else padded."""
    rows, columns, channels = image.shape
    top, left, height, width, fill, mode = window
    bottom, right = top + height, left + width
    if top >= 0 and left >= 0 and bottom <= rows and right <= columns:
        return image[top:bottom, left:right]
    padded = np.empty((height, width, channels), np.uint8) if out is None else out
    if mode != "constant":
        _mirror(image, top, left, padded, mode)
        return padded
    if fill is None:
        padded.fill(0)
    else:
        padded[:] = fill.values(channels, mask=mask)
    part = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if part.size:
        y, x = max(-top, 0), max(-left, 0)
        padded[y : y + part.shape[0], x : x + part.shape[1]] = part
    return padded


def _mirror(image: Pixels, top: int, left: int, out: Pixels, mode: PaddingMode) -> None:
    """Write the window that begins at top and left to `out`, with the image's pixels beyond it."""
    (rows, columns, _), (height, width, _) = image.shape, out.shape
    down = inside_places(np.arange(top, top + height), rows, mode)
    across = inside_places(np.arange(left, left + width), columns, mode)
    first, end = np.clip((-top, rows - top), 0, height)
    out[first:end] = image[first + top : end + top, across]
    for part in (slice(0, first), slice(end, height)):
        out[part] = image[down[part, None], across]


def _resize(image: Pixels, scale: Scale, out: Pixels | None, mask: bool) -> Pixels:
    """Return the image resized, in `out` where given."""
    rows, columns, channels = image.shape
    height, width, interpolation, antialias = scale
    if rows == height and columns == width:
        return image
    nearest = mask or interpolation == "nearest"
    if interpolation == "bilinear" and antialias is not True and not nearest and compiled():
        wide = antialias is None and antialiases(rows, columns, height, width)
        if out is None:
            out = np.empty((height, width, channels), np.uint8)
        if resize_compiled(image, out, antialias=bool(wide)):
            return out  # else it has more than 65,535 pixels on a side
    if antialias is None:
        antialias = bool(antialiases(rows, columns, height, width))
    if antialias and not nearest:
        # Made contiguous here: PyTorch would do it too, but on several threads,
        # which gets in the way of the other workers.
        source = np.require(image, requirements=("C", "W"))
        return resize_pixels(source, (height, width), interpolation, out=out)
    if out is None:
        out = np.empty((height, width, channels), np.uint8)
    if nearest:
        cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_NEAREST_EXACT)
    elif interpolation == "bicubic":
        cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_CUBIC)
    else:
        _resize_linear(image, out)
    return out


def _resize_linear(image: Pixels, out: Pixels) -> None:
    """Resize into `out` by IPP's linear filter, or OpenCV's own where there is no IPP.

    OpenCV leaves IPP's filter off unless told, as its pixels differ from OpenCV's own
    (by 1 at most).  The switch is one of the calling thread: it is set for every
    resize, so that all threads and processes make the same pixels, and put back,
    since the thread may be the user's.  That costs 0.3 µs.
    """
    size = (out.shape[1], out.shape[0])
    if _IPP is None or _IPP.useIPP_NotExact():
        cv2.resize(image, size, dst=out, interpolation=cv2.INTER_LINEAR)
        return
    _IPP.setUseIPP_NotExact(True)
    try:
        cv2.resize(image, size, dst=out, interpolation=cv2.INTER_LINEAR)
    finally:
        _IPP.setUseIPP_NotExact(False)


def flip_rows(images: NDArray[Any], which: NDArray[np.bool_]) -> None:
    """Mirror some of the images [n, H, W, C] top to bottom, in place, for `which`, bool [n].

    They have any dtype, in contiguous memory or that of contiguous planes.  Thread-safe.
    """
    planes = images[:, None] if images.flags.c_contiguous else images.transpose(0, 3, 1, 2)
    flipped = np.flatnonzero(which)
    if not len(flipped):
        return
    planes = planes.reshape(*planes.shape[:3], -1).view(np.uint8)  # rows of bytes
    if planes[0].nbytes < ALONE_BYTES:
        planes[flipped] = planes[flipped][:, :, ::-1]
        return
    for at in flipped.tolist():
        for plane in planes[at]:
            cv2.flip(plane, 0, dst=plane)


class StackPlan(NamedTuple):
    """The windows and flips of n images, as `render_stack` takes them: int64 [n], bool [n]."""

    top: Ints
    left: Ints
    size: tuple[int, int]
    flip: NDArray[np.bool_]
    flip_rows: NDArray[np.bool_] | None = None

    def part(self, some: slice) -> StackPlan:
        """Return the plan of some of the images."""
        upside_down = None if self.flip_rows is None else self.flip_rows[some]
        return StackPlan(self.top[some], self.left[some], self.size, self.flip[some], upside_down)


def stack_plan(geometry: Geometry) -> StackPlan | None:
    """Return what `render_stack` needs to carry out a geometry, None if it cannot.

    It can where all images are of one size, and are at most cut to windows of one size and
    mirrored.
    """
    plain = geometry.plain_crops
    if plain is None or plain.resize or len(geometry) == 0:
        return None
    top, left, height, width = plain.windows
    for sizes in (geometry.source_height, geometry.source_width, height, width):
        if (sizes != sizes[0]).any():
            return None
    size = int(height[0]), int(width[0])
    return StackPlan(top, left, size, geometry.flip, geometry.flip_rows)


def render_stack(images: NDArray[np.uint8], plan: StackPlan, out: NDArray[np.uint8]) -> None:
    """Write a window of each image, mirrored as `plan` says, to `out`.

    `images` are [n, H, W, C], C-contiguous, with 4 channels at most, and never written to; `out`
    is [n, *size, C] and no part of them.  A window may reach beyond its image, where it is zero.
    Thread-safe.  Takes about 1 MB for itself, or, where that is more, three times what one image
    takes with its windows.
    """
    count, rows, columns, channels = images.shape
    top, left, size, flip, upside_down = plan
    height, width = size
    if count == 0:
        return
    # A window that misses its image by far is as empty as one that just does.
    top, left = np.clip(top, -height, rows), np.clip(left, -width, columns)
    above, before = max(0, -int(top.min())), max(0, -int(left.min()))
    below = max(0, int(top.max()) + height - rows)
    behind = max(0, int(left.max()) + width - columns)
    framed_rows, framed_columns = rows + above + below, columns + before + behind
    framed_bytes = framed_rows * framed_columns * channels
    at_once = min(count, max(1, CHUNK_BYTES // framed_bytes))
    framed = None
    if above or before or below or behind:
        framed = np.zeros((at_once, framed_rows, framed_columns, channels), np.uint8)

    for start in range(0, count, at_once):
        part = slice(start, min(count, start + at_once))
        source = images[part]
        if framed is not None:
            inside = framed[: len(source), above : above + rows, before : before + columns]
            inside[...] = source
            source = framed
        flipped, straight = np.flatnonzero(flip[part]), np.flatnonzero(~flip[part])
        order = np.concatenate([flipped, straight])  # those to be flipped lie together
        windows = _windows(source, size)[
            order, top[part][order] + above, left[part][order] + before
        ].reshape(len(order), height, width, channels)
        if len(flipped):
            # One tall image of all that are to be flipped.
            tall = windows[: len(flipped)].reshape(-1, width, channels)
            cv2.flip(tall, 1, dst=tall)
        out[part][order] = windows
        if upside_down is not None:
            flip_rows(out[part], upside_down[part])


def _windows(images: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return all windows of all images, a view of shape [n, tops, lefts, h, w * C].

    Pixels of a row are one axis, so that a row is copied in one go.
    """
    count, rows, columns, channels = images.shape
    height, width = size
    image_bytes, row_bytes = rows * columns * channels, columns * channels
    windows: NDArray[np.uint8] = np.ndarray(
        (count, rows - height + 1, columns - width + 1, height, width * channels),
        np.uint8,
        images,
        strides=(image_bytes, row_bytes, channels, row_bytes, 1),
    )
    return windows
