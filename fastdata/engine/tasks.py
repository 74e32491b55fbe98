"""Tasks: what to do for a batch, small enough to be sent to another process.

What they read from is packed data, of which this module has the contract.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.buffers import TensorLayout
from fastdata.random import SampleKeys
from fastdata.schema import Schema

__all__ = [
    "DecodeTask",
    "Done",
    "Images",
    "PackedData",
    "ReadAheadTask",
    "RenderTask",
    "SampleTask",
    "image_sizes",
    "is_packed",
]

Indices: TypeAlias = NDArray[np.int64]


class Images(Protocol):
    """Images of a field of some samples; see `fastdata.batch_images.BatchImages`."""

    heights: Indices
    widths: Indices
    lengths: Indices
    refused: NDArray[np.bool_]

    def doubt(self) -> bool: ...

    @property
    def all_raw(self) -> bool: ...

    def read(self, place: int, out: Pixels | None = None) -> Pixels: ...

    def window(
        self, place: int, window: tuple[int, int, int, int], factor: int = 1
    ) -> tuple[Pixels, int]: ...

    def gather(self, out: Pixels) -> list[int]: ...

    def crops(self) -> NDArray[Any]: ...

    def read_ahead(self) -> None: ...


class PackedData(Protocol):
    """What the loader reads from: `fastdata.dataset.Dataset`, or the like of it.

    All methods are safe to call from several threads.
    """

    @property
    def schema(self) -> Schema: ...

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def images(self, name: str, indices: Indices, decoder: JpegDecoder, /) -> Images:
        """Return the images of a field, not yet decoded."""

    def gather(self, name: str, indices: Indices, /) -> Any:
        """Return the values of a field that is no image."""

    def unreadable(self, indices: Indices, /) -> NDArray[np.bool_]:
        """Return which samples have a damaged value that is no image, bool [n]."""

    def describe_sample(self, index: int, /) -> str:
        """Return where a sample is and what it is called, for messages."""


def is_packed(data: object) -> TypeGuard[PackedData]:
    """Return whether `data` can be read by the batch; evaluates none of its properties."""
    return all(hasattr(type(data), name) for name in ("images", "gather"))


def image_sizes(
    data: PackedData, name: str, indices: Indices, decoder: JpegDecoder
) -> tuple[Indices, Indices]:
    """Return heights and widths of images that are not to be decoded here, int64 [n] each.

    Data whose sizes stand in no column may have a method of this name, which reads no more than
    it has to.
    """
    told = getattr(data, "image_sizes", None)
    if told is not None:
        heights, widths = told(name, indices)
        return heights, widths
    images = data.images(name, indices, decoder)
    return images.heights, images.widths


@dataclass(frozen=True, slots=True, eq=False)
class ReadAheadTask:
    """Have the stored bytes of some samples read, into the page cache."""

    indices: Indices


@dataclass(frozen=True, slots=True, eq=False)
class RenderTask:
    """Render some images of a batch.

    Attributes
    ----------
    keys : SampleKeys
        The samples of this task.
    first : int
        Place in the batch of the first of them.
    places : tuple of TensorLayout
        Where the batch's images go, one place an image field and view.
    """

    keys: SampleKeys
    first: int
    places: tuple[TensorLayout, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTask:
    """Make some samples of a batch one by one; attributes as of `RenderTask`.

    Attributes
    ----------
    places : tuple of TensorLayout
        For values that are expected to be tensors of one shape and dtype.
        What is as expected is left there, anything else comes back as a value.
    """

    keys: SampleKeys
    first: int
    places: tuple[TensorLayout, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTask:
    """Decode whole images, each to where it is told.

    Attributes
    ----------
    indices : ndarray of int64, shape [m]
    first : int
        Place of the first of them among all of the job.
    begins, ends : dict of str to ndarray of int64, shape [m]
        For each image field, where each sample's begins in memory, and ends.
    """

    indices: Indices
    first: int
    begins: dict[str, Indices]
    ends: dict[str, Indices]


@dataclass(slots=True)
class Done:
    """What a task gives back.

    Attributes
    ----------
    nbytes : int
        Stored bytes of images that were read.
    replaced : list of (int, int, str)
        Corrupt samples: place in the batch, index taken instead, what was wrong.
    failed : list of (int, str)
        Of a `DecodeTask`: corrupt samples, by their place, and what was wrong.
    columns : dict of (str, int) to list, or None
        Of a `SampleTask`: the values that are not in memory, by field and view.
    """

    nbytes: int = 0
    replaced: list[tuple[int, int, str]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    columns: dict[tuple[str, int], list[Any]] | None = None
