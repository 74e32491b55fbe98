"""Where a batch arrives: on the CPU as it is made, or on another device."""

from __future__ import annotations

from typing import Any

import torch

from fastdata.schema import ImageField, Schema
from fastdata.transforms.pipeline import PixelStage

__all__ = ["deliver"]


def deliver(
    batch: Any, schema: Schema, device: torch.device | None, pixels: PixelStage | None
) -> Any:
    """Return a batch on `device`; where that is not the CPU, with its pixel stage done there.

    uint8 images are moved, a quarter of what float32 ones would be.
    """
    if device is None:
        return batch
    moved = [_move(value, device) for value in batch]
    if pixels is not None and device.type != "cpu":
        for place, field in enumerate(schema.values()):
            if isinstance(field, ImageField) and not field.mask:
                moved[place] = pixels.lookup(moved[place])
    return type(batch)(*moved)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        # Copies out of pinned memory overlap with the training loop.
        return value.to(device, non_blocking=value.is_pinned())
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [tensor.to(device) for tensor in value]
    return value
