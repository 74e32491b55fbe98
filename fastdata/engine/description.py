"""The description of a loader's batches: shapes, dtypes and memory formats.

It is made of the schema, the transforms and the columns of sizes.  No image is decoded and no
callable is called, so the images that a callable makes are described as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fastdata.engine.column_checks import known_sizes, sizes_after
from fastdata.engine.work import BatchWork
from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField
from fastdata.transforms.base import SampleTransform, name_of
from fastdata.transforms.callables import ImageOnly, OnPIL
from fastdata.transforms.geometric import GeometryStage
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.pipeline import Pipeline, is_callable
from fastdata.transforms.pixel import one_after_another
from fastdata.transforms.stages import ChangeStage, PixelStage

__all__ = ["describe_fields"]


def describe_fields(work: BatchWork, count: int | str, epoch: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each field of a batch of `count` samples of an epoch, and its description."""
    for name, field in work.dataset.schema.items():
        if isinstance(field, ImageField):
            views = [_image(part, name, field, count, epoch) for part in work.parts]
            yield name, _joined(views) if work.pipeline.views else views[0]
            continue
        changing = [one for one in work.pipeline.members if _may_change_all(one)]
        yield name, _unknown(changing[0]) if changing else _column(work, name, field, count)


def _image(work: BatchWork, name: str, field: ImageField, count: int | str, epoch: int) -> str:
    """Return the description of the images of one view, with the sizes of later epochs."""
    pipeline = work.pipeline
    if not pipeline.direct:
        return _unknown(next(one for one in pipeline.members if is_callable(one)))
    height, width = _size(work, name, epoch)
    later = ""
    epochs = {first for stage in _moving(pipeline) for first in stage.epochs}
    for first in sorted(one for one in epochs if one > epoch):
        later += ", {} x {} from epoch {}".format(*_size(work, name, first), first)
    channels = pipeline.schema_after.images[name].channels
    planar = work.memory_format == torch.contiguous_format or channels == 1
    layout = "contiguous" if planar else "channels last"
    dtype = _name(torch.uint8 if field.mask else _dtype(pipeline, field.channels))
    if work.image_lists:
        return f"list of {count} tensors, {dtype} [{channels}, {height}, {width}]{later}"
    return f"{dtype} [{count}, {channels}, {height}, {width}], {layout}{later}"


def _dtype(pipeline: Pipeline, channels: int) -> torch.dtype:
    """Return the dtype of the pictures of a direct pipeline."""
    values = torch.zeros((1, channels, 1, 1), dtype=torch.uint8)
    for stage in (pipeline.pixels, *(pipeline.batch.steps if pipeline.batch else ())):
        if isinstance(stage, PixelStage):
            values = one_after_another(stage.transforms, values)
    return values.dtype


def _moving(pipeline: Pipeline) -> list[GeometryStage]:
    """Return the geometry stages of a direct pipeline."""
    stages = [pipeline.geometry, *(pipeline.batch.steps if pipeline.batch else ())]
    return [stage for stage in stages if isinstance(stage, GeometryStage)]


def _size(work: BatchWork, name: str, epoch: int) -> tuple[int | str, int | str]:
    """Return height and width of the images of a direct pipeline; "H" and "W" where they vary."""
    moving = _moving(work.pipeline)
    fixed = [at for at, stage in enumerate(moving) if stage.size_in(epoch) is not None]
    if fixed:
        height, width = (np.array([side]) for side in moving[fixed[-1]].size_in(epoch) or ())
        moving = moving[fixed[-1] + 1 :]
    else:
        sizes = known_sizes(work.dataset, name, work.decoder)
        if sizes is None:
            return "H", "W"
        height, width = sizes
    if any(stage.random_size(epoch) for stage in moving):
        return "H", "W"
    try:
        height, width = sizes_after(moving, epoch, np.arange(len(height)), height, width)
    except OptionError:  # such as of a crop that is larger than an image
        return "H", "W"
    sides = [np.unique(side) for side in (height, width)]
    rows, columns = (int(side[0]) if len(side) == 1 else None for side in sides)
    return "H" if rows is None else rows, "W" if columns is None else columns


def _column(work: BatchWork, name: str, field: Field, count: int | str) -> str:
    """Return the description of a field without images that no callable changes."""
    batch = work.pipeline.batch
    for step in batch.steps if batch else ():
        if isinstance(step, ChangeStage) and isinstance(step.transform, MixTransform):
            label, classes = step.transform.label_of(work.dataset.schema)
            if label == name:
                return f"float32 [{count}, {classes}]"
    if isinstance(field, ScalarField):
        return f"{_torch_name(field.dtype)} [{count}]"
    if isinstance(field, ArrayField):
        dtype = _torch_name(field.dtype)
        if field.fixed:
            return f"{dtype} [{', '.join(map(str, (count, *field.shape)))}]"
        lengths = ", ".join("?" if length is None else str(length) for length in field.shape)
        return f"list of {count} tensors, {dtype} [{lengths}]"
    return f"list of {count} {'str' if field.kind == 'string' else 'bytes'}"


def _may_change_all(transform: object) -> bool:
    """Return whether a transform may change other fields than images."""
    return isinstance(transform, SampleTransform) and not isinstance(transform, (ImageOnly, OnPIL))


def _unknown(transform: object) -> str:
    return f"known with the first batch, since {name_of(transform)} is a callable"


def _joined(views: list[str]) -> str:
    """Return the description of a list of views, those of one kind together."""
    kinds = list(dict.fromkeys(views))
    if len(kinds) == 1:
        return f"list of {len(views)} views, {kinds[0]}"
    return f"list of {len(views)} views: " + "; ".join(
        f"{views.count(kind)} x {kind}" for kind in kinds
    )


def _torch_name(dtype: str) -> str:
    return _name(torch.from_numpy(np.empty(0, dtype)).dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
