"""The input of DALI for a batch: planned at once, loaded by threads, then assembled.

A `FeedJob` corresponds to a `RenderJob` of the CPU, and runs on the same `Stream` of jobs,
with the same reading ahead.  It makes a `Feed`, not a batch.  Images are fed as files or
pixels, as views if that is possible:

jpeg              the file, or a cut of it if that saves time; its header is checked
raw               the pixels of the region
anything else     the pixels of the region, decoded by fastdata

One bad image would end a DALI pipeline.  So checksums and headers are checked before, and
truncated files, files of another size than in the shard, or of a kind that DALI may not
support go to fastdata's own decoder, which decodes them or raises the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import cut_if_worthwhile
from fastdata.codecs.jpeg import check_scans
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.dali.graph import (
    Arguments,
    FieldGraph,
    arguments_of,
    graph_of,
    regions_of,
)
from fastdata.engine.batches import BatchMaker
from fastdata.engine.contracts import Images, Request
from fastdata.engine.rendering import plan_images
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import ImageError, ShardCorruptError
from fastdata.native.library import JPEG
from fastdata.random import SampleKeys
from fastdata.transforms.geometry import Geometry, Ints

__all__ = ["Feed", "FeedJob", "as_file"]

_EOI = b"\xff\xd9"
_Window: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """All that DALI needs for a batch.

    `indices`, int64 [n], are its samples, with substitutes of corrupt ones.  `graph` has the
    operations for each field, `arguments` the data of its inputs, which begin with ``f<k>.`` for
    field number k; `done` has the counts of bytes and replaced samples.
    """

    request: Request
    indices: Ints
    graph: tuple[FieldGraph, ...]
    arguments: Arguments
    done: Done


class FeedJob:
    """One feed to be made; a `fastdata.engine.contracts.Job`.

    Raises an `OptionError` if the images of a sample or of the batch do not fit together.
    """

    slot = None

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self._maker = maker
        self._request = request
        self._shapes = {
            name: (len(request.indices), *size) for name, size in maker.sizes(request).items()
        }
        self._geometry = self._plan(request)

    def _plan(self, keys: SampleKeys) -> Geometry | None:
        work, dataset = self._maker.work, self._maker.work.dataset
        images = {n: dataset._images(n, keys.indices, work.decoder) for n in self._shapes}
        return plan_images(work, keys, images, self._shapes)

    def tasks(self) -> Sequence[LoadTask]:
        """Return the parts of the loading."""
        indices, geometry = self._request.indices, self._geometry
        return [
            _task(indices, geometry, start, stop) for start, stop in self._maker.cut(len(indices))
        ]

    def finish(self, results: Sequence[Loaded]) -> Feed:
        """Return the feed, sound samples being in the place of corrupt ones."""
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
            geometry = self._plan(self._request.replaced(indices))
            results = [_task(indices, geometry, 0, len(indices)).run(self._maker.work)]
        graph: list[FieldGraph] = []
        arguments: Arguments = {}
        for number, (name, kind) in enumerate(self._maker.work.dataset.schema.images.items()):
            images = [image for loaded in results for image in loaded.images[name]]
            encoded = any(image.data.ndim == 1 for image in images)
            graph.append(
                graph_of(geometry, channels=kind.channels, encoded=encoded, mask=kind.mask)
            )
            prefix = f"f{number}."
            arguments[prefix + "data"] = [
                as_file(data) if encoded and data.ndim == 3 else data for data, _, _ in images
            ]
            if geometry is not None:
                tops = np.array([image.top for image in images])
                lefts = np.array([image.left for image in images])
                arguments |= arguments_of(geometry, graph[-1], prefix, tops, lefts)
        return Feed(self._request, indices, tuple(graph), arguments, done)

    def _replaced(self, failed: dict[int, ShardCorruptError], done: Done) -> Ints:
        """Return the samples to take, with substitutes of those that failed."""
        work = self._maker.work

        def make(at: int, index: int) -> None:
            one = self._request[at : at + 1].replaced(np.array([index]))
            loaded = _task(one.indices, self._plan(one), 0, 1).run(work)
            done.nbytes += loaded.nbytes
            if loaded.failed:
                raise loaded.failed[0]

        indices: Ints = self._request.indices.copy()
        for at, error in sorted(failed.items()):
            index, _ = work.replace(self._request.epoch, int(indices[at]), error, partial(make, at))
            done.replaced.append((at, index, str(error)))
            indices[at] = index
        return indices


@dataclass(frozen=True, slots=True, eq=False)
class LoadTask:
    """Load some images of a batch: samples, int64 [n], and the region of each image.

    `regions` are (top, left, height, width), int64 [n] each, inside the image or empty; None: all.
    """

    indices: Ints
    regions: tuple[Ints, Ints, Ints, Ints] | None

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None = None) -> Loaded:
        """Load the images.

        Raises a `ShardCorruptError` for damaged bytes, if ``work.on_corrupt`` is "raise".
        """
        loaded = Loaded()
        loaded.failed |= work.unreadable(self.indices)
        for name, kind in work.dataset.schema.images.items():
            # One pixel for an image outside its window; the window misses it too.
            nothing = LoadedImage(np.zeros((1, 1, kind.channels), np.uint8))
            stored = work.dataset._images(name, self.indices, work.decoder)
            loaded.nbytes += int(stored.lengths.sum())
            crops = stored.crops()
            stored.verify(crops)
            columns = (
                crops[part].tolist() for part in ("codec", "data", "size", "height", "width")
            )
            regions: list[_Window | None] = [None] * len(self.indices)
            if self.regions is not None:
                regions = list(zip(*(part.tolist() for part in self.regions), strict=True))
            images = loaded.images[name] = []
            for at, (codec, address, size, height, width) in enumerate(zip(*columns, strict=True)):
                region = regions[at]
                image: LoadedImage | None = None
                missed = region is not None and not (region[2] and region[3])
                if missed and not stored.refused[at]:
                    image = nothing
                elif codec == JPEG:
                    image = _file(_view(address, size, stored), (height, width), region)
                if image is None:
                    try:
                        image = _pixels(stored, at, region)
                    except ShardCorruptError as error:
                        if work.on_corrupt == "raise":
                            raise
                        loaded.failed[at] = error
                        image = nothing
                images.append(image)
        return loaded


def _task(indices: Ints, geometry: Geometry | None, start: int, stop: int) -> LoadTask:
    """Return the task to load the samples from `start` to `stop`."""
    regions = regions_of(geometry)
    if regions is not None:
        top, left, height, width = (part[start:stop] for part in regions)
        regions = top, left, height, width
    return LoadTask(indices[start:stop], regions)


class LoadedImage(NamedTuple):
    """A file, uint8 [bytes], or pixels, uint8 [H, W, C]; and where in the image they begin."""

    data: NDArray[np.uint8]
    top: int = 0
    left: int = 0


@dataclass(slots=True)
class Loaded:
    """What a task gives back: images by field, their stored bytes, and errors by their place.

    What is in `images` for those that `failed` is not to be used.
    """

    images: dict[str, list[LoadedImage]] = field(default_factory=dict)
    nbytes: int = 0
    failed: dict[int, ShardCorruptError] = field(default_factory=dict)


def as_file(pixels: Pixels) -> NDArray[np.uint8]:
    """Return pixels [H, W, C] as a file of type PNM: a few bytes before the same bytes.

    So images of other codecs can be among JPEGs.
    """
    height, width, channels = pixels.shape
    header = f"P{6 if channels == 3 else 5}\n{width} {height}\n255\n".encode()
    return np.concatenate([np.frombuffer(header, np.uint8), pixels.reshape(-1)])


def _file(
    data: NDArray[np.uint8], size: tuple[int, int], region: _Window | None
) -> LoadedImage | None:
    """Return a JPEG that has the region; None if it is not for DALI."""
    file = data.data
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(file)
    except (ValueError, KeyError):  # KeyError: a sampling that simplejpeg has no name for
        return None
    if (height, width) != size or colours not in ("YCbCr", "Gray") or file[-2:] != _EOI:
        return None
    try:
        check_scans(file, size, MAX_PIXELS)
    except ImageError:
        return None
    cut = cut_if_worthwhile(file, size, region) if region is not None else None
    if cut is None:
        return LoadedImage(data)
    return LoadedImage(np.frombuffer(cut.data, np.uint8), cut.top, cut.left)


def _pixels(stored: Images, at: int, region: _Window | None) -> LoadedImage:
    if region is None:
        return LoadedImage(np.ascontiguousarray(stored.read(at)))
    pixels, _ = stored.window(at, region)
    return LoadedImage(np.ascontiguousarray(pixels), region[0], region[1])


class _Memory:
    """Stands between an array and what keeps its memory, which NumPy then keeps too."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _view(address: int, nbytes: int, owner: Any) -> NDArray[np.uint8]:
    """Return bytes at an address, valid as long as `owner` is alive, read-only."""
    view: NDArray[np.uint8] = np.asarray(_Memory(address, nbytes, owner))
    return view
