"""Batches whose images keep their sizes: a list of tensors [C, H, W] for each image field.

The images of a batch lie in one slot, one behind the other.  A substitute of a corrupt sample,
which may be larger, comes back as a value (`Done.substitutes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.buffers import ALIGNMENT, TensorLayout
from fastdata.engine.contracts import Indices
from fastdata.engine.work import BatchWork
from fastdata.errors import ShardCorruptError

__all__ = ["Layouts", "ListLayout", "Sizes", "check_list_sizes", "lay_out_lists"]

Sizes: TypeAlias = dict[str, tuple[Indices, Indices]]
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

    @property
    def shape(self) -> None:
        """None: the images have no shape in common."""

    def part(self, memory: NDArray[np.uint8], start: int, stop: int) -> list[NDArray[Any]]:
        """Return the arrays [1, H, W, C] of some images, for writing."""
        return [self._one(at).array(memory) for at in range(start, stop)]

    def tensor(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the images as tensors [C, H, W], which keep `memory` alive."""
        return [self._one(at).tensor(memory)[0] for at in range(len(self.offsets))]

    def _one(self, at: int) -> TensorLayout:
        """Return the place of one image, as a batch of one."""
        shape = 1, int(self.heights[at]), int(self.widths[at]), self.channels
        return TensorLayout(
            self.name, int(self.offsets[at]), shape, self.dtype, self.view, self.planar
        )


Layouts: TypeAlias = tuple[TensorLayout | ListLayout, ...]


def lay_out_lists(work: BatchWork, sizes: Iterable[Sizes]) -> tuple[tuple[ListLayout, ...], int]:
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


def check_list_sizes(layouts: Layouts, sizes: Sequence[Sizes], first: int) -> None:
    """Raise `ShardCorruptError` if images, from `first` on, have other sizes than their places."""
    for layout in layouts:
        assert isinstance(layout, ListLayout), "all images of a batch are lists, or none"
        heights, widths = sizes[layout.view][layout.name]
        places = slice(first, first + len(heights))
        same = np.array_equal(heights, layout.heights[places])
        if not (same and np.array_equal(widths, layout.widths[places])):
            raise ShardCorruptError(
                f"images of {layout.name!r} have changed their sizes while they were loaded: "
                "open the dataset again"
            )
