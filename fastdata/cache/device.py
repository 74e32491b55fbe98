"""What of a dataset is held on a device, and batches made of it.

The plan of a batch is made on the CPU, by the code and from the draws of any other loader;
its numbers, some an image, are all that crosses the bus once everything is held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.filling import Filled
from fastdata.cache.store import ImageStore
from fastdata.engine.batches import report_skipped
from fastdata.engine.finishing import finish_on_device
from fastdata.engine.job import Request
from fastdata.engine.memory import available_on, in_words
from fastdata.engine.tasks import PackedData, image_sizes
from fastdata.engine.work import BatchWork
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.prefetch.mover import Mover
from fastdata.prefetch.streams import streams_of
from fastdata.records import collate_column
from fastdata.schema import ArrayField, ImageField, ScalarField
from fastdata.transforms.boxes import move_boxes
from fastdata.transforms.geometry import Geometry, Ints
from fastdata.transforms.pipeline import check_sizes_agree, check_sizes_equal
from fastdata.transforms.some import to_device

__all__ = ["DeviceCache"]

SAMPLES_AT_ONCE = 1 << 16


class DeviceCache:
    """Decoded images and columns of some samples, on a device.

    Parameters
    ----------
    work : BatchWork
        Data and transforms.
    device : torch.device
        With its index, if it has one.
    part : ndarray of int64, optional
        The samples to hold, ascending; all by default.

    Attributes
    ----------
    nbytes : int
        Device memory that it takes when all is held.
    held : ndarray of bool, shape [n]
        Which samples are there, by their place in `part`.
    skipped, bytes_read : int
        As of `fastdata.engine.stats.LoaderStats`.

    Raises
    ------
    OptionError
        If the device has not that much memory left.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(
        self, work: BatchWork, device: torch.device, part: NDArray[np.int64] | None = None
    ) -> None:
        self._work = work
        self.device = device
        self._part = part
        dataset, schema = work.dataset, work.dataset.schema
        self.indices = np.arange(len(dataset)) if part is None else part
        self.held = np.zeros(len(self.indices), np.bool_)
        self.bad: dict[int, str] = {}
        self.skipped = 0
        self.bytes_read = 0
        sizes = {name: _sizes(dataset, name, self.indices, work) for name in schema.images}
        self._stores = {
            name: ImageStore(*sizes[name], field.channels, device)
            for name, field in schema.images.items()
        }
        self._names = [  # of columns that are held too
            name
            for name, field in schema.items()
            if isinstance(field, ScalarField) or (isinstance(field, ArrayField) and field.fixed)
        ]
        self._columns: dict[str, torch.Tensor] | None = None
        self.nbytes = sum(store.nbytes for store in self._stores.values())
        self._mover = Mover(streams_of(device), report=False)
        available = available_on(device)
        self.summary = (
            f"the decoded dataset ({len(self.indices):,} samples) takes {in_words(self.nbytes)} of "
            f"{device}, which has {in_words(available)} left"
        )
        if self.nbytes > available:
            raise OptionError(
                f'cache="device": {self.summary}. Pack it at a smaller size, hold a part on '
                'each rank (cache_scope="rank"), or keep the packed bytes in host memory '
                '(cache="ram")'
            )

    def free(self) -> None:
        """Let go of what is held."""
        for store in self._stores.values():
            store.free()
        self._columns = None
        self.held[:] = False

    @property
    def full(self) -> bool:
        """Whether all samples are there."""
        return bool(self.held.all())

    def places(self, indices: Ints) -> Ints:
        """Return where samples stand among those that are held, int64 [k].

        Raises
        ------
        OptionError
            If some are not among them.
        """
        if self._part is None:
            return indices
        places = np.searchsorted(self._part, indices)
        found = self._part[np.minimum(places, len(self._part) - 1)] == indices
        if not found.all():
            raise OptionError(
                f"sample {indices[~found][0]} is not in the part of the dataset that this rank "
                "holds"
            )
        return places

    def put(self, filled: Filled) -> None:
        """Take in images."""
        places = self.places(filled.indices)
        new = ~self.held[places]  # others may have come another way in the meantime
        if new.any():
            try:
                for name, store in self._stores.items():
                    memory = filled.memory[name]
                    if not new.all():
                        memory = store.part(places, memory, new)
                    store.put(places[new], memory)
                self.held[places] = True
            except RuntimeError as error:  # torch's OutOfMemoryError is one
                raise OptionError(f'cache="device": {self.summary}: {error}') from error
            finally:  # also where Ctrl-C struck in between: what is held is what counts
                for store in self._stores.values():
                    store.end_behind(self.held)
        self.held[places] = True  # where there are no images, too
        self.bad |= filled.failed
        self.bytes_read += filled.nbytes

    def stand_ins(self, request: Request) -> tuple[Ints, Ints]:
        """Return the samples to make a request of, int64 [n], and those of them not there yet."""
        indices = request.indices
        wrong = [at for at, index in enumerate(indices.tolist()) if index in self.bad]
        if wrong:
            indices = indices.copy()
        for at in wrong:
            indices[at] = self._stand_in(request.epoch, int(indices[at]))
        missing = np.unique(indices[~self.held[self.places(indices)]])
        return indices, missing

    def _stand_in(self, epoch: int, index: int) -> int:
        for other in self._work.stand_ins(epoch, index):
            if other not in self.bad:
                return other
        raise ShardCorruptError(self.bad[index])

    def batch(self, request: Request, indices: Ints) -> Any:
        """Return the batch of a request, made of samples that are there, finished.

        Parameters
        ----------
        request : Request
        indices : ndarray of int64, shape [n]
            Those that were asked for, or what stands in for them.
        """
        work = self._work
        for index in request.indices[request.indices != indices].tolist():
            if not self.skipped:
                report_skipped(self.bad[index])
            self.skipped += 1
        schema, pipeline = work.dataset.schema, work.pipeline
        places = self.places(indices)
        geometry = self._geometry(request, indices, places)
        where = to_device(places, self.device)
        columns = self._held_columns()
        values: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, field in schema.items():
            if isinstance(field, ImageField):
                lookup = pipeline.pixels.lookup if pipeline.pixels and not field.mask else None
                values[name] = self._stores[name].render(
                    places, geometry[name], lookup, mask=field.mask
                )
            elif name in columns:
                values[name] = columns[name][where]
            else:
                rest[name] = collate_column(field, work.dataset.gather(name, indices))
        for name in schema.boxes:
            part = rest if name in rest else values
            part[name] = move_boxes(geometry[next(iter(geometry))], part[name], name)
        if pipeline.drop is not None:
            pipeline.drop.run_batch(rest, indices)  # those whose number varies, on the host still
        if rest:
            values |= self._mover.take(self._mover.send(rest))
        batch = schema.sample_type(*(values[name] for name in schema))
        return finish_on_device(batch, request, pipeline, work.seed)

    def _geometry(self, request: Request, indices: Ints, places: Ints) -> dict[str, Geometry]:
        """Return what becomes of the images of each field."""
        names = list(self._stores)
        sizes = [(self._stores[n].heights[places], self._stores[n].widths[places]) for n in names]
        stage = self._work.pipeline.geometry
        if stage is None or not names:
            planned = {n: Geometry.of(*size) for n, size in zip(names, sizes, strict=True)}
        else:
            heights, widths = (np.stack(sides) for sides in zip(*sizes, strict=True))
            check_sizes_agree(names, heights, widths, indices)
            start = Geometry.of(heights[0], widths[0])
            one = stage.plan(start, self._work.seed, request.keys.replaced(indices))
            planned = dict.fromkeys(names, one)
        for name, geometry in planned.items():
            shape = (len(indices), int(geometry.height[0]), int(geometry.width[0]))
            check_sizes_equal(name, geometry.height, geometry.width, shape, indices)
        return planned

    def _held_columns(self) -> dict[str, torch.Tensor]:
        """Return the columns of numbers, on the device; read when they are first wanted."""
        if self._columns is None:
            dataset = self._work.dataset
            self._columns = {
                name: torch.from_numpy(np.array(dataset.gather(name, self.indices))).to(self.device)
                for name in self._names
            }
        return self._columns


def _sizes(dataset: PackedData, name: str, indices: Ints, work: BatchWork) -> tuple[Ints, Ints]:
    """Return heights and widths of a field's images, int64 [n] each."""
    parts = [
        image_sizes(dataset, name, indices[first : first + SAMPLES_AT_ONCE], work.decoder)
        for first in range(0, len(indices), SAMPLES_AT_ONCE)
    ]
    empty = [np.empty(0, np.int64)]
    heights = np.concatenate([part[0] for part in parts] or empty)
    return heights, np.concatenate([part[1] for part in parts] or empty)
