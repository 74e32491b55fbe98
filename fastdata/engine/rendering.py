"""From stored bytes to pixels in the memory of a batch.

A `BatchPlan` has the places of images and the geometry of their pixels, once for all tasks of a
batch in one process.  A task then makes the images of its samples.

Raw images that do not change are copied in one step.  All others take one call of the compiled
library, which leaves out unknown and damaged images.  The remaining ones, or all without the
library, are made so:

raw, small, one size    copied in one step, then cut and flipped in one step
raw, large              each cut from a view of the file, resized and flipped
compressed              each decoded as far as the crop needs, then resized and flipped
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.codecs.resize import resize_reduced
from fastdata.engine.contracts import Images, Indices, StoredImages
from fastdata.engine.image_lists import Layouts, Sizes, check_list_sizes, lay_out_lists
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.formats.gather import LONG_ROW_BYTES
from fastdata.native.library import (
    JPEG,
    OTHER_CODEC,
    compiled,
    look_up_planes,
    render_crops,
)
from fastdata.random import SampleKeys
from fastdata.transforms.boxes import boxes_by_image
from fastdata.transforms.geometric import check_sizes_agree, check_sizes_equal
from fastdata.transforms.geometry import Crop, Geometry, Scale
from fastdata.transforms.pixel import PixelTable
from fastdata.transforms.render import StackPlan, flip_rows, render, render_stack, stack_plan

__all__ = [
    "BatchPlan",
    "RenderTask",
    "plan_geometry",
    "plan_images",
    "put",
    "read_boxes",
    "render_raw",
]

MAX_SIDE = 1 << 24
"""Pixels; with more, areas would no longer be exact."""

AT_ONCE = 4
"""Images rendered before the table look-up; few enough to stay in the cache."""

_Shapes: TypeAlias = Mapping[str, tuple[int, ...] | None]
"""Shapes of the batch's images by field, [N, H, W, C]; None if images have any sizes."""

_Outputs: TypeAlias = dict[str, NDArray[Any] | list[NDArray[Any]]]
"""Where images go, by field: an array [n, H, W, C], or a list of n arrays [1, H, W, C]."""


class BatchPlan:
    """Places of the samples' images and geometry of their pixels; planned once, lazily.

    The samples are those of a batch from number `first` on; `layouts` has one layout of the whole
    batch for each image field and view.

    Planning takes many small steps of NumPy, which hold the interpreter's lock, and a whole batch
    takes hardly longer than a part.  So the first task plans for all tasks of its process.
    Thread-safe.
    """

    def __init__(self, keys: SampleKeys, first: int = 0, layouts: Layouts = ()) -> None:
        self.keys = keys
        self.first = first
        self.layouts = layouts
        self._views: list[ViewPlan] = []
        self._lock = threading.Lock()

    def views(self, work: BatchWork) -> list[ViewPlan]:
        """Return the plan of each view; `OptionError` if the transforms do not fit the images."""
        with self._lock:
            if not self._views:
                names = work.dataset.schema.images
                shapes: list[dict[str, tuple[int, ...] | None]] = [
                    dict.fromkeys(names) for _ in work.parts
                ]
                for layout in self.layouts:
                    shapes[layout.view][layout.name] = layout.shape
                pairs = zip(work.parts, shapes, strict=True)
                self._views = [_plan_view(part, self.keys, of_view) for part, of_view in pairs]
            return self._views

    @property
    def geometry(self) -> Geometry | None:
        """Geometry of the first view; None if no pixel moves, or nothing was planned."""
        return self._views[0].geometry if self._views else None


@dataclass(frozen=True, slots=True, eq=False)
class RenderTask:
    """Render the images from number `start` to `stop` of a plan."""

    plan: BatchPlan
    start: int
    stop: int

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Done:
        """Render the images into `memory`, the slot of their batch."""
        assert memory is not None, "a batch of images has a slot"
        keys = self.plan.keys[self.start : self.stop]
        first = self.plan.first + self.start
        plans = self.plan.views(work)
        if work.image_lists:
            check_list_sizes(self.plan.layouts, [plan.sizes for plan in plans], self.plan.first)
        views = _outputs(work, self.plan.layouts, memory, first, len(keys))
        done = Done()
        failed = work.unreadable(keys.indices)
        for part, plan, outputs in zip(work.parts, plans, views, strict=True):
            failed |= render_view(part, plan, self.start, outputs, done)
        for at, error in failed.items():

            def make(index: int, at: int = at) -> dict[tuple[str, int], Any]:
                for error in work.unreadable(np.array([index])).values():
                    raise error
                key = keys[at : at + 1].replaced(np.array([index]))
                plans = BatchPlan(key, 0, self.plan.layouts).views(work)
                images: dict[tuple[str, int], Any] = {}
                if work.image_lists:  # perhaps it is larger
                    layouts, nbytes = lay_out_lists(work, [plan.sizes for plan in plans])
                    apart = torch.empty(nbytes, dtype=torch.uint8)
                    ones = _outputs(work, layouts, apart.numpy(), 0, 1)
                    images = {(one.name, one.view): one.tensor(apart)[0] for one in layouts}
                else:
                    ones = _outputs(work, self.plan.layouts, memory, first + at, 1)
                # All views, even if the damage was not read for some.
                for part, plan, one in zip(work.parts, plans, ones, strict=True):
                    for failure in render_view(part, plan, 0, one, done).values():
                        raise failure
                return images

            index, images = work.replace(keys.epoch, int(keys.indices[at]), error, make)
            done.replaced.append((first + at, index, str(error)))
            done.substitutes[first + at] = images
        return done

    @classmethod
    def alone(cls, keys: SampleKeys, first: int, layouts: Layouts) -> RenderTask:
        """Return a task with a plan for its own images, and no others; as of `BatchPlan`."""
        return cls(BatchPlan(keys, first, layouts), 0, len(keys))

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes plan what each renders, at the same time.
        keys, first = self.plan.keys[self.start : self.stop], self.plan.first + self.start
        return RenderTask.alone, (keys, first, self.plan.layouts)


@dataclass(frozen=True, eq=False)
class ViewPlan:
    """Places of images, by field, and the geometry of one view.

    `whole` images need no step of their own: they are copied together, and then moved by `stack`.
    `crops` are the arguments of the compiled library, by field.
    """

    images: dict[str, StoredImages]
    geometry: Geometry | None
    whole: bool
    stack: StackPlan | None
    crops: dict[str, NDArray[Any]]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sizes(self) -> Sizes:
        """Heights and widths of the images as they go into the batch, by field."""
        if self.geometry is not None:
            return dict.fromkeys(self.images, (self.geometry.height, self.geometry.width))
        return {name: (images.heights, images.widths) for name, images in self.images.items()}

    @property
    def programs(self) -> list[Crop] | None:
        """What to do with each image that is made by itself; None if it stays as it is."""
        if self.whole:
            return None
        with self._lock:
            return self._programs

    @cached_property
    def _programs(self) -> list[Crop]:
        assert self.geometry is not None, "pixels move"
        return self.geometry.crops()


def _outputs(
    work: BatchWork, layouts: Layouts, memory: NDArray[np.uint8], first: int, count: int
) -> list[_Outputs]:
    """Return where `count` images from number `first` on go, by field, for each view."""
    outputs: list[_Outputs] = [{} for _ in work.parts]
    for layout in layouts:
        outputs[layout.view][layout.name] = layout.part(memory, first, first + count)
    return outputs


def _plan_view(work: BatchWork, keys: SampleKeys, shapes: _Shapes) -> ViewPlan:
    """Return the plan of one view of some samples; `shapes` as of `plan_images`."""
    images = {name: work.dataset._images(name, keys.indices, work.decoder) for name in shapes}
    geometry = plan_images(work, keys, images, shapes)
    moving = None if geometry is None or geometry.identity else geometry
    stack = None
    crops = {}
    if compiled():
        for name, stored in images.items():
            field = work.dataset.schema.images[name]
            split = work.planar and field.channels > 1 and name not in work.tables
            if moving is None and stored.all_raw and not split:
                continue  # copied all at once
            mask = field.mask
            found = _crops(stored, moving, work.decoder, mask)
            if found is not None:
                crops[name] = found
    elif moving is not None and all(map(_is_small, images.values())):
        stack = stack_plan(moving)
    return ViewPlan(images, geometry, moving is None or stack is not None, stack, crops)


def render_view(
    work: BatchWork,
    plan: ViewPlan,
    start: int,
    outputs: _Outputs,
    done: Done,
) -> dict[int, ShardCorruptError]:
    """Render samples of a plan, from number `start` on; return corrupt ones by place in outputs."""
    failed: dict[int, ShardCorruptError] = {}
    for name, output in outputs.items():
        if isinstance(output, list):
            for at, one in enumerate(output):
                for error in render_view(work, plan, start + at, {name: one}, done).values():
                    failed[at] = error
            continue
        stored, stop = plan.images[name], start + len(output)
        table, mask = work.tables.get(name), work.dataset.schema.images[name].mask
        done.nbytes += int(stored.lengths[start:stop].sum())
        if plan.whole and stored.all_raw and name not in plan.crops:
            failed |= _copy(stored, start, plan.stack, output, table)
            continue
        left = np.arange(len(output))
        if name in plan.crops:
            crops = plan.crops[name][start:stop]
            stored.verify(crops, start)
            upside_down = None if plan.geometry is None else plan.geometry.flip_rows
            if upside_down is not None:
                upside_down = upside_down[start:stop]
            left = _fill_compiled(crops, output, table, upside_down)
        if len(left):
            failed |= _fill(
                stored, start, left, plan.programs, output, table, mask, work.on_corrupt
            )
    return failed


def plan_images(
    work: BatchWork,
    keys: SampleKeys,
    images: Mapping[str, StoredImages],
    shapes: _Shapes,
) -> Geometry | None:
    """Return the geometry of some samples; None if no transform moves pixels.

    `images` are their images by field; `shapes` are those of the batch's images, [N, H, W, C],
    as the first sample decided, or None if sizes may differ.  The geometry of refused images is
    arbitrary: reading them raises the error.  Raises `OptionError` if the images of a sample
    differ in size, or those of the batch differ afterwards.
    """
    try:
        return _plan_images(work, keys, images, shapes)
    except OptionError:
        # Perhaps it is not the transforms, but columns that say other sizes than the images.
        if not any([stored.doubt() for stored in images.values()]):
            raise
    return _plan_images(work, keys, images, shapes)


def _plan_images(
    work: BatchWork,
    keys: SampleKeys,
    images: Mapping[str, StoredImages],
    shapes: _Shapes,
) -> Geometry | None:
    if not images:
        return None
    refused = np.logical_or.reduce([stored.refused for stored in images.values()])
    heights = np.stack([stored.heights for stored in images.values()])
    widths = np.stack([stored.widths for stored in images.values()])
    indices = keys.indices
    sound: Any = slice(None)
    if refused.any():
        heights[:, refused] = widths[:, refused] = 1
        sound = ~refused
    if work.pipeline.geometry is None:
        for number, (name, shape) in enumerate(shapes.items()):
            rows, columns = heights[number][sound], widths[number][sound]
            if shape is not None:
                check_sizes_equal(name, rows, columns, shape, indices[sound])
        return None
    check_sizes_agree(list(images), heights, widths, indices)
    geometry = plan_geometry(work, keys, heights[0], widths[0])
    for name, shape in shapes.items():
        rows, columns = geometry.height[sound], geometry.width[sound]
        if shape is not None:
            check_sizes_equal(name, rows, columns, shape, indices[sound])
    return geometry


def render_raw(
    stored: Images,
    geometry: Geometry,
    output: Pixels,
    table: PixelTable | None = None,
    *,
    mask: bool = False,
) -> None:
    """Render raw images of one field that are not damaged.

    The geometry is planned for them; all leave it in the size of `output`, contiguous
    [n, H, W, C], of `word_dtype` of the table's dtype, or uint8.
    """
    left = np.arange(len(output))
    crops = _crops(stored, geometry, jpeg_decoder(), mask) if compiled() else None
    if crops is not None:
        left = _fill_compiled(crops, output, table, geometry.flip_rows)
    if len(left):
        _fill(stored, 0, left, geometry.crops(), output, table, mask, "raise")


def plan_geometry(work: BatchWork, keys: SampleKeys, heights: Indices, widths: Indices) -> Geometry:
    """Return the geometry of samples of these sizes, for a pipeline with geometry."""
    assert work.pipeline.geometry is not None, "there is something to plan"
    # Impossible sizes are planned like others; reading raises the error.
    geometry = Geometry.of(heights.clip(1, MAX_SIDE), widths.clip(1, MAX_SIDE))
    if work.pipeline.geometry.needs_boxes:
        geometry = geometry.with_boxes(read_boxes(work, keys.indices))
    return work.pipeline.geometry.plan(geometry, work.seed, keys)


def read_boxes(work: BatchWork, indices: Indices) -> list[NDArray[np.float64]]:
    """Return the boxes of some samples, float64 [k, 4] each; none for those that are skipped."""
    skipped = work.unreadable(indices)
    sound = np.delete(indices, list(skipped))
    columns = {}
    for name in work.dataset.schema.boxes:
        column = work.dataset._gather(name, sound)
        columns[name] = [torch.from_numpy(array) for array in column]
    boxes = boxes_by_image(columns, len(sound))
    for at in sorted(skipped):
        boxes.insert(at, np.empty((0, 4)))
    return boxes


def _is_small(stored: StoredImages) -> bool:
    """Return whether images are raw and cheaper to copy whole than to look at one by one."""
    return (
        stored.all_raw
        and bool((stored.lengths < LONG_ROW_BYTES).all())
        and bool((stored.lengths == stored.lengths[:1]).all())
    )


def _copy(
    stored: StoredImages,
    start: int,
    stack: StackPlan | None,
    output: NDArray[Any],
    table: PixelTable | None,
) -> dict[int, ShardCorruptError]:
    """Copy raw images of one size, from number `start` on; cut and flip them as `stack` says."""
    count, height, width, channels = output.shape
    if stack is not None:
        height, width = int(stored.heights[0]), int(stored.widths[0])
        stack = stack.part(slice(start, start + count))
    contiguous = output.flags.c_contiguous
    direct = stack is None and table is None and contiguous
    pixels = output if direct else np.empty((count, height, width, channels), np.uint8)
    failed: dict[int, ShardCorruptError] = {}
    for at in stored.gather(pixels, start):
        try:
            stored.read(start + at)
        except ShardCorruptError as error:
            failed[at] = error
    if stack is not None:
        whole = pixels
        in_place = table is None and contiguous
        pixels = output if in_place else np.empty(output.shape, np.uint8)
        render_stack(whole, stack, pixels)
    if pixels is not output:
        put(pixels, table, output)
    return failed


def put(pixels: Pixels, table: PixelTable | None, output: NDArray[Any]) -> None:
    """Write images [m, H, W, C] to `output`, by the table if there is one."""
    if table is not None:
        table.apply(pixels, output)
    elif output.flags.c_contiguous:
        output[...] = pixels
    else:
        look_up_planes(pixels, None, output)


def _crops(
    stored: Images, geometry: Geometry | None, decoder: JpegDecoder, mask: bool
) -> NDArray[Any] | None:
    """Return images as the compiled library takes them; None if it does not know the geometry."""
    parts = []
    for places, part in () if geometry is None else geometry.by_part():
        plain = part.plain_crops
        if plain is None or (mask and plain.resize):
            return None
        parts.append((places, part, plain))
    crops = stored.crops()
    if decoder.name != "native":
        crops["codec"][crops["codec"] == JPEG] = OTHER_CODEC
    for at, part, plain in parts:
        for name, values in zip(("top", "left", "rows", "columns"), plain.windows, strict=True):
            crops[name][at] = values
        crops["flip"][at] = part.flip
        if plain.resize is not None:
            target, origin, factors, antialiased = plain.resize
            crops["factor"][at] = np.where(crops["codec"][at] == JPEG, factors, 1)
            crops["target_rows"][at], crops["target_columns"][at] = target
            crops["part_top"][at], crops["part_left"][at] = origin
            if antialiased is not None:
                crops["antialias"][at] = antialiased
    return crops


def _fill_compiled(
    crops: NDArray[Any],
    output: NDArray[Any],
    table: PixelTable | None,
    upside_down: NDArray[np.bool_] | None,
) -> Indices:
    """Make images of one field, [m, H, W, C], by the compiled library; return which are left.

    Those of `upside_down`, bool [m], are mirrored top to bottom.
    """
    if table is None:
        left = render_crops(crops, output)
        if upside_down is not None:
            flip_rows(output, upside_down)
        return left
    remaining = []
    scratch = np.empty((AT_ONCE, *output.shape[1:]), np.uint8)
    for start in range(0, len(output), AT_ONCE):
        part = crops[start : start + AT_ONCE]
        pixels = scratch[: len(part)]
        remaining.append(start + render_crops(part, pixels))
        if upside_down is not None:
            flip_rows(pixels, upside_down[start : start + AT_ONCE])
        table.apply(pixels, output[start : start + len(part)])
    return np.concatenate(remaining) if remaining else np.empty(0, np.int64)


def _fill(
    stored: Images,
    start: int,
    numbers: Indices,
    crops: list[Crop] | None,
    output: NDArray[Any],
    table: PixelTable | None,
    mask: bool,
    on_corrupt: str,
) -> dict[int, ShardCorruptError]:
    """Make some images of one field, [m, H, W, C], one by one.

    `output` is for the images from `start` on; `numbers` are those to make.
    """
    failed: dict[int, ShardCorruptError] = {}
    direct = table is None and output.flags.c_contiguous
    scratch = None if direct else np.empty((1, *output.shape[1:]), np.uint8)
    for at in numbers.tolist():
        target = output[at] if scratch is None else scratch[0]
        try:
            if crops is None:
                stored.read(start + at, target)
            else:
                _crop(stored, start + at, crops[start + at], target, mask)
        except ShardCorruptError as error:
            if on_corrupt == "raise":
                raise
            failed[at] = error
            continue
        if scratch is not None:
            put(scratch, table, output[at : at + 1])
    return failed


def _crop(stored: Images, at: int, crop: Crop, target: Pixels, mask: bool) -> None:
    """Decode the pixels that a crop needs, and run the rest of its program."""
    window, factor, program = crop
    if 0 in window[2:] and not stored.refused[at]:
        pixels = np.empty((0, 0, target.shape[2]), np.uint8)
    else:
        pixels, factor = stored.window(at, window, 1 if mask else factor)
        if factor > 1:
            scale, *others = program.operations
            assert isinstance(scale, Scale), "only a resize leaves room for a reduction"
            size = scale.height, scale.width
            pixels = resize_reduced(pixels, window, factor, size, scale.interpolation)
            program = program._replace(operations=tuple(others))
        elif program.operations and not pixels.flags.writeable:
            # A view of the file.  Resizing reads it in an order that memory is slow at:
            # 106 us, where copying first takes 17 and then 57.
            pixels = np.ascontiguousarray(pixels)
    render(program, pixels, target, mask=mask)
