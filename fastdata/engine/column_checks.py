"""Checks of transforms against the columns of the data, before the first batch.

They read no pixel, draw nothing, and call no callable.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.contracts import Indices, PackedData, image_sizes
from fastdata.errors import FastdataError, OptionError
from fastdata.random import SampleKeys
from fastdata.transforms.base import GeometricTransform
from fastdata.transforms.choosing import outcomes_of
from fastdata.transforms.geometric import GeometryStage, Resize, check_sizes_agree
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.stages import CallStage, ChangeStage

__all__ = ["check_columns", "known_sizes", "sizes_after"]

SAMPLES_AT_ONCE = 1 << 16

SOME_FILES = 16
"""Files whose header is read if the data are not packed."""


def check_columns(
    data: PackedData, pipeline: Pipeline, decoder: JpegDecoder, some: Indices, *, one_size: bool
) -> None:
    """Raise `OptionError` if the transforms cannot be applied to `some` of the samples, int64 [n].

    Reasons: images are too small for a crop or a blur; images and masks of a sample differ in size;
    labels for `MixUp` are out of range; with `one_size`, images have several sizes and no transform
    gives them one.  Unpacked files are checked by some of their headers.
    """
    parts: list[Pipeline] = list(pipeline.views or [pipeline])
    if any(isinstance(stage, GeometryStage) for part in parts for stage in _before_calls(part)):
        _check_images_agree(data, decoder, some)
    for part in parts if one_size else ():
        _check_random_sizes(part)
    parts = [
        part
        for part in parts
        if any(_depends_on_sizes(part, one_size, epoch) for epoch in _epochs(part))
    ]
    for name in data.schema.images if parts else ():
        sizes = _sizes(data, name, decoder, some)
        for part in parts:
            for epoch in _epochs(part):
                _check_sizes(
                    data, name, decoder, part, sizes, epoch, one_size=one_size and part.direct
                )
    _check_labels(data, pipeline, some)


def known_sizes(
    data: PackedData, name: str, decoder: JpegDecoder
) -> tuple[Indices, Indices] | None:
    """Return the different heights and widths of a field; None if only the files know them."""
    return None if _in_files(data) else _sizes(data, name, decoder, np.arange(len(data)))[1:]


def _before_calls(part: Pipeline) -> list[object]:
    """Return the stages of samples before the first callable."""
    return list(itertools.takewhile(lambda stage: not isinstance(stage, CallStage), part.stages))


def sizes_after(
    stages: Sequence[object], epoch: int, indices: Indices, heights: Indices, widths: Indices
) -> tuple[Indices, Indices]:
    """Return heights and widths after some stages; `OptionError` if one cannot be applied.

    If they depend on random choices, the sizes of one outcome come after those of another; none if
    there are too many outcomes to look at.
    """
    gates = [gate for one in stages if isinstance(one, GeometryStage) for gate in one.size_gates]
    found = [(heights[:0], widths[:0])]
    keys = SampleKeys(epoch, indices)
    for outcome in outcomes_of(gates) or ():
        rows, columns = heights, widths
        for stage in stages:
            if isinstance(stage, GeometryStage):
                rows, columns = stage.given(outcome).plan_sizes(rows, columns, 0, keys)
            elif isinstance(stage, ChangeStage):
                for height, width in set(zip(rows.tolist(), columns.tolist(), strict=True)):
                    stage.transform.check_size(height, width)
        found.append((rows, columns))
    return np.concatenate([rows for rows, _ in found]), np.concatenate([c for _, c in found])


def _all_stages(part: Pipeline) -> list[object]:
    """Return the stages of samples before the first callable; without one, those of batches too."""
    of_batch = part.batch.steps if part.batch is not None and part.direct else ()
    return [*_before_calls(part), *of_batch]


def _epochs(part: Pipeline) -> list[int]:
    """Return the first epochs of the sizes of a part; 0 alone if they do not change."""
    stages = [stage for stage in _all_stages(part) if isinstance(stage, GeometryStage)]
    return sorted({0}.union(*(stage.epochs for stage in stages)))


def _depends_on_sizes(part: Pipeline, one_size: bool, epoch: int) -> bool:
    """Return whether a part suits images of some sizes only."""
    try:
        # A crop that is larger than an image refuses the third one, at the latest.
        heights, widths = np.array([500, 700, 1]), np.array([700, 600, 1])
        sizes_after(_all_stages(part), epoch, np.arange(3), heights, widths)
    except OptionError:
        return True
    two = epoch, np.arange(2), heights[:2], widths[:2]
    after = (sizes_after(stages, *two) for stages in _in_one_tensor(part))
    return one_size and part.direct and any(_other_size(*sizes) is not None for sizes in after)


def _in_one_tensor(part: Pipeline) -> list[list[object]]:
    """Return the stages after which images lie in one tensor: those of samples, and all."""
    before = _before_calls(part)
    return [before] if part.batch is None else [before, _all_stages(part)]


def _check_random_sizes(part: Pipeline) -> None:
    """Raise `OptionError` if images of a batch have random sizes in the end."""
    if part.direct and part.geometry is not None:
        for epoch in _epochs(part):
            if part.geometry.random_size(epoch):
                names = [type(one).__name__ for one in _geometric(part) if one.random_size]
                raise OptionError(
                    f"a batch needs images of one size, but {names[-1]} makes several: put "
                    "T.Resize((height, width)) behind it, or give image_lists=True for lists of "
                    "images"
                )


def _check_sizes(
    data: PackedData,
    name: str,
    decoder: JpegDecoder,
    part: Pipeline,
    sizes: tuple[Indices, Indices, Indices],
    epoch: int,
    *,
    one_size: bool,
) -> None:
    stages = _all_stages(part)

    def refuses(count: int) -> bool:
        try:
            sizes_after(stages, epoch, *(values[:count] for values in sizes))
        except OptionError:
            return True
        return False

    def is_wrong(places: list[int]) -> bool:
        """Return whether columns have wrong sizes; the worker that reads it raises the error."""
        return data._images(name, sizes[0][places], decoder).doubt()

    count = len(sizes[0])
    if refuses(count):
        first = bisect_left(range(1, count + 1), True, key=refuses)
        if not is_wrong([first]):
            sizes_after(stages, epoch, *(values[: first + 1] for values in sizes))
        return
    for stages in _in_one_tensor(part) if one_size else ():
        after = sizes_after(stages, epoch, *sizes)
        other = _other_size(*after)
        if other is None or is_wrong([0, other % count]):
            continue
        here, there = (f"{after[0][place]} x {after[1][place]}" for place in (0, other))
        if other >= count:
            chooser = _first_chooser(part)
            raise OptionError(
                f"a batch needs images of one size, but {chooser} makes several of {name!r} "
                f"({here} and {there}, height x width): put T.RandomResizedCrop(size) or "
                f"T.CenterCrop(size) behind {chooser}, or give image_lists=True"
            )
        moving = _geometric(part)
        resize = next((one for one in moving if isinstance(one, Resize)), None)
        of_part = "after the transforms " if moving else ""
        side = resize.size if resize is not None else None
        pair = f"T.Resize(({side}, {side}))" if isinstance(side, int) else "T.Resize a pair"
        remedy = (
            f"Resize({resize.size}) scales the short side only: add T.CenterCrop({resize.size}) or "
            f"T.RandomCrop({resize.size}) behind it, or give {pair}"
            if resize is not None
            else "Give a transform that makes one, after `from fastdata import transforms as T`: "
            "transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()] for training, "
            "transform=[T.Resize(256), T.CenterCrop(224)] for evaluation. Or pack the "
            "images in one size: fastdata pack --resize crop --size 224"
        )
        raise OptionError(
            f"a batch needs images of one size, but {of_part}{name!r} has several ({here} and "
            f"{there}, height x width). {remedy}. Or give image_lists=True for lists of images, as "
            "detection models take them"
        )


def _geometric(part: Pipeline) -> list[GeometricTransform]:
    """Return the geometric transforms before the first callable."""
    stages = [stage for stage in _before_calls(part) if isinstance(stage, GeometryStage)]
    return [member.transform for stage in stages for member in stage.transforms]


def _first_chooser(part: Pipeline) -> str:
    """Return the name of the first of RandomApply and the like that sizes depend on."""
    stages = [stage for stage in _all_stages(part) if isinstance(stage, GeometryStage)]
    return next(type(gate.chooser).__name__ for stage in stages for gate in stage.size_gates)


def _other_size(heights: Indices, widths: Indices) -> int | None:
    """Return the place of the first image of another size than the first one; None without any."""
    other = np.flatnonzero((heights != heights[:1]) | (widths != widths[:1]))
    return int(other[0]) if other.size else None


def _check_images_agree(data: PackedData, decoder: JpegDecoder, some: Indices) -> None:
    """Raise `OptionError` if the images and masks of a sample differ in size."""
    names = list(data.schema.images)
    for indices in _looked_at(data, some) if len(names) > 1 else ():
        try:
            sizes = [image_sizes(data, name, indices, decoder) for name in names]
        except FastdataError:
            continue  # the worker that reads it raises the error
        heights, widths = (np.stack(sides) for sides in zip(*sizes, strict=True))
        sound = ((heights != 1) | (widths != 1)).all(0)  # refused images have 1 x 1
        wrong = sound & ((heights != heights[0]) | (widths != widths[0])).any(0)
        at = np.flatnonzero(wrong)[:1]
        if at.size and not any(data._images(n, indices[at], decoder).doubt() for n in names):
            check_sizes_agree(names, heights[:, at], widths[:, at], indices[at])


def _check_labels(data: PackedData, pipeline: Pipeline, some: Indices) -> None:
    """Raise `OptionError` if labels to be mixed are out of range."""
    for step in pipeline.batch.steps if pipeline.batch is not None and pipeline.direct else ():
        if not (isinstance(step, ChangeStage) and isinstance(step.transform, MixTransform)):
            continue
        name, classes = step.transform.label_of(data.schema)
        for indices in () if _in_files(data) else _looked_at(data, some):
            try:
                labels = torch.from_numpy(data._gather(name, indices))
            except FastdataError:
                continue  # the worker that reads it raises the error
            step.transform.check_labels(labels, classes)


def _sizes(
    data: PackedData, name: str, decoder: JpegDecoder, some: Indices
) -> tuple[Indices, Indices, Indices]:
    """Return a sample of each size, and the heights and widths; the first sample is the first."""
    found: Indices = np.empty((0, 2), np.int64)  # sample, and height and width in one number
    for indices in _looked_at(data, some):
        try:
            heights, widths = image_sizes(data, name, indices, decoder)
        except FastdataError:
            continue  # the worker that reads it raises the error
        new = np.stack([indices, (np.asarray(heights) << 32) + widths], axis=1)
        new = new[new[:, 1] != (1 << 32) + 1]  # refused images have 1 x 1
        both = np.concatenate([found, new])
        _, first = np.unique(both[:, 1], return_index=True)
        found = both[np.sort(first)]
    return found[:, 0], found[:, 1] >> 32, found[:, 1] & (2**32 - 1)


def _looked_at(data: PackedData, some: Indices) -> Iterator[Indices]:
    """Yield the samples to look at, of `some`, a part at a time."""
    if _in_files(data):  # each opens a file
        count = min(len(some), SOME_FILES)
        yield some[np.linspace(0, len(some) - 1, count).astype(np.int64)]
        return
    for first in range(0, len(some), SAMPLES_AT_ONCE):
        yield some[first : first + SAMPLES_AT_ONCE]


def _in_files(data: PackedData) -> bool:
    """Return whether sizes and values are in files that are not packed."""
    return getattr(data, "_image_sizes", None) is not None
