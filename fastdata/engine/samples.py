"""Make samples one by one: for callables that see each by itself, or whole, to be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.buffers import TensorLayout
from fastdata.engine.context import BatchContext
from fastdata.engine.tasks import DecodeTask, Done, Images, SampleTask
from fastdata.errors import ShardCorruptError
from fastdata.records import split_column
from fastdata.schema import ImageField

__all__ = ["decode_whole", "make_samples"]


def make_samples(work: BatchContext, task: SampleTask, memory: NDArray[np.uint8]) -> Done:
    """Make the samples of a task, leaving in `memory` what fits its places."""
    done = Done()
    keys = task.keys
    indices = keys.indices.copy()
    schema = work.dataset.schema
    columns: dict[str, list[Any]] = {name: [None] * len(indices) for name in schema}
    stored = {name: work.dataset.images(name, indices, work.decoder) for name in schema.images}
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
                return _read_images(
                    {name: work.dataset.images(name, one, work.decoder) for name in schema.images},
                    0,
                )

            indices[at], pixels = work.replace(keys.epoch, index, error, make)
            done.replaced.append((task.first + at, int(indices[at]), str(error)))
        for name, image in pixels.items():
            columns[name][at] = image
    done.nbytes = sum(int(images.lengths.sum()) for images in stored.values())
    for name, kind in schema.items():
        if not isinstance(kind, ImageField):
            columns[name] = split_column(kind, work.dataset.gather(name, indices))
    samples = list(map(schema.sample_type, *columns.values()))
    describe = work.dataset.describe_sample
    samples = work.pipeline.run(samples, work.seed, keys.replaced(indices), describe)
    made: dict[tuple[str, int], list[Any]] = {}
    for name, values in zip(schema, zip(*samples, strict=True), strict=True):
        seen = work.pipeline.views and name in schema.images
        for view, some in enumerate(zip(*values, strict=True) if seen else [values]):
            made[name, view] = list(some)
    for place in task.places:
        key = place.name, place.view
        if _fits(made[key], place):
            target = torch.from_numpy(memory[place.offset : place.offset + place.nbytes])
            batch = target.view(place.dtype).view(place.shape)[task.first :]
            for at, image in enumerate(made[key]):
                batch[at].copy_(image.permute(1, 2, 0))
            del made[key]
    done.columns = made
    return done


def _read_images(stored: dict[str, Images], at: int) -> dict[str, torch.Tensor]:
    """Return the images of a sample, [C, H, W], in memory that callables may write to."""
    found = {}
    for name, images in stored.items():
        pixels = images.read(at)
        if not (pixels.flags.writeable and pixels.flags.c_contiguous):
            pixels = pixels.copy()
        found[name] = torch.from_numpy(pixels).permute(2, 0, 1)
    return found


def _fits(values: list[Any], place: TensorLayout) -> bool:
    """Return whether all values are images [C, H, W] as the place expects them."""
    height, width, channels = place.shape[1:]
    return all(
        isinstance(value, torch.Tensor)
        and value.dtype == place.dtype
        and value.shape == (channels, height, width)
        for value in values
    )


def decode_whole(work: BatchContext, task: DecodeTask, memory: NDArray[np.uint8]) -> Done:
    """Decode the images of a task into `memory`; a corrupt one is left out, or an error."""
    done = Done()
    broken = work.unreadable(task.indices)
    failed = {task.first + at: str(error) for at, error in broken.items()}
    for name, begins in task.begins.items():
        stored = work.dataset.images(name, task.indices, work.decoder)
        channels = work.dataset.schema.images[name].channels
        ends = task.ends[name].tolist()
        sizes = zip(stored.heights.tolist(), stored.widths.tolist(), strict=True)
        places = zip(begins.tolist(), ends, sizes, strict=True)
        for at, (begin, end, (height, width)) in enumerate(places):
            try:
                if height * width * channels != end - begin:
                    raise ShardCorruptError(
                        f"{name!r} of {work.dataset.describe_sample(int(task.indices[at]))} is "
                        f"{height} x {width} pixels (height x width) now and was of another size "
                        "when its place was made: somebody has changed the file"
                    )
                stored.read(at, memory[begin:end].reshape(height, width, channels))
            except ShardCorruptError as error:
                if work.on_corrupt == "raise":
                    raise
                failed[task.first + at] = str(error)
        done.nbytes += int(stored.lengths.sum())
    done.failed = list(failed.items())
    return done
