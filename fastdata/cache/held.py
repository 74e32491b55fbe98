"""Decoded images in host memory, as stored ones are: raw, and never damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.native.crops import CROP, RAW
from fastdata.transforms.geometry import Ints

__all__ = ["HeldImages"]


class HeldImages:
    """Some images that lie anywhere in one array; an `Images` of `fastdata.engine.tasks`.

    Parameters
    ----------
    pixels : ndarray of uint8, shape [m]
    begins, heights, widths : ndarray of int64, shape [n]
        Where each image begins, and its size.
    channels : int

    Notes
    -----
    Thread-safe.
    """

    all_raw = True

    def __init__(
        self, pixels: NDArray[np.uint8], begins: Ints, heights: Ints, widths: Ints, channels: int
    ) -> None:
        self._pixels = pixels
        self._begins = begins
        self._channels = channels
        self.heights = heights
        self.widths = widths
        self.lengths = heights * widths * channels
        self.refused = np.zeros(len(heights), np.bool_)

    def doubt(self) -> bool:
        """Return whether any is refused: none, as all were decoded."""
        return False

    def _view(self, place: int) -> Pixels:
        begin, length = int(self._begins[place]), int(self.lengths[place])
        shape = int(self.heights[place]), int(self.widths[place]), self._channels
        return self._pixels[begin : begin + length].reshape(shape)

    def read(self, place: int, out: Pixels | None = None) -> Pixels:
        """Return one image, uint8 [H, W, C], copied to `out` where given."""
        if out is None:
            return self._view(place)
        out[:] = self._view(place)
        return out

    def window(
        self, place: int, window: tuple[int, int, int, int], factor: int = 1
    ) -> tuple[Pixels, int]:
        """Return a view of a rectangle of one image, never reduced."""
        top, left, height, width = window
        return self._view(place)[top : top + height, left : left + width], 1

    def gather(self, out: Pixels) -> list[int]:
        """Copy all images, which are of one size, to `out`; none is damaged."""
        for place in range(len(self._begins)):
            out[place] = self._view(place)
        return []

    def crops(self) -> NDArray[Any]:
        """Return where all images lie, as the compiled library takes it."""
        crops = np.zeros(len(self._begins), CROP)
        crops["data"] = self._pixels.ctypes.data + self._begins
        crops["size"] = self.lengths
        crops["codec"] = RAW
        crops["height"] = crops["rows"] = self.heights
        crops["width"] = crops["columns"] = self.widths
        return crops

    def read_ahead(self) -> None:
        """Do nothing: all is there."""
