"""A DALI pipeline for one kind of batch: its steps, the numbers it is fed, and how it is run.

`Geometry` and a DALI graph are of the same make, steps for all images with numbers for
each, so one is translated to the other step by step: a window is a slice, padded with
zero, and a resize a resize.  Two things are done with less than a step:

- The first window: its `region` is all that is read of an image, so only the offset of
  what was read has to be taken off.
- A flip behind a resize: a region of interest that runs backwards costs nothing, a flip
  one more pass over all pixels.  Not where the nearest neighbour is taken: a centre between
  two pixels would fall to the other one.

A resize for which `antialias` is None is antialiased where the CPU would do it.  That is one
number a sample too, so the pixels of a sample never depend on the rest of its batch.

DALI's own readers and iterators are not used.  Each batch is fed, one after the other, so
that it is known at any time which batch is where: epochs join without a reset, and what is
on its way can be dropped, or made again where DALI failed.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import MissingExtraError, OptionError
from fastdata.installing import install_line
from fastdata.transforms.fill import ZERO
from fastdata.transforms.geometry import Geometry, Interpolation, Ints, Windows, antialiases
from fastdata.transforms.warps import Warps

__all__ = [
    "FAILURES",
    "NO_WARPS",
    "Arguments",
    "FieldGraph",
    "Graph",
    "Graphs",
    "Resize",
    "Slice",
    "arguments_of",
    "graph_of",
    "import_dali",
    "regions_of",
]

FAILURES = (RuntimeError, ValueError)
"""What DALI raises where a batch cannot be made."""

MAX_GRAPHS = 4
"""Kept at a time.  One does for most training: another kind of batch is a last one of a few
samples none of which is flipped, say, or one without any JPEG where codecs are mixed."""

Arguments: TypeAlias = dict[str, Any]
"""What a graph is fed, by the name of the input: an array, or a list of one a sample."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Take a rectangle, `fill` beyond the image, one a channel.  Fed: ``start``, ``shape``."""

    fill: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize.  Fed: ``size``; ``from`` and ``to`` if `mirrors`; ``smooth`` if `antialias` is None.

    `mirrors`: whether some images are mirrored on the way.
    """

    interpolation: Interpolation
    antialias: bool | None
    mirrors: bool = False


@dataclass(frozen=True, slots=True)
class FieldGraph:
    """What happens to the images of one field, of 3 or 1 channels.

    Files are fed where it is `encoded`, else pixels.  `flips`: whether some images are mirrored at
    the end, by a step of its own; `transposes`: whether some are transposed after that.
    """

    channels: int
    encoded: bool
    steps: tuple[Slice | Resize, ...] = ()
    flips: bool = False
    transposes: bool = False


NO_WARPS = (
    "transform has rotations or distortions, which this backend does not have; leave them out, "
    'or use backend="cpu"'
)


def graph_of(geometry: Geometry | None, *, channels: int, encoded: bool, mask: bool) -> FieldGraph:
    """Return the graph of a field with these images; `OptionError` if they are warped."""
    if geometry is None:
        return FieldGraph(channels, encoded)
    steps: list[Slice | Resize] = []
    for step in geometry.steps:
        if isinstance(step, Windows):
            if step.mode != "constant":
                raise OptionError(
                    f"padding_mode={step.mode!r} is not for DALI, which pads with numbers only: "
                    'use backend="cpu", or padding_mode="constant"'
                )
            steps.append(Slice(tuple((step.fill or ZERO).values(channels, mask=mask).tolist())))
        elif isinstance(step, Warps):
            raise OptionError(NO_WARPS)
        elif mask or step.interpolation == "nearest":
            steps.append(Resize("nearest", False))
        else:
            steps.append(Resize(step.interpolation, step.antialias))
    last = steps[-1] if steps else None
    flips = bool(geometry.flip.any()) or geometry.flip_rows is not None
    if flips and isinstance(last, Resize) and last.interpolation != "nearest":
        steps[-1] = Resize(last.interpolation, last.antialias, mirrors=True)
        flips = False
    return FieldGraph(channels, encoded, tuple(steps), flips, geometry.transpose is not None)


def regions_of(geometry: Geometry | None) -> tuple[Ints, Ints, Ints, Ints] | None:
    """Return what is to be read of each image, (top, left, height, width); None: all of it."""
    if geometry is None or not geometry.steps or not isinstance(geometry.steps[0], Windows):
        return None
    return geometry.region


def arguments_of(
    geometry: Geometry, graph: FieldGraph, prefix: str, top: Ints, left: Ints
) -> Arguments:
    """Return the numbers that the graph of a field is fed, which has the steps of this geometry.

    `top` and `left`, int64 [n], say where in each image the first pixel lies that is decoded.
    Names of inputs are the prefix, the number of the step, and the name.
    """
    arguments: Arguments = {}
    height, width = geometry.source_height, geometry.source_width
    flip, upside_down = geometry.flips_before
    for number, (step, kind) in enumerate(zip(geometry.steps, graph.steps, strict=True)):
        name = f"{prefix}{number}."
        if isinstance(step, Windows):
            start = step.top, step.left
            if number == 0:
                start = step.top - top, step.left - left
            arguments[name + "start"] = _pairs(*start, np.int32)
            arguments[name + "shape"] = _pairs(step.height, step.width, np.int32)
        else:
            assert isinstance(kind, Resize), "a graph has the steps of the geometry"
            arguments[name + "size"] = _pairs(step.height, step.width, np.float32)
            if kind.mirrors:
                zero = np.zeros_like(width)
                left, right = np.where(flip, (width, zero), (zero, width))
                upper, lower = np.where(upside_down, (height, zero), (zero, height))
                arguments[name + "from"] = _pairs(upper, left, np.float32)
                arguments[name + "to"] = _pairs(lower, right, np.float32)
            if kind.antialias is None:
                arguments[name + "smooth"] = antialiases(height, width, step.height, step.width)
        height, width = step.height, step.width
    if graph.flips:
        arguments[prefix + "flip"] = flip.astype(np.int32)
        arguments[prefix + "flip_rows"] = upside_down.astype(np.int32)
    if geometry.transpose is not None:
        arguments[prefix + "transpose"] = geometry.transpose
    return arguments


def _pairs(rows: Ints, columns: Ints, dtype: Any) -> NDArray[Any]:
    return np.stack([rows, columns], axis=1).astype(dtype)


def import_dali() -> tuple[Any, Any, Any]:
    """Return DALI's ``fn``, ``types`` and ``pipeline_def``.

    Raises a `MissingExtraError` if it is not installed, or cannot be loaded.
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
    """One DALI pipeline, for batches of at most `batch_size` samples; `device_id` None: the CPU.

    Bytes are fed as they lie in the shard (``no_copy``), so a batch that was fed is held until
    its outputs are taken.  Once `broken`, it is of no more use.  For one thread at a time.
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
        """Wait for the batch that was launched first; yield its images, a DALI tensor a field.

        They are uint8 [n, H, W, C], and valid within the context.
        """
        outputs = self._pipeline.share_outputs()
        try:
            yield [images.as_tensor() for images in outputs]
        finally:
            self._pipeline.release_outputs()
            self._fed.popleft()

    def close(self) -> None:
        """End DALI's threads, once they have made what they are making.  Idempotent."""
        self._pipeline = None  # it is shut down as it dies
        self._fed.clear()


class Graphs:
    """The graphs of a stream, made when a batch first needs them."""

    def __init__(self, *, num_threads: int, device_id: int | None) -> None:
        self._num_threads = num_threads
        self._device_id = device_id
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
            graph = Graph(
                fields,
                batch_size=count,
                num_threads=self._num_threads,
                device_id=self._device_id,
            )
        self._graphs.append(graph)
        idle = [graph for graph in self._graphs[:-1] if not graph.waiting]
        for unused in idle[: max(0, len(self._graphs) - MAX_GRAPHS)]:
            self.discard(unused)
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
                    fill_values=step.fill,
                )
        if field.flips:
            images = fn.flip(
                images,
                horizontal=numbers(prefix + "flip", types.INT32, 0),
                vertical=numbers(prefix + "flip_rows", types.INT32, 0),
            )
        if field.transposes:
            if numbers(prefix + "transpose", types.BOOL, 0):
                turned = fn.transpose(images, perm=[1, 0, 2], transpose_layout=False)
            else:
                turned = images
            images = turned
        return images

    def graph() -> Any:
        return tuple([made(field, f"f{number}.") for number, field in enumerate(fields)])

    return pipeline_def(enable_conditionals=True)(graph)
