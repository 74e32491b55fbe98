"""``cache="device"``: decoded images that stay where batches arrive, a GPU's memory mostly.

    requests --> FillJob: images that are not there yet, decoded whole by the usual workers
        |                                     |
        v                                     v
    DeviceCache.batch: plan - gather - resize - pixels  <--  ImageStore

The plan of a batch is made on the CPU, by the code and from the draws of any other loader;
its numbers, some an image, are all that crosses the bus once everything is there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.store import Filled, FillJob, ImageStore
from fastdata.engine.backend import SPARE_BUFFERS, Backend, buffers_for
from fastdata.engine.batches import BatchMaker, collate_column
from fastdata.engine.buffers import BufferPool
from fastdata.engine.contracts import BatchStream, PackedData, Request, image_sizes
from fastdata.engine.delivery import deliver
from fastdata.engine.rendering import read_boxes
from fastdata.engine.stream import Stream
from fastdata.engine.work import BatchWork, Done
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.prefetch.mover import Mover
from fastdata.prefetch.streams import streams_of
from fastdata.processes.resources import available_on, format_bytes
from fastdata.schema import ArrayField, ImageField, ScalarField
from fastdata.transforms.boxes import move_boxes
from fastdata.transforms.geometric import check_sizes_agree, check_sizes_equal
from fastdata.transforms.geometry import Geometry, Ints
from fastdata.transforms.image_tensors import to_device

__all__ = ["DeviceCache", "DeviceCacheBackend"]

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}

SIZES_AT_ONCE = 1 << 16
"""Samples whose sizes are asked for together."""

log = logging.getLogger("fastdata")


class DeviceCacheBackend(Backend):
    """Makes batches of decoded images that stay on a device, of all samples or of a `part`.

    In the first epoch workers decode missing images, whole, into pinned memory with `pin_memory`;
    each sample is decoded once.  When all are cached, the workers end.  `part` is int64 [n],
    ascending.

    Raises `OptionError` if the images do not fit, or if there are callables, which run on the CPU.
    """

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device,
        pin_memory: bool = False,
        part: NDArray[np.int64] | None = None,
    ) -> None:
        if not work.pipeline.direct:
            raise OptionError(
                'cache="device" transforms whole batches on the device, but a callable among the '
                "transforms takes one sample after another; use those of fastdata.transforms, or "
                'cache="ram"'
            )
        if work.pipeline.views:
            raise OptionError(
                'cache="device" makes one view of an image, but Views are among the transforms; '
                'leave them out, or use cache="ram"'
            )
        buffers = buffers_for(workers, workers.ahead + SPARE_BUFFERS, pin_memory=pin_memory)
        super().__init__(work, workers, device=device, buffers=buffers)
        self._cache = DeviceCache(work, device, part, self.maker)
        self.cache_bytes = self._cache.nbytes
        log.info("%s", self._cache.summary)

    def stream(self) -> BatchStream:
        """Return a new stream; workers start where there is something to fill."""
        stream = _CachedStream(self._cache, self._start_filling)
        # Batches are made on the device.
        return deliver(stream, self.work, None)

    def close(self) -> None:
        """Free the images, and unused buffers.  Idempotent."""
        super().close()
        self._cache.free()

    def __str__(self) -> str:
        return f"cached on {self._cache.device}, filled by {self.workers}"

    def _start_filling(self) -> Stream:
        return Stream(
            partial(FillJob, self.work, self.buffers),
            self.workers.start(self.work),
            ahead=self.workers.ahead,
        )


class _CachedStream:
    """A `BatchStream` that first fills the cache for its batches.

    `start_filling` returns a stream of `Filled`, with workers.
    """

    def __init__(self, cache: DeviceCache, start_filling: Callable[[], Stream]) -> None:
        self._cache = cache
        self._start_filling = start_filling
        self._filling: Stream | None = None
        self._requests: Iterator[Request] = iter(())
        self._announced: deque[Request] = deque()
        self.request: Request | None = None

    @property
    def ready(self) -> int:
        """Batches that can be made without waiting: one, if not those of a filling cache."""
        return 1 if self._filling is None else self._filling.ready

    def begin(self, requests: Iterable[Request]) -> None:
        """Make the batches of `requests`."""
        self.stop()
        self._requests = iter(requests)
        if not self._cache.full:
            self._filling = self._filling or self._start_filling()
            self._filling.begin(self._missing())

    def _missing(self) -> Iterator[Request]:
        """Yield a request for each batch, of its samples that are neither there nor on the way."""
        expected = self._cache.present.copy()
        for request in self._requests:
            self._announced.append(request)
            places = self._cache.places(request.indices)
            new = np.unique(places[~expected[places]])
            expected[new] = True
            yield Request(request.epoch, self._cache.indices[new])

    def stop(self) -> None:
        """Drop the batches that are being made."""
        if self._filling is not None:
            self._filling.stop()
        self._announced.clear()
        self._requests = iter(())

    def __next__(self) -> Any:
        if self._filling is not None:
            self._cache.put(next(self._filling))
            if self._cache.full:
                self._end_filling()
        request = self._announced.popleft() if self._announced else next(self._requests)
        indices, missing = self._cache.sound_samples(request)
        while len(missing):  # substitutes may be corrupt, too
            self._cache.put(self._decode(missing))
            indices, missing = self._cache.sound_samples(request)
        self.request = request
        return self._cache.batch(request, indices)

    def _decode(self, indices: NDArray[np.int64]) -> Filled:
        """Decode samples here and now."""
        work = self._cache.work
        job = FillJob(work, BufferPool(0), Request(0, indices))
        memory = None if job.slot is None else job.slot.memory
        return job.finish([work(task, memory) for task in job.tasks()])

    def _end_filling(self) -> None:
        if self._filling is not None:
            self._filling.close()
            self._filling = None

    def close(self) -> None:
        """End the workers.  Idempotent."""
        self.stop()
        self._end_filling()


class DeviceCache:
    """Decoded images and columns of some samples on a device, and batches made of them.

    The `maker` counts bytes and replaced samples.  A full cache takes `nbytes` of device memory;
    `OptionError` if the device has less.  `present`, bool [n], marks the cached samples, by their
    place in `part`; `corrupt` has those that could not be decoded, with the reason.  For one
    thread at a time.
    """

    def __init__(
        self,
        work: BatchWork,
        device: torch.device,
        part: NDArray[np.int64] | None,
        maker: BatchMaker,
    ) -> None:
        self.work = work
        self.device = device
        self._part = part
        self._maker = maker
        dataset, schema = work.dataset, work.dataset.schema
        self.indices = np.arange(len(dataset)) if part is None else part
        self.present = np.zeros(len(self.indices), np.bool_)
        self.corrupt: dict[int, str] = {}
        sizes = {name: _sizes(dataset, name, self.indices, work) for name in schema.images}
        self._stores = {
            name: ImageStore(*sizes[name], field.channels, device)
            for name, field in schema.images.items()
        }
        self._columns: dict[str, torch.Tensor] | None = None
        self.nbytes = sum(store.nbytes for store in self._stores.values())
        self._mover = Mover(streams_of(device), report=False)
        available = available_on(device)
        self.summary = (
            f"the decoded dataset ({len(self.indices):,} samples) takes "
            f"{format_bytes(self.nbytes)} of {device}, which has {format_bytes(available)} left"
        )
        if self.nbytes > available:
            raise OptionError(
                f'cache="device": {self.summary}. Pack it at a smaller size, hold a part on '
                'each rank (cache_scope="rank"), or keep the packed bytes in host memory '
                '(cache="ram")'
            )

    def free(self) -> None:
        """Release the memory."""
        for store in self._stores.values():
            store.free()
        self._columns = None
        self.present[:] = False

    @property
    def full(self) -> bool:
        """Whether all samples are there."""
        return bool(self.present.all())

    def places(self, indices: Ints) -> Ints:
        """Return where samples stand in `part`, int64 [k]."""
        if self._part is None:
            return indices
        places = np.searchsorted(self._part, indices)
        known = self._part[np.minimum(places, len(self._part) - 1)] == indices
        if not known.all():
            raise OptionError(
                f"sample {indices[~known][0]} is not in the part of the dataset that this rank "
                "holds"
            )
        return places

    def put(self, filled: Filled) -> None:
        """Take in images."""
        places = self.places(filled.indices)
        new = ~self.present[places]  # others may have come another way in the meantime
        if new.any():
            try:
                for name, store in self._stores.items():
                    memory = filled.memory[name]
                    if not new.all():
                        memory = store.part(places, memory, new)
                    store.put(places[new], memory)
                self.present[places] = True
            except RuntimeError as error:  # torch's OutOfMemoryError is one
                raise OptionError(f'cache="device": {self.summary}: {error}') from error
            finally:  # also after Ctrl-C: stored images count
                for store in self._stores.values():
                    store.end_after(self.present)
        self.present[places] = True  # also without images
        self.corrupt |= filled.failed
        self._maker.count([Done(filled.nbytes)])

    def sound_samples(self, request: Request) -> tuple[Ints, Ints]:
        """Return the samples for a request, int64 [n], and those that are not cached.

        Known corrupt samples are replaced.
        """
        indices = request.indices
        wrong = [at for at, index in enumerate(indices.tolist()) if index in self.corrupt]
        if wrong:
            indices = indices.copy()
        for at in wrong:
            indices[at] = self._replacement(request.epoch, int(indices[at]))
        missing = np.unique(indices[~self.present[self.places(indices)]])
        return indices, missing

    def _replacement(self, epoch: int, index: int) -> int:
        for other in self.work.replacement_samples(epoch, index):
            if other not in self.corrupt:
                return other
        raise ShardCorruptError(self.corrupt[index])

    def batch(self, request: Request, indices: Ints) -> Any:
        """Return the batch of a request, from the cached samples of `sound_samples`."""
        work, pipeline, schema = self.work, self.work.pipeline, self.work.dataset.schema
        replaced = np.flatnonzero(request.indices != indices).tolist()
        reasons = [self.corrupt[index] for index in request.indices[replaced].tolist()]
        replacements = zip(replaced, indices[replaced].tolist(), reasons, strict=True)
        self._maker.count([Done(replaced=list(replacements))])
        places = self.places(indices)
        geometry = self._geometry(request, indices, places)
        device_places = to_device(places, self.device)
        columns = self._columns_on_device()
        values: dict[str, Any] = {}
        on_host: dict[str, Any] = {}
        for name, field in schema.items():
            if isinstance(field, ImageField):
                lookup = pipeline.pixels.lookup if pipeline.pixels and not field.mask else None
                values[name] = self._stores[name].render(
                    places, geometry[name], lookup, mask=field.mask
                )
            elif name in columns:
                values[name] = _rows(columns[name], device_places)
            else:
                on_host[name] = collate_column(field, work.dataset._gather(name, indices))
        for name in schema.boxes:
            part = on_host if name in on_host else values
            part[name] = move_boxes(geometry[next(iter(geometry))], part[name], name)
        if pipeline.drop is not None:
            pipeline.drop.run_batch(
                on_host, indices
            )  # those whose number varies, on the host still
        if on_host:
            values |= self._mover.take(self._mover.send(on_host))
        return schema.sample_type._make(values[name] for name in schema)

    def _geometry(self, request: Request, indices: Ints, places: Ints) -> dict[str, Geometry]:
        """Return what becomes of the images of each field."""
        names = list(self._stores)
        sizes = [(self._stores[n].heights[places], self._stores[n].widths[places]) for n in names]
        stage = self.work.pipeline.geometry
        if stage is None or not names:
            planned = {n: Geometry.of(*size) for n, size in zip(names, sizes, strict=True)}
        else:
            heights, widths = (np.stack(sides) for sides in zip(*sizes, strict=True))
            check_sizes_agree(names, heights, widths, indices)
            start = Geometry.of(heights[0], widths[0])
            if stage.needs_boxes:
                start = start.with_boxes(read_boxes(self.work, indices))
            shared = stage.plan(start, self.work.seed, request.replaced(indices))
            planned = dict.fromkeys(names, shared)
        for name, geometry in planned.items():
            shape = (len(indices), int(geometry.height[0]), int(geometry.width[0]))
            check_sizes_equal(name, geometry.height, geometry.width, shape, indices)
        return planned

    def _columns_on_device(self) -> dict[str, torch.Tensor]:
        """Return the columns of fixed size, on the device; read when they are first wanted."""
        if self._columns is None:
            dataset = self.work.dataset
            self._columns = {
                name: torch.from_numpy(np.array(dataset._gather(name, self.indices))).to(
                    self.device
                )
                for name, field in dataset.schema.items()
                if isinstance(field, ScalarField) or (isinstance(field, ArrayField) and field.fixed)
            }
        return self._columns


def _sizes(dataset: PackedData, name: str, indices: Ints, work: BatchWork) -> tuple[Ints, Ints]:
    """Return heights and widths of a field's images, int64 [n] each."""
    parts = [
        image_sizes(dataset, name, indices[first : first + SIZES_AT_ONCE], work.decoder)
        for first in range(0, len(indices), SIZES_AT_ONCE)
    ]
    empty = [np.empty(0, np.int64)]
    heights = np.concatenate([part[0] for part in parts] or empty)
    return heights, np.concatenate([part[1] for part in parts] or empty)


def _rows(column: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return rows of a column; torch (2.4, on the CPU) indexes no unsigned integers but bytes."""
    signed = _SIGNED.get(column.dtype)
    return column[places] if signed is None else column.view(signed)[places].view(column.dtype)
