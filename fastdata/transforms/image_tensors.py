"""Images as tensors and arrays, and what transforms of whole batches do with them.

Which images an operation changes is drawn on the CPU.  So only those are computed, and nothing
waits for the device to learn which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.transforms.base import kind_of, name_of

__all__ = [
    "as_array",
    "as_tensor",
    "by_piece",
    "change_some",
    "in_memory_format",
    "in_order",
    "one_size",
    "one_thread",
    "paste",
    "per_image",
    "put",
    "take",
    "to_device",
    "to_dtype_of",
    "to_float",
    "to_uint8",
]


FEW_THREADS = 2
"""Threads of torch with which images of a batch are computed one by one, on the CPU."""


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


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Return images in the dtype to compute in: float32, or float64 where they are float64.

    A copy unless they are in it already.
    """
    return images if images.dtype in (torch.float32, torch.float64) else images.float()


def to_dtype_of(values: torch.Tensor, like: torch.Tensor, *, rounded: bool = False) -> torch.Tensor:
    """Return values, which are written to, in the dtype of `like`, cut off at its ends.

    These are 0 and 255 for uint8, whose fraction is cut off, as torchvision does it, unless
    `rounded`; and 0 and 1 for floating dtypes.
    """
    if like.is_floating_point():
        return values.clamp_(0, 1).to(like.dtype)
    if rounded:
        values.round_()
    return to_uint8(values.clamp_(0, 255))


def to_uint8(values: torch.Tensor) -> torch.Tensor:
    """Return floating values from 0 to 255 as uint8, without their fraction."""
    if values.device.type == "cpu":
        values = values.short()  # torch turns int16 into uint8 five times as fast
    return values.to(torch.uint8)


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute on one thread, as in worker processes: sums depend on the number.

    Single images gain nothing from threads.  If workers use the other cores, each operation waits
    for the slowest thread.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_piece(compute: Callable[[slice], torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Return what `compute` makes of images at places, [n, C, H, W]: all, or one by one.

    One by one they are written to `out`.
    """
    if not _one_by_one(out):
        made = compute(slice(None))
        is_dense = made.is_contiguous() or made.is_contiguous(memory_format=torch.channels_last)
        return made if is_dense else out.copy_(made)
    with one_thread():
        for at, one in enumerate(out):
            one.copy_(compute(slice(at, at + 1))[0])
    return out


def _one_by_one(images: torch.Tensor) -> bool:
    """Return whether images of a batch are faster one by one: each stays in the CPU's cache.

    A whole batch took two to six times as long on one thread; many threads make up for that.
    """
    return images.device.type == "cpu" and torch.get_num_threads() <= FEW_THREADS


def take(values: torch.Tensor, places: NDArray[np.int64]) -> torch.Tensor:
    """Return a copy of some images, or other values, of a batch."""
    if values.device.type != "cpu" or values.ndim < 4:
        return values[to_device(places, values.device)]
    some = torch.empty_like(values[: len(places)])
    for one, place in zip(some, places.tolist(), strict=True):
        one.copy_(values[place])  # copies memory; an index goes value by value
    return some


def put(values: torch.Tensor, places: NDArray[np.int64], some: torch.Tensor) -> None:
    """Write some images, or other values, to their places in a batch."""
    if values.device.type != "cpu" or values.ndim < 4:
        values[to_device(places, values.device)] = some
        return
    for one, place in zip(some, places.tolist(), strict=True):
        values[place].copy_(one)


def change_some(
    images: torch.Tensor,
    which: NDArray[np.bool_],
    change: Callable[..., torch.Tensor],
    *values: NDArray[np.generic],
    together: bool = False,
) -> torch.Tensor:
    """Apply `change` to the images [n, C, H, W] for which `which`, bool [n], is true.

    `change` is called with these images and their `values`, as of `per_image`; perhaps with one
    uint8 image at a time, unless its result depends on the images that are `together`.  `images`
    itself may be written to and returned.
    """
    if not which.any():
        return images
    places = np.flatnonzero(which)
    numbers = [per_image(value[which], images) for value in values]
    if _one_by_one(images) and images.dtype == torch.uint8 and not together:
        with one_thread():
            for at, place in enumerate(places.tolist()):
                one = images[place : place + 1]
                one.copy_(change(one, *(number[at : at + 1] for number in numbers)))
    elif len(places) == len(images):
        return change(images, *numbers)
    else:
        put(images, places, change(take(images, places), *numbers))
    return images


def paste(
    images: torch.Tensor,
    boxes: NDArray[np.int64],
    others: torch.Tensor,
    partner: NDArray[np.int64] | None = None,
) -> torch.Tensor:
    """Return images with the pixels of `others`, [n, C, H, W], inside their boxes.

    `boxes` are (top, left, bottom, right), int64 [n, 4], the last two not inside.  With a
    `partner`, int64 [n], an image gets the pixels of that place of `others`.
    """
    if images.device.type == "cpu":
        made = images.clone()
        source = range(len(images)) if partner is None else partner.tolist()
        for at, (top, left, bottom, right) in enumerate(boxes.tolist()):
            box = (slice(None), slice(top, bottom), slice(left, right))
            made[at][box] = others[source[at]][box]
        return made
    if partner is not None:
        others = others[to_device(partner, images.device)]
    return torch.where(_inside(boxes, images), others, images)


def _inside(boxes: NDArray[np.int64], images: torch.Tensor) -> torch.Tensor:
    """Return which pixels are in the box of their image, bool [n, 1, H, W]."""
    sides = to_device(boxes, images.device)
    top, left, bottom, right = sides.T[:, :, None, None, None]
    rows = torch.arange(images.shape[2], device=images.device)[:, None]
    columns = torch.arange(images.shape[3], device=images.device)
    inside: torch.Tensor = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return inside
