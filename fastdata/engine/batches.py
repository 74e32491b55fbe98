"""How a batch of a packed dataset is made.

`BatchMaker.prepare` plans a whole batch with a few array operations: sizes,
geometry, the memory of the result.  What remains are independent pieces, runs
of samples that are decoded and rendered, each into its own part of the batch.

    direct      decode -> geometry -> [pixel table] -> the sample's place in the batch
    by sample   decode -> stages, one after another -> collate

Batches do not depend on how they are cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.collate import collate_column, collate_samples, split_column
from fastdata.engine.buffers import BufferPool
from fastdata.engine.job import Job, Request
from fastdata.errors import OptionError
from fastdata.schema import ImageField, Schema
from fastdata.transforms.geometry import Geometry, Program
from fastdata.transforms.pipeline import Pipeline, check_sizes_agree
from fastdata.transforms.pixel import PixelTable, as_words
from fastdata.transforms.render import render

__all__ = ["BatchMaker", "PackedData", "is_packed"]

Indices: TypeAlias = NDArray[np.int64]
Pixels: TypeAlias = NDArray[np.uint8]


class PackedData(Protocol):
    """What the loader reads from: `fastdata.dataset.Dataset`, or the like of it.

    All methods are safe to call from several threads.
    """

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def image_sizes(self, name: str, indices: Indices, /) -> tuple[Indices, Indices]:
        """Return heights and widths, int64 [n] each."""

    def read_image(self, index: int, name: str, /, out: Pixels | None = None) -> Pixels:
        """Return one image, uint8 [H, W, C], in `out` where given."""

    def gather(self, name: str, indices: Indices, /) -> Any:
        """Return the values of a field that is no image."""


def is_packed(data: object) -> TypeGuard[PackedData]:
    """Return whether `data` can be read by the batch; evaluates none of its properties."""
    return all(hasattr(type(data), name) for name in ("image_sizes", "read_image", "gather"))


class BatchMaker:
    """Makes batches of one dataset with one pipeline.

    Parameters
    ----------
    dataset : PackedData
    pipeline : Pipeline
    seed : int
    pieces : int
        Parts a batch is cut into, at most.
    buffers : BufferPool, optional
        Memory of images; by default, it is used once.
    pixels : bool
        False leaves out a direct pipeline's pixel stage: the caller runs it,
        on another device.
    """

    def __init__(
        self,
        dataset: PackedData,
        pipeline: Pipeline,
        *,
        seed: int = 0,
        pieces: int = 1,
        buffers: BufferPool | None = None,
        pixels: bool = True,
    ) -> None:
        self.dataset = dataset
        self.pipeline = pipeline
        self.seed = seed
        self.buffers = buffers or BufferPool(keep=0)
        self._pieces = pieces
        self.tables: dict[str, PixelTable] = {}
        if pixels and pipeline.pixels is not None:
            for name, field in dataset.schema.images.items():
                if not field.mask:
                    self.tables[name] = pipeline.pixels.table(field.channels)

    def prepare(self, request: Request) -> Job:
        """Return the job of a batch.

        Raises
        ------
        OptionError
            If the transforms do not fit the images of this batch, or leave
            them in different sizes.
        """
        return (_DirectJob if self.pipeline.direct else _SampleJob)(self, request)

    def cut(self, count: int) -> list[tuple[int, int]]:
        """Return (start, stop) of the pieces of a batch of `count` samples."""
        bounds = np.linspace(0, count, min(self._pieces, count) + 1).astype(int).tolist()
        return list(pairwise(bounds))


class _DirectJob:
    """A batch whose images are rendered straight into their places."""

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._indices = request.indices
        self._values: dict[str, Any] = {}
        self._programs: list[Program] | None = None
        schema, dataset = maker.dataset.schema, maker.dataset

        sizes = {name: dataset.image_sizes(name, request.indices) for name in schema.images}
        if maker.pipeline.geometry is not None and sizes:
            heights = np.stack([height for height, _ in sizes.values()])
            widths = np.stack([width for _, width in sizes.values()])
            check_sizes_agree(list(sizes), heights, widths, request.indices)
            geometry = maker.pipeline.geometry.plan(
                Geometry.of(heights[0], widths[0]), maker.seed, request.epoch, request.indices
            )
            if not geometry.identity:
                sizes = dict.fromkeys(sizes, (geometry.height, geometry.width))
                self._programs = geometry.programs()

        for name, field in schema.images.items():
            height, width = _only_size(name, *sizes[name], request.indices)
            table = maker.tables.get(name)
            shape = (len(request.indices), height, width, field.channels)
            self._values[name] = maker.buffers.take(shape, table.dtype if table else torch.uint8)

    def pieces(self) -> list[Callable[[], None]]:
        pieces: list[Callable[[], None]] = []
        for name, field in self._maker.dataset.schema.items():
            if isinstance(field, ImageField):
                fill = partial(self._fill, name, field)
                pieces += [partial(fill, *bounds) for bounds in self._maker.cut(len(self._indices))]
            else:
                pieces.append(partial(self._gather, name))
        return pieces

    def _fill(self, name: str, field: ImageField, start: int, stop: int) -> None:
        """Make images start to stop of a field."""
        read, programs = self._maker.dataset.read_image, self._programs
        table = self._maker.tables.get(name)
        batch = as_words(self._values[name])
        pixels = np.empty(batch.shape[1:], np.uint8) if table else None
        for number, index in enumerate(self._indices[start:stop].tolist(), start):
            target = batch[number] if pixels is None else pixels
            if programs is None:
                read(index, name, out=target)
            else:
                render(programs[number], read(index, name), target, mask=field.mask)
            if table is not None:
                table.apply(target, batch[number])

    def _gather(self, name: str) -> None:
        column = self._maker.dataset.gather(name, self._indices)
        self._values[name] = collate_column(self._maker.dataset.schema[name], column)

    def finish(self) -> Any:
        schema = self._maker.dataset.schema
        for name in schema.images:
            self._values[name] = self._values[name].permute(0, 3, 1, 2)
        return schema.sample_type(*(self._values[name] for name in schema))


class _SampleJob:
    """A batch whose samples go through callables one by one."""

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._request = request
        self._bounds = maker.cut(len(request.indices))
        self._parts: list[list[Any]] = [[] for _ in self._bounds]

    def pieces(self) -> list[Callable[[], None]]:
        return [partial(self._run, number, *b) for number, b in enumerate(self._bounds)]

    def _run(self, number: int, start: int, stop: int) -> None:
        maker, indices = self._maker, self._request.indices[start:stop]
        columns = [self._column(name, indices) for name in maker.dataset.schema]
        samples = list(map(maker.dataset.schema.sample_type, *columns))
        self._parts[number] = maker.pipeline.run(samples, maker.seed, self._request.epoch, indices)

    def _column(self, name: str, indices: Indices) -> list[Any]:
        dataset = self._maker.dataset
        field = dataset.schema[name]
        if not isinstance(field, ImageField):
            return split_column(field, dataset.gather(name, indices))
        images = []
        heights, widths = (size.tolist() for size in dataset.image_sizes(name, indices))
        for index, height, width in zip(indices.tolist(), heights, widths, strict=True):
            # Memory of its own, as the callables may write to it.
            pixels = np.empty((height, width, field.channels), np.uint8)
            dataset.read_image(index, name, out=pixels)
            images.append(torch.from_numpy(pixels).permute(2, 0, 1))
        return images

    def finish(self) -> Any:
        samples = [sample for part in self._parts for sample in part]
        return collate_samples(self._maker.dataset.schema, samples)


def _only_size(name: str, heights: Indices, widths: Indices, indices: Indices) -> tuple[int, int]:
    """Return the one size that all images have, or raise `OptionError`."""
    other = np.flatnonzero((heights != heights[0]) | (widths != widths[0]))
    if other.size:
        at = other[0]
        raise OptionError(
            f"a batch needs images of one size, but {name!r} is {heights[0]} x {widths[0]} in "
            f"sample {indices[0]} and {heights[at]} x {widths[at]} in sample {indices[at]} (height "
            "x width). End the geometric transforms with T.RandomResizedCrop(size) or "
            'T.CenterCrop(size), or pack with resize="crop"'
        )
    return int(heights[0]), int(widths[0])
