"""Target sizes, and the resizing that packing uses.

Bilinear and bicubic are PyTorch's antialiased kernels on uint8: within 69 dB
and better of PIL's on photographs, and three times as fast.  Lanczos, which PyTorch
lacks, is PIL's.  Masks take PIL's nearest neighbour.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from PIL import Image

from fastdata.codecs import Pixels

__all__ = ["Filter", "Resize", "centre_crop", "resize_box", "resize_pixels", "target_size"]

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

    Parameters
    ----------
    height, width : int
        Pixels now.
    size : tuple of int
        Height and width asked for; ``short`` and ``long`` use the first.
    resize : {"short", "long", "exact", "crop", "none"}
        ``short`` and ``long`` make that side ``size[0]`` and keep the aspect,
        the other side rounded down as ``torchvision.transforms.Resize`` does.
        ``crop`` is the smallest image of the same aspect that covers `size`.
    enlarge : bool
        Whether ``short`` and ``long`` may enlarge; ``exact`` and ``crop`` do.
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
    """Resize an image.

    Parameters
    ----------
    pixels : numpy.ndarray
        uint8, H x W x C, C-contiguous.
    size : tuple of int
        Height and width wanted.
    filter : {"bilinear", "bicubic", "lanczos", "nearest"}
        All but ``nearest`` are antialiased.
    extent : tuple of float, optional
        Height and width of the picture in pixels of `pixels`, where the last
        row and column are only partly covered.  A JPEG decoded at 1/8 of
        501 pixels has 63 columns but is 62.625 wide; not to say so shifts the
        picture and costs 8 dB in the median (``docs/design/packing.md``).
    out : numpy.ndarray, optional
        uint8, size[0] x size[1] x C, C-contiguous, for the result.

    Returns
    -------
    numpy.ndarray
        uint8, size[0] x size[1] x C; without `out`, `pixels` itself where nothing
        changes.
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
            pixels = _weigh_edges(pixels, extent)
        _resize_with_torch(pixels, result, filter, extent)
        return result
    image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    box = (0.0, 0.0, extent[1], extent[0])
    resized = image.resize((size[1], size[0]), _PIL_FILTERS[filter], box=box)
    np.copyto(result, np.asarray(resized).reshape(*size, channels))
    return result


def _weigh_edges(pixels: Pixels, extent: tuple[float, float]) -> Pixels:
    """Make up for the kernels' counting a partly covered last row or column as a whole one.

    What they count too much is given to its neighbour.  Without, a one-pixel
    frame at an odd size costs up to 12 dB.
    """
    pixels = pixels.copy()
    for lines, covered in ((pixels, extent[0]), (pixels.swapaxes(0, 1), extent[1])):
        part = covered - (len(lines) - 1)
        if part < 1 and len(lines) > 1:
            lines[-1] = np.rint(part * lines[-1] + (1 - part) * lines[-2])
    return pixels


def _resize_with_torch(
    pixels: Pixels, result: Pixels, filter: str, extent: tuple[float, float]
) -> None:
    """Resize into `result` by the kernels behind ``torch.nn.functional.interpolate``.

    Called directly, since only they take an explicit scale, and an output in
    channels-last memory: `interpolate` returns planes, and laying those out by
    pixels again takes as long as the resizing itself (260 of 600 µs).
    """
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


def centre_crop(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Cut the middle out, placed as ``torchvision.transforms.CenterCrop`` places it."""
    top = round((pixels.shape[0] - size[0]) / 2.0)
    left = round((pixels.shape[1] - size[1]) / 2.0)
    return np.ascontiguousarray(pixels[top : top + size[0], left : left + size[1]])


def resize_box(
    pixels: Pixels,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    filter: str = "bilinear",
) -> Pixels:
    """Resize a rectangle of an image whose edges may lie between pixels, antialiased.

    By PIL, as the kernels of PyTorch begin at a whole pixel.

    Parameters
    ----------
    pixels : numpy.ndarray
        uint8, H x W x C.
    box : tuple of float
        Top, left, height and width, inside the image.
    size : tuple of int
        Height and width wanted.
    filter : {"bilinear", "bicubic", "lanczos"}

    Returns
    -------
    numpy.ndarray
        uint8, size[0] x size[1] x C.
    """
    top, left, height, width = box
    channels = pixels.shape[2]
    image = Image.fromarray(np.ascontiguousarray(pixels if channels == 3 else pixels[:, :, 0]))
    edges = (left, top, min(left + width, image.width), min(top + height, image.height))
    resized = image.resize((size[1], size[0]), _PIL_FILTERS[filter], box=edges)
    return np.array(resized).reshape(*size, channels)
