"""Pixel transforms of a batch at once, on any device.

A chain of pixel transforms is a table of 256 values a channel (`PixelTable`), so a batch
of uint8 images is read once and written once, in the wanted dtype and in channels-last
memory, and every value is bit for bit what the chain would make of it: float16 and
bfloat16 too, whose rounding between the steps a fused arithmetic would leave out.

- On the CPU by OpenCV.
- On a GPU by one kernel (`fastdata.kernels`); without Triton, and on other devices, by torch's
  own indexing, whose indices go through memory in between.
- Images that are floating already take the chain itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from fastdata.kernels.pixels import look_up
from fastdata.transforms.base import PixelTransform
from fastdata.transforms.pixel import PixelTable, as_words

__all__ = ["BatchLookup"]


class BatchLookup:
    """A chain of pixel transforms, for whole batches.

    Parameters
    ----------
    transforms : sequence of PixelTransform

    Notes
    -----
    Thread-safe.  The table goes to a device once, with the first batch there.
    """

    def __init__(self, transforms: Sequence[PixelTransform]) -> None:
        self.transforms = tuple(transforms)
        self._tables: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the transform of images [n, C, H, W], channels-last where they are uint8."""
        if images.dtype != torch.uint8:
            for transform in self.transforms:
                images = transform(images)
            return images
        channels = images.shape[1]
        if images.device.type == "cpu":
            return _by_opencv(images, self.table(channels))
        return _look_up(images, self.on_device(channels, images.device))

    def table(self, channels: int) -> PixelTable:
        """Return the table for uint8 images of this many channels."""
        with self._lock:
            if channels not in self._tables:
                self._tables[channels] = PixelTable(self.transforms, channels)
            table: PixelTable = self._tables[channels]
            return table

    def on_device(self, channels: int, device: torch.device) -> torch.Tensor:
        """Return the table for uint8 images of this many channels, [256, C], on a device."""
        values = self.table(channels).values
        with self._lock:
            if (channels, device) not in self._tables:
                self._tables[channels, device] = values.to(device)
            table: torch.Tensor = self._tables[channels, device]
            return table

    def __getstate__(self) -> dict[str, Any]:
        return {"transforms": self.transforms}  # tables are made anew where it arrives

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["transforms"])  # type: ignore[misc]


def _by_opencv(images: torch.Tensor, table: PixelTable) -> torch.Tensor:
    count, channels, height, width = images.shape
    pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
    out = torch.empty((count, height, width, channels), dtype=table.dtype)
    if out.numel():
        tall = (count * height, width, channels)  # OpenCV knows no batches
        table.apply(pixels.reshape(tall), as_words(out).reshape(tall))
    return out.permute(0, 3, 1, 2)


def _look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``table[value, channel]`` of each value; `table` is [256, C]."""
    return look_up(images.permute(0, 2, 3, 1).contiguous(), table).permute(0, 3, 1, 2)
