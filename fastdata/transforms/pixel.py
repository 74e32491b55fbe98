"""Transforms of pixel values, and the look-up table that makes them one pass.

An 8-bit image has 256 values per channel.  So a chain of pixel transforms is computed once, on the
numbers 0 to 255, and applied to images as a table (`PixelTable`), to whole batches by
`PixelLookup`.  Pixels are read once and written once, in the wanted dtype and memory format, at the
cost of float32 for all dtypes (90 us for 224 x 224 x 3 on one core; torch's arithmetic takes
270 us).  Results equal those of the chain bit for bit, also in float16 and bfloat16, where fused
arithmetic would skip the rounding between steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.kernels.pixels import look_up
from fastdata.native.library import look_up_planes
from fastdata.transforms.base import PixelTransform, parse

__all__ = [
    "Normalize",
    "PixelLookup",
    "PixelTable",
    "ToDtype",
    "as_words",
    "by_value",
    "look_up_each",
    "one_after_another",
    "warn_of_levels",
    "word_dtype",
]


FLOATING = torch.float16, torch.bfloat16, torch.float32, torch.float64
"""Those with arithmetic: torch has none of 8 bits."""


@dataclass(frozen=True)
class ToDtype(PixelTransform):
    """Convert to a floating dtype.

    Parameters
    ----------
    dtype : torch.dtype
        float16, bfloat16, float32 or float64.
    scale : bool
        Whether uint8 values 0 to 255 become 0 to 1 (torchvision's default is
        False).  Values that are floating already are only converted.
    """

    dtype: torch.dtype
    scale: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in FLOATING:
            raise OptionError(
                f"dtype is a floating torch.dtype, not {self.dtype!r}: one of "
                f"{', '.join(map(str, FLOATING))}"
            )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype == torch.uint8 and self.scale:
            return images.to(self.dtype).mul_(1.0 / 255)
        return images.to(self.dtype)


@dataclass(frozen=True)
class Normalize(PixelTransform):
    """Subtract `mean` and divide by `std`, channel by channel.

    Parameters
    ----------
    mean, std : sequence of float
        One number a channel, for values from 0 to 1; no `std` is zero.

    Warns
    -----
    UserWarning
        From a loader, if a number is above 1 and images are uint8, or are so before
        ``ToDtype(..., scale=True)``.

    Notes
    -----
    uint8 images become float32 from 0 to 1 first, as by
    ``ToDtype(torch.float32, scale=True)``, where torchvision would raise.
    """

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        parse(self, mean=_numbers, std=_numbers)
        if len(self.mean) != len(self.std):
            raise OptionError(
                f"mean and std have one number a channel each, not {len(self.mean)} and "
                f"{len(self.std)}"
            )
        if not all(self.std):
            raise OptionError(f"std {self.std} has a zero: Normalize divides by it")

    def check_channels(self, channels: int) -> None:
        if len(self.mean) not in (1, channels):
            raise OptionError(
                f"Normalize has {len(self.mean)} means, but images have {channels} channel(s)"
            )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if not images.is_floating_point():
            images = ToDtype(torch.float32)(images)
        mean, std = (
            torch.tensor(x, dtype=images.dtype, device=images.device)[:, None, None]
            for x in (self.mean, self.std)
        )
        return images.sub(mean).div_(std)


def warn_of_levels(transforms: Sequence[PixelTransform]) -> None:
    """Warn of a `Normalize` for values up to 255 if it meets values from 0 to 1.

    `transforms` are the first ones of uint8 images.
    """
    for one in transforms:
        if isinstance(one, Normalize) and max(*one.mean, *one.std) > 1:
            warnings.warn(
                f"Normalize(mean={one.mean}, std={one.std}): mean and std are in 0..1, as uint8 "
                "images are divided by 255 first; divide mean and std by 255, too",
                stacklevel=2,
            )
        if not (isinstance(one, ToDtype) and one.scale):
            return


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Return finite numbers, one a channel."""
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise OptionError(f"{name} is a list of numbers, one a channel, not {value!r}")
    return numbers


class PixelTable:
    """What a chain of pixel transforms makes of each 8-bit value: `values`, [256, channels]."""

    def __init__(self, transforms: Sequence[PixelTransform], channels: int) -> None:
        values = torch.arange(256, dtype=torch.uint8).repeat(channels, 1)[:, None]
        values = one_after_another(transforms, values)
        self.dtype: torch.dtype = values.dtype
        self.values = values[:, 0].t().contiguous()
        self._table = as_words(self.values)
        shape = (1, 256, channels) if channels > 1 else (1, 256)
        self._opencv = self._table.reshape(shape)

    def apply(self, images: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Write the transform of `images`, uint8 [n, H, W, C], to `out` of the same shape.

        `images` are C-contiguous.  `out` is too, or has the memory of planes, [n, C, H, W]; its
        dtype is `word_dtype(self.dtype)`.  Thread-safe; releases the GIL.
        """
        if not out.flags.c_contiguous:
            look_up_planes(images, self._table, out)
            return
        tall = (-1, *images.shape[2:])  # OpenCV knows no batches
        cv2.LUT(images.reshape(tall), self._opencv, dst=out.reshape(tall))


class PixelLookup:
    """A chain of pixel transforms, for whole batches on any device.

    On the CPU OpenCV looks values up.  On a GPU one kernel does (`fastdata.kernels`); without
    Triton, and on other devices, torch's own indexing, whose indices go through memory in
    between.  Images that are floating already take the chain itself.

    Thread-safe: two threads may make the same table.  No lock, which a fork could leave locked.
    """

    def __init__(self, transforms: Sequence[PixelTransform]) -> None:
        self.transforms = tuple(transforms)
        self._tables: dict[Any, Any] = {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the transform of images [n, C, H, W].

        uint8 images keep their memory format on the CPU, and are channels last elsewhere.
        """
        if images.dtype != torch.uint8:
            return one_after_another(self.transforms, images)
        channels = images.shape[1]
        if images.device.type == "cpu":
            return look_up_each(images, self.table(channels).values.t()[None, :, None])
        return _look_up(images, self.on_device(channels, images.device))

    def table(self, channels: int) -> PixelTable:
        """Return the table for uint8 images of this many channels."""
        if channels not in self._tables:
            self._tables[channels] = PixelTable(self.transforms, channels)
        table: PixelTable = self._tables[channels]
        return table

    def on_device(self, channels: int, device: torch.device) -> torch.Tensor:
        """Return the table for uint8 images of this many channels, [256, C], on a device."""
        if (channels, device) not in self._tables:
            self._tables[channels, device] = self.table(channels).values.to(device)
        table: torch.Tensor = self._tables[channels, device]
        return table

    def __getstate__(self) -> dict[str, Any]:
        return {"transforms": self.transforms}  # another process makes its own tables

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["transforms"])  # type: ignore[misc]


def by_value(change: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Return `change` of images [n, C, H, W]; it changes each value by itself.

    It may have other numbers for each image and channel, [n or 1, C or 1, 1, 1].  For uint8 images
    on the CPU it is called with the 256 values, which takes a quarter of the time.
    """
    if images.dtype != torch.uint8 or images.device.type != "cpu":
        return change(images)
    return look_up_each(images, change(torch.arange(256, dtype=torch.uint8).view(1, 1, 1, 256)))


def look_up_each(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Look up images, uint8 [n, C, H, W] on the CPU, in tables [n or 1, C or 1, 1, 256].

    They keep their memory format.
    """
    count, channels, height, width = images.shape
    planar = images.is_contiguous()
    if not planar and not images.is_contiguous(memory_format=torch.channels_last):
        return look_up_each(images.contiguous(), tables)
    out = torch.empty_like(images, dtype=tables.dtype)
    if not out.numel():
        return out
    words = as_words(tables.contiguous())
    pixels, made = images.numpy(), as_words(out)
    if not planar:
        pixels, made = pixels.transpose(0, 2, 3, 1), made.transpose(0, 2, 3, 1)
    # OpenCV knows no batches, but tall images.
    if tables.shape[1] == 1:
        words = words.reshape(-1, 1, 256)
        shape: tuple[int, ...] = len(tables), -1, channels * width
    elif planar:
        words = np.broadcast_to(words, (count, channels, 1, 256)).reshape(-1, 1, 256)
        shape = count * channels, height, width
    else:
        words = words.transpose(0, 2, 3, 1)
        shape = len(tables), -1, width, channels
    for source, table, target in zip(
        pixels.reshape(shape), words, made.reshape(shape), strict=True
    ):
        cv2.LUT(source, table, dst=target)
    return out


def _look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``table[value, channel]`` of each value; `table` is [256, C]."""
    return look_up(images.permute(0, 2, 3, 1).contiguous(), table).permute(0, 3, 1, 2)


def one_after_another(transforms: Sequence[PixelTransform], images: torch.Tensor) -> torch.Tensor:
    """Return the transform of images [..., C, H, W], on their device."""
    for transform in transforms:
        images = transform(images)
    return images


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.float32, 8: torch.float64}
_NUMPY_WORDS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.float32, 8: np.float64}


@cache
def word_dtype(dtype: torch.dtype) -> type[np.generic]:
    """Return a NumPy dtype of the same size that OpenCV has.

    NumPy has no bfloat16 and OpenCV's tables no float16; copying needs only
    the bits.
    """
    words: type[np.generic] = _NUMPY_WORDS[dtype.itemsize]
    return words


def as_words(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a NumPy view of a CPU tensor, of `word_dtype`."""
    view: NDArray[Any] = tensor.view(_WORDS[tensor.element_size()]).numpy()
    return view
