"""Bytes to a crop with OpenCV, one sample at a time, as people write it in a Dataset."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
from random_crop import random_box

# Workers are processes already.
cv2.setNumThreads(0)

RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)


def decode(data: Any) -> Any:
    """Return uint8 [H, W, 3], RGB."""
    array = np.frombuffer(data, np.uint8)
    if RGB is not None:
        return cv2.imdecode(array, RGB)
    image: Any = cv2.imdecode(array, cv2.IMREAD_COLOR)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def random_resized_crop(image: Any, size: int) -> Any:
    """Return torchvision's RandomResizedCrop and flip, resized by INTER_LINEAR."""
    top, left, height, width = random_box(*image.shape[:2])
    crop = image[top : top + height, left : left + width]
    crop = cv2.resize(crop, (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop


def centre_crop(image: Any, size: int, short: int) -> Any:
    """Return the centre, after resizing the short side unless the image has it already."""
    if (scale := short / min(image.shape[:2])) != 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size]


def padded_crop(image: Any, size: int, padding: int) -> Any:
    """Return torchvision's RandomCrop with black padding, and flip."""
    image = cv2.copyMakeBorder(image, padding, padding, padding, padding, cv2.BORDER_CONSTANT)
    top, left = random.randint(0, 2 * padding), random.randint(0, 2 * padding)
    crop = image[top : top + size, left : left + size]
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop


CROPS: dict[str, Callable[[Any], Any]] = {
    "crop 224": lambda data: random_resized_crop(decode(data), 224),
    "centre 224": lambda data: centre_crop(decode(data), 224, 256),
    "crop 32": lambda data: padded_crop(np.frombuffer(data, np.uint8).reshape(32, 32, 3), 32, 4),
}
"""Bytes of a sample, a JPEG or the pixels of 32 x 32, to what a workload asks for."""


def collate(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 [N, 224, 224, 3] and int64 [N]."""
    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)
