"""Fields of displacements: noise of a key, blurred by a Gaussian.

The noise of a pixel is a function of its key and its place, so it is the same in every process and
on every device: half of an output of SplitMix64 (`fastdata.random`), in whole numbers.  `field`
makes the field of one image by OpenCV, `fields` those of a batch by PyTorch, and `at_places` their
values at single places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fastdata.random import GOLDEN, STAFFORD_13
from fastdata.transforms.image_tensors import to_device
from fastdata.transforms.warps import Displacement, Ints

__all__ = ["at_places", "field", "fields", "kernel_size"]

NUMBERS_AT_ONCE = 1 << 22
"""Numbers of noise that are made at a time where memory would be short."""

Words = TypeVar("Words", NDArray[np.int64], torch.Tensor)


def kernel_size(sigma: float) -> int:
    """Return the size of torchvision's kernel: odd, of 4 deviations to either side."""
    return int(8 * sigma + 1) // 2 * 2 + 1


def field(
    key: int, height: int, width: int, displacement: Displacement
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return how far each pixel is displaced, across and down, float32 [H, W], in pixels."""
    count = -(-height * width // 2)
    words = _mix(_start(np.array([key], np.uint64)) + np.arange(1, count + 1) * _signed(GOLDEN))
    noise = words.astype("<i8", copy=False).view("<i2")[: 2 * height * width]
    noise = noise.reshape(height, width, 2)
    across, down = (
        cv2.sepFilter2D(np.ascontiguousarray(plane), cv2.CV_32F, *kernels)
        for plane, kernels in zip(
            noise.transpose(2, 0, 1), _kernels(displacement).transpose(1, 0, 2), strict=True
        )
    )
    return across, down  # type: ignore[return-value]


def fields(
    keys: NDArray[np.uint64],
    height: Ints,
    width: Ints,
    size: tuple[int, int],
    displacement: Displacement,
    device: torch.device,
) -> torch.Tensor:
    """Return fields for images of some sizes, float32 [n, H, W, 2], in the corners of `size`."""
    rows, columns = size
    kernels = _kernels(displacement)
    across, down = (to_device(part, device) for part in kernels)
    reach = kernels.shape[2] // 2
    x, y = (torch.arange(-reach, side + reach, device=device)[None] for side in (columns, rows))
    at_once = max(NUMBERS_AT_ONCE // (x.numel() * y.numel()), 1)
    made = []
    for start in range(0, len(keys), at_once):
        some = slice(start, start + at_once)
        noise = _noise(keys[some], height[some], width[some], x, y)
        noise = functional.conv2d(noise, across[:, None, None], groups=2)
        made.append(functional.conv2d(noise, down[:, None, :, None], groups=2))
    return torch.cat(made).permute(0, 2, 3, 1)


def at_places(
    keys: NDArray[np.uint64],
    height: Ints,
    width: Ints,
    places: torch.Tensor,
    displacement: Displacement,
) -> torch.Tensor:
    """Return the displacements of pixels `places`, int64 [m, 2] (x, y), as float64 [m, 2].

    `keys`, `height` and `width`, [m], are of the image of each place.
    """
    kernels = _kernels(displacement)
    across, down = (to_device(part, places.device) for part in kernels)
    reach = kernels.shape[2] // 2
    around = torch.arange(-reach, reach + 1, device=places.device)
    at_once = NUMBERS_AT_ONCE // len(around) ** 2 + 1
    made = [places.new_empty(0, 2, dtype=torch.float64)]
    for start in range(0, len(places), at_once):
        some = slice(start, start + at_once)
        x, y = (places[some, axis, None] + around for axis in (0, 1))
        noise = _noise(keys[some], height[some], width[some], x, y)
        made.append(((noise * across[:, None]).sum(3) * down).sum(2).double())
    return torch.cat(made)


@lru_cache(maxsize=8)
def _kernels(displacement: Displacement) -> NDArray[np.float32]:
    """Return weights across and down, [2, 2, size]: of each, those of both parts of a field.

    They also make pixels of numbers of 16 bits.  torchvision's fields are fractions of half a side,
    so pixels are half of `alpha` times them.
    """
    sizes = [kernel_size(one) for one in displacement.sigma]
    at = np.arange(max(sizes)) - max(sizes) // 2
    kernels = np.empty((2, 2, len(at)))
    for part, size in enumerate(sizes):
        for direction, sigma in enumerate(displacement.sigma):
            weights = np.exp(-0.5 * (at / (sigma or 1)) ** 2) * (np.abs(at) <= size // 2)
            kernels[direction, part] = weights / weights.sum()
        kernels[1, part] *= displacement.alpha[part] / 2 / 2**15
    return kernels.astype(np.float32)


def _start(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the generator's states before the first word; keys are mixed, as they may be near."""
    return _mix(np.asarray(keys).view(np.int64))


def _noise(
    keys: NDArray[np.uint64], height: Ints, width: Ints, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return noise of images, in 16 bits, at all pairs of places: float32 [n, 2, rows, columns].

    `x` and `y` are int64 [n or 1, columns or rows].  Beyond an image it is mirrored.
    """
    starts, high, wide = (
        to_device(part, x.device)[:, None] for part in (_start(keys), height, width)
    )
    pixels = _reflected(y, high)[:, :, None] * wide[:, None] + _reflected(x, wide)[:, None]
    words = _mix(starts[:, None] + ((pixels >> 1) + 1) * _signed(GOLDEN))
    words = words << (32 - 32 * (pixels & 1))
    return torch.stack([(words << 16) >> 48, words >> 48], 1).float()


def _reflected(places: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Return places mirrored at the first and last of `length`; a place far beyond has the last."""
    places = places.abs()
    return torch.where(places < length, places, 2 * length - 2 - places).clamp(min=0)


def _mix(words: Words) -> Words:
    """Return the SplitMix64 finaliser of words, as of `fastdata.random`, in signed arithmetic."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _signed(STAFFORD_13[0])
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _signed(STAFFORD_13[1])
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _signed(word: np.uint64) -> int:
    return int(word.astype(np.int64))
