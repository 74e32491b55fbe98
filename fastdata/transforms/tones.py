"""Tones of whole uint8 batches: each transform changes an image with probability `p`.

The results are those of torchvision's transforms of the same names: bit for bit, except
`RandomAdjustSharpness` and `RandomAutocontrast`, whose values are within 1.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import BatchTransform, Parameters, Shape, parse, probability
from fastdata.transforms.color import (
    adjust_sharpness,
    autocontrast,
    equalize,
    invert,
    posterize,
    solarize,
)
from fastdata.transforms.image_tensors import change_some

__all__ = [
    "ByteTransform",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


class ByteTransform(BatchTransform):
    """Changes uint8 images, and refuses others."""

    def check(self, channels: int, floating: bool) -> None:
        if floating:
            raise OptionError(
                f"{type(self).__name__} takes uint8 images; put it before Normalize and ToDtype"
            )

    def copy(self, images: torch.Tensor) -> torch.Tensor:
        """Return a copy of images; raise `OptionError` if they are not uint8."""
        if images.dtype != torch.uint8:
            raise OptionError(
                f"{type(self).__name__} takes uint8 images, not {images.dtype}; put it before "
                "whatever changes their dtype"
            )
        return images.clone()


class Tone(ByteTransform):
    """Changes uint8 images, each with probability `p`.  Draw 0 is compared with `p`."""

    p: float

    def __post_init__(self) -> None:
        parse(self, p=probability)

    @abstractmethod
    def change(self, images: torch.Tensor) -> torch.Tensor:
        """Return the change of images, uint8 [n, C, H, W], which are not written to."""

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        return {"applied": draws.uniform()[:, 0] < self.p}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images transformed: "applied", bool [n], says which are changed."""
        return change_some(self.copy(images), parameters["applied"], self.change)


@dataclass(frozen=True)
class PlainTone(Tone):
    """A change without parameters."""

    p: float = 0.5


class RandomInvert(PlainTone):
    """Invert the values of an image, with probability `p`.

    For uint8 images; masks and boxes stay.
    """

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return invert(images)


@dataclass(frozen=True)
class RandomPosterize(Tone):
    """Keep the highest `bits`, 0 to 8, of each value of an image, with probability `p`.

    For uint8 images; masks and boxes stay.
    """

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, bits=_bits)

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return posterize(images, torch.tensor(self.bits))


@dataclass(frozen=True)
class RandomSolarize(Tone):
    """Invert the values of an image from `threshold`, 0 to 255, on, with probability `p`.

    For uint8 images; masks and boxes stay.
    """

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, threshold=partial(_number, greatest=255))

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return solarize(images, self.threshold)


@dataclass(frozen=True)
class RandomAdjustSharpness(Tone):
    """Sharpen an image by a factor, with probability `p`: 0 is smooth, 1 leaves it.

    For uint8 images; masks and boxes stay.
    """

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, sharpness_factor=partial(_number, greatest=1e9))

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return adjust_sharpness(images, torch.tensor(self.sharpness_factor))


class RandomAutocontrast(PlainTone):
    """Stretch each channel of an image to 0 to 255, with probability `p`.

    For uint8 images; masks and boxes stay.
    """

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return autocontrast(images)


class RandomEqualize(PlainTone):
    """Make the histogram of each channel of an image as even as possible, with probability `p`.

    For uint8 images; masks and boxes stay.
    """

    def change(self, images: torch.Tensor) -> torch.Tensor:
        return equalize(images)


def _bits(name: str, value: Any) -> int:
    """Return a number of bits."""
    if not isinstance(value, int) or value not in range(9):
        raise OptionError(f"{name} is an int from 0 to 8, not {value!r}")
    return value


def _number(name: str, value: Any, greatest: float) -> float:
    """Return a number from 0 to `greatest`."""
    if not (isinstance(value, (int, float)) and 0 <= value <= greatest):
        raise OptionError(f"{name} is a number from 0 to {greatest:g}, not {value!r}")
    return float(value)
