"""Gaussian blur and random erasing, of whole batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id
from fastdata.transforms.base import (
    BatchTransform,
    Parameters,
    Shape,
    channel_numbers,
    parse,
    probability,
    range_pair,
    size_pair,
)
from fastdata.transforms.geometric import TRIES, random_rectangles
from fastdata.transforms.image_tensors import (
    change_some,
    paste,
    to_device,
    to_dtype_of,
    to_float,
)

__all__ = ["GaussianBlur", "RandomErasing"]

NUMBERS = 1 << 18
"""Normal numbers that noise is made of."""


@dataclass(frozen=True)
class GaussianBlur(BatchTransform):
    """Blur by a Gaussian; beyond its edges an image is mirrored.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Odd: of a square, or (width, height) as torchvision has it.
    sigma : float or (float, float)
        Range of the standard deviation, in pixels.
    p : float
        Probability that an image is blurred.

    Notes
    -----
    Draw 0 is the standard deviation, draw 1 is compared with `p`.  Rows and columns are
    filtered one after the other: uint8 within 1 of torchvision, float32 within 1e-5.
    """

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        parse(self, kernel_size=_odd_pair, sigma=_number_or_range, p=probability)

    def check_size(self, height: int, width: int) -> None:
        """Raise `OptionError` if images are below half the kernel: they cannot be mirrored."""
        columns, rows = self.kernel_size  # type: ignore[misc]  # since __post_init__
        if height <= rows // 2 or width <= columns // 2:
            raise OptionError(
                f"GaussianBlur with a kernel of {columns} x {rows} (width x height) needs larger "
                f"images than {width} x {height}; take a smaller kernel_size"
            )

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        uniform = draws.uniform(2)
        low, high = self.sigma  # type: ignore[misc]  # since __post_init__
        return {
            "sigma": low + (high - low) * uniform[:, 0],
            "applied": uniform[:, 1] < self.p,
        }

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images blurred by "sigma", float [n], where "applied", bool [n], is true."""
        self.check_size(*images.shape[2:])
        width, height = self.kernel_size  # type: ignore[misc]  # since __post_init__
        blur = partial(_blur, width=width, height=height)
        # One by one, a few values would be rounded to another whole number.
        return change_some(
            images.clone(), parameters["applied"], blur, parameters["sigma"], together=True
        )


@dataclass(frozen=True)
class RandomErasing(BatchTransform):
    """Erase a random rectangle, with probability `p`.

    Parameters
    ----------
    p : float
        Probability that an image is erased.
    scale : (float, float)
        Least and greatest share of the image's area.
    ratio : (float, float)
        Least and greatest height / width of the rectangle, as torchvision has it.
    value : float, sequence of float or "random"
        What is written: one number, one a channel, or normal noise (mean 0, deviation 1),
        which is for images after `Normalize`.

    Notes
    -----
    Draw 0 is compared with `p`; 1 to 10 are the areas, 11 to 20 the ratios, 21 and 22 the
    position, 23 the key of the noise.

    Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random"] = 0.0

    def __post_init__(self) -> None:
        parse(self, p=probability, scale=range_pair, ratio=range_pair)
        if self.scale[1] > 1:
            raise OptionError(f"scale is a share of the area, 1 at most, not {self.scale!r}")
        parse(self, value=_noise_or_numbers)

    def check(self, channels: int, floating: bool) -> None:
        if self.value == "random" and not floating:
            raise OptionError(
                'RandomErasing(value="random") writes numbers around 0, but images are uint8; '
                "put it after Normalize"
            )
        if isinstance(self.value, tuple) and len(self.value) not in (1, channels):
            raise OptionError(
                f"RandomErasing has {len(self.value)} values, but images have {channels} channel(s)"
            )
        if (
            not floating
            and isinstance(self.value, tuple)
            and not 0 <= min(self.value) <= max(self.value) <= 255
        ):
            raise OptionError(
                f"RandomErasing writes value={self.value}, but images are uint8: put it after "
                "Normalize, or give a value from 0 to 255"
            )

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        rows, columns = shape[2:]
        uniform = draws.uniform(1 + 2 * TRIES)
        height, width = random_rectangles(uniform[:, 1:], rows * columns, self.scale, self.ratio)
        fits = (height < rows) & (width < columns)
        first = fits.argmax(axis=1)
        every = np.arange(len(first))
        erased = fits[every, first] & (uniform[:, 0] < self.p)
        height = np.where(erased, height[every, first], 0)
        width = np.where(erased, width[every, first], 0)
        room = np.stack([rows - height, columns - width], axis=1)
        top, left = draws.integers(room + 1, 2, first=1 + 2 * TRIES).T
        box = np.stack([top, left, top + height, left + width], axis=1)
        key = draws.bits(first=3 + 2 * TRIES)[:, 0] >> np.uint64(1)
        return {"box": box, "key": key.astype(np.int64)}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images, of any range of values, erased.

        `parameters` are "box", int [n, 4], top, left, bottom and right, empty where nothing is
        erased; and "key", int [n], of which noise is a function.
        """
        if self.value == "random":
            values = _noise(parameters["key"], images).to(images.dtype)
        else:
            values = to_device(np.array(self.value, np.float32), images.device)
            values = values.to(images.dtype)[:, None, None].expand(images.shape)
        return paste(images, parameters["box"], values)


def _odd_pair(name: str, value: Any) -> tuple[int, int]:
    size = size_pair(name, value)
    if not all(side % 2 for side in size):
        raise OptionError(f"{name} is odd, not {value!r}")
    return size


def _number_or_range(name: str, value: Any) -> tuple[float, float]:
    return range_pair(name, value if isinstance(value, Sequence) else (value, value))


def _noise_or_numbers(name: str, value: Any) -> Any:
    numbers = "random" if value == "random" else channel_numbers(value)
    if numbers is None:
        raise OptionError(f'{name} is a number, one a channel, or "random", not {value!r}')
    return numbers


def _blur(images: torch.Tensor, sigma: torch.Tensor, width: int, height: int) -> torch.Tensor:
    count, channels, rows, columns = images.shape
    padding = (width // 2, width // 2, height // 2, height // 2)
    values = functional.pad(to_float(images), padding, mode="reflect")
    # One group a plane: so each can have a kernel of its own.
    planes = values.reshape(1, count * channels, rows + height - 1, columns + width - 1)
    across = _kernel(width, sigma).repeat_interleave(channels, 0)[:, None, None]
    down = _kernel(height, sigma).repeat_interleave(channels, 0)[:, None, :, None]
    planes = functional.conv2d(planes, across, groups=count * channels)
    planes = functional.conv2d(planes, down, groups=count * channels)
    return to_dtype_of(planes.view(images.shape), images, rounded=True)


def _kernel(size: int, sigma: torch.Tensor) -> torch.Tensor:
    """Return the weights of each image, [n, size]: exp(-x**2 / (2 sigma**2)), of sum 1."""
    limit = (size - 1) / (2 * math.sqrt(2))
    at = torch.linspace(-limit, limit, size, dtype=sigma.dtype, device=sigma.device)
    return (at / sigma[:, 0, 0]).square_().neg_().softmax(1)


def _noise(key: NDArray[np.int64], like: torch.Tensor) -> torch.Tensor:
    """Return normal numbers, float32 [n, C, H, W]: each image a stretch of `_normal_numbers`.

    Where that begins is up to the image's key, so the noise of an image is its own, but two
    images may have parts of it in common at different places.  Numbers of their own for every
    pixel took 20 ms an image of 224 x 224 x 3 on a CPU; copying a stretch takes less than 1.
    """
    count = math.prod(like.shape[1:])
    stretches = _normal_numbers(count, like.device).unfold(0, count, 1)
    return stretches[to_device(key % NUMBERS, like.device)].view(like.shape)


@lru_cache(maxsize=8)
def _normal_numbers(more: int, device: torch.device) -> torch.Tensor:
    """Return `NUMBERS` normal numbers, and the first ones of them again, `more` in all.

    The same on every device; by Box and Muller's method.
    """
    uniform = Draws(0, 0, operation_id(0, "noise"), np.arange(NUMBERS)).uniform(2)
    normal = np.sqrt(-2 * np.log(1 - uniform[:, 0])) * np.cos(2 * np.pi * uniform[:, 1])
    return to_device(np.resize(normal.astype(np.float32), NUMBERS + more), device)
