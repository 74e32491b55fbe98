"""Fields of displacements: noise of a key, blurred by a Gaussian.

The noise of a pixel is a function of its key and its place, so it is the same in every process and
on every device: half of an output of SplitMix64 (`fastdata.random`), in whole numbers.  `field`
makes the field of one image by OpenCV, `fields` those of a batch by PyTorch, and `at_places` what
they are at single places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

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
        cv2.sepFilter2D(
            np.ascontiguousarray(noise[..., axis]), cv2.CV_32F, *_kernels(displacement, axis)
        )
        for axis in (0, 1)
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
    """Return fields of images of these sizes, float32 [n, H, W, 2], in the corners of `size`."""
    rows, columns = size
    every = torch.arange(rows, device=device), torch.arange(columns, device=device)
    made = torch.empty(len(keys), rows, columns, 2, device=device)
    heights, widths, starts = (to_device(part, device) for part in (height, width, _start(keys)))
    for axis in (0, 1):
        across, down = (to_device(part, device) for part in _kernels(displacement, axis))
        reach = len(across) // 2
        frame = (rows + 2 * reach) * (columns + 2 * reach)
        for part in torch.arange(len(keys), device=device).split(max(NUMBERS_AT_ONCE // frame, 1)):  # type: ignore[no-untyped-call]
            high, wide = heights[part, None], widths[part, None]
            y = _reflected(_framed(every[0], reach), high)[:, :, None]
            x = _reflected(_framed(every[1], reach), wide)[:, None]
            noise = _noise(starts[part, None, None], y * wide[:, None] + x, axis)[:, None]
            noise = torch.nn.functional.conv2d(noise, across[None, None, None])
            noise = torch.nn.functional.conv2d(noise, down[None, None, :, None])
            made[part, ..., axis] = noise[:, 0]
    return made


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
    device = places.device
    heights, widths, starts = (to_device(part, device) for part in (height, width, _start(keys)))
    made = torch.empty(places.shape, dtype=torch.float64, device=device)
    for axis in (0, 1):
        across, down = (to_device(part, device) for part in _kernels(displacement, axis))
        reach = len(across) // 2
        around = torch.arange(-reach, reach + 1, device=device)
        at_once = max(NUMBERS_AT_ONCE // len(around) ** 2, 1)
        for part in torch.arange(len(places), device=device).split(at_once):  # type: ignore[no-untyped-call]
            high, wide = heights[part, None], widths[part, None]
            x, y = places[part, :1] + around, places[part, 1:] + around
            x, y = _reflected(x, wide)[:, None], _reflected(y, high)[:, :, None]
            noise = _noise(starts[part, None, None], y * wide[:, None] + x, axis).double()
            made[part, axis] = ((noise * across).sum(2) * down).sum(1)
    return made


def _kernels(
    displacement: Displacement, axis: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights across and down of one axis of a field."""
    size = kernel_size(displacement.sigma[axis])
    return _weights(size, displacement.sigma, displacement.alpha[axis])


@lru_cache(maxsize=64)
def _weights(
    size: int, sigma: tuple[float, float], alpha: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights across and down, which also make pixels of numbers of 16 bits.

    torchvision's fields are fractions of half a side, so pixels are half of `alpha` times them.
    """
    at = np.arange(size) - size // 2
    across, down = (np.exp(-0.5 * (at / (one or 1)) ** 2) for one in sigma)
    down *= alpha / 2 / 2**15 / down.sum()
    return (across / across.sum()).astype(np.float32), down.astype(np.float32)


def _start(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the generator's states before the first word; keys are mixed, as they may be near."""
    return _mix(np.asarray(keys).view(np.int64))


def _noise(starts: torch.Tensor, pixels: torch.Tensor, axis: int) -> torch.Tensor:
    """Return numbers of 16 bits for pixels by number, as float32."""
    words = _mix(starts + ((pixels >> 1) + 1) * _signed(GOLDEN))
    return ((words << (48 - 16 * axis - 32 * (pixels & 1))) >> 48).float()


def _framed(places: torch.Tensor, reach: int) -> torch.Tensor:
    """Return places 0, 1, ... with `reach` more before and behind."""
    return torch.arange(-reach, len(places) + reach, device=places.device)


def _reflected(places: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Return places mirrored at the first and last of `length`; what is far beyond is the last."""
    places = places.abs()
    return torch.where(places < length, places, 2 * length - 2 - places).clamp(min=0)


def _mix(words: Words) -> Words:
    """Return the SplitMix64 finaliser of words, as of `fastdata.random`, in signed arithmetic."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _signed(STAFFORD_13[0])
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _signed(STAFFORD_13[1])
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _signed(word: np.uint64) -> int:
    return int(word.astype(np.int64))
