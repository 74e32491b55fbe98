"""A list of transforms, checked and cut into stages (`fastdata.transforms.stages`).

Neighbours of one kind run as one stage.  A list of fastdata's transforms alone is at most one
geometry stage, one drop stage and one pixel stage, and then perhaps a batch stage.  It is
*direct*: images are decoded and rendered straight into the batch.  With a callable in it,
samples are made one by one and collated.

With `Views` in the list there is a pipeline for each view, and the whole has no stages itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from fastdata.errors import OptionError
from fastdata.random import SampleKeys, operation_id
from fastdata.schema import ImageField, Schema
from fastdata.transforms.base import BatchTransform, GeometricTransform, PixelTransform
from fastdata.transforms.boxes import BoundDrop, DropEmptyBoxes
from fastdata.transforms.callables import Sample, SampleTransform, name_of
from fastdata.transforms.image_callables import adapt
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.stages import (
    BatchStage,
    BatchStep,
    CallStage,
    ChangeStage,
    Describe,
    DropStage,
    GeometryStage,
    MixStage,
    PixelStage,
    Stage,
    naming_field,
)
from fastdata.transforms.views import Views, lists_of_views

__all__ = ["Pipeline", "Transform", "listed"]

Transform: TypeAlias = (
    GeometricTransform
    | PixelTransform
    | BatchTransform
    | DropEmptyBoxes
    | SampleTransform
    | Views
    | Callable[..., Any]
)

StageT = TypeVar("StageT", bound=Stage)


class Pipeline:
    """Transforms, checked against the fields they will meet.

    Parameters
    ----------
    transforms : transform, sequence of transforms or None
    schema : Schema
    operations : sequence of int, optional
        The number that each transform draws under; by default that of its place and class.

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
        self.views = tuple(
            Pipeline([one for _, one in numbered], schema, operations=[n for n, _ in numbered])
            for numbered in lists_of_views(self.transforms, schema) or []
        )
        if operations is None:
            operations = [
                operation_id(position, type(transform).__name__)
                for position, transform in enumerate(self.transforms)
            ]
        cut = _Cut(schema)
        if not self.views:
            for operation, transform in zip(operations, self.transforms, strict=True):
                cut.add(operation, transform)
        cut.end_of_samples()
        self.stages: tuple[Stage, ...] = tuple(cut.stages)
        self.batch = BatchStage(schema, tuple(cut.batch_steps)) if cut.batch_steps else None
        calls = any(isinstance(stage, CallStage) for stage in self.stages)
        self.direct: bool = not calls and all(view.direct for view in self.views)
        self.geometry = self._only(GeometryStage)
        self.drop = self._only(DropStage)
        self.pixels = self._only(PixelStage)

    def _only(self, kind: type[StageT]) -> StageT | None:
        """Return the stage of a kind, of which a direct pipeline has one at most."""
        stages = self.stages if self.direct else ()
        return next((stage for stage in stages if isinstance(stage, kind)), None)

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


def listed(transforms: Transform | Sequence[Transform] | None) -> tuple[Transform, ...]:
    """Return transforms as they may be given, none, one or several, as a tuple."""
    if transforms is None:
        return ()
    if isinstance(transforms, Iterable) and not callable(transforms):
        return tuple(transforms)
    return (transforms,)


class _Cut:
    """Cuts a list of transforms into stages, one transform after another."""

    def __init__(self, schema: Schema) -> None:
        self.stages: list[Stage] = []
        self.batch_steps: list[BatchStep] = []
        self._schema = schema
        # Since the last callable:
        self._geometric: list[tuple[int, GeometricTransform]] = []
        self._drops: list[BoundDrop] = []
        self._pixelwise: list[PixelTransform] = []
        # Since the beginning:
        self._floating: PixelTransform | None = None
        self._first_of_batch: BatchTransform | None = None

    def add(self, operation: int, transform: Transform) -> None:
        """Add a transform, with the number that it draws under."""
        if isinstance(transform, GeometricTransform):
            self._add_geometric(operation, transform)
        elif isinstance(transform, PixelTransform):
            self._add_pixelwise(transform)
        elif isinstance(transform, BatchTransform):
            self._first_of_batch = self._first_of_batch or transform
            kind: Any = MixStage if isinstance(transform, MixTransform) else ChangeStage
            floating = self._floating is not None
            self.batch_steps.append(kind(operation, transform, self._schema, floating=floating))
        elif isinstance(transform, DropEmptyBoxes):
            drop = transform.bind(self._schema)
            if any(isinstance(step, GeometryStage) for step in self.batch_steps):
                self.batch_steps.append(DropStage((drop,)))
            else:  # all other steps on batches leave boxes alone
                self._drops.append(drop)
        else:
            self._add_callable(operation, transform)

    def end_of_samples(self) -> None:
        """Make stages of the transforms of samples since the last callable."""
        if self._geometric:
            self.stages.append(GeometryStage(self._schema, tuple(self._geometric)))
        if self._drops:
            self.stages.append(DropStage(tuple(self._drops)))
        if self._pixelwise:
            self.stages.append(PixelStage(self._schema, tuple(self._pixelwise)))
        self._geometric, self._drops, self._pixelwise = [], [], []

    def _add_geometric(self, operation: int, transform: GeometricTransform) -> None:
        if self._floating is not None:
            raise OptionError(
                f"{type(transform).__name__} comes after {type(self._floating).__name__}, but "
                "moves uint8 pixels: put geometric transforms before those of pixel values"
            )
        if self.batch_steps:
            self._add_step(GeometryStage(self._schema, ((operation, transform),)))
            return
        if self._drops:
            raise OptionError(
                f"{type(transform).__name__} comes after DropEmptyBoxes, but moves boxes: put "
                "DropEmptyBoxes behind the geometric transforms"
            )
        self._geometric.append((operation, transform))

    def _add_pixelwise(self, transform: PixelTransform) -> None:
        for name, field in self._schema.images.items():
            if not field.mask:
                with naming_field(name):
                    transform.check_channels(field.channels)
        self._floating = transform
        if self.batch_steps:
            self._add_step(PixelStage(self._schema, (transform,)))
        else:
            self._pixelwise.append(transform)

    def _add_step(self, step: Any) -> None:
        """Add a geometry or pixel stage on batches, joined with one of its kind before it."""
        last: Any = self.batch_steps[-1]
        if type(last) is type(step):
            self.batch_steps.pop()
            step = replace(last, transforms=(*last.transforms, *step.transforms))
        self.batch_steps.append(step)

    def _add_callable(self, operation: int, transform: Transform) -> None:
        if self._first_of_batch is not None:
            raise OptionError(
                f"{name_of(transform)} is called with one sample after another, but comes after "
                f"{type(self._first_of_batch).__name__}, which takes whole batches: put callables "
                "before"
            )
        self.end_of_samples()
        function = adapt(transform, self._schema)  # type: ignore[arg-type]
        last = self.stages[-1] if self.stages else None
        if isinstance(last, CallStage):
            self.stages[-1] = CallStage((*last.functions, function), last.operation)
        else:
            self.stages.append(CallStage((function,), operation))


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
