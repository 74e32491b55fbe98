"""What a loader of packed data works with, as things that take the time of what is done to them."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastdata.engine.work import BatchWork
from fastdata.profiling.recorder import Recorder
from fastdata.transforms.pipeline import CallStage, PixelStage

__all__ = ["doing", "recorded"]


class doing:  # noqa: N801 - a context manager, made at every stage of every batch
    """Records a kind of work inside a block."""

    def __init__(self, recorder: Recorder, kind: Any) -> None:
        self._recorder = recorder
        self._kind = kind

    def __enter__(self) -> None:
        self._recorder.enter(self._kind)

    def __exit__(self, *exception: object) -> None:
        self._recorder.leave()


def recorded(work: BatchWork, recorder: Recorder) -> BatchWork:
    """Return the same work over data and transforms that are recorded."""
    pipeline: Any = work.pipeline
    if not pipeline.direct:
        pipeline = _RecordedPipeline(pipeline, recorder)
    data: Any = _RecordedData(work.dataset, recorder)
    found = dataclasses.replace(work, dataset=data, pipeline=pipeline)
    for part in found.parts:
        tables: Any = part.tables
        tables.update({name: _RecordedTable(t, recorder) for name, t in tables.items()})
    return found


class _RecordedData:
    """Packed data whose images are read, bytes and all, when they are asked for."""

    def __init__(self, data: Any, recorder: Recorder) -> None:
        self._data = data
        self._recorder = recorder
        self.schema, self.digest = data.schema, data.digest
        self.gather, self.describe_sample = data.gather, data.describe_sample
        self.unreadable = data.unreadable

    def __len__(self) -> int:
        return len(self._data)

    def images(self, name: str, indices: Any, decoder: Any) -> Any:
        with doing(self._recorder, "read"):
            images = self._data.images(name, indices, decoder)
            images.read_ahead()
            # Of data that are no shards nothing more is known than that they were asked for.
            touch = getattr(images, "touch", None)
            if touch is not None:
                touch()
            return images


class _RecordedTable:
    """A `PixelTable` whose use is recorded."""

    def __init__(self, table: Any, recorder: Recorder) -> None:
        self._table = table
        self._recorder = recorder
        self.dtype, self.values = table.dtype, table.values

    def apply(self, image: Any, out: Any) -> None:
        with doing(self._recorder, "augment"):
            self._table.apply(image, out)


class _RecordedPipeline:
    """A `Pipeline` with callables whose stages are recorded: geometry decodes, others augment."""

    def __init__(self, pipeline: Any, recorder: Recorder) -> None:
        self._pipeline = pipeline
        self._recorder = recorder
        self.direct, self.batch, self.geometry = False, pipeline.batch, pipeline.geometry
        self.drop, self.pixels = pipeline.drop, pipeline.pixels
        self.views, self.schema = pipeline.views, pipeline.schema

    def run(self, samples: Any, seed: int, keys: Any, describe: Any) -> Any:
        if self.views:
            with doing(self._recorder, "augment"):
                return self._pipeline.run(samples, seed, keys, describe)
        for stage in self._pipeline.stages:
            augments = isinstance(stage, (CallStage, PixelStage))
            with doing(self._recorder, "augment" if augments else "sample"):
                samples = stage.run(samples, seed, keys, describe)
        return samples
