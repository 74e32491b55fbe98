"""Random erasing: a rectangle of each image is overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id
from fastdata.transforms.base import BatchTransform, Parameters, Shape, probability, range_pair
from fastdata.transforms.some import inside_boxes, to_device

__all__ = ["RandomErasing"]

NUMBERS = 1 << 18
"""Normal numbers that noise is made of."""

TRIES = 10
"""Rectangles that are tried before an image stays as it is, as in torchvision."""


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
        object.__setattr__(self, "p", probability("p", self.p))
        object.__setattr__(self, "scale", range_pair("scale", self.scale))
        object.__setattr__(self, "ratio", range_pair("ratio", self.ratio))
        if self.scale[1] > 1:
            raise OptionError(f"scale is a share of the area, 1 at most, not {self.scale!r}")
        if self.value == "random":
            return
        numbers = self.value if isinstance(self.value, (list, tuple)) else (self.value,)
        try:
            object.__setattr__(self, "value", tuple(float(number) for number in numbers))
        except (TypeError, ValueError):
            raise OptionError(
                f'value is a number, one a channel, or "random", not {self.value!r}'
            ) from None

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

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        rows, columns = shape[2:]
        uniform = draws.uniform(1 + 2 * TRIES)
        (small, large), (low, high) = self.scale, np.log(self.ratio)
        area = rows * columns * (small + (large - small) * uniform[:, 1 : TRIES + 1])
        aspect = np.exp(low + (high - low) * uniform[:, TRIES + 1 :])
        height = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        width = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (height < rows) & (width < columns)
        first = fits.argmax(axis=1)
        every = np.arange(len(first))
        found = fits[every, first] & (uniform[:, 0] < self.p)
        height = np.where(found, height[every, first], 0)
        width = np.where(found, width[every, first], 0)
        room = np.stack([rows - height, columns - width], axis=1)
        top, left = draws.integers(room + 1, 2, first=1 + 2 * TRIES).T
        box = np.stack([top, left, top + height, left + width], axis=1)
        key = draws.bits(first=3 + 2 * TRIES)[:, 0] >> np.uint64(1)
        return {"box": box, "key": key.astype(np.int64)}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images erased.

        Parameters
        ----------
        images : torch.Tensor, shape [n, C, H, W]
            Of any range of values.
        parameters : dict
            "box": top, left, bottom and right, int [n, 4], empty where nothing is erased;
            "key": int [n], what noise is a function of.
        """
        inside = inside_boxes(parameters["box"], images)
        if self.value == "random":
            values = _noise(parameters["key"], images).to(images.dtype)
        else:
            values = to_device(np.array(self.value, np.float32), images.device)
            values = values.to(images.dtype)[:, None, None]
        return torch.where(inside, values, images)


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
