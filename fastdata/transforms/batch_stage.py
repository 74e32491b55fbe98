"""The transforms that a batch goes through as a whole, where it has arrived.

From the first `BatchTransform` of a list on, everything is done here: on the device, or
on the CPU in the thread that takes the batch.  Neighbours of a kind are one step, as in
the stages before (`fastdata.transforms.pipeline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fastdata.errors import OptionError
from fastdata.random import Draws, SampleKeys
from fastdata.schema import ScalarField, Schema
from fastdata.transforms.base import BatchTransform, GeometricTransform, PixelTransform, Shape
from fastdata.transforms.boxes import move_boxes
from fastdata.transforms.drop import BoundDrop
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.lookup import BatchLookup
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.ondevice import render_on_device

__all__ = ["BatchStage", "Numbered"]

Numbered: TypeAlias = tuple[int, BatchTransform | GeometricTransform | PixelTransform | BoundDrop]
"""A transform, with the number it draws under."""


@dataclass(frozen=True)
class _Where:
    """A batch that is asked for: what draws depend on, besides the transform."""

    seed: int
    keys: SampleKeys

    def draws(self, operation: int) -> Draws:
        return self.keys.draws(self.seed, operation)


class BatchStage:
    """Transforms of whole batches, in order.

    Parameters
    ----------
    transforms : sequence of (int, transform)
        Each with the number it draws under.
    schema : Schema
    floating : bool
        Whether a transform before makes images floating.

    Raises
    ------
    OptionError
        If a transform does not fit the fields, or what comes before it.

    Notes
    -----
    Picklable and thread-safe.
    """

    def __init__(self, transforms: Sequence[Numbered], schema: Schema, *, floating: bool) -> None:
        self.schema = schema
        self._steps: list[_Apply | _Move | _Mix | _Look | _Drop] = []
        channels = {name: f.channels for name, f in schema.images.items() if not f.mask}
        for operation, transform in transforms:
            if isinstance(transform, BatchTransform):
                for name, number in channels.items():
                    _check(transform, name, number, floating)
                _check_boxes(transform, schema)
                apply = _Mix if isinstance(transform, MixTransform) else _Apply
                self._steps.append(apply(operation, transform, schema))  # type: ignore[arg-type]
            elif isinstance(transform, BoundDrop):
                self._steps.append(_Drop(transform))
            elif isinstance(transform, PixelTransform):
                floating = True
                last = self._steps[-1] if self._steps else None
                before = last.transforms if isinstance(last, _Look) else ()
                if before:
                    self._steps.pop()
                self._steps.append(_Look(schema, (*before, transform)))
            else:
                last = self._steps[-1] if self._steps else None
                moves = last.transforms if isinstance(last, _Move) else ()
                if moves:
                    self._steps.pop()
                self._steps.append(_Move(schema, (*moves, (operation, transform))))

    def run(self, batch: Any, seed: int, keys: SampleKeys) -> Any:
        """Return a batch transformed, on its device.

        Parameters
        ----------
        batch : named tuple of the schema's fields
            Images are tensors [N, C, H, W].
        seed : int
        keys : SampleKeys
            The samples that were asked for.

        Raises
        ------
        OptionError
            If images are no tensors of one size, or not of a dtype that a transform takes.
        """
        values = dict(zip(self.schema, batch, strict=True))
        for name in self.schema.images:
            if not (isinstance(values[name], torch.Tensor) and values[name].ndim == 4):
                raise OptionError(
                    f"transforms of whole batches take images as one tensor [N, C, H, W], but a "
                    f"callable made {type(values[name]).__name__} of {name!r}"
                )
        where = _Where(seed, keys)
        for step in self._steps:
            step(values, where)
        for name in self.schema.images:
            values[name] = values[name].contiguous(memory_format=torch.channels_last)
        return type(batch)(*values.values())


@dataclass(frozen=True)
class _Apply:
    """One batch transform, on all images that are no masks, with the same draws."""

    operation: int
    transform: BatchTransform
    schema: Schema

    def __call__(self, values: dict[str, Any], where: _Where) -> None:
        draws = where.draws(self.operation)
        drawn: dict[Shape, Any] = {}
        for name in _pictures(self.schema):
            shape = tuple(values[name].shape)
            if shape not in drawn:
                drawn[shape] = self.transform.draw(draws, shape)
            values[name] = self.transform.apply(values[name], drawn[shape])


class _Mix:
    """One transform that mixes images and their labels."""

    def __init__(self, operation: int, transform: MixTransform, schema: Schema) -> None:
        kind = type(transform).__name__
        masks = [name for name, field in schema.images.items() if field.mask]
        if masks:
            raise OptionError(
                f"{kind} mixes class labels and cannot mix masks, but the dataset has the mask "
                f"{masks[0]!r}; leave {kind} out"
            )
        pictures = _pictures(schema)
        if not pictures:
            raise OptionError(f"{kind} mixes images, but the dataset has none; leave it out")
        self._images = _Apply(operation, transform, schema)
        self._image = pictures[0]
        self._transform = transform
        self._label = _label_of(transform, schema)
        field = schema[self._label]
        assert isinstance(field, ScalarField), "labels are numbers"
        self._classes = transform.num_classes or len(field.classes or ())
        if not self._classes:
            raise OptionError(
                f"{kind} needs to know how many classes there are, and field {self._label!r} has "
                "no names of classes; give it num_classes"
            )

    def __call__(self, values: dict[str, Any], where: _Where) -> None:
        draws = where.draws(self._images.operation)
        parameters = self._transform.draw(draws, tuple(values[self._image].shape))
        labels = values[self._label]
        values[self._label] = self._transform.mix_labels(labels, parameters, self._classes)
        self._images(values, where)


@dataclass(frozen=True)
class _Move:
    """Geometric transforms in a row, on images, masks and boxes alike."""

    schema: Schema
    transforms: tuple[tuple[int, GeometricTransform], ...]

    def __call__(self, values: dict[str, Any], where: _Where) -> None:
        sizes = {tuple(values[name].shape[2:]) for name in self.schema.images}
        if len(sizes) > 1:
            kind = type(self.transforms[0][1]).__name__
            raise OptionError(
                f"{kind} needs all images and masks of a sample in one size, but they are "
                f"{' and '.join(f'{h} x {w}' for h, w in sorted(sizes))} (height x width)"
            )
        count = len(where.keys)
        for height, width in sizes:
            geometry = Geometry.of([height] * count, [width] * count)
            for operation, transform in self.transforms:
                geometry = transform.plan(geometry, where.draws(operation))
            for name, field in self.schema.images.items():
                values[name] = render_on_device(geometry, values[name], mask=field.mask)
            for name in self.schema.boxes:
                values[name] = move_boxes(geometry, values[name], name)


@dataclass(frozen=True)
class _Drop:
    """Boxes that go, moved on the device just before."""

    drop: BoundDrop

    def __call__(self, values: dict[str, Any], where: _Where) -> None:
        self.drop(values, where.keys.indices)


class _Look:
    """Pixel transforms in a row."""

    def __init__(self, schema: Schema, transforms: tuple[PixelTransform, ...]) -> None:
        self.transforms = transforms
        self._names = _pictures(schema)
        self._lookup = BatchLookup(transforms)

    def __call__(self, values: dict[str, Any], where: _Where) -> None:
        for name in self._names:
            values[name] = self._lookup(values[name])


def _check_boxes(transform: BatchTransform, schema: Schema) -> None:
    if transform.moves_pixels and schema.boxes:
        kind = type(transform).__name__
        raise OptionError(
            f"{kind} moves what is in the images, and boxes cannot follow, but the dataset has "
            f"the boxes {next(iter(schema.boxes))!r}; leave {kind} out"
        )


def _pictures(schema: Schema) -> list[str]:
    return [name for name, field in schema.images.items() if not field.mask]


def _label_of(transform: MixTransform, schema: Schema) -> str:
    """Return the name of the field of labels."""
    whole = {
        name: field
        for name, field in schema.items()
        if isinstance(field, ScalarField) and "int" in field.dtype
    }
    found = [transform.labels] if transform.labels is not None else []
    found = found or [name for name, field in whole.items() if field.classes] or list(whole)
    if len(found) != 1 or found[0] not in whole:
        raise OptionError(
            f"{type(transform).__name__} mixes the labels of one field of whole numbers, not of "
            f"{' or '.join(map(repr, found)) or 'none'}; name one with labels= "
            f"(there are: {', '.join(whole) or 'none'})"
        )
    return found[0]


def _check(transform: BatchTransform, name: str, channels: int, floating: bool) -> None:
    try:
        transform.check(channels, floating)
    except OptionError as error:
        raise OptionError(f"field {name!r}: {error}") from None
