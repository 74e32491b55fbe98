"""Batches whose images keep their sizes: a list of tensors [C, H, W] for each image field.

The images of a batch lie in one slot, one behind the other.  A `ListTask` makes each where it lies.
A substitute of a corrupt sample, which may be larger, comes back as a value (`Done.substitutes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.buffers import ALIGNMENT, TensorLayout
from fastdata.engine.contracts import Indices, image_sizes
from fastdata.engine.rendering import BatchPlan, ViewPlan, plan_geometry, render_view
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import ShardCorruptError
from fastdata.random import SampleKeys
from fastdata.transforms.geometric import check_sizes_agree

__all__ = [
    "ListLayout",
    "ListPlan",
    "ListTask",
    "Sizes",
    "lay_out_lists",
    "list_task",
    "sizes_in_files",
]

Sizes = dict[str, tuple[Indices, Indices]]
"""Heights and widths of images by field, int64 [n] each."""


class ListLayout(NamedTuple):
    """Places of the n images of a field and view in a slot; picklable, for worker processes.

    `offsets`, `heights` and `widths` are int64 [n].  The rest is that of `TensorLayout`.
    """

    name: str
    offsets: Indices
    heights: Indices
    widths: Indices
    channels: int
    dtype: torch.dtype
    view: int
    planar: bool

    def one(self, at: int) -> TensorLayout:
        """Return the place of one image, as a batch of one."""
        shape = 1, int(self.heights[at]), int(self.widths[at]), self.channels
        return TensorLayout(
            self.name, int(self.offsets[at]), shape, self.dtype, self.view, self.planar
        )

    def tensors(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the images as tensors [C, H, W], which keep `memory` alive."""
        return [self.one(at).tensor(memory)[0] for at in range(len(self.offsets))]


def lay_out_lists(work: BatchWork, sizes: Sequence[Sizes]) -> tuple[tuple[ListLayout, ...], int]:
    """Return the layouts of images with their sizes, in each view, and their total bytes."""
    layouts, end = [], 0
    for view, (part, of_view) in enumerate(zip(work.parts, sizes, strict=True)):
        for name, (heights, widths) in of_view.items():
            channels, table = work.dataset.schema.images[name].channels, part.tables.get(name)
            dtype = table.dtype if table else torch.uint8
            nbytes = heights * widths * (channels * dtype.itemsize)
            ends = end + np.cumsum(-(-nbytes // ALIGNMENT) * ALIGNMENT)
            offsets = np.concatenate(([end], ends[:-1])).astype(np.int64)
            layouts.append(
                ListLayout(name, offsets, heights, widths, channels, dtype, view, work.planar)
            )
            end = int(ends[-1])
    return tuple(layouts), end


class ListPlan(BatchPlan):
    """A `BatchPlan` of images of any sizes."""

    def __init__(self, keys: SampleKeys, first: int = 0) -> None:
        super().__init__(keys, first, ())

    def shapes(self, work: BatchWork) -> list[dict[str, Any]]:
        return [dict.fromkeys(work.dataset.schema.images) for _ in work.parts]

    def sizes(self, work: BatchWork) -> list[Sizes]:
        """Return the sizes of the images in each view."""
        return [_sizes(plan) for plan in self.views(work)]


def _sizes(plan: ViewPlan) -> Sizes:
    if plan.geometry is not None:
        return dict.fromkeys(plan.images, (plan.geometry.height, plan.geometry.width))
    return {name: (images.heights, images.widths) for name, images in plan.images.items()}


def sizes_in_files(work: BatchWork, keys: SampleKeys) -> list[Sizes]:
    """Return as `ListPlan.sizes`, for files that are not packed: reads their headers alone."""
    names = list(work.dataset.schema.images)
    stored = {n: image_sizes(work.dataset, n, keys.indices, work.decoder) for n in names}
    made = []
    for part in work.parts:
        if part.pipeline.geometry is None or not names:
            made.append(stored)
            continue
        heights, widths = (np.stack(sides) for sides in zip(*stored.values(), strict=True))
        check_sizes_agree(names, heights, widths, keys.indices)
        geometry = plan_geometry(part, keys, heights[0], widths[0])
        made.append(dict.fromkeys(names, (geometry.height, geometry.width)))
    return made


@dataclass(frozen=True, slots=True, eq=False)
class ListTask:
    """Make the images from number `start` to `stop` of a plan, each in its own size."""

    plan: ListPlan
    start: int
    stop: int
    layouts: tuple[ListLayout, ...]

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Done:
        """Make the images in `memory`, the slot of their batch."""
        assert memory is not None, "a batch of images has a slot"
        done = Done()
        keys, first = self.plan.keys[self.start : self.stop], self.plan.first + self.start
        self._check_sizes(self.plan.sizes(work))
        broken = work.unreadable(keys.indices)
        for at in range(len(keys)):
            layouts = [layout.one(first + at) for layout in self.layouts]
            failed = {0: broken[at]} if at in broken else {}
            failed |= _make(work, self.plan, self.start + at, layouts, memory, done)
            if failed:
                self._replace(work, keys[at : at + 1], first + at, failed[0], done)
        return done

    def _check_sizes(self, sizes: list[Sizes]) -> None:
        """Raise `ShardCorruptError` if images have other sizes than their places."""
        planned = slice(self.start, self.stop)
        first = self.plan.first
        for layout in self.layouts:
            place = slice(first + self.start, first + self.stop)
            heights, widths = sizes[layout.view][layout.name]
            same = np.array_equal(heights[planned], layout.heights[place])
            if not (same and np.array_equal(widths[planned], layout.widths[place])):
                raise ShardCorruptError(
                    f"images of {layout.name!r} have changed their sizes while they were loaded: "
                    "open the dataset again"
                )

    def _replace(
        self, work: BatchWork, key: SampleKeys, place: int, error: ShardCorruptError, done: Done
    ) -> None:
        """Make another sample in the place of a corrupt one."""

        def make(index: int) -> dict[tuple[str, int], torch.Tensor]:
            for error in work.unreadable(np.array([index])).values():
                raise error
            plan = ListPlan(key.replaced(np.array([index])))
            layouts, nbytes = lay_out_lists(work, plan.sizes(work))
            memory = torch.empty(nbytes, dtype=torch.uint8)
            ones = [layout.one(0) for layout in layouts]
            for failure in _make(work, plan, 0, ones, memory.numpy(), done).values():
                raise failure
            return {(one.name, one.view): one.tensor(memory)[0] for one in ones}

        index, made = work.replace(key.epoch, int(key.indices[0]), error, make)
        done.replaced.append((place, index, str(error)))
        done.substitutes[place] = made

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes plan what each makes, at the same time.
        keys, first = self.plan.keys[self.start : self.stop], self.plan.first + self.start
        return list_task, (keys, first, self.layouts)


def list_task(keys: SampleKeys, first: int, layouts: tuple[ListLayout, ...]) -> ListTask:
    """Return a task with a plan for its own images, from number `first` of the batch on."""
    return ListTask(ListPlan(keys, first), 0, len(keys), layouts)


def _make(
    work: BatchWork,
    plan: ListPlan,
    at: int,
    layouts: Sequence[TensorLayout],
    memory: NDArray[np.uint8],
    done: Done,
) -> dict[int, ShardCorruptError]:
    """Make the images of sample `at` of a plan; return the error of a corrupt one by 0."""
    failed: dict[int, ShardCorruptError] = {}
    for view, (part, of_view) in enumerate(zip(work.parts, plan.views(work), strict=True)):
        outputs = {one.name: one.array(memory) for one in layouts if one.view == view}
        failed |= render_view(part, of_view, at, outputs, done)
    return failed
