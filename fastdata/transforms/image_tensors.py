"""Images as tensors and arrays, and what transforms of whole batches do with them.

Which images an operation changes is drawn on the CPU.  So only those are computed, and nothing
waits for the device to learn which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.transforms.base import kind_of, name_of

__all__ = [
    "as_array",
    "as_tensor",
    "change_some",
    "in_memory_format",
    "in_order",
    "inside_boxes",
    "max_value",
    "one_size",
    "per_image",
    "to_device",
    "to_dtype_of",
    "to_float",
]


def as_array(image: torch.Tensor) -> NDArray[Any]:
    """Return [C, H, W] as a contiguous array [H, W, C]."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def as_tensor(image: Any, transform: object) -> torch.Tensor:
    """Return the image that `transform` returned as a tensor [C, H, W]."""
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        pixels = image if image.ndim == 3 else image[:, :, None]
        # A copy where it is needed: torch takes neither negative strides (a flip) nor memory
        # that cannot be written.
        return torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1)
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.as_subclass(torch.Tensor)
    raise OptionError(
        f"{name_of(transform)} returned {kind_of(image)}; expected is a torch tensor of shape "
        "[C, H, W] or an array of shape [H, W] or [H, W, C]"
    )


def in_memory_format(images: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """Return images [n, C, H, W] in a memory format; one channel has the contiguous strides."""
    if images.shape[1] > 1:
        return images.contiguous(memory_format=memory_format)
    # Memory of one channel is in both formats, whatever its strides say; `view` sets them.
    return images.contiguous().view(-1).view(images.shape)


def one_size(name: str, sizes: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the size, (height, width), of all images and masks; raise `OptionError` of several."""
    if len(sizes) != 1:
        raise OptionError(
            f"{name} needs all images and masks of a sample in one size, but they are "
            f"{' and '.join(f'{h} x {w}' for h, w in sorted(sizes))} (height x width)"
        )
    return next(iter(sizes))


def max_value(images: torch.Tensor) -> float:
    """Return the greatest value of images of this dtype: 255, or 1 where it is floating."""
    return 1.0 if images.is_floating_point() else 255.0


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Return images in the dtype to compute in: float32, or float64 where they are float64.

    A copy unless they are in it already.
    """
    return images if images.dtype in (torch.float32, torch.float64) else images.float()


def to_dtype_of(values: torch.Tensor, like: torch.Tensor, *, rounded: bool = False) -> torch.Tensor:
    """Return values, which are written to, between 0 and `max_value` and in the dtype of `like`.

    For uint8 the fraction is cut off, as torchvision does it, unless `rounded`.
    """
    if rounded and not like.is_floating_point():
        values.round_()
    return values.clamp_(0, max_value(like)).to(like.dtype)


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a copy of an array as a tensor on a device.

    Without waiting for the device: memory that is not pinned is copied by CUDA before
    the call returns.
    """
    return torch.from_numpy(np.array(values)).to(device, non_blocking=True)


def in_order(parts: Sequence[tuple[NDArray[np.int64], torch.Tensor]]) -> torch.Tensor:
    """Return one tensor of all images, from the places of some and these; none has two."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    images = torch.cat([part for _, part in parts])
    return images[to_device(order, images.device)]


def per_image(values: NDArray[Any], images: torch.Tensor) -> torch.Tensor:
    """Return numbers [n], made on the CPU, as [n, 1, 1, 1] to compute with `images`."""
    if np.issubdtype(values.dtype, np.floating) and images.dtype != torch.float64:
        values = values.astype(np.float32)
    return to_device(values, images.device)[:, None, None, None]


def change_some(
    images: torch.Tensor,
    which: NDArray[np.bool_],
    change: Callable[..., torch.Tensor],
    *values: NDArray[np.generic],
) -> torch.Tensor:
    """Apply `change` to the images [n, C, H, W] for which `which`, bool [n], is true.

    `change` is called with these images and their `values`, as of `per_image`.
    Unless all are changed, `images` itself is written to and returned.
    """
    if not which.any():
        return images
    if which.all():
        return change(images, *(per_image(value, images) for value in values))
    places = np.flatnonzero(which)
    at = to_device(places, images.device)
    if images.device.type != "cpu" or not images.is_contiguous():
        some = images[at]
        images[at] = change(some, *(per_image(value[which], some) for value in values))
        return images
    some = images.index_select(0, at)
    made = change(some, *(per_image(value[which], some) for value in values))
    for place, one in zip(places.tolist(), made, strict=True):
        images[place] = one  # copies memory; an assignment by index goes value by value
    return images


def inside_boxes(boxes: NDArray[np.int64], images: torch.Tensor) -> torch.Tensor:
    """Return which pixels are in the box of their image, bool [n, 1, H, W].

    `boxes` are (top, left, bottom, right), int64 [n, 4], the last two not inside.
    """
    sides = to_device(boxes, images.device)
    top, left, bottom, right = sides.T[:, :, None, None, None]
    rows = torch.arange(images.shape[2], device=images.device)[:, None]
    columns = torch.arange(images.shape[3], device=images.device)
    inside: torch.Tensor = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return inside
