"""Stored images as DALI takes them: files or pixels, as views where that is possible.

jpeg              the file, or a cut of it where that saves time; its header is checked
raw               the pixels of the region
anything else     the pixels of the region, decoded by fastdata

One bad image would end a DALI pipeline.  So checksums are compared before, headers read,
and files without an end, of another size than the shard says, or of a kind that DALI need
not know, go to fastdata's own decoder, which makes pixels of them or says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import cut_if_worthwhile
from fastdata.engine.tasks import Images
from fastdata.engine.work import BatchWork
from fastdata.errors import ShardCorruptError
from fastdata.native.crops import JPEG

__all__ = ["Column", "LoadTask", "Loaded", "as_file", "load"]

Ints: TypeAlias = NDArray[np.int64]

_EOI = b"\xff\xd9"


@dataclass(frozen=True, slots=True, eq=False)
class LoadTask:
    """Load some images of a batch.

    Attributes
    ----------
    indices : ndarray of int64, shape [n]
    regions : (top, left, height, width) or None
        What is needed of each image, int64 [n] each, inside it or empty; None: all.
    """

    indices: Ints
    regions: tuple[Ints, Ints, Ints, Ints] | None


@dataclass(slots=True)
class Column:
    """Images of one field.

    Attributes
    ----------
    data : list of ndarray of uint8
        One a sample: a file, shape [bytes], or pixels, [H, W, C].
    tops, lefts : list of int
        Where in the whole image the first pixel lies that this has.
    """

    data: list[NDArray[np.uint8]] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    lefts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Loaded:
    """What a task gives back.

    Attributes
    ----------
    columns : dict of str to Column
        One an image field.
    nbytes : int
        Stored bytes of the images.
    failed : dict of int to ShardCorruptError
        By place in the task; what is in `columns` for these is not to be used.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    nbytes: int = 0
    failed: dict[int, ShardCorruptError] = field(default_factory=dict)


def load(work: BatchWork, task: LoadTask) -> Loaded:
    """Load images.

    Raises
    ------
    ShardCorruptError
        If the bytes of an image are damaged and ``work.on_corrupt`` is "raise".
    """
    loaded = Loaded()
    loaded.failed |= work.unreadable(task.indices)
    for name, kind in work.dataset.schema.images.items():
        stored = work.dataset.images(name, task.indices, work.decoder)
        loaded.nbytes += int(stored.lengths.sum())
        crops = stored.crops()
        columns = (crops[part].tolist() for part in ("codec", "data", "size", "height", "width"))
        regions: list[_Window | None] = [None] * len(task.indices)
        if task.regions is not None:
            regions = list(zip(*(part.tolist() for part in task.regions), strict=True))
        column = loaded.columns[name] = Column()
        for at, (codec, address, size, height, width) in enumerate(zip(*columns, strict=True)):
            region = regions[at]
            found: _Found | None = None
            missed = region is not None and not (region[2] and region[3])
            if missed and not stored.refused[at]:
                found = _nothing(kind.channels)
            elif codec == JPEG:
                found = _file(_view(address, size, stored), (height, width), region)
            if found is None:
                try:
                    found = _pixels(stored, at, region)
                except ShardCorruptError as error:
                    if work.on_corrupt == "raise":
                        raise
                    loaded.failed[at] = error
                    found = _nothing(kind.channels)
            data, top, left = found
            column.data.append(data)
            column.tops.append(top)
            column.lefts.append(left)
    return loaded


def as_file(pixels: Pixels) -> NDArray[np.uint8]:
    """Return pixels [H, W, C] as a file of type PNM: a few bytes before the same bytes.

    So images of other codecs can be among JPEGs.
    """
    height, width, channels = pixels.shape
    header = f"P{6 if channels == 3 else 5}\n{width} {height}\n255\n".encode()
    return np.concatenate([np.frombuffer(header, np.uint8), pixels.reshape(-1)])


_Window: TypeAlias = tuple[int, int, int, int]
_Found: TypeAlias = tuple[NDArray[np.uint8], int, int]
"""Data, and top and left of what it has of the image."""


def _file(data: NDArray[np.uint8], size: tuple[int, int], region: _Window | None) -> _Found | None:
    """Return a JPEG that has the region; None if it is not for DALI."""
    file = data.data
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(file)
    except (ValueError, KeyError):  # KeyError: a sampling that simplejpeg has no name for
        return None
    if (height, width) != size or colours not in ("YCbCr", "Gray") or file[-2:] != _EOI:
        return None
    cut = cut_if_worthwhile(file, size, region) if region is not None else None
    if cut is None:
        return data, 0, 0
    return np.frombuffer(cut.data, np.uint8), cut.top, cut.left


def _pixels(stored: Images, at: int, region: _Window | None) -> _Found:
    if region is None:
        return np.ascontiguousarray(stored.read(at)), 0, 0
    pixels, _ = stored.window(at, region)
    return np.ascontiguousarray(pixels), region[0], region[1]


def _nothing(channels: int) -> _Found:
    """Return what stands for an image that its window misses: a pixel, which it misses too."""
    return np.zeros((1, 1, channels), np.uint8), 0, 0


class _Memory:
    """Stands between an array and what keeps its memory, which `numpy` then keeps too."""

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
