"""The contracts between data, batches and workers.

    PackedData    the data: images and columns of any samples at once
    Request       the wanted batch
    Job           its tasks, each a part of the work, and the assembly of their results
    Workers       threads or processes that run tasks

A task comes with a slot of memory for its images.  A worker in this process takes both directly;
one in another process takes a short message and a block of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.buffers import Slot
from fastdata.random import SampleKeys
from fastdata.sampling import Batches, SampledBatches
from fastdata.schema import Schema

__all__ = [
    "BatchOrder",
    "BatchStream",
    "Images",
    "Indices",
    "Job",
    "PackedData",
    "Pending",
    "Prepare",
    "Request",
    "StoredImages",
    "Workers",
    "image_sizes",
    "is_packed",
]

Indices: TypeAlias = NDArray[np.int64]

BatchOrder: TypeAlias = Batches | SampledBatches
"""Which samples make which batch."""

# -- data ----------------------------------------------------------------------------------


class Images(Protocol):
    """Images of a field of some samples, wherever they are; see `StoredImages`."""

    heights: Indices
    widths: Indices
    refused: NDArray[np.bool_]

    def read(self, place: int, out: Pixels | None = None) -> Pixels: ...

    def window(
        self, place: int, window: tuple[int, int, int, int], factor: int = 1
    ) -> tuple[Pixels, int]: ...

    def crops(self) -> NDArray[Any]: ...


class StoredImages(Images, Protocol):
    """Images as they are stored; see `fastdata.batch_images.BatchImages`."""

    lengths: Indices

    def doubt(self) -> bool: ...

    @property
    def all_raw(self) -> bool: ...

    def verify(self, crops: NDArray[Any], first: int = 0) -> None: ...

    def gather(self, out: Pixels, first: int = 0) -> list[int]: ...

    def read_ahead(self) -> None: ...


class PackedData(Protocol):
    """Data for the loader, such as `fastdata.dataset.Dataset`.

    All methods are safe to call from several threads.  An underscore keeps them out of the list of
    attributes that a user of a dataset sees.
    """

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def _images(self, name: str, indices: Indices, decoder: JpegDecoder, /) -> StoredImages:
        """Return the images of a field, not yet decoded."""

    def _gather(self, name: str, indices: Indices, /) -> Any:
        """Return the values of a field without images."""

    def _unreadable(self, indices: Indices, /) -> NDArray[np.bool_]:
        """Return which samples have a damaged value in a field without images, bool [n]."""

    def _describe_sample(self, index: int, /) -> str:
        """Return the place and the key of a sample, for messages."""


def is_packed(data: object) -> TypeGuard[PackedData]:
    """Return whether `data` can be read by the batch; evaluates none of its properties."""
    return all(hasattr(type(data), name) for name in ("_images", "_gather"))


def image_sizes(
    data: PackedData, name: str, indices: Indices, decoder: JpegDecoder
) -> tuple[Indices, Indices]:
    """Return heights and widths of images without decoding them, int64 [n] each.

    Data without columns of sizes may have a method ``_image_sizes``, which reads little.
    """
    of_data = getattr(data, "_image_sizes", None)
    if of_data is not None:
        heights, widths = of_data(name, indices)
        return heights, widths
    images = data._images(name, indices, decoder)
    return images.heights, images.widths


# -- batches -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Request(SampleKeys):
    """Which batch is wanted: one sample or more, in order; and its number in the epoch."""

    number: int = 0


class Job(Protocol):
    """One batch to be made."""

    @property
    def slot(self) -> Slot | None:
        """Memory for the large results of its tasks."""

    def tasks(self) -> Sequence[Any]:
        """Return the parts of the work: picklable, in any order, each for any worker."""

    def finish(self, results: Sequence[Any]) -> Any:
        """Return the batch; called once, with the results of the tasks in their order."""


Prepare: TypeAlias = Callable[[Request], Job]
"""Plans a batch: quick, as the caller's thread does it."""


class BatchStream(Protocol):
    """Batches in the order of their requests, some made ahead."""

    @property
    def request(self) -> Request | None:
        """The request of the batch that was taken last."""

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""

    def begin(self, requests: Iterable[Request], /) -> None:
        """Drop the batches that are being made, and make those of `requests`."""

    def stop(self) -> None:
        """Drop the batches that are being made; workers stay."""

    def __next__(self) -> Any:
        """Return the next batch, or raise its error in its place; `StopIteration` after all."""

    def close(self) -> None:
        """End all workers.  Idempotent."""


# -- workers -------------------------------------------------------------------------------


class Pending(Protocol):
    """A task that a worker was given."""

    def done(self) -> bool:
        """Return whether `result` would return, or raise, at once."""

    def result(self) -> Any:
        """Wait for the result of the work, and return or raise it."""


class Workers(Protocol):
    """Threads or processes that take tasks in order; `str` says how many."""

    def submit(self, task: Any, slot: Slot | None) -> Pending: ...

    def wait(self, task: Any, seconds: float) -> bool:
        """Wait at most that long for a task that was submitted; return whether its result is due.

        Without workers it is due at once.
        """

    def check(self) -> None:
        """Raise `WorkerError` if a worker has died; does not wait."""

    def close(self) -> None:
        """End them.  Idempotent; tasks not begun are dropped."""
