"""Decode whole images, each into its place, for who keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastdata.engine.tasks import DecodeTask, Done
from fastdata.errors import ShardCorruptError

if TYPE_CHECKING:
    from fastdata.engine.work import BatchWork

__all__ = ["decode_whole"]


def decode_whole(work: BatchWork, task: DecodeTask, memory: NDArray[np.uint8]) -> Done:
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
