"""Operations on tones that the automatic augmentations choose from, for whole batches.

Functions take images [n, C, H, W] and one number an image, [n, 1, 1, 1], and compute
what torchvision's functions of the same names compute image by image
(`torchvision.transforms.v2.functional`, 0.28).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from fastdata.transforms.some import bound, computed, stored

__all__ = ["adjust_sharpness", "autocontrast", "equalize", "posterize", "solarize"]


def adjust_sharpness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return images blended with a smoothed copy: 1 leaves them, 0 is smooth; edges stay."""
    channels, height, width = images.shape[1:]
    if height <= 2 or width <= 2:
        return images
    values = computed(images)
    kernel = torch.full((3, 3), 1 / 13, dtype=values.dtype, device=values.device)
    kernel[1, 1] = 5 / 13
    smooth = functional.conv2d(values, kernel.expand(channels, 1, 3, 3), groups=channels)
    if not images.is_floating_point():
        smooth.round_()
    sharpened = values.clone() if values is images else values
    inner = sharpened[:, :, 1:-1, 1:-1]
    inner += (smooth - inner) * (1 - factor)
    return stored(sharpened, images)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with only the highest `bits`, 0 to 8, of each value."""
    kept = (255 << (8 - bits.long())) & 255
    return images & kept.to(torch.uint8)


def solarize(images: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return images with values from `threshold` on, a share of the greatest, inverted."""
    inverted = (1 if images.is_floating_point() else 255) - images
    return torch.where(images >= threshold * bound(images), inverted, images)


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Return images with each channel stretched to all values; one of one value stays."""
    values = computed(images)
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    flat = high == low
    scale = torch.where(flat, 1, (high - low) * (1 / bound(images)))
    return stored((values - torch.where(flat, 0, low)) / scale, images)


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images with each channel's histogram as even as it can be.

    Pillow's scheme (`ImageOps.equalize`): a step is what 255 values share of all pixels
    but those of the brightest value; a channel whose step is 0 stays.
    """
    values = images.flatten(2).long()
    histogram = torch.zeros((*images.shape[:2], 256), dtype=torch.int64, device=images.device)
    histogram.scatter_add_(2, values, torch.ones_like(values))
    below = histogram.cumsum(2)
    brightest = below.argmax(2, keepdim=True)  # the first at which all pixels are counted
    step = (values.shape[2] - histogram.gather(2, brightest)) // 255
    table = ((below - histogram + step // 2) // step.clamp(1)).clamp_(0, 255)
    even = table.gather(2, values).to(torch.uint8).view(images.shape)
    return torch.where(step[..., None] > 0, even, images)
