"""The last thing that is done to a batch: transforms that take it whole.

It is done where the batch has arrived, in the thread that takes it: on a GPU on the
current stream, on the CPU with torch's own threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.engine.job import Request
from fastdata.transforms.pipeline import Pipeline

__all__ = ["each_view", "finish_on_device"]


def finish_on_device(batch: Any, request: Request, pipeline: Pipeline, seed: int) -> Any:
    """Return a batch with the batch stage of its transforms done, on its device.

    Parameters
    ----------
    batch : named tuple
        Where it has arrived.
    request : Request
        What it is the answer to: random draws depend on it.
    pipeline : Pipeline
    seed : int

    Raises
    ------
    OptionError
        If the transforms do not fit the batch.

    Notes
    -----
    Thread-safe.  Waits for no device, but for `DropEmptyBoxes` behind geometry there: all that
    is drawn is drawn on the CPU.  A corrupt
    sample's stand-in is treated as the sample that was asked for.
    """

    def finish(part: Pipeline, batch: Any) -> Any:
        if part.batch is None:
            return batch
        return part.batch.run(batch, seed, request.keys)

    return each_view(pipeline, batch, finish)


def each_view(pipeline: Pipeline, batch: Any, change: Callable[[Pipeline, Any], Any]) -> Any:
    """Return a batch with `change` done to each view of it, by the pipeline of that view."""
    if not pipeline.views:
        return change(pipeline, batch)
    names = list(pipeline.schema.images)
    made = []
    for at, view in enumerate(pipeline.views):
        images = {name: getattr(batch, name)[at] for name in names}
        made.append(change(view, batch._replace(**images)))
    return batch._replace(**{n: tuple(getattr(one, n) for one in made) for n in names})
