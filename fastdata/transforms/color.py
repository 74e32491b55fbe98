"""Colours and tones of whole batches: operations, and transforms by these.

Functions take images [n, C, H, W] and one number an image, [n, 1, 1, 1], and compute
what torchvision's functions of the same names compute image by image
(`torchvision.transforms.v2.functional`, 0.28): uint8 within 1, float32 within 1e-5.
Grey images have neither saturation nor hue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import (
    BatchTransform,
    Parameters,
    Shape,
    parse,
    positive_int,
    probability,
)
from fastdata.transforms.image_tensors import (
    by_piece,
    change_some,
    to_device,
    to_dtype_of,
    to_float,
    to_uint8,
)
from fastdata.transforms.pixel import by_value, look_up_each

__all__ = [
    "ColorJitter",
    "Grayscale",
    "RandomGrayscale",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "autocontrast",
    "equalize",
    "invert",
    "posterize",
    "solarize",
    "to_grayscale",
]

GREY = (0.2989, 0.587, 0.114)
"""Shares of red, green and blue: those of ITU-R BT.601, rounded as torchvision rounds them."""

LEAST = 1e-45
"""The least float32 above 0."""


def adjust_brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return images times `factor`."""
    return by_value(lambda values: to_dtype_of(to_float(values) * factor, values), images)


def adjust_contrast(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return images blended with the mean of their grey: 1 leaves them, 0 is all grey."""
    grey = _grey(images)
    # The grey of uint8 images is whole numbers, whose sum is exact in float64.
    exact = grey.dtype if images.is_floating_point() else torch.float64
    mean = grey.mean((1, 2, 3), keepdim=True, dtype=exact).to(grey.dtype)
    return by_value(lambda values: _blend(values, mean, factor), images)


def adjust_saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return images blended with their grey: 1 leaves them, 0 is without colour."""
    return _blend(images, _grey(images), factor) if images.shape[1] == 3 else images


def adjust_hue(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Return images with their hue turned by -0.5 to 0.5 of the circle.

    HSV and back: Smith, "Color gamut transform pairs", SIGGRAPH 1978, the way back in the
    closed form of https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative.
    """
    if images.shape[1] != 3:
        return images
    values = to_float(images)
    if not images.is_floating_point():
        values = values / 255
    red, green, blue = values.unbind(1)
    low, high = values.amin(1), values.amax(1)  # `aminmax` takes twenty times as long
    spread = high - low
    divisor = spread.clamp(min=LEAST)  # of grey any hue will do
    sixths = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths += 6 * turn[:, 0]
    k = sixths[:, None] + to_device(np.array([5, 3, 1], np.float32), images.device)[:, None, None]
    k -= (k / 6).floor_().mul_(6)  # what `remainder` returns, in a third of its time
    weight = torch.minimum(k, 4 - k).clamp_(0, 1)
    turned = high[:, None] - weight.mul_(spread[:, None])
    if images.is_floating_point():
        return to_dtype_of(turned, images)
    return to_dtype_of(turned.mul_(256 - 1e-3), images)  # torchvision's way to uint8


def to_grayscale(images: torch.Tensor) -> torch.Tensor:
    """Return images with red, green and blue all equal to their grey."""
    return _grey_of_dtype(images).expand(images.shape) if images.shape[1] == 3 else images


def invert(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with 255 minus each value."""
    return 255 - images


def adjust_sharpness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return uint8 images blended with a smoothed copy: 1 leaves them, 0 is smooth; edges stay."""
    if images.shape[2] <= 2 or images.shape[3] <= 2:
        return images
    values = images.float()
    inner = values[:, :, 1:-1, 1:-1]
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    smooth = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth.add_(inner, alpha=4).div_(13).round_()  # never from the middle of two whole numbers
    inner += (smooth - inner) * (1 - factor)
    return to_dtype_of(values, images)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with only the highest `bits`, 0 to 8, of each value."""
    highest = (255 << (8 - bits.long())) & 255
    return images & highest.to(torch.uint8)


def solarize(images: torch.Tensor, threshold: torch.Tensor | float) -> torch.Tensor:
    """Return uint8 images with values from `threshold`, 0 to 255, on inverted."""
    return by_value(lambda values: torch.where(values >= threshold, 255 - values, values), images)


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with each channel stretched to all values; one of one value stays."""
    low, high = (ends((2, 3), keepdim=True).float() for ends in (images.amin, images.amax))
    flat = high == low
    scale = torch.where(flat, 1, (high - low) * (1 / 255))
    low = torch.where(flat, 0, low)
    return by_value(lambda values: to_dtype_of((values.float() - low) / scale, values), images)


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with each channel's histogram as even as it can be.

    Pillow's scheme (`ImageOps.equalize`): a step is what 255 values share of all pixels
    but those of the brightest value; a channel whose step is 0 stays.
    """
    planes, on_cpu = images.flatten(2), images.device.type == "cpu"
    if on_cpu:
        counts = [torch.bincount(plane, minlength=256) for plane in planes.flatten(0, 1)]
        histogram = torch.stack(counts).view(*images.shape[:2], 256)
    else:  # `bincount` would wait for the device
        values = planes.long()
        histogram = torch.zeros((*images.shape[:2], 256), dtype=torch.int64, device=images.device)
        histogram.scatter_add_(2, values, torch.ones_like(values))
    below = histogram.cumsum(2)
    brightest = below.argmax(2, keepdim=True)  # the first at which all pixels are counted
    step = (planes.shape[2] - histogram.gather(2, brightest)) // 255
    table = ((below - histogram + step // 2) // step.clamp(1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device)).to(torch.uint8)
    if on_cpu:
        return look_up_each(images, table[:, :, None])
    return table.gather(2, values).view(images.shape)


def _grey(images: torch.Tensor) -> torch.Tensor:
    """Return the grey of images, [n, 1, H, W], as `to_float` gives them."""
    if images.shape[1] == 1:
        return to_float(images)
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    grey = to_float(red).mul(GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])
    return grey if images.is_floating_point() else grey.floor_()


def _grey_of_dtype(images: torch.Tensor) -> torch.Tensor:
    """Return the grey of images, [n, 1, H, W], in their dtype."""
    grey = _grey(images)
    return grey.to(images.dtype) if images.is_floating_point() else to_uint8(grey)


def _blend(images: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return `share` of the images and the rest of another."""
    return to_dtype_of(to_float(images) * share + other * (1 - share), images)


ADJUSTMENTS = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}


@dataclass(frozen=True)
class ColorJitter(BatchTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        Range of the factor; a number x stands for (max(0, 1 - x), 1 + x).
    hue : float or (float, float), optional
        Range of the turn, within (-0.5, 0.5); a number x stands for (-x, x).
    p : float
        Probability that an image is changed at all.

    Notes
    -----
    Draws 0 to 3 are the factors, 4 to 7 the order, 8 is compared with `p`.
    """

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None
    p: float = 1.0

    def __post_init__(self) -> None:
        parse(self, **dict.fromkeys(ADJUSTMENTS, _range), p=probability)

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        uniform = draws.uniform(9)
        parameters: Parameters = {
            "order": uniform[:, 4:8].argsort(axis=1, kind="stable"),
            "applied": uniform[:, 8] < self.p,
        }
        for number, name in enumerate(ADJUSTMENTS):
            ends = getattr(self, name)
            if ends is not None:
                parameters[name] = ends[0] + (ends[1] - ends[0]) * uniform[:, number]
        return parameters

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images jittered.

        `parameters` are "brightness", "contrast", "saturation" and "hue", float [n], where the
        transform changes them; "order", int [n, 4], which of these four comes when; and
        "applied", bool [n].
        """
        images = images.clone()
        for step in range(len(ADJUSTMENTS)):
            for number, (name, adjust) in enumerate(ADJUSTMENTS.items()):
                if name in parameters:
                    now = (parameters["order"][:, step] == number) & parameters["applied"]
                    images = change_some(images, now, adjust, parameters[name])
        return images


@dataclass(frozen=True)
class Grayscale(BatchTransform):
    """Take the colour out of all images.

    Parameters
    ----------
    num_output_channels : {1, 3}
        Channels of the result; three are equal.

    Raises
    ------
    OptionError
        From a loader, if a callable made images of neither 1 nor 3 channels.

    Notes
    -----
    Transforms behind it, such as `Normalize`, meet images of this many channels.
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        parse(self, num_output_channels=positive_int)
        if self.num_output_channels not in (1, 3):
            raise OptionError(f"num_output_channels is 1 or 3, not {self.num_output_channels}")

    def channels_after(self, channels: int) -> int:
        return self.num_output_channels

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        return {}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return the grey of images."""
        if images.shape[1] not in (1, 3):
            raise OptionError(
                f"Grayscale takes images of 3 channels or 1, not of {images.shape[1]}"
            )
        if images.shape[1] == self.num_output_channels == 1:
            return images
        out = images.new_empty(len(images), self.num_output_channels, *images.shape[2:])
        return by_piece(lambda at: _grey_of_dtype(images[at]).expand_as(out[at]), out)


@dataclass(frozen=True)
class RandomGrayscale(BatchTransform):
    """Take the colour out of an image, with probability `p`; it keeps its channels.

    Notes
    -----
    Draw 0 is compared with `p`.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        parse(self, p=probability)

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        return {"applied": draws.uniform()[:, 0] < self.p}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images, those grey for which "applied", bool [n], is true."""
        return change_some(images.clone(), parameters["applied"], to_grayscale)


def _range(name: str, value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """Return (least, greatest) factor; None where there is nothing to be done."""
    if value is None:
        return None
    centre, least, greatest = (0.0, -0.5, 0.5) if name == "hue" else (1.0, 0.0, np.inf)
    try:
        low, high = (
            (float(end) for end in value)
            if isinstance(value, Sequence)
            else (max(centre - value, least) if name != "hue" else -value, centre + value)
        )
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not (least <= low <= high <= greatest and np.isfinite(high)):
        raise OptionError(
            f"{name} is a number from 0 up or a pair (low, high) within ({least}, {greatest}), "
            f"not {value!r}"
        )
    return None if low == high == centre else (float(low), float(high))
