"""What is fed to DALI for a batch: planned at once, loaded by threads, put together.

A `FeedJob` is to a DALI batch what a `RenderJob` is to one of the CPU, and runs on the
same `Stream` of jobs, with the same reading ahead.  What it makes is not a batch yet, but
a `Feed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.backends.dali.geometry import (
    Arguments,
    FieldGraph,
    arguments_of,
    regions_of,
    steps_of,
)
from fastdata.backends.dali.loading import Column, Loaded, LoadTask, as_file, load
from fastdata.engine.batches import BatchMaker
from fastdata.engine.job import Request
from fastdata.engine.rendering import plan_images
from fastdata.engine.tasks import Done, ReadAheadTask
from fastdata.engine.work import BatchWork
from fastdata.errors import ShardCorruptError
from fastdata.random import SampleKeys
from fastdata.transforms.geometry import Geometry

__all__ = ["Feed", "FeedJob", "LoadWork"]

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """All that DALI needs for a batch.

    Attributes
    ----------
    request : Request
    indices : ndarray of int64, shape [n]
        The samples that are in it: others than were asked for, where those are corrupt.
    graph : tuple of FieldGraph
        What is done to the images, one for each image field of the schema.
    arguments : Arguments
        What its inputs are fed; inputs of field number k begin with ``f<k>.``.
    done : Done
        What has been read and replaced.
    """

    request: Request
    indices: Indices
    graph: tuple[FieldGraph, ...]
    arguments: Arguments
    done: Done


class LoadWork:
    """What threads do: load stored images, and read ahead.

    Parameters
    ----------
    work : BatchWork
    """

    def __init__(self, work: BatchWork) -> None:
        self._work = work

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Any:
        if isinstance(task, ReadAheadTask):
            return self._work(task, None)
        return load(self._work, task)


class FeedJob:
    """One feed to be made; a `fastdata.engine.job.Job`.

    Parameters
    ----------
    maker : BatchMaker
    request : Request

    Raises
    ------
    OptionError
        If the images of a sample or of the batch do not fit together.
    """

    slot = None

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._request = request
        self._shapes = {
            name: (len(request.indices), *size) for name, size in maker.sizes(request).items()
        }
        self._geometry = self._plan(request.keys)

    def _plan(self, keys: SampleKeys) -> Geometry | None:
        work, dataset = self._maker.work, self._maker.work.dataset
        images = {n: dataset.images(n, keys.indices, work.decoder) for n in self._shapes}
        return plan_images(work, keys, images, self._shapes)

    def tasks(self) -> Sequence[LoadTask]:
        """Return the parts of the loading."""
        indices, geometry = self._request.indices, self._geometry
        return [
            _part(indices, geometry, start, stop) for start, stop in self._maker.cut(len(indices))
        ]

    def finish(self, results: Sequence[Loaded]) -> Feed:
        """Return the feed, sound samples being in the place of corrupt ones.

        Raises
        ------
        ShardCorruptError
            If there is none for one.
        """
        indices, geometry = self._request.indices, self._geometry
        done = Done(sum(loaded.nbytes for loaded in results))
        failed = {
            start + at: error
            for loaded, (start, _) in zip(results, self._maker.cut(len(indices)), strict=True)
            for at, error in loaded.failed.items()
        }
        if failed:
            indices = self._replaced(failed, done)
            # All anew: where every window happens to be the whole image, there are fewer steps.
            geometry = self._plan(self._request.keys.replaced(indices))
            results = [load(self._maker.work, _part(indices, geometry, 0, len(indices)))]
        graph: list[FieldGraph] = []
        arguments: Arguments = {}
        for number, (name, field) in enumerate(self._maker.work.dataset.schema.images.items()):
            column = _joined([loaded.columns[name] for loaded in results])
            encoded = any(data.ndim == 1 for data in column.data)
            steps, flips = steps_of(geometry, mask=field.mask)
            graph.append(FieldGraph(field.channels, encoded, steps, flips))
            prefix = f"f{number}."
            arguments[prefix + "data"] = [
                as_file(data) if encoded and data.ndim == 3 else data for data in column.data
            ]
            if geometry is not None:
                begins = np.array(column.tops), np.array(column.lefts)
                arguments |= arguments_of(geometry, graph[-1], prefix, *begins)
        return Feed(self._request, indices, tuple(graph), arguments, done)

    def _replaced(self, failed: dict[int, ShardCorruptError], done: Done) -> Indices:
        """Return the samples to take, sound ones in place of those that failed."""
        work = self._maker.work

        def make(at: int, index: int) -> None:
            one = self._request.keys[at : at + 1].replaced(np.array([index]))
            loaded = load(work, _part(one.indices, self._plan(one), 0, 1))
            done.nbytes += loaded.nbytes
            if loaded.failed:
                raise loaded.failed[0]

        indices: Indices = self._request.indices.copy()
        for at, error in sorted(failed.items()):
            index, _ = work.replace(self._request.epoch, int(indices[at]), error, partial(make, at))
            done.replaced.append((at, index, str(error)))
            indices[at] = index
        return indices


def _part(indices: Indices, geometry: Geometry | None, start: int, stop: int) -> LoadTask:
    """Return the task to load the samples from `start` to `stop`."""
    regions = regions_of(geometry)
    if regions is not None:
        top, left, height, width = (part[start:stop] for part in regions)
        regions = top, left, height, width
    return LoadTask(indices[start:stop], regions)


def _joined(columns: Sequence[Column]) -> Column:
    """Return the images of several tasks as one column."""
    joined = Column()
    for column in columns:
        joined.data += column.data
        joined.tops += column.tops
        joined.lefts += column.lefts
    return joined
