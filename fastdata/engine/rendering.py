"""From stored bytes to pixels in the memory of a batch, many images with one plan.

Raw images of which nothing changes are copied all at once.  For all others there is one call of the
compiled library, which leaves out what it does not understand, and damaged images.  What it leaves,
or everything where there is no such library, is made so:

raw, small, one size    copied all at once, then cut and flipped all at once
raw, large              each cut from a view of the file, resized and flipped
compressed              of each only what the crop needs is decoded, then resized and flipped
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.codecs.resize import resize_reduced
from fastdata.engine.buffers import TensorLayout
from fastdata.engine.contracts import Images, Indices
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.formats.gather import LONG_ROW_BYTES
from fastdata.native.library import JPEG, OTHER_CODEC, compiled, render_crops
from fastdata.random import SampleKeys
from fastdata.transforms.geometry import Crop, Geometry, Program, Scale
from fastdata.transforms.pixel import PixelTable
from fastdata.transforms.render import StackPlan, render, render_stack, stack_plan
from fastdata.transforms.stages import check_sizes_agree, check_sizes_equal

__all__ = ["RenderTask", "plan_geometry", "plan_images", "render_raw"]

MAX_SIDE = 1 << 24
"""Pixels; with more, areas would no longer be exact."""

AT_ONCE = 4
"""Images that are rendered before their pixels go through a table: so few stay in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class RenderTask:
    """Render the images of some samples, the `first` of which has that number in the batch.

    `layouts` say where the images of the whole batch lie in memory, one for each image field and
    view.
    """

    keys: SampleKeys
    first: int
    layouts: tuple[TensorLayout, ...]

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Done:
        """Render the images into `memory`, the slot of their batch."""
        assert memory is not None, "a batch of images has a slot"
        keys, first = self.keys, self.first
        views: list[tuple[BatchWork, dict[str, NDArray[Any]]]] = [(part, {}) for part in work.parts]
        for layout in self.layouts:
            views[layout.view][1][layout.name] = layout.array(memory)[first : first + len(keys)]
        done = Done()
        failed = work.unreadable(keys.indices)
        for part, outputs in views:
            failed |= _render_samples(part, keys, outputs, done)
        for at, error in failed.items():

            def make(index: int, at: int = at) -> None:
                for error in work.unreadable(np.array([index])).values():
                    raise error
                # All views, also those for which the damage was not read.
                for part, outputs in views:
                    one = {name: output[at : at + 1] for name, output in outputs.items()}
                    key = keys[at : at + 1].replaced(np.array([index]))
                    failures = _render_samples(part, key, one, done)
                    if failures:
                        raise failures[0]

            index, _ = work.replace(keys.epoch, int(keys.indices[at]), error, make)
            done.replaced.append((first + at, index, str(error)))
        return done


def _render_samples(
    work: BatchWork,
    keys: SampleKeys,
    outputs: dict[str, NDArray[Any]],
    done: Done,
) -> dict[int, ShardCorruptError]:
    """Render all image fields of samples; return the corrupt ones, by their number in `keys`."""
    schema = work.dataset.schema
    images = {name: work.dataset.images(name, keys.indices, work.decoder) for name in outputs}
    shapes = {name: output.shape for name, output in outputs.items()}
    geometry = plan_images(work, keys, images, shapes)
    crops: list[Crop] | None = None
    stack: StackPlan | None = None
    whole = True  # nothing to be done one by one
    if geometry is not None and not geometry.identity:
        if not compiled() and all(_is_small(stored) for stored in images.values()):
            stack = stack_plan(geometry)
        whole = stack is not None
    failed: dict[int, ShardCorruptError] = {}
    for name, stored in images.items():
        table, mask = work.tables.get(name), schema.images[name].mask
        output = outputs[name]
        done.nbytes += int(stored.lengths.sum())
        if whole and stored.all_raw:
            failed |= _copy(stored, stack, output, table)
            continue
        left = np.arange(len(output))
        if compiled():
            planned = None if whole else geometry
            left = _fill_compiled(stored, planned, work.decoder, output, table, mask)
        if len(left) and not whole and crops is None:
            assert geometry is not None
            crops = geometry.crops()
        failed |= _fill(stored, left, crops, output, table, mask, work.on_corrupt)
    return failed


def plan_images(
    work: BatchWork,
    keys: SampleKeys,
    images: Mapping[str, Images],
    shapes: Mapping[str, tuple[int, ...]],
) -> Geometry | None:
    """Return where the pixels of some samples go; None where no transform moves them.

    `images` are theirs, of every image field; `shapes` those of the batch's images, [N, H, W, C],
    which its first sample decided.  Images that are refused go anywhere: reading them says what is
    wrong.  Raises an `OptionError` if the images of a sample differ in size, or those of the batch
    do afterwards.
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
    images: Mapping[str, Images],
    shapes: Mapping[str, tuple[int, ...]],
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
            check_sizes_equal(name, rows, columns, shape, indices[sound])
        return None
    check_sizes_agree(list(images), heights, widths, indices)
    geometry = plan_geometry(work, keys, heights[0], widths[0])
    for name, shape in shapes.items():
        rows, columns = geometry.height[sound], geometry.width[sound]
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
    if compiled():
        left = _fill_compiled(stored, geometry, jpeg_decoder(), output, table, mask)
    if len(left):
        _fill(stored, left, geometry.crops(), output, table, mask, "raise")


def plan_geometry(work: BatchWork, keys: SampleKeys, heights: Indices, widths: Indices) -> Geometry:
    """Return the geometry of samples of these sizes, of a pipeline that has some."""
    assert work.pipeline.geometry is not None, "there is something to plan"
    # Sizes that no image has are planned for as others are; reading says what is wrong.
    geometry = Geometry.of(heights.clip(1, MAX_SIDE), widths.clip(1, MAX_SIDE))
    return work.pipeline.geometry.plan(geometry, work.seed, keys)


def _is_small(stored: Images) -> bool:
    """Return whether images are raw and cheaper to copy whole than to look at one by one."""
    return (
        stored.all_raw
        and bool((stored.lengths < LONG_ROW_BYTES).all())
        and bool((stored.lengths == stored.lengths[:1]).all())
    )


def _copy(
    stored: Images, stack: StackPlan | None, output: NDArray[Any], table: PixelTable | None
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
        render_stack(whole, *stack, pixels)
    if table is not None:
        tall = (-1, *output.shape[2:])
        table.apply(pixels.reshape(tall), output.reshape(tall))
    return failed


def _fill_compiled(
    stored: Images,
    geometry: Geometry | None,
    decoder: JpegDecoder,
    output: NDArray[Any],
    table: PixelTable | None,
    mask: bool,
) -> Indices:
    """Make images of one field, [m, H, W, C], by the compiled library; return which are left."""
    crops = stored.crops()
    if decoder.name != "native":
        crops["codec"][crops["codec"] == JPEG] = OTHER_CODEC
    if geometry is not None:
        plain = geometry.plain_crops
        if plain is None or (mask and plain.resize):
            return np.arange(len(output))
        for name, values in zip(("top", "left", "rows", "columns"), plain.windows, strict=True):
            crops[name] = values
        crops["flip"] = geometry.flip
        if plain.resize is not None:
            target, origin, factors, antialiased = plain.resize
            crops["factor"] = np.where(crops["codec"] == JPEG, factors, 1)
            crops["target_rows"], crops["target_columns"] = target
            crops["part_top"], crops["part_left"] = origin
            if antialiased is not None:
                crops["antialias"] = antialiased
    if table is None:
        return render_crops(crops, output)
    remaining = []
    scratch = np.empty((AT_ONCE, *output.shape[1:]), np.uint8)
    for start in range(0, len(output), AT_ONCE):
        part = crops[start : start + AT_ONCE]
        pixels = scratch[: len(part)]
        remaining.append(start + render_crops(part, pixels))
        tall = (-1, *output.shape[2:])
        table.apply(pixels.reshape(tall), output[start : start + len(part)].reshape(tall))
    return np.concatenate(remaining) if remaining else np.empty(0, np.int64)


def _fill(
    stored: Images,
    numbers: Indices,
    crops: list[Crop] | None,
    output: NDArray[Any],
    table: PixelTable | None,
    mask: bool,
    on_corrupt: str,
) -> dict[int, ShardCorruptError]:
    """Make some images of one field, [m, H, W, C], one by one: those with these `numbers`."""
    failed: dict[int, ShardCorruptError] = {}
    scratch = np.empty(output.shape[1:], np.uint8) if table else None
    for at in numbers.tolist():
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
    if 0 in window[2:] and not stored.refused[at]:
        pixels = np.empty((0, 0, target.shape[2]), np.uint8)
    else:
        pixels, factor = stored.window(at, window, 1 if mask else factor)
        if factor > 1:
            scale, *others = program.operations
            assert isinstance(scale, Scale), "only a resize leaves room for a reduction"
            size = scale.height, scale.width
            pixels = resize_reduced(pixels, window, factor, size, scale.interpolation)
            program = Program(tuple(others), program.flip)
        elif program.operations and not pixels.flags.writeable:
            # A view of the file.  Resizing reads it in an order that memory is slow at:
            # 106 us, where copying first takes 17 and then 57.
            pixels = np.ascontiguousarray(pixels)
    render(program, pixels, target, mask=mask)
