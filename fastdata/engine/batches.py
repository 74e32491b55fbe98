"""Planning and assembly of a batch of a packed dataset.

A job of `BatchMaker.prepare` computes the size of the batch, takes memory for it and cuts the work
into tasks.  Its `finish` makes tensors over that memory and adds the other columns.  Both run in
the caller's thread, once per batch; nothing here runs once per sample.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fastdata.engine.buffers import BufferPool, Slot, TensorLayout, lay_out
from fastdata.engine.contracts import Job, Request, StoredImages, image_sizes
from fastdata.engine.image_lists import Layouts, ListLayout, Sizes, lay_out_lists
from fastdata.engine.rendering import BatchPlan, RenderTask, plan_geometry
from fastdata.engine.samples import SampleTask, collate_field
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import ShardCorruptError
from fastdata.random import SampleKeys
from fastdata.schema import ArrayField, Field, ImageField
from fastdata.transforms.boxes import move_boxes
from fastdata.transforms.geometry import Geometry

__all__ = ["BatchMaker", "RenderJob", "batch_of", "collate_column", "report_skipped"]

SAMPLES_PER_TASK = 16
"""Fewer are not worth a task of their own, which costs some 100 us."""

PIXELS_PER_TASK = 1 << 20
"""Nor is less than this, in bytes of pixels: 256 images of 32 x 32 are made in 250 us."""

log = logging.getLogger("fastdata")


def report_skipped(reason: str) -> None:
    """Say of the first corrupt sample that another was taken in its place."""
    log.warning(
        "skipped a corrupt sample and took another in its place: %s "
        "(later ones are only counted, in stats().skipped_samples)",
        reason,
    )


class BatchMaker:
    """Plans and assembles batches, in memory of `buffers`.

    A batch is cut into at most `pieces` tasks.  With `plans_once`, tasks in one process share a
    plan.  `bytes_read` and `skipped` count the stored bytes of images that were read, and corrupt
    samples that were replaced.
    """

    def __init__(
        self, work: BatchWork, *, pieces: int, buffers: BufferPool, plans_once: bool = True
    ) -> None:
        self.work = work
        self.buffers = buffers
        self.bytes_read = 0
        self.skipped = 0
        self.expected: dict[tuple[str, int], tuple[tuple[int, ...], torch.dtype]] = {}
        """Shape and dtype of each view's images in the last batch, with callables."""
        self._pieces = pieces
        # Files that are read whole are in memory until their task is done, so it is a small one,
        # and reads only its own when it plans.
        self._samples_per_task: int | None = getattr(work.dataset, "_samples_per_task", None)
        self.plans_once = plans_once and self._samples_per_task is None

    def prepare(self, request: Request) -> Job:
        """Return the job of a batch; `OptionError` if transforms do not fit its first sample."""
        if not self.work.pipeline.direct:
            return _SampleJob(self, request)
        return RenderJob(self, request)

    def cut(self, count: int, pixels: int | None = None) -> list[tuple[int, int]]:
        """Return (start, stop) of each task for a batch of `count` samples and `pixels`."""
        if self._samples_per_task is not None:
            pieces = -(-count // self._samples_per_task)
        else:
            pieces = min(self._pieces, count // SAMPLES_PER_TASK)
            if pixels is not None:
                pieces = min(pieces, pixels // PIXELS_PER_TASK)
            pieces = max(pieces, 1)
        return list(pairwise(count * piece // pieces for piece in range(pieces + 1)))

    def sizes(self, request: Request, view: int = 0) -> dict[str, tuple[int, int]]:
        """Return height and width of the images of a batch, which its first sample decides."""
        work = self.work.parts[view]
        geometry = work.pipeline.geometry
        size = None if geometry is None else geometry.size_in(request.epoch)
        if size is not None:
            return dict.fromkeys(work.dataset.schema.images, size)
        found = _sizes_by_headers(work, self._first(request))
        return {name: (int(height[0]), int(width[0])) for name, (height, width) in found.items()}

    def fields(self, request: Request) -> list[tuple[str, tuple[int, ...], torch.dtype, int]]:
        """Return name, shape, dtype and view of the arrays of images of a batch."""
        found: list[tuple[str, tuple[int, ...], torch.dtype, int]] = []
        for view, work in enumerate(self.work.parts):
            for name, (height, width) in self.sizes(request, view).items():
                channels, table = work.dataset.schema.images[name].channels, work.tables.get(name)
                shape = len(request), height, width, channels
                found.append((name, shape, table.dtype if table else torch.uint8, view))
        return found

    def list_sizes(self, plan: BatchPlan) -> list[Sizes]:
        """Return the sizes of the images of a batch in each view, if they are lists."""
        if getattr(self.work.dataset, "_image_sizes", None) is None:
            return [view.sizes for view in plan.views(self.work)]
        return [_sizes_by_headers(part, plan.keys) for part in self.work.parts]

    def _first(self, request: Request) -> SampleKeys:
        """Return the first sample of a batch, or a sound one in its place."""
        work, first = self.work, request[:1]

        def look(index: int) -> None:
            # This sample decides the memory of the whole batch.
            for name in work.dataset.schema.images:
                stored: StoredImages = work.dataset._images(name, np.array([index]), work.decoder)
                if stored.doubt():
                    stored.read(0)

        index = int(first.indices[0])
        try:
            look(index)
        except ShardCorruptError as error:
            index, _ = work.replace(request.epoch, index, error, look)
        return first.replaced(np.array([index]))

    def count(self, results: Sequence[Done]) -> None:
        """Add up what tasks did."""
        for done in results:
            self.bytes_read += done.nbytes
            for *_, reason in done.replaced:
                if not self.skipped:
                    report_skipped(reason)
                self.skipped += 1


def _sizes_by_headers(work: BatchWork, keys: SampleKeys) -> Sizes:
    """Return the sizes of images as they go into the batch; of files the headers alone are read."""
    geometry = work.pipeline.geometry
    found = {}
    for name in work.dataset.schema.images:
        height, width = image_sizes(work.dataset, name, keys.indices, work.decoder)
        if geometry is not None and geometry.needs_boxes:
            planned = plan_geometry(work, keys, height, width)
            height, width = planned.height, planned.width
        elif geometry is not None:
            height, width = geometry.plan_sizes(height, width, work.seed, keys)
        found[name] = height, width
    return found


class RenderJob:
    """A batch whose images are rendered directly into its memory.

    `slot` is None without images; `layouts` has one for each image field and view.
    """

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._request = request
        self._plan = BatchPlan(request)
        self.layouts: Layouts
        if maker.work.image_lists:
            self.layouts, nbytes = lay_out_lists(maker.work, maker.list_sizes(self._plan))
            self._pixels = nbytes
        else:
            fields = maker.fields(request)
            self.layouts, nbytes = lay_out(fields, planar=maker.work.planar)
            self._pixels = sum(math.prod(shape) for _, shape, *_ in fields)
        self._plan.layouts = self.layouts
        self.slot = maker.buffers.take(nbytes) if self.layouts else None

    def tasks(self) -> Sequence[RenderTask]:
        if self.slot is None:
            return ()
        keys = self._request
        bounds = self._maker.cut(len(keys), self._pixels)
        if self._maker.plans_once:
            return [RenderTask(self._plan, start, stop) for start, stop in bounds]
        return [RenderTask.alone(keys[start:stop], start, self.layouts) for start, stop in bounds]

    def finish(self, results: Sequence[Done]) -> Any:
        self._maker.count(results)
        return self.assemble(results)

    def assemble(self, results: Sequence[Done]) -> Any:
        """Return the batch, whose images are in memory; counts nothing."""
        indices = self._request.indices.copy()
        for done in results:
            for at, index, _ in done.replaced:
                indices[at] = index
        tensors = _tensors(self.layouts, self.slot)
        for done in results:
            for place, made in done.substitutes.items():
                for key, image in made.items():
                    tensors[key][place] = image
        images = {
            name: _of_views(self._maker.work, [t for (n, _), t in tensors.items() if n == name])
            for name in self._maker.work.dataset.schema.images
        }
        replaced = any(done.replaced for done in results)
        geometry = None if replaced else self._plan.geometry
        return batch_of(self._maker.work, images, self._request.replaced(indices), geometry)


def batch_of(
    work: BatchWork, images: Mapping[str, Any], keys: SampleKeys, geometry: Geometry | None = None
) -> Any:
    """Return the batch of some samples of a direct pipeline, from their images.

    `keys` are the samples whose images are in the batch, including substitutes of corrupt ones.
    Boxes are moved as the images are, and dropped by the rules of the pipeline.  `geometry` is that
    of the images.  If other processes have planned it, or samples were replaced, it is planned
    again: draws are a function of the sample, so the result is the same, and cheaper than a
    transfer.
    """
    dataset, pipeline = work.dataset, work.pipeline
    schema = dataset.schema
    values = {
        name: collate_column(field, dataset._gather(name, keys.indices))
        for name, field in schema.items()
        if not isinstance(field, ImageField)
    }
    if pipeline.geometry is not None and schema.boxes:
        if geometry is None:
            first = next(iter(schema.images))
            sizes = image_sizes(dataset, first, keys.indices, work.decoder)
            geometry = plan_geometry(work, keys, *sizes)
        for name in schema.boxes:
            values[name] = move_boxes(geometry, values[name], name)
    if pipeline.drop is not None:
        pipeline.drop.run_batch(values, keys.indices)
    values |= images
    return schema.sample_type._make(values[name] for name in schema)


class _SampleJob:
    """A batch whose samples go through callables one by one.

    What shape they make of an image is seen in the first batch, which is
    collated from values; images of later ones are expected to be like it and
    get a slot.
    """

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._request = request
        count = len(request.indices)
        self._layouts, nbytes = lay_out(
            (
                (name, (count, *shape), dtype, view)
                for (name, view), (shape, dtype) in maker.expected.items()
            ),
            planar=maker.work.planar,
        )
        self.slot = maker.buffers.take(nbytes)

    def tasks(self) -> Sequence[SampleTask]:
        keys = self._request
        return [
            SampleTask(keys[start:stop], start, self._layouts)
            for start, stop in self._maker.cut(len(keys))
        ]

    def finish(self, results: Sequence[Done]) -> Any:
        work, schema = self._maker.work, self._maker.work.dataset.schema
        self._maker.count(results)
        images = _tensors(self._layouts, self.slot)
        columns = [done.columns or {} for done in results]
        bounds = self._maker.cut(len(self._request.indices))
        values = []
        for name, field in schema.items():
            views: list[Any] = []
            for view in range(len(work.parts) if isinstance(field, ImageField) else 1):
                key = name, view
                if key in images and not any(key in column for column in columns):
                    views.append(images[key])
                    continue
                samples: list[Any] = []
                for (start, stop), column in zip(bounds, columns, strict=True):
                    samples += column[key] if key in column else images[key][start:stop]
                if work.image_lists and isinstance(field, ImageField):
                    views.append(samples)
                    continue
                views.append(collate_field(name, field, samples, planar=work.planar))
                self._learn(key, field, views[-1])
            values.append(_of_views(work, views) if isinstance(field, ImageField) else views[0])
        return schema.sample_type._make(values)

    def _learn(self, key: tuple[str, int], field: Any, value: Any) -> None:
        """Store the shape of a sample's images, [H, W, C]."""
        if isinstance(field, ImageField) and isinstance(value, torch.Tensor) and value.ndim == 4:
            channels, height, width = value.shape[1:]
            self._maker.expected[key] = ((height, width, channels), value.dtype)


def _of_views(work: BatchWork, views: Sequence[Any]) -> Any:
    """Return the value of an image field: one tensor, or a list with one per view."""
    return list(views) if work.pipeline.views else views[0]


def _tensors(
    layouts: Sequence[TensorLayout | ListLayout], slot: Slot | None
) -> dict[tuple[str, int], Any]:
    """Return the images of a slot by field and view; they keep it from being used again.

    A tensor [N, C, H, W], or a list of tensors [C, H, W].
    """
    if slot is None:
        return {}
    return {(layout.name, layout.view): layout.tensor(slot.tensor) for layout in layouts}


def collate_column(field: Field, column: Any) -> Any:
    """Return what ``dataset._gather`` gave as the field of a batch.

    Numbers and arrays of one shape become a tensor of the field's dtype, arrays of other shapes a
    list of tensors; text and bytes stay a list.
    """
    if isinstance(column, np.ndarray):
        return torch.from_numpy(column)
    if isinstance(field, ArrayField):
        return [torch.from_numpy(array) for array in column]
    return column
