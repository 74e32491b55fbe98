"""The stages of a list of transforms.

Stages of samples run while a batch is made:

- `GeometryStage`, in geometric.py: geometric transforms, planned for many samples at once.
- `DropStage`: drops empty boxes.
- `PixelStage`: pixel transforms, one pass over the values.
- `CallStage`: callables, sample by sample.
- `ChangeStage`: a batch transform before a callable, sample by sample.

From the first `BatchTransform` behind all callables on, everything is one `BatchStage`: it runs on
a whole delivered batch, on a device or on the CPU in the caller's thread.  Its steps are
`ChangeStage` and stages of the first three kinds (`run_on_batch`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError, add_note
from fastdata.random import SampleKeys
from fastdata.schema import Schema
from fastdata.transforms.base import (
    BatchTransform,
    Describe,
    PixelTransform,
    Sample,
    SampleFunction,
    Shape,
    pictures_of,
)
from fastdata.transforms.boxes import BoundDrop
from fastdata.transforms.choosing import Gate, Member, chosen
from fastdata.transforms.generators import albumentations_in, seeding
from fastdata.transforms.geometric import GeometryStage
from fastdata.transforms.image_tensors import one_thread, put, take
from fastdata.transforms.mixing import MixTransform
from fastdata.transforms.pixel import (
    PixelLookup,
    PixelTable,
    one_after_another,
    warn_of_levels,
)

__all__ = [
    "BatchStage",
    "BatchStep",
    "CallStage",
    "ChangeStage",
    "DropStage",
    "PixelStage",
    "Stage",
    "naming_field",
]

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class DropStage:
    """Boxes that are dropped, and their entries of other fields."""

    drops: tuple[BoundDrop, ...]

    def run_batch(self, values: dict[str, Any], indices: Indices) -> None:
        """Drop from the fields of a batch, in place."""
        for drop in self.drops:
            drop(values, indices)

    def run_on_batch(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        self.run_batch(values, keys.indices)

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
class PixelStage:
    """Pixel transforms in a row; masks are left as they are."""

    schema: Schema
    transforms: tuple[PixelTransform, ...]
    of_any_dtype: bool = False
    """Whether callables make the images, which are checked then when they come."""

    @cached_property
    def lookup(self) -> PixelLookup:
        """The transforms for whole batches [N, C, H, W], in one pass where they are uint8."""
        return PixelLookup(self.transforms)

    def table(self, channels: int) -> PixelTable:
        """Return the transforms as a table for 8-bit images of this many channels."""
        return self.lookup.table(channels)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples with their images transformed."""
        made = []
        for sample in samples:
            images = {name: getattr(sample, name) for name in pictures_of(self.schema)}
            self._check(images)
            changed = {n: one_after_another(self.transforms, one) for n, one in images.items()}
            made.append(sample._replace(**changed))
        return made

    def run_on_batch(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        """Replace the images of a batch by transformed ones."""
        self._check({name: values[name] for name in pictures_of(self.schema)})
        for name in pictures_of(self.schema):
            values[name] = self.lookup(values[name])

    def _check(self, images: dict[str, torch.Tensor]) -> None:
        if self.of_any_dtype and any(one.dtype == torch.uint8 for one in images.values()):
            warn_of_levels(self.transforms)


@dataclass(frozen=True)
class CallStage:
    """A sequence of callables on samples, and the number of their draws.

    Generators are seeded before the first callable, if that is allowed
    (`fastdata.transforms.generators`).
    """

    functions: tuple[SampleFunction, ...]
    operation: int
    gates: tuple[tuple[Gate, ...], ...]
    """For each function, the gates that hold for the samples that it is called with."""

    def followed_by(self, function: SampleFunction, gates: tuple[Gate, ...]) -> CallStage:
        """Return the stage with one more function."""
        return CallStage((*self.functions, function), self.operation, (*self.gates, gates))

    @cached_property
    def _albumentations(self) -> list[Any]:
        return albumentations_in(self.functions)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return the callables' result for each sample; their errors name the sample."""
        made: list[Sample] = []
        functions = self.functions
        which = None
        if any(self.gates):
            which = [chosen(gates, seed, keys).tolist() for gates in self.gates]
        with seeding(self._albumentations) as seeds:
            words = keys.draws(seed, self.operation).bits()[:, 0].tolist()
            for sample, index, word in zip(samples, keys.indices.tolist(), words, strict=True):
                if seeds is not None:
                    seeds(word)
                if which is not None:
                    called = (rows[len(made)] for rows in which)
                    functions = tuple(itertools.compress(self.functions, called))
                try:
                    for function in functions:
                        sample = function(sample)
                except Exception as error:
                    add_note(error, f"fastdata: in a transform of {describe(index)}")
                    raise
                made.append(sample)
        return made


class ChangeStage:
    """One batch transform, on all images except masks, with the same draws, and on labels.

    With gates, it changes the images that pass every gate, as a separate batch.
    """

    def __init__(self, member: Member, schema: Schema, *, floating: bool) -> None:
        """Check a transform against the fields; `floating` says whether images are so before."""
        self.operation, self.gates = member.operation, member.gates
        self.transform: BatchTransform = member.transform
        transform = self.transform
        self._names = pictures_of(schema)
        for name in self._names:
            with naming_field(name):
                transform.check(schema.images[name].channels, floating)
        masks = [name for name, field in schema.images.items() if field.mask]
        if transform.moves_pixels and (masks or schema.boxes):
            kind = type(transform).__name__
            followers = (
                f"the mask {masks[0]!r}" if masks else f"the boxes {next(iter(schema.boxes))!r}"
            )
            raise OptionError(
                f"{kind} moves what is in the images, and {'masks' if masks else 'boxes'} cannot "
                f"follow, but the dataset has {followers}; leave {kind} out. T.RandomRotation, "
                "T.RandomAffine, T.RandomResizedCrop and T.RandomHorizontalFlip move masks and "
                "boxes with the images"
            )
        if isinstance(transform, MixTransform):
            self._label, self._classes = transform.label_of(schema)
        self.schema_after = _with_channels(schema, transform)
        if self.gates and self.schema_after != schema:
            kind, chooser = type(transform).__name__, type(self.gates[-1].chooser).__name__
            raise OptionError(
                f"{kind} cannot be in {chooser}, since it changes the number of channels, and the "
                f"images of a batch have the same: put it into the list of transforms itself, or "
                "take T.Grayscale(num_output_channels=3)"
            )

    def run_on_batch(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        """Replace the images of a batch by changed ones, and labels that are mixed like them."""
        if not self.gates:
            self._change(values, seed, keys)
            return
        names = list(self._names)
        if isinstance(self.transform, MixTransform):
            names.append(self._label)
            labels = values[self._label]
            values[self._label] = self.transform.shares_of(labels, self._classes)
        which = chosen(self.gates, seed, keys)
        if not which.any():
            return
        at = np.flatnonzero(which)
        some = {name: take(values[name], at) for name in names}
        self._change(some, seed, keys[which])
        for name in names:
            values[name] = _written(values[name], at, some[name], self.transform)

    def _change(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        """Change all images of a batch, and their labels."""
        transform, draws = self.transform, keys.draws(seed, self.operation)
        drawn: dict[Shape, Any] = {}
        for name in self._names:
            shape = tuple(values[name].shape)
            if shape not in drawn:
                drawn[shape] = transform.draw(draws, shape)
            values[name] = transform.apply(values[name], drawn[shape])
        if isinstance(transform, MixTransform):
            labels, first = values[self._label], next(iter(drawn.values()))
            values[self._label] = transform.mix_labels(labels, first, self._classes)

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples with their images changed, each as a batch of one."""
        made = []
        which = chosen(self.gates, seed, keys).tolist()
        with one_thread():
            for at, sample in enumerate(samples):
                if which[at]:
                    images = {n: _image(n, getattr(sample, n), 3)[None] for n in self._names}
                    self._change(images, seed, keys[at : at + 1])
                    sample = sample._replace(**{n: image[0] for n, image in images.items()})
                made.append(sample)
        return made


def _with_channels(schema: Schema, transform: BatchTransform) -> Schema:
    """Return the fields with the channels that images have behind a transform."""
    fields = dict(schema)
    for name in pictures_of(schema):
        image = schema.images[name]
        fields[name] = replace(image, channels=transform.channels_after(image.channels))
    return Schema(fields, stored=True)


def _image(name: str, value: Any, dimensions: int) -> torch.Tensor:
    """Return an image or a batch; raise `OptionError` if its number of dimensions differs."""
    if not (isinstance(value, torch.Tensor) and value.ndim == dimensions):
        shape = "[C, H, W]" if dimensions == 3 else "as one tensor [N, C, H, W]"
        raise OptionError(
            f"transforms of whole batches take images {shape}, but a callable made "
            f"{type(value).__name__} of {name!r}"
        )
    return value


def _written(
    whole: torch.Tensor, at: Indices, some: torch.Tensor, transform: object
) -> torch.Tensor:
    """Return a copy of a batch with some of its images, or labels, replaced."""
    if some.dtype != whole.dtype or some.shape[1:] != whole.shape[1:]:
        raise OptionError(
            f"{type(transform).__name__} makes {some.dtype} {tuple(some.shape[1:])} of "
            f"{whole.dtype} {tuple(whole.shape[1:])}, but all images of a batch are in one "
            "tensor; put it into the list of transforms itself"
        )
    whole = whole.clone()
    put(whole, at, some)
    return whole


Stage: TypeAlias = GeometryStage | DropStage | PixelStage | CallStage | ChangeStage
BatchStep: TypeAlias = ChangeStage | GeometryStage | DropStage | PixelStage


@dataclass(frozen=True)
class BatchStage:
    """What is done to a whole batch, in order.  Picklable and thread-safe."""

    schema: Schema
    steps: tuple[BatchStep, ...]

    def run(self, batch: Any, seed: int, keys: SampleKeys) -> Any:
        """Return a batch, a named tuple of the schema's fields, transformed on its device.

        `keys` are those of the requested samples.  Images may be in any memory format, before and
        after.  Raises `OptionError` if images are not tensors [N, C, H, W], or have a dtype that a
        transform does not take.
        """
        values = dict(zip(self.schema, batch, strict=True))
        if any(isinstance(values[name], list) for name in self.schema.images):
            return batch._make(self._run_each(values, seed, keys).values())
        self._run(values, seed, keys)
        return batch._make(values.values())

    def _run(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        """Transform the fields of a batch in place."""
        for name in self.schema.images:
            _image(name, values[name], 4)
        for step in self.steps:
            step.run_on_batch(values, seed, keys)

    def _run_each(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> dict[str, Any]:
        """Return the fields of a batch with lists of images, each transformed as a batch of one."""
        made: dict[str, list[Any]] = {name: [] for name in values}
        for at in range(len(keys)):
            one = {name: value[at : at + 1] for name, value in values.items()}
            for name in self.schema.images:
                if isinstance(values[name][at], torch.Tensor):
                    one[name] = values[name][at][None]
            self._run(one, seed, keys[at : at + 1])
            for name, value in one.items():
                made[name].append(value[0])
        return {
            name: torch.stack(rows) if isinstance(values[name], torch.Tensor) else rows
            for name, rows in made.items()
        }


@contextmanager
def naming_field(name: str) -> Iterator[None]:
    """Put the name of a field in front of the message of an `OptionError`."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"field {name!r}: {error}") from None
