"""The decoded images of one field, one after another in the memory of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.engine.rendering import render_raw
from fastdata.kernels.pixels import gather_windows, has_kernels, window_plan
from fastdata.native.crops import CROP, RAW
from fastdata.transforms.geometry import Geometry, Ints, Windows
from fastdata.transforms.image_tensors import to_device
from fastdata.transforms.pixel import PixelLookup, as_words
from fastdata.transforms.render_device import render_canvas

__all__ = ["ImageStore"]

CANVAS = 64
"""Pixels; that many at a time the canvas grows.  Of random resized crops of 8,000 images, short
side 256, batches of 256 have 175 sizes in 186 batches; so they have four."""


class ImageStore:
    """Images of one field, each where there was room when it came.

    `heights` and `widths`, int64 [n], are those of all images that will be put in; with the first
    ones `nbytes` of device memory are taken.  For one thread at a time.
    """

    def __init__(self, heights: Ints, widths: Ints, channels: int, device: torch.device) -> None:
        self.heights = heights
        self.widths = widths
        self.channels = channels
        self.nbytes = int((heights * widths).sum()) * channels
        self._device = device
        self._begin = np.zeros(len(heights), np.int64)
        self._end = 0
        self._pixels: torch.Tensor | None = None

    def put(self, places: Ints, memory: torch.Tensor) -> None:
        """Put in images that lie one after another in memory of the host, uint8 [m].

        `places`, int64 [k], says which of the n they are; none was put in before.  It is one copy,
        which is done when this returns.  The next one overwrites it, unless `end_after` says that
        they are there.
        """
        assert self._end + len(memory) <= self.nbytes, "no image is put in twice"
        if self._pixels is None:
            self._pixels = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        sizes = self.heights[places] * self.widths[places] * self.channels
        ends = self._end + np.cumsum(sizes)
        self._pixels[self._end : self._end + len(memory)].copy_(memory)
        self._begin[places] = ends - sizes

    def end_after(self, present: NDArray[np.bool_]) -> None:
        """Put the next images behind those that are there, bool [n]."""
        self._end = int(np.dot(present, self.heights * self.widths)) * self.channels

    def part(self, places: Ints, memory: torch.Tensor, wanted: NDArray[np.bool_]) -> torch.Tensor:
        """Return the memory of some of the images that lie in `memory`."""
        sizes = self.heights[places] * self.widths[places] * self.channels
        pieces = torch.split(memory, sizes.tolist())
        return torch.cat([piece for piece, want in zip(pieces, wanted, strict=True) if want])

    def free(self) -> None:
        """Release the memory."""
        self._pixels, self._end = None, 0

    def render(
        self, places: Ints, geometry: Geometry, lookup: PixelLookup | None, *, mask: bool
    ) -> torch.Tensor:
        """Return a batch [n, C, H, W], channels-last, of images that have been put in.

        The geometry is planned for them, and leaves all in one size.  `lookup` are the pixel
        transforms; a mask is resized by the nearest neighbour.
        """
        assert self._pixels is not None, "what is rendered was put in"
        if self._device.type == "cpu":
            return self._render_on_cpu(self._pixels, places, geometry, lookup, mask)
        return self._render_on_device(self._pixels, places, geometry, lookup, mask)

    def _render_on_cpu(
        self,
        pixels: torch.Tensor,
        places: Ints,
        geometry: Geometry,
        lookup: PixelLookup | None,
        mask: bool,
    ) -> torch.Tensor:
        """On the CPU: as raw images are rendered that lie in a file."""
        images = CachedImages(
            pixels.numpy(),
            self._begin[places],
            self.heights[places],
            self.widths[places],
            self.channels,
        )
        table = None if lookup is None else lookup.table(self.channels)
        shape = len(places), int(geometry.height[0]), int(geometry.width[0]), self.channels
        out = torch.empty(shape, dtype=torch.uint8 if table is None else table.dtype)
        render_raw(images, geometry, as_words(out).reshape(shape), table, mask=mask)
        return out.permute(0, 3, 1, 2)

    def _render_on_device(
        self,
        store: torch.Tensor,
        places: Ints,
        geometry: Geometry,
        lookup: PixelLookup | None,
        mask: bool,
    ) -> torch.Tensor:
        """On a device: windows gathered, then resized, then looked up; or all at once."""
        height, width = self.heights[places], self.widths[places]
        top = left = np.zeros_like(height)
        steps = geometry.steps
        rows, columns = height, width
        if steps and isinstance(steps[0], Windows):
            top, left, rows, columns = steps[0].top, steps[0].left, steps[0].height, steps[0].width
            steps = steps[1:]
        plain = not steps  # nothing but a window and a flip
        # Windows of several sizes are gathered with what is beside the smaller ones.  Each
        # size of all takes a kernel of its own to be compiled: few, then, but where it is
        # that of the batch.
        round_up = 1 if plain else CANVAS
        size = (
            -(-int(rows.max()) // round_up) * round_up,
            -(-int(columns.max()) // round_up) * round_up,
            self.channels,
        )
        plan = window_plan(
            self._begin[places],
            width * self.channels,
            top,
            left,
            (np.zeros_like(height), height),
            (np.zeros_like(width), width),
            geometry.flip if plain else np.zeros_like(geometry.flip),
        )
        device_plan = to_device(plan, self._device)
        fused = plain and lookup is not None and has_kernels(self._device)
        table = lookup.on_device(self.channels, self._device) if fused and lookup else None
        pixels = gather_windows(store, device_plan, size, table)
        if not plain:
            remaining = replace(geometry, source_height=rows, source_width=columns, steps=steps)
            pixels = render_canvas(remaining, pixels, mask=mask)
        images = pixels.permute(0, 3, 1, 2)
        return images if fused or lookup is None else lookup(images)


class CachedImages:
    """Decoded images that lie anywhere in one array; an `Images` of `fastdata.engine.contracts`.

    They are as stored images are that are raw, and never damaged.  In `pixels`, uint8 [m], each
    begins at its number in `begins`; that and its size are int64 [n].  Thread-safe.
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
