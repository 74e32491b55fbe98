"""A DALI pipeline for one kind of batch, driven by hand: fed, run, its outputs taken.

DALI's own readers and iterators are not used.  Each batch is fed, one after the other, so
that it is known at any time which batch is where: epochs join without a reset, and what is
on its way can be dropped, or made again where DALI failed.

Bytes are fed as they lie in the shard (``no_copy``), so a batch that was fed is held until
its outputs are taken.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastdata.backends.dali.geometry import Arguments, FieldGraph, Resize
from fastdata.errors import MissingExtraError
from fastdata.installing import install_line

__all__ = ["FAILURES", "Graph", "Graphs", "import_dali"]

FAILURES = (RuntimeError, ValueError)
"""What DALI raises where a batch cannot be made."""

MAX_GRAPHS = 4
"""Kept at a time.  One does for most training: another kind of batch is a last one of a few
samples none of which is flipped, say, or one without any JPEG where codecs are mixed."""


def import_dali() -> tuple[Any, Any, Any]:
    """Return DALI's ``fn``, ``types`` and ``pipeline_def``.

    Raises
    ------
    MissingExtraError
        If it is not installed, or cannot be loaded.
    """
    try:
        dali, fn, types = (
            importlib.import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types")
        )
    except (ImportError, OSError) as error:
        raise MissingExtraError(
            f"the backend 'dali' needs NVIDIA DALI, which cannot be imported ({error}). Install "
            f"it by {install_line('dali')} (Linux on x86-64 or arm64; 1 GB; a GPU is not "
            'needed); or use backend="cpu"'
        ) from error
    return fn, types, dali.pipeline_def


class Graph:
    """One DALI pipeline.

    Parameters
    ----------
    fields : tuple of FieldGraph
    batch_size : int
        Samples at most.
    num_threads : int
    device_id : int or None
        Of the GPU; None: the CPU.

    Attributes
    ----------
    broken : bool
        Whether it failed: then it is of no more use.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(
        self,
        fields: tuple[FieldGraph, ...],
        *,
        batch_size: int,
        num_threads: int,
        device_id: int | None,
    ) -> None:
        self.fields = fields
        self.batch_size = batch_size
        self.broken = False
        self._fed: deque[Arguments] = deque()
        # With a queue of 1 the first run is one run.  More may be scheduled nevertheless, and
        # it is as fast with 2 (2,000 against 2,030 images/s, within the spread).
        self._pipeline: Any = _define(fields, device_id is not None)(
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=1,
            seed=0,
        )
        self._pipeline.build()

    @property
    def waiting(self) -> int:
        """Batches that were launched and not yet taken."""
        return len(self._fed)

    def launch(self, arguments: Arguments) -> None:
        """Feed a batch and begin to make it; returns before it is made."""
        self._fed.append(arguments)
        for name, value in arguments.items():
            self._pipeline.feed_input(name, value)
        self._pipeline.schedule_run()

    @contextmanager
    def outputs(self) -> Iterator[Sequence[Any]]:
        """Wait for the batch that was launched first; yield its images, one DALI tensor a field.

        They are uint8 [n, H, W, C], and valid within the context.
        """
        found = self._pipeline.share_outputs()
        try:
            yield [images.as_tensor() for images in found]
        finally:
            self._pipeline.release_outputs()
            self._fed.popleft()

    def close(self) -> None:
        """End DALI's threads, once they have made what they are making.  Idempotent."""
        self._pipeline = None  # it is shut down as it dies
        self._fed.clear()


class Graphs:
    """The graphs of a stream, made when a batch first needs them.

    Parameters
    ----------
    num_threads : int
    device_id : int or None
    """

    def __init__(self, *, num_threads: int, device_id: int | None) -> None:
        self._options = {"num_threads": num_threads, "device_id": device_id}
        self._graphs: list[Graph] = []  # the one used last at the end

    def of(self, fields: tuple[FieldGraph, ...], count: int) -> Graph:
        """Return a graph for batches of so many samples."""
        # A broken one lives as long as batches that were launched on it.
        self._graphs = [graph for graph in self._graphs if not graph.broken]
        for graph in self._graphs:
            if graph.fields == fields and graph.batch_size >= count:
                self._graphs.remove(graph)
                break
        else:
            graph = Graph(fields, batch_size=count, **self._options)  # type: ignore[arg-type]
        self._graphs.append(graph)
        idle = [one for one in self._graphs[:-1] if not one.waiting]
        for one in idle[: max(0, len(self._graphs) - MAX_GRAPHS)]:
            self.discard(one)
        return graph

    def discard(self, graph: Graph) -> None:
        """End a graph; it may have been before."""
        graph.broken = True
        graph.close()
        if graph in self._graphs:
            self._graphs.remove(graph)

    def close(self) -> None:
        """End all graphs.  Idempotent."""
        for graph in list(self._graphs):
            self.discard(graph)


def _define(fields: tuple[FieldGraph, ...], on_gpu: bool) -> Any:
    """Return what makes a pipeline, given its options."""
    fn, types, pipeline_def = import_dali()
    filters = {
        "nearest": types.DALIInterpType.INTERP_NN,
        "bilinear": types.DALIInterpType.INTERP_LINEAR,
        "bicubic": types.DALIInterpType.INTERP_CUBIC,
    }

    def numbers(name: str, dtype: Any, ndim: int = 1) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=ndim)

    def source(field: FieldGraph, name: str) -> Any:
        if not field.encoded:
            pixels = fn.external_source(
                name=name, no_copy=True, dtype=types.UINT8, ndim=3, layout="HWC"
            )
            return pixels.gpu() if on_gpu else pixels
        return fn.decoders.image(
            fn.external_source(name=name, no_copy=True, dtype=types.UINT8, ndim=1),
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB if field.channels == 3 else types.GRAY,
            adjust_orientation=False,  # what is stored is upright
            jpeg_fancy_upsampling=True,  # as libjpeg-turbo does
        )

    def resized(images: Any, step: Resize, prefix: str) -> Any:
        options = {
            "size": numbers(prefix + "size", types.FLOAT),
            "interp_type": filters[step.interpolation],
        }
        if step.mirrors:
            options["roi_start"] = numbers(prefix + "from", types.FLOAT)
            options["roi_end"] = numbers(prefix + "to", types.FLOAT)
        if step.antialias is not None:
            return fn.resize(images, antialias=step.antialias, **options)
        smooth = numbers(prefix + "smooth", types.BOOL, 0)
        # Not an `if` of Python's: DALI takes each sample the one way or the other.
        if smooth:
            out = fn.resize(images, antialias=True, **options)
        else:
            out = fn.resize(images, antialias=False, **options)
        return out

    def made(field: FieldGraph, prefix: str) -> Any:
        images = source(field, prefix + "data")
        for number, step in enumerate(field.steps):
            inputs = f"{prefix}{number}."
            if isinstance(step, Resize):
                images = resized(images, step, inputs)
            else:
                images = fn.slice(
                    images,
                    start=numbers(inputs + "start", types.INT32),
                    shape=numbers(inputs + "shape", types.INT32),
                    axes=[0, 1],
                    out_of_bounds_policy="pad",
                    fill_values=0,
                )
        if field.flips:
            images = fn.flip(images, horizontal=numbers(prefix + "flip", types.INT32, 0))
        return images

    def graph() -> Any:
        return tuple([made(field, f"f{number}.") for number, field in enumerate(fields)])

    return pipeline_def(enable_conditionals=True)(graph)
