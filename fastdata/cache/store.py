"""Decoded images: how they are decoded whole, and the memory of a device where they stay.

A `FillJob` decodes images of all fields into host memory; an `ImageStore` has those of one field,
one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.engine.batches import SAMPLES_PER_TASK
from fastdata.engine.buffers import BufferPool, Slot
from fastdata.engine.contracts import Request, image_sizes
from fastdata.engine.rendering import render_raw
from fastdata.engine.work import BatchWork
from fastdata.errors import ShardCorruptError
from fastdata.kernels.pixels import gather_windows, has_kernels, window_plan
from fastdata.native.library import CROP, RAW
from fastdata.transforms.geometry import Geometry, Ints, Windows
from fastdata.transforms.image_tensors import in_order, to_device
from fastdata.transforms.pixel import PixelLookup, as_words
from fastdata.transforms.render_device import render_canvas

__all__ = ["FillJob", "Filled", "ImageStore"]

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
        if geometry.parts:
            parts = []
            for at, part in geometry.parts:
                images = self._render_on_device(store, places[at], part, lookup, mask)
                parts.append((at, images.permute(0, 2, 3, 1)))
            return in_order(parts).permute(0, 3, 1, 2)
        height, width = self.heights[places], self.widths[places]
        top = left = np.zeros_like(height)
        steps = geometry.steps
        rows, columns = height, width
        if steps and isinstance(steps[0], Windows) and steps[0].zero:
            top, left, rows, columns = steps[0].top, steps[0].left, steps[0].height, steps[0].width
            steps = steps[1:]
        plain = not steps and geometry.transpose is None  # only a window and flips
        # Smaller windows are gathered with pixels beside them, to the same size.  torch
        # compiles a kernel for each size, so sizes are rounded, except that of a plain batch.
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
        if plain and geometry.flip_rows is not None:
            flipped = to_device(np.flatnonzero(geometry.flip_rows), self._device)
            pixels[flipped] = pixels[flipped].flip(1)
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

    def __init__(
        self, pixels: NDArray[np.uint8], begins: Ints, heights: Ints, widths: Ints, channels: int
    ) -> None:
        self._pixels = pixels
        self._begins = begins
        self._channels = channels
        self.heights = heights
        self.widths = widths
        self._lengths = heights * widths * channels
        self.refused = np.zeros(len(heights), np.bool_)

    def _view(self, place: int) -> Pixels:
        begin, length = int(self._begins[place]), int(self._lengths[place])
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

    def crops(self) -> NDArray[Any]:
        """Return where all images lie, as the compiled library takes it."""
        crops = np.zeros(len(self._begins), CROP)
        crops["data"] = self._pixels.ctypes.data + self._begins
        crops["size"] = self._lengths
        crops["codec"] = RAW
        crops["factor"] = 1
        crops["height"] = crops["rows"] = self.heights
        crops["width"] = crops["columns"] = self.widths
        return crops


# -- on their way there --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The decoded images of some samples, int64 [k].

    In `memory` there are those of each field one after another, uint8 [m].  Samples that could not
    be decoded are in `failed`, with the reason; their pixels mean nothing.  `nbytes` are the
    stored bytes that were read.
    """

    indices: Ints
    memory: dict[str, torch.Tensor]
    failed: dict[int, str]
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTask:
    """Decode the images of some samples, int64 [m], whole.

    For each image field, `begins` and `ends`, int64 [m], say where they lie in memory.
    """

    indices: Ints
    begins: dict[str, Ints]
    ends: dict[str, Ints]

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> tuple[dict[int, str], int]:
        """Return which samples are corrupt, and why, and the stored bytes that were read.

        A corrupt sample is an error where `work` does not skip it.
        """
        assert memory is not None, "without images there are no tasks"
        dataset, nbytes = work.dataset, 0
        broken = work.unreadable(self.indices)
        failed = {int(self.indices[at]): str(error) for at, error in broken.items()}
        for name, begins in self.begins.items():
            stored = dataset._images(name, self.indices, work.decoder)
            channels = dataset.schema.images[name].channels
            ends = self.ends[name].tolist()
            sizes = zip(stored.heights.tolist(), stored.widths.tolist(), strict=True)
            bounds = zip(begins.tolist(), ends, sizes, strict=True)
            for at, (begin, end, (height, width)) in enumerate(bounds):
                index = int(self.indices[at])
                try:
                    if height * width * channels != end - begin:
                        raise ShardCorruptError(
                            f"{name!r} of {dataset._describe_sample(index)} is {height} x {width} "
                            "pixels (height x width) now and was of another size when its place "
                            "was made: somebody has changed the file"
                        )
                    stored.read(at, memory[begin:end].reshape(height, width, channels))
                except ShardCorruptError as error:
                    if work.on_corrupt == "raise":
                        raise
                    failed[index] = str(error)
            nbytes += int(stored.lengths.sum())
        return failed, nbytes


class FillJob:
    """A `fastdata.engine.contracts.Job` that decodes the samples of a request, whole.

    They lie one after another in one slot of `buffers`.  There may be none.
    """

    def __init__(self, work: BatchWork, buffers: BufferPool, request: Request) -> None:
        self._indices = request.indices
        self._bounds: dict[str, Ints] = {}  # where the images of a field begin, and the last ends
        end = 0
        for name, field in work.dataset.schema.images.items():
            heights, widths = image_sizes(work.dataset, name, request.indices, work.decoder)
            sizes = heights * widths * field.channels
            self._bounds[name] = end + np.concatenate(([0], np.cumsum(sizes)))
            end = int(self._bounds[name][-1])
        self.slot: Slot | None = buffers.take(end) if end else None

    def tasks(self) -> Sequence[DecodeTask]:
        """Return one for each few samples."""
        tasks = []
        for first in range(0, len(self._indices) if self.slot else 0, SAMPLES_PER_TASK):
            some = slice(first, first + SAMPLES_PER_TASK)
            begins = {name: bounds[:-1][some] for name, bounds in self._bounds.items()}
            ends = {name: bounds[1:][some] for name, bounds in self._bounds.items()}
            tasks.append(DecodeTask(self._indices[some], begins, ends))
        return tasks

    def finish(self, results: Sequence[tuple[dict[int, str], int]]) -> Filled:
        """Return the images, in the slot's memory."""
        empty = torch.empty(0, dtype=torch.uint8)
        tensor = empty if self.slot is None else self.slot.tensor
        memory = {name: tensor[some[0] : some[-1]] for name, some in self._bounds.items()}
        failed = {index: why for broken, _ in results for index, why in broken.items()}
        return Filled(self._indices, memory, failed, sum(nbytes for _, nbytes in results))
