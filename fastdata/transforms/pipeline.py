"""A list of transforms, checked and cut into stages.

Neighbours of one kind run as one stage:

- `GeometryStage`: geometric transforms, planned for many samples at once.
- `PixelStage`: pixel transforms, one pass over the values.
- `DropStage`: boxes of which nothing is left go.
- `CallStage`: callables, sample by sample.
- `BatchStage`: from the first `BatchTransform` on, all that is left.  It runs on whole
  batches, where they have arrived; the others run while a batch is made.

A list of fastdata's transforms alone is at most one geometry stage, one drop stage and one
pixel stage before that, and is *direct*: images are decoded and rendered straight into the
batch.  With a callable in it, samples are made one by one and collated.

With `Views` in the list there is a pipeline for each view, and the whole has no stages itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError, add_note
from fastdata.random import SampleKeys, operation_id
from fastdata.schema import ImageField, Schema
from fastdata.transforms.adapting import adapt
from fastdata.transforms.base import BatchTransform, GeometricTransform, PixelTransform
from fastdata.transforms.batch_stage import BatchStage, Numbered
from fastdata.transforms.boxes import move_boxes
from fastdata.transforms.callables import Sample, SampleFunction, SampleTransform
from fastdata.transforms.drop import BoundDrop, DropEmptyBoxes
from fastdata.transforms.generators import albumentations_in, seeding
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.lookup import BatchLookup
from fastdata.transforms.pixel import PixelTable
from fastdata.transforms.render import render
from fastdata.transforms.views import Views, lists_of_views

__all__ = [
    "CallStage",
    "DropStage",
    "GeometryStage",
    "Pipeline",
    "PixelStage",
    "Transform",
    "listed",
]

Transform: TypeAlias = (
    GeometricTransform
    | PixelTransform
    | BatchTransform
    | DropEmptyBoxes
    | SampleTransform
    | Views
    | Callable[..., Any]
)

Indices: TypeAlias = NDArray[np.int64]
Describe: TypeAlias = Callable[[int], str]


@dataclass(frozen=True)
class GeometryStage:
    """Geometric transforms in a row, each with the number it draws under."""

    schema: Schema
    transforms: tuple[tuple[int, GeometricTransform], ...]

    def plan(self, geometry: Geometry, seed: int, keys: SampleKeys) -> Geometry:
        """Return the geometry of samples, one of `geometry` each."""
        for operation, transform in self.transforms:
            geometry = transform.plan(geometry, keys.draws(seed, operation))
        return geometry

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of every image afterwards; None where they depend on the image."""
        for _, transform in reversed(self.transforms):
            if not transform.keeps_size:
                return transform.output_size
        return None

    def plan_sizes(
        self, height: Indices, width: Indices, seed: int, keys: SampleKeys
    ) -> tuple[Indices, Indices]:
        """Return what becomes of these heights and widths, int64 [n] each."""
        geometry = self.plan(Geometry.of(height, width), seed, keys)
        return geometry.height, geometry.width

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples with the geometry done, whatever made them."""
        names = list(self.schema.images)
        shapes = np.array(
            [[self._shape(sample, name) for name in names] for sample in samples], np.int64
        )
        check_sizes_agree(names, shapes[..., 0].T, shapes[..., 1].T, keys.indices)
        height, width = shapes[:, 0].T
        geometry = self.plan(Geometry.of(height, width), seed, keys)
        sizes = zip(geometry.height.tolist(), geometry.width.tolist(), strict=True)
        columns = {
            name: move_boxes(geometry, [getattr(sample, name) for sample in samples], name)
            for name in self.schema.boxes
        }
        out = []
        rows = zip(samples, geometry.programs(), sizes, strict=True)
        for at, (sample, program, size) in enumerate(rows):
            changed = {name: boxes[at] for name, boxes in columns.items()}
            for name, field in self.schema.images.items():
                image = getattr(sample, name)
                pixels = np.empty((*size, image.shape[0]), np.uint8)
                source = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
                render(program, source, pixels, mask=field.mask)
                changed[name] = torch.from_numpy(pixels).permute(2, 0, 1)
            out.append(sample._replace(**changed))
        return out

    def _shape(self, sample: Sample, name: str) -> tuple[int, int]:
        image = getattr(sample, name)
        if not (isinstance(image, torch.Tensor) and image.ndim == 3 and image.dtype == torch.uint8):
            kind = getattr(image, "dtype", type(image).__name__)
            transform = type(self.transforms[0][1]).__name__
            raise OptionError(
                f"{transform} takes uint8 images [C, H, W], but the callable before it made "
                f"{name!r} {kind}; put {transform} before it"
            )
        return image.shape[1], image.shape[2]


@dataclass(frozen=True)
class PixelStage:
    """Pixel transforms in a row; masks are left as they are."""

    schema: Schema
    transforms: tuple[PixelTransform, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the transform of images [..., C, H, W], on their device."""
        for transform in self.transforms:
            images = transform(images)
        return images

    @cached_property
    def lookup(self) -> BatchLookup:
        """The same for whole batches [N, C, H, W], in one pass where they are uint8."""
        return BatchLookup(self.transforms)

    def table(self, channels: int) -> PixelTable:
        """Return the same as a table for 8-bit images of this many channels."""
        return PixelTable(self.transforms, channels)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples with their images transformed."""
        names = [name for name, field in self.schema.images.items() if not field.mask]
        return [
            sample._replace(**{name: self(getattr(sample, name)) for name in names})
            for sample in samples
        ]


@dataclass(frozen=True)
class DropStage:
    """Boxes that go, and what belongs to them."""

    drops: tuple[BoundDrop, ...]

    def run_batch(self, values: dict[str, Any], indices: Indices) -> None:
        """Drop from the fields of a batch, in place."""
        for drop in self.drops:
            drop(values, indices)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples without these boxes."""
        names = {name for drop in self.drops for name in (drop.boxes, *drop.also)}
        values: dict[str, Any] = {name: [getattr(s, name) for s in samples] for name in names}
        self.run_batch(values, keys.indices)
        rows = zip(*values.values(), strict=True)
        return [
            sample._replace(**dict(zip(values, row, strict=True)))
            for sample, row in zip(samples, rows, strict=True)
        ]


@dataclass(frozen=True)
class CallStage:
    """Callables in a row, on samples, and the number that they draw under.

    Before the first of them generators are seeded, where that may be
    (`fastdata.transforms.generators`); the others go on with the same numbers.
    """

    functions: tuple[SampleFunction, ...]
    operation: int

    @cached_property
    def _albumentations(self) -> list[Any]:
        return albumentations_in(self.functions)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return what the callables make of each sample; their errors say of which."""
        made = []
        with seeding(self._albumentations) as seeds:
            words = keys.draws(seed, self.operation).bits()[:, 0].tolist()
            for sample, index, word in zip(samples, keys.indices.tolist(), words, strict=True):
                if seeds is not None:
                    seeds(word)
                try:
                    for function in self.functions:
                        sample = function(sample)
                except Exception as error:
                    add_note(error, f"fastdata: in a transform of {describe(index)}")
                    raise
                made.append(sample)
        return made


Stage: TypeAlias = GeometryStage | DropStage | PixelStage | CallStage


class Pipeline:
    """Transforms, checked against the fields they will meet.

    Parameters
    ----------
    transforms : transform, sequence of transforms or None
    schema : Schema

    Attributes
    ----------
    stages : tuple of stages
    direct : bool
        Whether no callable is among them.
    geometry, drop, pixels : stage or None
        The only stages of a direct pipeline; None in another.
    batch : BatchStage or None
        What is done to whole batches after all of these.
    views : tuple of Pipeline
        One a view, where there are `Views`: each does all that is done to its view.
    """

    def __init__(
        self,
        transforms: Transform | Sequence[Transform] | None,
        schema: Schema,
        *,
        operations: Sequence[int] | None = None,
    ) -> None:
        self.transforms = listed(transforms)
        self.schema = schema
        lists = lists_of_views(self.transforms, schema) or []
        self.views = tuple(
            Pipeline([one for _, one in numbered], schema, operations=[n for n, _ in numbered])
            for numbered in lists
        )
        if operations is None:
            operations = [
                operation_id(position, type(transform).__name__)
                for position, transform in enumerate(self.transforms)
            ]
        numbered = [] if self.views else list(zip(operations, self.transforms, strict=True))
        stages, self.batch = _cut(numbered, schema)
        self.stages = tuple(stages)
        self.direct = not any(isinstance(stage, CallStage) for stage in self.stages)
        self.direct = self.direct and all(view.direct for view in self.views)
        self.geometry: GeometryStage | None = None
        self.drop: DropStage | None = None
        self.pixels: PixelStage | None = None
        if self.direct:
            for stage in self.stages:
                if isinstance(stage, GeometryStage):
                    self.geometry = stage
                elif isinstance(stage, DropStage):
                    self.drop = stage
                elif isinstance(stage, PixelStage):
                    self.pixels = stage

    def run(
        self,
        samples: list[Sample],
        seed: int,
        keys: SampleKeys,
        describe: Describe = "sample {}".format,
    ) -> list[Sample]:
        """Return samples after all stages but the batch's: the way for any pipeline.

        `describe` names the sample of an index in errors of callables.
        """
        for stage in self.stages:
            samples = stage.run(samples, seed, keys, describe)
        if not self.views:
            return samples
        names = list(self.schema.images)
        made = []
        for view in self.views:
            # Callables may write to what they are given.
            copies = [
                sample._replace(**{name: getattr(sample, name).clone() for name in names})
                for sample in samples
            ]
            made.append(view.run(copies, seed, keys, describe))
        return [
            _joined(self.schema, sample, views)
            for sample, *views in zip(samples, *made, strict=True)
        ]


def _joined(schema: Schema, sample: Sample, views: list[Sample]) -> Sample:
    """Return a sample whose images are tuples of its views."""
    for name, field in schema.items():
        if isinstance(field, ImageField):
            continue
        if any(getattr(view, name) is not getattr(sample, name) for view in views):
            raise OptionError(
                f"a callable changed {name!r} of a view, but views differ in their images only, "
                "and share all else; leave it as it is"
            )
    names = schema.images
    return sample._replace(**{n: tuple(getattr(view, n) for view in views) for n in names})


def check_sizes_agree(
    names: Sequence[str], heights: Indices, widths: Indices, indices: Indices
) -> None:
    """Raise `OptionError` unless all image fields of each sample are of one size.

    Parameters
    ----------
    names : sequence of str
        The image fields, in order.
    heights, widths : ndarray of int64, shape [fields, n]
    indices : ndarray of int64, shape [n]
        Sample indices, for the message.
    """
    wrong = np.argwhere((heights != heights[0]) | (widths != widths[0]))
    if len(wrong):
        field, at = wrong[0]
        raise OptionError(
            f"sample {indices[at]} has {names[0]!r} of {heights[0, at]} x {widths[0, at]} and "
            f"{names[field]!r} of {heights[field, at]} x {widths[field, at]} pixels (height x "
            "width); geometric transforms need all images and masks of a sample in one size, "
            "so pack them with the same resize"
        )


def check_sizes_equal(
    name: str, heights: Indices, widths: Indices, shape: tuple[int, ...], indices: Indices
) -> None:
    """Raise `OptionError` unless all images of a field have the size of a batch.

    Parameters
    ----------
    name : str
    heights, widths : ndarray of int64, shape [n]
        Of the images as they go into the batch.
    shape : tuple of int
        Of the batch, [N, H, W, C]; the batch's first sample decided it.
    indices : ndarray of int64, shape [n]
        Sample indices, for the message.
    """
    other = np.flatnonzero((heights != shape[1]) | (widths != shape[2]))
    if other.size:
        at = other[0]
        raise OptionError(
            f"a batch needs images of one size, but {name!r} is {shape[1]} x {shape[2]} in the "
            f"first sample of this batch and {heights[at]} x {widths[at]} in sample {indices[at]} "
            "(height x width). End the geometric transforms with T.RandomResizedCrop(size) or "
            'T.CenterCrop(size), or pack with resize="crop"'
        )


def listed(transforms: Transform | Sequence[Transform] | None) -> tuple[Transform, ...]:
    """Return transforms as they may be given, none, one or several, as a tuple."""
    if transforms is None:
        return ()
    if isinstance(transforms, Iterable) and not callable(transforms):
        return tuple(transforms)
    return (transforms,)


def _cut(
    transforms: Sequence[tuple[int, Transform]], schema: Schema
) -> tuple[list[Stage], BatchStage | None]:
    """Return the stages of transforms, numbered as they draw: of samples, and of batches."""
    stages: list[Stage] = []
    geometric: list[tuple[int, GeometricTransform]] = []
    dropping: list[BoundDrop] = []
    pixelwise: list[PixelTransform] = []
    whole: list[Numbered] = []  # all from the first batch transform on

    def close() -> None:
        if geometric:
            stages.append(GeometryStage(schema, tuple(geometric)))
            geometric.clear()
        if dropping:
            stages.append(DropStage(tuple(dropping)))
            dropping.clear()
        if pixelwise:
            stages.append(PixelStage(schema, tuple(pixelwise)))
            pixelwise.clear()

    floating: PixelTransform | None = None
    floating_samples = False
    for number, transform in transforms:
        if isinstance(transform, GeometricTransform):
            if floating is not None:
                raise OptionError(
                    f"{type(transform).__name__} comes after {type(floating).__name__}, but moves "
                    "uint8 pixels: put geometric transforms before those of pixel values"
                )
            if dropping and not whole:
                raise OptionError(
                    f"{type(transform).__name__} comes after DropEmptyBoxes, but moves boxes: put "
                    "DropEmptyBoxes behind the geometric transforms"
                )
            if not whole:
                geometric.append((number, transform))
        elif isinstance(transform, PixelTransform):
            for name, field in schema.images.items():
                if not field.mask:
                    _check_channels(transform, name, field.channels)
            floating = transform
            if not whole:
                pixelwise.append(transform)
        elif isinstance(transform, BatchTransform):
            floating_samples = floating_samples if whole else floating is not None
        elif isinstance(transform, DropEmptyBoxes):
            drop = transform.bind(schema)
            if any(isinstance(step, GeometricTransform) for _, step in whole):
                whole.append((number, drop))
            else:  # what else is done to batches leaves boxes alone
                dropping.append(drop)
            continue
        elif whole:
            raise OptionError(
                f"{getattr(transform, '__qualname__', type(transform).__qualname__)} is called "
                f"with one sample after another, but comes after {type(whole[0][1]).__name__}, "
                "which takes whole batches: put callables before"
            )
        else:
            close()
            function = adapt(transform, schema)  # type: ignore[arg-type]
            last = stages[-1] if stages else None
            if isinstance(last, CallStage):
                stages[-1] = CallStage((*last.functions, function), last.operation)
            else:
                stages.append(CallStage((function,), number))
        if whole or isinstance(transform, BatchTransform):
            whole.append((number, transform))  # type: ignore[arg-type]
    close()
    batch = BatchStage(whole, schema, floating=floating_samples) if whole else None
    return stages, batch


def _check_channels(transform: PixelTransform, name: str, channels: int) -> None:
    try:
        transform.check_channels(channels)
    except OptionError as error:
        raise OptionError(f"field {name!r}: {error}") from None
