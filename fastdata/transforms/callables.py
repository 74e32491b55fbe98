"""Callables on one sample: the compatible, slower way.

What fastdata's own transforms cannot do, any callable can: torchvision v2,
albumentations, a function of the user's.  It is called once a sample, from the
worker threads, several at a time.  Its random numbers are its own: fastdata
neither seeds them nor makes them repeatable, and batches are then the same for
any number of workers only if the callable draws none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.schema import Schema

__all__ = ["PerSample", "Sample", "SampleFunction", "adapt"]

Sample: TypeAlias = Any
"""A named tuple of the schema's fields; its type is made at run time."""

SampleFunction: TypeAlias = Callable[[Sample], Sample]


@dataclass(frozen=True)
class PerSample:
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

    def __call__(self, sample: Sample) -> Sample:
        result = self.fn(sample)
        if getattr(result, "_fields", None) != sample._fields:
            raise OptionError(
                f"{_name(self.fn)} returned {_kind(result)}; PerSample expects a named tuple with "
                f"the fields {', '.join(sample._fields)}, as sample._replace(...) makes one"
            )
        return result


def adapt(transform: Callable[..., Any], schema: Schema) -> SampleFunction:
    """Return a function on samples that does what the user means by `transform`.

    - `PerSample`: as it says.
    - An object of the albumentations package: called once, with
      ``image=`` the first image and ``masks=`` all masks, H x W x C arrays.
    - Any other callable: called with each image [C, H, W] that is no mask, as
      torchvision v2 transforms take it.
    """
    if isinstance(transform, PerSample):
        return transform
    if not callable(transform):
        raise OptionError(
            f"a transform is one of fastdata.transforms or a callable, not {transform!r}"
        )
    images = [name for name, field in schema.images.items() if not field.mask]
    masks = [name for name, field in schema.images.items() if field.mask]
    if type(transform).__module__.split(".")[0] == "albumentations":
        return _Albumentations(transform, images, masks)
    return _OnImages(transform, images)


@dataclass(frozen=True)
class _OnImages:
    transform: Callable[..., Any]
    images: list[str]

    def __call__(self, sample: Sample) -> Sample:
        return sample._replace(
            **{
                name: _tensor(self.transform(getattr(sample, name)), self.transform)
                for name in self.images
            }
        )


@dataclass(frozen=True)
class _Albumentations:
    transform: Callable[..., Any]
    images: list[str]
    masks: list[str]

    def __post_init__(self) -> None:
        if len(self.images) != 1:
            raise OptionError(
                f"albumentations transforms take one image a sample, but this dataset has "
                f"{len(self.images)} ({', '.join(self.images) or 'only masks'}); "
                "call the transform from a PerSample function"
            )

    def __call__(self, sample: Sample) -> Sample:
        arguments: dict[str, Any] = {"image": _array(getattr(sample, self.images[0]))}
        if self.masks:
            arguments["masks"] = [_array(getattr(sample, name)) for name in self.masks]
        result = self.transform(**arguments)
        changed = {self.images[0]: _tensor(result["image"], self.transform)}
        for name, mask in zip(self.masks, result.get("masks", ()), strict=True):
            changed[name] = _tensor(mask, self.transform)
        return sample._replace(**changed)


def _array(image: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return [C, H, W] as a contiguous array [H, W, C]."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def _tensor(image: Any, transform: object) -> torch.Tensor:
    """Return what a callable returned as a tensor [C, H, W]."""
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        pixels = image if image.ndim == 3 else image[:, :, None]
        # A copy where it is needed: torch takes neither negative strides
        # (a flip) nor memory that cannot be written.
        return torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1)
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.as_subclass(torch.Tensor)
    raise OptionError(
        f"{_name(transform)} returned {_kind(image)}; expected is a torch tensor of shape "
        "[C, H, W] or an array of shape [H, W] or [H, W, C]"
    )


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
