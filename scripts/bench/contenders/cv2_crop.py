"""JPEG to augmented crop with OpenCV, one sample at a time, as people write it in a Dataset."""

from __future__ import annotations

import math
import random
from typing import Any

import cv2
import numpy as np
import torch

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
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            break
    else:
        w = min(width, round(height * 4 / 3))
        h = min(height, round(width * 4 / 3))
        top, left = (height - h) // 2, (width - w) // 2
    crop = image[top : top + h, left : left + w]
    crop = cv2.resize(crop, (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop


def collate(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 [N, 224, 224, 3] and int64 [N]."""
    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)
