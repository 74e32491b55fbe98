"""RandAugment and TrivialAugmentWide: operations chosen at random for each image.

The operations, their ranges and the order they are counted in are torchvision's.  `AutoAugment`
and `AugMix` (policies.py) carry them out, too.  Images of a batch that drew one operation go
through it together; all shears, shifts and rotations are one look-up by as many matrices (`warp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import (
    Parameters,
    Shape,
    channel_numbers,
    parse,
    positive_int,
    warp_filter,
)
from fastdata.transforms.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    autocontrast,
    equalize,
    invert,
    posterize,
    solarize,
)
from fastdata.transforms.image_tensors import change_some
from fastdata.transforms.tones import ByteTransform
from fastdata.transforms.warping import Fill, warp
from fastdata.transforms.warps import WarpInterpolation

__all__ = [
    "BLENDED",
    "MOVES",
    "OPERATIONS",
    "SIGNED",
    "AutomaticAugment",
    "RandAugment",
    "TrivialAugmentWide",
    "magnitudes",
]

MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")

CHANGES: dict[str, Callable[..., torch.Tensor]] = {
    "Brightness": lambda images, by: adjust_brightness(images, 1 + by),
    "Color": lambda images, by: adjust_saturation(images, 1 + by),
    "Contrast": lambda images, by: adjust_contrast(images, 1 + by),
    "Sharpness": lambda images, by: adjust_sharpness(images, 1 + by),
    "Posterize": posterize,
    "Solarize": lambda images, by: solarize(images, by * 255),
    "AutoContrast": lambda images, by: autocontrast(images),
    "Equalize": lambda images, by: equalize(images),
    "Invert": lambda images, by: invert(images),
}

OPERATIONS = ("Identity", *MOVES, *CHANGES)
"""All operations by name; parameters have their places in this."""

DRAWN = OPERATIONS[:-1]
"""Those that RandAugment and TrivialAugmentWide draw: all except "Invert"."""

BLENDED = ("Brightness", "Color", "Contrast", "Sharpness")

SIGNED = np.array([name in (*MOVES, *BLENDED) for name in OPERATIONS])
"""Which operations go either way."""


class AutomaticAugment(ByteTransform):
    """Carries out the operations that the automatic augmentations draw."""

    moves_pixels: ClassVar[bool] = True
    interpolation: WarpInterpolation
    fill: Fill

    def __post_init__(self) -> None:
        parse(self, interpolation=warp_filter)
        numbers = () if self.fill is None else channel_numbers(self.fill)
        if numbers is None or not all(0 <= one <= 255 for one in numbers):
            raise OptionError(
                f"fill is a number from 0 to 255, one a channel, or None, not {self.fill!r}"
            )

    def check(self, channels: int, floating: bool) -> None:
        if self.fill is not None and len(channel_numbers(self.fill) or ()) not in (1, channels):
            raise OptionError(
                f"fill is one number or one a channel, and images have {channels} channel(s), not "
                f"{self.fill!r}"
            )
        super().check(channels, floating)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images augmented; raise `OptionError` if they are not uint8.

        `parameters` are "operation", int [n, steps], places in `OPERATIONS`, and "magnitude",
        float [n, steps], of whatever the operation takes.
        """
        images = self.copy(images)
        for operation, magnitude in zip(
            parameters["operation"].T, parameters["magnitude"].T, strict=True
        ):
            images = self._step(images, operation, magnitude)
        return images

    def _step(
        self, images: torch.Tensor, operation: NDArray[np.int64], magnitude: NDArray[np.float64]
    ) -> torch.Tensor:
        """Return images after one operation each."""
        height, width = images.shape[2:]
        matrix = np.zeros((len(images), 2, 3), np.float32)
        for kind in MOVES:
            of_kind = operation == OPERATIONS.index(kind)
            matrix[of_kind] = matrices(kind, magnitude[of_kind], height, width)

        def move(some: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
            return warp(some, matrix.reshape(-1, 2, 3), self.interpolation, self.fill)

        moved = (operation >= 1) & (operation <= len(MOVES))
        images = change_some(images, moved, move, matrix)
        for kind, change in CHANGES.items():
            images = change_some(images, operation == OPERATIONS.index(kind), change, magnitude)
        return images


@dataclass(frozen=True)
class RandAugment(AutomaticAugment):
    """Put each image through some operations drawn at random, of one magnitude.

    Parameters
    ----------
    num_ops : int
        Operations an image.
    magnitude : int
        From 0, weakest, up to below `num_magnitude_bins`.
    num_magnitude_bins : int
        Steps from the weakest to the strongest.
    interpolation : {"nearest", "bilinear"}
        Of shears, shifts and rotations.  torchvision's ``InterpolationMode`` and PIL's numbers
        are taken, too.
    fill : float or sequence of float, optional
        What these leave empty: a number, or one a channel.

    Notes
    -----
    For uint8 images; masks and boxes are refused, as they could not follow.  Draws 2k and
    2k + 1 are the operation of step k and its direction.

    Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced
    search space", NeurIPS 2020.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, num_ops=positive_int, num_magnitude_bins=positive_int)
        if self.magnitude not in range(self.num_magnitude_bins):
            raise OptionError(
                f"magnitude is an int from 0 to num_magnitude_bins - 1 = "
                f"{self.num_magnitude_bins - 1}, not {self.magnitude!r}"
            )

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        height, width = shape[2:]
        moves = 0.3, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0
        table = magnitudes(self.num_magnitude_bins, moves, 0.9, (8, 4))[:, self.magnitude]
        operation = draws.integers(len(DRAWN), 2 * self.num_ops)[:, ::2]
        back = draws.uniform(2 * self.num_ops)[:, 1::2] < 0.5
        magnitude = table[operation] * np.where(back & SIGNED[operation], -1, 1)
        return {"operation": operation, "magnitude": magnitude}


@dataclass(frozen=True)
class TrivialAugmentWide(AutomaticAugment):
    """Put each image through one operation, both it and its magnitude drawn at random.

    Parameters
    ----------
    num_magnitude_bins : int
        Steps from the weakest to the strongest.
    interpolation, fill
        As in `RandAugment`.

    Notes
    -----
    For uint8 images; masks and boxes are refused, as they could not follow.  Draws 0 to 2 are
    operation, magnitude and direction.

    Müller and Hutter, "TrivialAugment: Tuning-free yet state-of-the-art data augmentation",
    ICCV 2021.
    """

    num_magnitude_bins: int = 31
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, num_magnitude_bins=positive_int)

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        moves = 0.99, 0.99, 32.0, 32.0, 135.0
        table = magnitudes(self.num_magnitude_bins, moves, 0.99, (8, 2))
        operation = draws.integers(len(DRAWN))
        step = draws.integers(self.num_magnitude_bins, first=1)
        back = draws.uniform(first=2) < 0.5
        magnitude = table[operation, step] * np.where(back & SIGNED[operation], -1, 1)
        return {"operation": operation, "magnitude": magnitude}


def magnitudes(
    bins: int, moves: Sequence[float], blend: float, bits: tuple[int, int]
) -> NDArray[np.float64]:
    """Return the magnitude of each operation at each bin, float64 [operations, bins].

    Given are the greatest ones of `MOVES` and `BLENDED`, and the bits that "Posterize" leaves,
    from the most to the fewest.
    Computed by torch in float32, as torchvision does it: shifts and bits are cut off to
    whole numbers, so the last bit can matter.
    """
    ranges = {**dict(zip(MOVES, moves, strict=True)), **dict.fromkeys(BLENDED, blend)}
    table = torch.zeros(len(OPERATIONS), bins, dtype=torch.float64)
    for row, name in enumerate(OPERATIONS):
        if name == "Posterize":
            fall = torch.arange(bins) / (max(bins - 1, 1) / (bits[0] - bits[1]))
            table[row] = (bits[0] - fall).round()
        elif name == "Solarize":
            table[row] = torch.linspace(1.0, 0.0, bins)
        elif name in ranges:
            table[row] = torch.linspace(0.0, ranges[name], bins)
    return table.numpy()


def matrices(
    kind: str, magnitude: NDArray[np.float64], height: int, width: int
) -> NDArray[np.float32]:
    """Return the matrices of one of `MOVES` by magnitudes, float64 [n]: float32 [n, 2, 3].

    They lead from (x, y, 1) of the result to (x, y) in the source, from the image's centre.
    Magnitudes of shears are pixels a pixel from the top left corner; of shifts pixels, cut off to
    whole ones; of rotations degrees, counter-clockwise.
    """
    matrix = np.zeros((len(magnitude), 2, 3))
    matrix[:, 0, 0] = matrix[:, 1, 1] = 1
    if kind == "ShearX":
        matrix[:, 0, 1], matrix[:, 0, 2] = magnitude, magnitude * (height / 2)
    elif kind == "ShearY":
        matrix[:, 1, 0], matrix[:, 1, 2] = magnitude, magnitude * (width / 2)
    elif kind == "TranslateX":
        matrix[:, 0, 2] = -np.trunc(magnitude)
    elif kind == "TranslateY":
        matrix[:, 1, 2] = -np.trunc(magnitude)
    else:
        angle = np.radians(-magnitude)
        matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle)
        matrix[:, 0, 1], matrix[:, 1, 0] = np.sin(angle), -np.sin(angle)
    return matrix.astype(np.float32)
