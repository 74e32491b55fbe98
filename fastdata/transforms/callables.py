"""Callables on one sample: the compatible, slower way.

What fastdata's own transforms cannot do, any callable can: torchvision v2, albumentations, a
function of the user's.  It is called once a sample, in the workers.  The generators of Python,
NumPy, torch and albumentations are seeded before (`fastdata.transforms.generators`).

By default a callable is given each image by itself (`fastdata.transforms.image_callables`).  One
that moves pixels would then leave masks and boxes where they were, so for data that has some the
user says what is meant, by a `SampleTransform`:

    PerSample        the callable takes the whole sample
    ImageOnly        the callable changes no more than the values of pixels
    V2               torchvision's v2 moves images, masks and boxes together
    Albumentations   albumentations does
    OnPIL            the callable takes a PIL image
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Schema

__all__ = [
    "PerSample",
    "Sample",
    "SampleFunction",
    "SampleTransform",
    "as_array",
    "as_tensor",
    "check_entries",
    "kind_of",
    "name_of",
    "one_size",
    "pictures_of",
    "restored_boxes",
]

Sample: TypeAlias = Any
"""A named tuple of the schema's fields; its type is made at run time."""

SampleFunction: TypeAlias = Callable[[Sample], Sample]


class SampleTransform(ABC):
    """How a callable is given a sample.

    A subclass is immutable, and picklable if the callable is.
    """

    @abstractmethod
    def bind(self, schema: Schema) -> SampleFunction:
        """Return the function on samples of these fields, which are checked."""


@dataclass(frozen=True)
class PerSample(SampleTransform):
    """Call `fn` with the whole sample, not its image alone.

    Parameters
    ----------
    fn : callable
        Takes and returns the named tuple of a sample.  Images and masks are
        tensors of shape [C, H, W] (uint8, unless a transform before says
        otherwise), scalars Python numbers, arrays tensors; use
        ``sample._replace(image=...)`` to return a changed one.

    Examples
    --------
    >>> PerSample(lambda sample: sample._replace(label=sample.label // 10))
    PerSample(...)
    """

    fn: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise OptionError(f"PerSample takes a callable, not {self.fn!r}")

    def bind(self, schema: Schema) -> SampleFunction:
        return self

    def __call__(self, sample: Sample) -> Sample:
        result = self.fn(sample)
        if getattr(result, "_fields", None) != sample._fields:
            raise OptionError(
                f"{name_of(self.fn)} returned {kind_of(result)}; PerSample expects a named tuple "
                f"with the fields {', '.join(sample._fields)}, as sample._replace(...) makes one"
            )
        return result


def pictures_of(schema: Schema) -> tuple[str, ...]:
    """Return the names of the image fields that are no masks."""
    return tuple(name for name, field in schema.images.items() if not field.mask)


def one_size(name: str, sizes: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the size, (height, width), of all images and masks; raise `OptionError` of several."""
    if len(sizes) != 1:
        raise OptionError(
            f"{name} needs all images and masks of a sample in one size, but they are "
            f"{' and '.join(f'{h} x {w}' for h, w in sorted(sizes))} (height x width)"
        )
    return next(iter(sizes))


def as_array(image: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return [C, H, W] as a contiguous array [H, W, C]."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def as_tensor(image: Any, transform: object) -> torch.Tensor:
    """Return the image that `transform` returned as a tensor [C, H, W]."""
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        pixels = image if image.ndim == 3 else image[:, :, None]
        # A copy where it is needed: torch takes neither negative strides (a flip) nor memory
        # that cannot be written.
        return torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1)
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.as_subclass(torch.Tensor)
    raise OptionError(
        f"{name_of(transform)} returned {kind_of(image)}; expected is a torch tensor of shape "
        "[C, H, W] or an array of shape [H, W] or [H, W, C]"
    )


def restored_boxes(boxes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return boxes, float [k, 4], in the dtype of `like`; whole numbers are rounded into it."""
    if not like.is_floating_point():
        limits = torch.iinfo(like.dtype)
        boxes = boxes.round().clamp(limits.min, limits.max)
    return boxes.to(like.dtype)


def check_entries(
    schema: Schema,
    sample: Sample,
    boxes: str,
    also: tuple[str, ...] | None,
    already_dropped: Sequence[str] = (),
) -> None:
    """Raise `OptionError` if boxes were dropped whose entries of other fields would stay.

    `sample` is as it was before, `boxes` the field of which some were dropped, `also` the fields
    with one entry a box (None if the user has not said which), and `already_dropped` those whose
    entries are dropped already.
    """
    count = len(getattr(sample, boxes))
    for name, field in schema.items():
        if name in already_dropped:
            continue
        varies = isinstance(field, ArrayField) and field.shape[0] is None and name != boxes
        if also is None and varies and len(getattr(sample, name)) == count:
            raise OptionError(
                f"boxes of {boxes!r} were dropped, and {name!r} has one entry for each of the "
                f"{count} there were, as labels of boxes have. Name such fields, so that their "
                f"entries are dropped too: also={name!r}; or say that there are none: also=()"
            )
        if also and name in also and len(getattr(sample, name)) != count:
            raise OptionError(
                f"a sample has {count} {boxes!r}, but {len(getattr(sample, name))} {name!r}: "
                "fields named in also= have one entry a box"
            )


def name_of(function: object) -> str:
    """Return the name of a callable, for messages."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def kind_of(value: object) -> str:
    """Return type and shape of a value, for messages."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
