"""Make samples one by one, for callables on single samples, and collate them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.buffers import TensorLayout
from fastdata.engine.contracts import Indices, StoredImages
from fastdata.engine.work import BatchWork, Done
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.random import SampleKeys
from fastdata.schema import ArrayField, Field, ImageField, ScalarField

__all__ = ["SampleTask", "collate_field"]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTask:
    """Make the samples of a batch from number `first` on, one by one.

    `layouts` are for images that should be tensors of one shape and dtype.  Those that match stay
    there; others are returned as values.
    """

    keys: SampleKeys
    first: int
    layouts: tuple[TensorLayout, ...]

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Done:
        """Make the samples, leaving in `memory` what fits the layouts."""
        assert memory is not None, "a batch has a slot"
        done = Done()
        keys = self.keys
        indices = keys.indices.copy()
        schema = work.dataset.schema
        columns: dict[str, list[Any]] = {name: [None] * len(indices) for name in schema}
        stored = _images(work, indices)
        broken = work.unreadable(indices)
        for at, index in enumerate(keys.indices.tolist()):
            try:
                if at in broken:
                    raise broken[at]
                pixels = _read_images(stored, at)
            except ShardCorruptError as error:

                def make(other: int) -> dict[str, torch.Tensor]:
                    one = np.array([other])
                    for broken_too in work.unreadable(one).values():
                        raise broken_too
                    return _read_images(_images(work, one), 0)

                indices[at], pixels = work.replace(keys.epoch, index, error, make)
                done.replaced.append((self.first + at, int(indices[at]), str(error)))
            for name, image in pixels.items():
                columns[name][at] = image
        done.nbytes = sum(int(images.lengths.sum()) for images in stored.values())
        for name, kind in schema.items():
            if not isinstance(kind, ImageField):
                columns[name] = _split_column(kind, work.dataset._gather(name, indices))
        samples = list(map(schema.sample_type._make, zip(*columns.values(), strict=True)))
        describe = work.dataset._describe_sample
        samples = work.pipeline.run(samples, work.seed, keys.replaced(indices), describe)
        made: dict[tuple[str, int], list[Any]] = {}
        for name, values in zip(schema, zip(*samples, strict=True), strict=True):
            seen = work.pipeline.views and name in schema.images
            for view, some in enumerate(zip(*values, strict=True) if seen else [values]):
                made[name, view] = list(some)
        for layout in self.layouts:
            key = layout.name, layout.view
            if _fits(made[key], layout):
                batch = layout.tensor(torch.from_numpy(memory))[self.first :]
                for at, image in enumerate(made[key]):
                    batch[at].copy_(image)
                del made[key]
        done.columns = made
        return done


def _images(work: BatchWork, indices: Indices) -> dict[str, StoredImages]:
    """Return the images of some samples, not yet decoded, by field."""
    return {n: work.dataset._images(n, indices, work.decoder) for n in work.dataset.schema.images}


def _read_images(stored: dict[str, StoredImages], at: int) -> dict[str, torch.Tensor]:
    """Return the images of a sample, [C, H, W], in memory that callables may write to."""
    found = {}
    for name, images in stored.items():
        pixels = images.read(at)
        if not (pixels.flags.writeable and pixels.flags.c_contiguous):
            pixels = pixels.copy()
        found[name] = torch.from_numpy(pixels).permute(2, 0, 1)
    return found


def _fits(values: list[Any], layout: TensorLayout) -> bool:
    """Return whether all values are images [C, H, W] as the layout expects them."""
    height, width, channels = layout.shape[1:]
    return all(
        isinstance(value, torch.Tensor)
        and value.dtype == layout.dtype
        and value.shape == (channels, height, width)
        for value in values
    )


def _split_column(field: Field, column: Any) -> list[Any]:
    """Return what ``dataset._gather`` gave as one value a sample.

    Numbers are Python numbers, arrays tensors, as in ``dataset[i]``.
    """
    if isinstance(field, ScalarField):
        values: list[Any] = column.tolist()
        return values
    if isinstance(field, ArrayField):
        return [torch.from_numpy(array) for array in column]
    return list(column)


def collate_field(name: str, field: Field, values: list[Any], *, planar: bool) -> Any:
    """Return one field of a batch, of values that callables may have changed.

    As `collate_column`; images [C, H, W] become a tensor [N, C, H, W], channels last in memory
    unless `planar`.
    `OptionError` if images differ in shape or dtype.
    """
    first = values[0]
    if isinstance(field, ImageField) and isinstance(first, torch.Tensor):
        return _stack_images(name, values, planar)
    if isinstance(field, ScalarField) and isinstance(first, (bool, int, float)):
        return torch.from_numpy(np.array(values, field.dtype))
    if isinstance(field, ArrayField) and not field.fixed:
        return values
    if isinstance(first, torch.Tensor):
        if len({value.shape for value in values}) == 1:
            return torch.stack(values)
        return values
    if isinstance(first, (bool, int, float)):
        return torch.tensor(values)
    return values


def _stack_images(name: str, images: list[torch.Tensor], planar: bool) -> torch.Tensor:
    first = images[0]
    for image in images:
        if image.shape != first.shape or image.dtype != first.dtype:
            raise OptionError(
                f"{name!r} of this batch has images of {_kind(first)} and {_kind(image)}; a batch "
                "needs one shape and dtype: end the transforms with one that fixes them, such as "
                "fastdata.transforms.CenterCrop(224), or give image_lists=True"
            )
    if first.ndim != 3:
        return torch.stack(images)
    channels_last = not planar and len(first) > 1
    batch = torch.empty(
        (len(images), *first.shape),
        dtype=first.dtype,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    return torch.stack(images, out=batch)


def _kind(image: torch.Tensor) -> str:
    return f"{tuple(image.shape)} {str(image.dtype).removeprefix('torch.')}"
