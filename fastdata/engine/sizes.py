"""Whether the images of a batch will have one size, as far as it is known before the first one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.contracts import Indices, PackedData, image_sizes
from fastdata.errors import FastdataError, OptionError
from fastdata.random import SampleKeys
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.pipeline import Pipeline

__all__ = ["check_one_size", "known_sizes"]

SIZES_AT_ONCE = 1 << 16

SOME_FILES = 16
"""Of which the header is read, where the data are files that are not packed."""


def check_one_size(data: PackedData, pipeline: Pipeline, decoder: JpegDecoder) -> None:
    """Raise `OptionError` if the images have several sizes and no transform gives them one.

    What callables do to a size is known once they are called.  Of files that are not packed, some
    are looked at.
    """
    parts = [part for part in pipeline.views or (pipeline,) if part.direct]
    parts = [part for part in parts if _several(part, np.array([500, 700]), np.array([700, 600]))]
    for name in data.schema.images if parts else ():
        indices, heights, widths = _sizes(data, name, decoder)
        for part in parts:
            pair = _several(part, heights, widths)
            # Where columns say another size than the image, whoever reads it says so.
            if pair is not None and not data._images(name, indices[pair], decoder).doubt():
                (height, other_height), (width, other_width) = heights[pair], widths[pair]
                raise OptionError(
                    f"a batch needs images of one size, but {name!r} has several ({height} x "
                    f"{width} and {other_height} x {other_width}, height x width). Give a "
                    "transform that makes one, after `from fastdata import transforms as T`: "
                    "transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()] for training, "
                    "transform=[T.Resize(256), T.CenterCrop(224)] for evaluation. Or pack the "
                    "images in one size: fastdata pack --resize crop --size 224"
                )


def known_sizes(
    data: PackedData, name: str, decoder: JpegDecoder
) -> tuple[Indices, Indices] | None:
    """Return the different heights and widths of a field; None if only the files know them."""
    if getattr(data, "_image_sizes", None) is not None:
        return None
    return _sizes(data, name, decoder)[1:]


def _several(part: Pipeline, heights: Indices, widths: Indices) -> list[int] | None:
    """Return the places of two images that differ in size after the transforms; None if none do."""
    if part.geometry is not None:
        try:
            given = Geometry.of(heights, widths)
            planned = part.geometry.plan(given, 0, SampleKeys(0, np.arange(len(heights))))
        except OptionError:  # of a crop that is larger, say: the batch that has it says so
            return None
        heights, widths = planned.height, planned.width
    other = np.flatnonzero((heights != heights[:1]) | (widths != widths[:1]))
    return [0, int(other[0])] if other.size else None


def _sizes(data: PackedData, name: str, decoder: JpegDecoder) -> tuple[Indices, Indices, Indices]:
    """Return a sample of each size, and the heights and widths; the first sample is the first."""
    found: Indices = np.empty((0, 2), np.int64)  # sample, and height and width in one number
    for indices in _looked_at(data):
        try:
            heights, widths = image_sizes(data, name, indices, decoder)
        except FastdataError:
            continue  # whoever reads it says what is wrong
        new = np.stack([indices, (np.asarray(heights) << 32) + widths], axis=1)
        new = new[new[:, 1] != (1 << 32) + 1]  # what is refused has 1 x 1
        both = np.concatenate([found, new])
        _, first = np.unique(both[:, 1], return_index=True)
        found = both[np.sort(first)]
    return found[:, 0], found[:, 1] >> 32, found[:, 1] & (2**32 - 1)


def _looked_at(data: PackedData) -> Iterator[Indices]:
    """Yield the samples to look at, some at a time."""
    if getattr(data, "_image_sizes", None) is not None:  # by a file for each of them
        yield np.unique(np.linspace(0, len(data) - 1, SOME_FILES).astype(np.int64))
        return
    for first in range(0, len(data), SIZES_AT_ONCE):
        yield np.arange(first, min(first + SIZES_AT_ONCE, len(data)))
