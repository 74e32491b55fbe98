"""What workers do: the part of making a batch that takes time.

`BatchWork` has what it takes (data, transforms, decoder) and is the same in every
thread and process; a task says which samples, and where in the batch's memory
their images go.

    RenderTask    decode -> geometry -> [pixel table] -> the sample's place in the batch
    SampleTask    decode -> stages, one after another -> its place, where it fits

What becomes of a sample depends on the sample alone, so batches do not depend
on how they are cut into tasks, nor on who does them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs.decoders import JpegDecoder
from fastdata.codecs.resize import resize_box
from fastdata.collate import split_column
from fastdata.engine.layout import Place
from fastdata.errors import ShardCorruptError
from fastdata.formats.gather import LONG_ROW_BYTES
from fastdata.random import Draws, operation_id
from fastdata.schema import ImageField, Schema
from fastdata.transforms.geometry import Crop, Geometry, Program, Scale
from fastdata.transforms.pipeline import Pipeline, check_sizes_agree, check_sizes_equal
from fastdata.transforms.pixel import PixelTable
from fastdata.transforms.render import render
from fastdata.transforms.stack import Stack, render_stack, stackable

__all__ = [
    "BatchWork",
    "Done",
    "OnCorrupt",
    "PackedData",
    "ReadAheadTask",
    "RenderTask",
    "SampleTask",
    "is_packed",
]

Indices: TypeAlias = NDArray[np.int64]
Pixels: TypeAlias = NDArray[np.uint8]
OnCorrupt: TypeAlias = Literal["raise", "skip"]

REPLACE = operation_id(0, "replacement of a corrupt sample")
REPLACEMENTS = 100
"""Samples that are tried in place of a corrupt one before it is an error after all."""


IN_MEMORY_SECONDS = 1e-4, 3e-6
"""A batch, and an image of it: asking for what is in memory takes less (1.1 us an image), for what
is on a disk more (32 us)."""

MAX_PAUSE = 63
"""Batches at most that are not asked for after one that was in memory altogether."""


class Images(Protocol):
    """Images of a field of some samples; see `fastdata.stored.StoredImages`."""

    heights: Indices
    widths: Indices
    lengths: Indices

    @property
    def all_raw(self) -> bool: ...

    def read(self, place: int, out: Pixels | None = None) -> Pixels: ...

    def window(
        self, place: int, window: tuple[int, int, int, int], factor: int = 1
    ) -> tuple[Pixels, int]: ...

    def gather(self, out: Pixels) -> list[int]: ...

    def read_ahead(self) -> None: ...


class PackedData(Protocol):
    """What the loader reads from: `fastdata.dataset.Dataset`, or the like of it.

    All methods are safe to call from several threads.
    """

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def images(self, name: str, indices: Indices, decoder: JpegDecoder, /) -> Images:
        """Return the images of a field, not yet decoded."""

    def gather(self, name: str, indices: Indices, /) -> Any:
        """Return the values of a field that is no image."""

    def describe_sample(self, index: int, /) -> str:
        """Return where a sample is and what it is called, for messages."""


def is_packed(data: object) -> TypeGuard[PackedData]:
    """Return whether `data` can be read by the batch; evaluates none of its properties."""
    return all(hasattr(type(data), name) for name in ("images", "gather"))


@dataclass(frozen=True, slots=True, eq=False)
class ReadAheadTask:
    """Have the stored bytes of some samples read, into the page cache."""

    indices: Indices


@dataclass(frozen=True, slots=True, eq=False)
class RenderTask:
    """Render some images of a batch.

    Attributes
    ----------
    epoch : int
    indices : ndarray of int64, shape [m]
        The samples of this task.
    first : int
        Place in the batch of the first of them.
    places : tuple of Place
        Where the batch's images go, one place an image field.
    """

    epoch: int
    indices: Indices
    first: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTask:
    """Make some samples of a batch one by one; attributes as of `RenderTask`.

    Attributes
    ----------
    places : tuple of Place
        For values that are expected to be tensors of one shape and dtype.
        What is as expected is left there, anything else comes back as a value.
    """

    epoch: int
    indices: Indices
    first: int
    places: tuple[Place, ...]


@dataclass(slots=True)
class Done:
    """What a task gives back.

    Attributes
    ----------
    nbytes : int
        Stored bytes of images that were read.
    replaced : list of (int, int, str)
        Corrupt samples: place in the batch, index taken instead, what was wrong.
    columns : dict of str to list, or None
        Of a `SampleTask`: the values that are not in memory.
    """

    nbytes: int = 0
    replaced: list[tuple[int, int, str]] = field(default_factory=list)
    columns: dict[str, list[Any]] | None = None


class BatchWork:
    """Does tasks; picklable, and safe in any number of threads.

    Parameters
    ----------
    dataset : PackedData
    pipeline : Pipeline
    decoder : JpegDecoder
    seed : int
    on_corrupt : {"raise", "skip"}
    pixels : bool
        False leaves out a direct pipeline's pixel stage: the caller runs it,
        on another device.
    """

    def __init__(
        self,
        dataset: PackedData,
        pipeline: Pipeline,
        decoder: JpegDecoder,
        *,
        seed: int = 0,
        on_corrupt: OnCorrupt = "raise",
        pixels: bool = True,
    ) -> None:
        self.dataset = dataset
        self.pipeline = pipeline
        self.decoder = decoder
        self.seed = seed
        self.on_corrupt = on_corrupt
        self._pause = self._longest_pause = 0
        self.tables: dict[str, PixelTable] = {}
        if pixels and pipeline.pixels is not None:
            for name, image in dataset.schema.images.items():
                if not image.mask:
                    self.tables[name] = pipeline.pixels.table(image.channels)

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Done:
        """Do a task, leaving images in `memory`, the slot of their batch.

        Raises
        ------
        OptionError
            If the transforms do not fit the images, or leave them in different
            sizes.
        ShardCorruptError
            If the bytes of an image are damaged and `on_corrupt` is "raise".
        """
        if isinstance(task, ReadAheadTask):
            self._read_ahead(task.indices)
            return Done()
        assert memory is not None, "tasks that make something get memory for it"
        if isinstance(task, RenderTask):
            return _render(self, task, memory)
        return _make_samples(self, task, memory)

    def _read_ahead(self, indices: Indices) -> None:
        """Ask for bytes, and less often where they turn out to be in memory already."""
        if self._pause > 0:  # threads may count this down unevenly, which does no harm
            self._pause -= 1
            return
        began = time.perf_counter()
        for name in self.dataset.schema.images:
            self.dataset.images(name, indices, self.decoder).read_ahead()
        seconds = time.perf_counter() - began
        in_memory = seconds < IN_MEMORY_SECONDS[0] + IN_MEMORY_SECONDS[1] * len(indices)
        self._longest_pause = min(2 * self._longest_pause + 1, MAX_PAUSE) if in_memory else 0
        self._pause = self._longest_pause

    def stand_ins(self, epoch: int, index: int) -> Iterator[int]:
        """Yield the samples to take in place of a corrupt one, the first that is sound."""
        draws = Draws(self.seed, epoch, REPLACE, np.array([index]))
        yield from draws.integers(len(self.dataset), REPLACEMENTS)[0].tolist()

    def replace(
        self, epoch: int, index: int, error: ShardCorruptError, make: Callable[[int], Any]
    ) -> tuple[int, Any]:
        """Return a sound sample in place of a corrupt one, and what `make` made of it."""
        if self.on_corrupt == "raise":
            raise error
        for other in self.stand_ins(epoch, index):
            try:
                return other, make(other)
            except ShardCorruptError:
                continue
        raise error


def _render(work: BatchWork, task: RenderTask, memory: NDArray[np.uint8]) -> Done:
    outputs = {
        place.name: place.array(memory)[task.first : task.first + len(task.indices)]
        for place in task.places
    }
    done = Done()
    failed = _render_samples(work, task.epoch, task.indices, outputs, done)
    for at, error in failed.items():

        def make(index: int, at: int = at) -> None:
            one = {name: output[at : at + 1] for name, output in outputs.items()}
            failures = _render_samples(work, task.epoch, np.array([index]), one, done)
            if failures:
                raise failures[0]

        index, _ = work.replace(task.epoch, int(task.indices[at]), error, make)
        done.replaced.append((task.first + at, index, str(error)))
    return done


def _render_samples(
    work: BatchWork,
    epoch: int,
    indices: Indices,
    outputs: dict[str, NDArray[Any]],
    done: Done,
) -> dict[int, ShardCorruptError]:
    """Render all image fields of samples; return the corrupt ones, by place in `indices`."""
    schema = work.dataset.schema
    images = {name: work.dataset.images(name, indices, work.decoder) for name in outputs}
    crops: list[Crop] | None = None
    stack: Stack | None = None
    if work.pipeline.geometry is not None and images:
        heights = np.stack([stored.heights for stored in images.values()])
        widths = np.stack([stored.widths for stored in images.values()])
        check_sizes_agree(list(images), heights, widths, indices)
        geometry = work.pipeline.geometry.plan(
            Geometry.of(heights[0], widths[0]), work.seed, epoch, indices
        )
        for name, output in outputs.items():
            check_sizes_equal(name, geometry.height, geometry.width, output.shape, indices)
        if not geometry.identity:
            if all(_is_small(stored) for stored in images.values()):
                stack = stackable(geometry)
            crops = geometry.crops() if stack is None else None
    else:
        for name, stored in images.items():
            check_sizes_equal(name, stored.heights, stored.widths, outputs[name].shape, indices)
    failed: dict[int, ShardCorruptError] = {}
    for name, stored in images.items():
        table, mask = work.tables.get(name), schema.images[name].mask
        if crops is None and stored.all_raw:
            failed |= _copy(stored, stack, outputs[name], table)
        else:
            failed |= _fill(stored, crops, outputs[name], table, mask, work.on_corrupt)
        done.nbytes += int(stored.lengths.sum())
    return failed


def _is_small(stored: Images) -> bool:
    """Return whether images are raw and cheaper to copy whole than to look at one by one."""
    return (
        stored.all_raw
        and bool((stored.lengths < LONG_ROW_BYTES).all())
        and bool((stored.lengths == stored.lengths[:1]).all())
    )


def _copy(
    stored: Images, stack: Stack | None, output: NDArray[Any], table: PixelTable | None
) -> dict[int, ShardCorruptError]:
    """Copy raw images of one size, all at once; cut and flip them as `stack` says."""
    count, height, width, channels = output.shape
    if stack is not None:
        height, width = int(stored.heights[0]), int(stored.widths[0])
    direct = stack is None and table is None
    pixels = output if direct else np.empty((count, height, width, channels), np.uint8)
    failed: dict[int, ShardCorruptError] = {}
    for at in stored.gather(pixels):
        try:
            stored.read(at)
        except ShardCorruptError as error:
            failed[at] = error
    if stack is not None:
        whole = pixels
        pixels = output if table is None else np.empty(output.shape, np.uint8)
        render_stack(whole, stack.top, stack.left, stack.size, stack.flip, pixels)
    if table is not None:
        tall = (-1, *output.shape[2:])
        table.apply(pixels.reshape(tall), output.reshape(tall))
    return failed


def _fill(
    stored: Images,
    crops: list[Crop] | None,
    output: NDArray[Any],
    table: PixelTable | None,
    mask: bool,
    on_corrupt: OnCorrupt,
) -> dict[int, ShardCorruptError]:
    """Make the images of one field, [m, H, W, C]."""
    failed: dict[int, ShardCorruptError] = {}
    scratch = np.empty(output.shape[1:], np.uint8) if table else None
    for at in range(len(output)):
        target = output[at] if scratch is None else scratch
        try:
            if crops is None:
                stored.read(at, target)
            else:
                _crop(stored, at, crops[at], target, mask)
        except ShardCorruptError as error:
            if on_corrupt == "raise":
                raise
            failed[at] = error
            continue
        if table is not None:
            table.apply(target, output[at])
    return failed


def _crop(stored: Images, at: int, crop: Crop, target: Pixels, mask: bool) -> None:
    """Decode what a crop needs, and carry out the rest of its program."""
    window, factor, program = crop
    top, left, height, width = window
    if not (height and width):
        pixels = np.empty((0, 0, target.shape[2]), np.uint8)
    elif factor == 1 or mask:
        pixels, _ = stored.window(at, window)
    else:
        pixels, factor = stored.window(at, window, factor)
        if factor > 1:
            # Edges of the window lie between the pixels of the reduced picture.
            scale, *others = program.operations
            assert isinstance(scale, Scale), "only a resize leaves room for a reduction"
            box = (top % factor / factor, left % factor / factor, height / factor, width / factor)
            pixels = resize_box(pixels, box, (scale.height, scale.width), scale.interpolation)
            program = Program(tuple(others), program.flip)
    render(program, pixels, target, mask=mask)


def _make_samples(work: BatchWork, task: SampleTask, memory: NDArray[np.uint8]) -> Done:
    done = Done()
    indices = task.indices.copy()
    schema = work.dataset.schema
    columns: dict[str, list[Any]] = {name: [None] * len(indices) for name in schema}
    stored = {name: work.dataset.images(name, indices, work.decoder) for name in schema.images}
    for at, index in enumerate(task.indices.tolist()):
        try:
            pixels = _read_images(stored, at)
        except ShardCorruptError as error:

            def make(other: int) -> dict[str, torch.Tensor]:
                one = np.array([other])
                return _read_images(
                    {name: work.dataset.images(name, one, work.decoder) for name in schema.images},
                    0,
                )

            indices[at], pixels = work.replace(task.epoch, index, error, make)
            done.replaced.append((task.first + at, int(indices[at]), str(error)))
        for name, image in pixels.items():
            columns[name][at] = image
    done.nbytes = sum(int(images.lengths.sum()) for images in stored.values())
    for name, kind in schema.items():
        if not isinstance(kind, ImageField):
            columns[name] = split_column(kind, work.dataset.gather(name, indices))
    samples = list(map(schema.sample_type, *columns.values()))
    samples = work.pipeline.run(
        samples, work.seed, task.epoch, indices, work.dataset.describe_sample
    )
    made = dict(zip(schema, map(list, zip(*samples, strict=True)), strict=True))
    for place in task.places:
        if _fits(made[place.name], place):
            target = torch.from_numpy(memory[place.offset : place.offset + place.nbytes])
            batch = target.view(place.dtype).view(place.shape)[task.first :]
            for at, image in enumerate(made[place.name]):
                batch[at].copy_(image.permute(1, 2, 0))
            del made[place.name]
    done.columns = made
    return done


def _read_images(stored: dict[str, Images], at: int) -> dict[str, torch.Tensor]:
    """Return the images of a sample, [C, H, W], in memory that callables may write to."""
    found = {}
    for name, images in stored.items():
        pixels = images.read(at)
        if not (pixels.flags.writeable and pixels.flags.c_contiguous):
            pixels = pixels.copy()
        found[name] = torch.from_numpy(pixels).permute(2, 0, 1)
    return found


def _fits(values: list[Any], place: Place) -> bool:
    """Return whether all values are images [C, H, W] as the place expects them."""
    height, width, channels = place.shape[1:]
    return all(
        isinstance(value, torch.Tensor)
        and value.dtype == place.dtype
        and value.shape == (channels, height, width)
        for value in values
    )
