"""Target sizes, and resizing by other libraries; how packing resizes bilinearly: ``bilinear.py``.

Bilinear and bicubic are PyTorch's antialiased kernels on uint8: within 69 dB
and better of PIL's on photographs, and three times as fast.  Lanczos, which PyTorch
lacks, is PIL's.  Masks take PIL's nearest neighbour.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from PIL import Image

from fastdata.codecs import Pixels
from fastdata.native.library import compiled
from fastdata.native.library import resize as resize_compiled

__all__ = [
    "Filter",
    "Resize",
    "centre_of",
    "resize_pixels",
    "resize_reduced",
    "resize_window",
    "target_size",
]

Resize: TypeAlias = Literal["short", "long", "exact", "crop", "none"]
Filter: TypeAlias = Literal["bilinear", "bicubic", "lanczos"]

_PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


def target_size(
    height: int, width: int, size: tuple[int, int], resize: Resize, enlarge: bool = False
) -> tuple[int, int]:
    """Return height and width after resizing (before the crop of ``"crop"``).

    ``short`` and ``long`` make that side ``size[0]`` and keep the aspect, the other side rounded
    down as ``torchvision.transforms.Resize`` does; only with `enlarge` may they enlarge, as
    ``exact`` and ``crop`` do.  ``crop`` is the smallest image of the same aspect that covers
    `size`.
    """
    if resize == "none":
        return height, width
    if resize == "exact":
        return size
    if resize == "crop":
        by_height = size[0] * width >= size[1] * height
        if by_height:
            return size[0], max(size[1], size[0] * width // height)
        return max(size[0], size[1] * height // width), size[1]
    side = min(height, width) if resize == "short" else max(height, width)
    if side == size[0] or (side < size[0] and not enlarge):
        return height, width
    if (height <= width) == (resize == "short"):
        return size[0], max(1, size[0] * width // height)
    return max(1, size[0] * height // width), size[0]


def resize_pixels(
    pixels: Pixels,
    size: tuple[int, int],
    filter: str = "bilinear",
    extent: tuple[float, float] | None = None,
    out: Pixels | None = None,
) -> Pixels:
    """Resize an image, uint8, H x W x C, C-contiguous, to a height and width.

    All filters but "nearest" are antialiased.  Without `out`, the result is `pixels` itself
    where nothing changes.

    `extent` is the height and width of the picture in pixels of `pixels`, where the last
    row and column are only partly covered.  A JPEG decoded at 1/8 of
    501 pixels has 63 columns but is 62.625 wide; not to say so shifts the
    picture and costs 8 dB in the median (``docs/design/packing.md``).
    """
    extent = extent or (float(pixels.shape[0]), float(pixels.shape[1]))
    if size == pixels.shape[:2] and extent == pixels.shape[:2]:
        if out is None:
            return pixels
        np.copyto(out, pixels)
        return out
    channels = pixels.shape[2]
    result = np.empty((*size, channels), np.uint8) if out is None else out
    if filter in ("bilinear", "bicubic"):
        if extent != pixels.shape[:2]:
            pixels = _weigh_edges(pixels, (0.0, 0.0, *extent))
        _resize_with_torch(pixels, result, filter, extent)
        return result
    image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    box = (0.0, 0.0, extent[1], extent[0])
    resized = image.resize((size[1], size[0]), _PIL_FILTERS[filter], box=box)
    np.copyto(result, np.asarray(resized).reshape(*size, channels))
    return result


def resize_window(
    pixels: Pixels,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    filter: str,
    extent: tuple[float, float],
) -> Pixels:
    """Return a window (top, left, height, width) of an image that is resized to `size`, by PIL.

    Only the window is made; `pixels` and `extent` are as for `resize_pixels`.
    """
    top, left, height, width = window
    down, right = extent[0] / size[0], extent[1] / size[1]
    box = (left * right, top * down, (left + width) * right, (top + height) * down)
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    resized = image.resize((width, height), _PIL_FILTERS[filter], box=box)
    return np.asarray(resized).reshape(height, width, pixels.shape[2])


def _weigh_edges(pixels: Pixels, box: tuple[float, float, float, float]) -> Pixels:
    """Make up for kernels' counting pixels that `box` covers partly as whole ones.

    The box (top, left, height, width) touches all rows and columns.  What the outer ones count too
    much is given to their neighbours.  Without, a one-pixel frame at an odd size costs up to 12 dB.
    """
    pixels = pixels.copy()
    for lines, start, length in ((pixels, box[0], box[2]), (pixels.swapaxes(0, 1), box[1], box[3])):
        parts = 1 - start, start + length - (len(lines) - 1)
        if len(lines) == 1:
            continue
        edges = []
        for part, edge, next_one in zip(parts, lines[[0, -1]], lines[[1, -2]], strict=True):
            edges.append(np.rint(part * edge + (1 - part) * next_one))
        lines[0], lines[-1] = edges
    return pixels


def _resize_with_torch(
    pixels: Pixels, result: Pixels, filter: str, extent: tuple[float, float]
) -> None:
    """Resize into `result` by the kernels behind ``torch.nn.functional.interpolate``.

    Called directly, since only they take an explicit scale, and an output in
    channels-last memory: `interpolate` returns planes, and laying those out by
    pixels again takes as long as the resizing itself (260 of 600 µs).
    """
    import torch  # takes a second, and many a pack resizes nothing

    kernel = (
        torch.ops.aten._upsample_bilinear2d_aa.out
        if filter == "bilinear"
        else torch.ops.aten._upsample_bicubic2d_aa.out
    )
    if not pixels.flags.writeable:  # PyTorch warns of read-only memory
        pixels = pixels.copy()
    height, width = result.shape[:2]
    with torch.inference_mode():
        source, target = (
            torch.from_numpy(array).permute(2, 0, 1).unsqueeze(0) for array in (pixels, result)
        )
        kernel(source, [height, width], False, height / extent[0], width / extent[1], out=target)


def centre_of(shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int]:
    """Return top and left of the middle, where ``torchvision.transforms.CenterCrop`` has it."""
    return round((shape[0] - size[0]) / 2.0), round((shape[1] - size[1]) / 2.0)


def resize_reduced(
    pixels: Pixels,
    window: tuple[int, int, int, int],
    factor: int,
    size: tuple[int, int],
    filter: str = "bilinear",
) -> Pixels:
    """Resize a window of a picture, antialiased, of which there are reduced pixels.

    `window` is (top, left, height, width) in the picture; `pixels`, uint8, H x W x C, C 1 or 3, are
    those that it touches of the picture at 1/`factor` of its size.  Its edges may fall between
    them: to round that shifts the picture.  Pixels beyond do not come in, and those that are
    partly inside count for that part.

    By the compiled library where it was built and `filter` is "bilinear", else by PIL, as PyTorch's
    kernels begin at whole pixels only.
    """
    top, left, height, width = window
    rows, columns, channels = pixels.shape
    result = np.empty((*size, channels), np.uint8)
    if filter == "bilinear" and compiled():
        whole = rows * factor, columns * factor
        moved = top % factor, left % factor, height, width
        if resize_compiled(pixels, result, antialias=True, factor=factor, size=whole, window=moved):
            return result
    box = top % factor / factor, left % factor / factor, height / factor, width / factor
    weighed = _weigh_edges(pixels, box)
    image = Image.fromarray(weighed if channels == 3 else weighed[:, :, 0])
    corners = (box[1], box[0], box[1] + box[3], box[0] + box[2])
    resized = image.resize((size[1], size[0]), _PIL_FILTERS[filter], box=corners)
    np.copyto(result, np.asarray(resized).reshape(result.shape))
    return result
