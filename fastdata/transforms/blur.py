"""Gaussian blur, with a width of its own for each image of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import (
    BatchTransform,
    Parameters,
    Shape,
    probability,
    range_pair,
    size_pair,
)
from fastdata.transforms.some import change_some, computed, stored

__all__ = ["GaussianBlur"]


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
        size = size_pair("kernel_size", self.kernel_size)
        if not all(side % 2 for side in size):
            raise OptionError(f"kernel_size is odd, not {self.kernel_size!r}")
        ends = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        object.__setattr__(self, "kernel_size", size)
        object.__setattr__(self, "sigma", range_pair("sigma", ends))
        object.__setattr__(self, "p", probability("p", self.p))

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        uniform = draws.uniform(2)
        low, high = range_pair("sigma", self.sigma)
        return {
            "sigma": low + (high - low) * uniform[:, 0],
            "applied": uniform[:, 1] < self.p,
        }

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images blurred: "sigma", float [n], where "applied", bool [n], is true.

        Raises
        ------
        OptionError
            If an image is smaller than half the kernel: it could not be mirrored.
        """
        width, height = size_pair("kernel_size", self.kernel_size)
        if images.shape[2] <= height // 2 or images.shape[3] <= width // 2:
            raise OptionError(
                f"GaussianBlur with a kernel of {width} x {height} (width x height) needs larger "
                f"images than {images.shape[3]} x {images.shape[2]}; take a smaller kernel_size"
            )

        def blur(some: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return _blur(some, sigma, width, height)

        return change_some(images.clone(), parameters["applied"], blur, parameters["sigma"])


def _blur(images: torch.Tensor, sigma: torch.Tensor, width: int, height: int) -> torch.Tensor:
    count, channels, rows, columns = images.shape
    padding = (width // 2, width // 2, height // 2, height // 2)
    values = functional.pad(computed(images), padding, mode="reflect")
    # One group a plane: so each can have a kernel of its own.
    planes = values.reshape(1, count * channels, rows + height - 1, columns + width - 1)
    across = _kernel(width, sigma).repeat_interleave(channels, 0)[:, None, None]
    down = _kernel(height, sigma).repeat_interleave(channels, 0)[:, None, :, None]
    planes = functional.conv2d(planes, across, groups=count * channels)
    planes = functional.conv2d(planes, down, groups=count * channels)
    return stored(planes.view(images.shape), images, rounded=True)


def _kernel(size: int, sigma: torch.Tensor) -> torch.Tensor:
    """Return the weights of each image, [n, size]: exp(-x**2 / (2 sigma**2)), of sum 1."""
    limit = (size - 1) / (2 * math.sqrt(2))
    at = torch.linspace(-limit, limit, size, dtype=sigma.dtype, device=sigma.device)
    return (at / sigma[:, 0, 0]).square_().neg_().softmax(1)
