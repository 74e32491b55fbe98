"""Callables on one sample: the compatible, slower way.

Any callable may be a transform: torchvision v2, albumentations, or a function.  The workers call it
once per sample, after seeding the generators of Python, NumPy, torch and albumentations
(`fastdata.transforms.generators`).

By default a callable takes one image (`adapt`).  If it moves pixels, masks and boxes would not
follow, so for data with these the user chooses a `SampleTransform`:

    PerSample        the callable takes the whole sample
    ImageOnly        the callable changes only the values of pixels
    OnPIL            the callable takes a PIL image
    V2               torchvision's v2 moves images, masks and boxes together
    Albumentations   albumentations moves them together
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from fastdata.errors import OptionError
from fastdata.schema import Schema
from fastdata.transforms.base import (
    Sample,
    SampleFunction,
    SampleTransform,
    kind_of,
    name_of,
    pictures_of,
)
from fastdata.transforms.generators import is_albumentations
from fastdata.transforms.image_tensors import as_array, as_tensor
from fastdata.transforms.libraries import bare_albumentations

__all__ = ["ImageOnly", "OnPIL", "PerSample", "adapt"]

FROM_PIL = {
    "torchvision": ("ToTensor", "PILToTensor"),
    "timm": ("ToNumpy", "ToTensor", "MaybeToTensor", "MaybePILToTensor"),
}
"""Transforms that make a tensor or array of a PIL image: those before them take a PIL image."""

TO_PIL = {"torchvision": ("ToPILImage",)}
"""Transforms that make a PIL image: they and those before them take a tensor."""


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
        _check_takes_one(self.fn, "the sample")
        return self

    def __call__(self, sample: Sample) -> Sample:
        result = self.fn(sample)
        if getattr(result, "_fields", None) != sample._fields:
            raise OptionError(
                f"{name_of(self.fn)} returned {kind_of(result)}; PerSample expects a named tuple "
                f"with the fields {', '.join(sample._fields)}, as sample._replace(...) makes one"
            )
        return result


@dataclass(frozen=True)
class OnPIL(SampleTransform):
    """Call `fn` with a PIL image, as transforms of torchvision's v1 and of timm take it.

    Parameters
    ----------
    fn : callable
        Takes an image of mode "RGB", or "L" for a field with one channel.  Returns an image of one
        of these modes, a tensor [C, H, W], or an array [H, W], [H, W, C] or [C, H, W].  An array
        is refused if its shape is ambiguous: if both or none of its ends are 1 or 3 long.  Arrays
        of timm's ``ToNumpy`` are always [C, H, W].

    Notes
    -----
    Called with every image except masks.  Data with masks or boxes are refused, since these
    cannot follow; if `fn` does not move pixels, write ``ImageOnly(OnPIL(fn))``.

    A torchvision or timm transform that ends with ``ToTensor`` or the like takes PIL images
    without this.

    Examples
    --------
    >>> OnPIL(timm.data.create_transform(224, is_training=True))  # doctest: +SKIP
    """

    fn: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise OptionError(f"OnPIL takes a callable, not {self.fn!r}")

    def bind(self, schema: Schema) -> SampleFunction:
        _check_nothing_follows(name_of(self.fn), schema, "ImageOnly(OnPIL(fn))")
        _check_takes_one(self.fn, "the image")
        channels_first = _is_one_of(_last_step(self.fn), "timm", ("ToNumpy",))
        return _OnPIL(self.fn, pictures_of(schema), channels_first)


@dataclass(frozen=True)
class _OnPIL:
    """An `OnPIL` bound to the fields of a dataset."""

    fn: Callable[[Any], Any]
    images: tuple[str, ...]
    channels_first: bool

    def __call__(self, sample: Sample) -> Sample:
        changed = {
            name: self._tensor(self.fn(self._image(name, getattr(sample, name))))
            for name in self.images
        }
        return sample._replace(**changed)

    def _image(self, name: str, image: Any) -> Image.Image:
        right = isinstance(image, torch.Tensor) and image.ndim == 3 and image.dtype == torch.uint8
        if not right or image.shape[0] not in (1, 3):
            kind = f"{kind_of(image)}, {getattr(image, 'dtype', '')}"
            raise OptionError(
                f"a PIL image is made of uint8 pixels [1, H, W] or [3, H, W], but {name!r} is "
                f"{kind}; put {name_of(self.fn)} before what made it so"
            )
        pixels = as_array(image)
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])

    def _tensor(self, made: Any) -> torch.Tensor:
        if isinstance(made, Image.Image):
            if made.mode not in ("RGB", "L"):
                raise OptionError(
                    f"{name_of(self.fn)} returned a PIL image of mode {made.mode!r}; expected is "
                    '"RGB" or "L": end it with image.convert("RGB")'
                )
            return as_tensor(np.array(made), self.fn)
        if isinstance(made, np.ndarray) and made.ndim == 3:
            first = self.channels_first or self._channels_are_first(made)
            return as_tensor(made.transpose(1, 2, 0) if first else made, self.fn)
        if isinstance(made, torch.Tensor) and made.ndim == 3:
            self._channels_are_first(made, tensor=True)
        return as_tensor(made, self.fn)

    def _channels_are_first(self, made: Any, *, tensor: bool = False) -> bool:
        """Return whether an array or tensor is [C, H, W], which its shape has to tell."""
        first, last = made.shape[0] in (1, 3), made.shape[2] in (1, 3)
        if (tensor and last and not first) or (not tensor and first == last):
            raise OptionError(
                f"{name_of(self.fn)} returned {kind_of(made)}, of which it cannot be told where "
                "its channels are; return a torch tensor of shape [C, H, W], or a PIL image"
            )
        return first


@dataclass(frozen=True)
class ImageOnly(SampleTransform):
    """Call `fn` with the image alone, although the data have masks or boxes.

    For what changes the values of pixels and moves none: colours, blur, noise.  Masks and boxes
    stay as they are.

    Parameters
    ----------
    fn : callable
        As it may stand in a list of transforms for data without masks and boxes: a callable on an
        image [C, H, W], a transform of albumentations, an `OnPIL`.

    Raises
    ------
    OptionError
        When run, if `fn` changes the size of an image: masks or boxes would not fit it any more.

    Examples
    --------
    >>> ImageOnly(v2.ColorJitter(0.4, 0.4, 0.4))  # doctest: +SKIP
    """

    fn: Callable[..., Any] | SampleTransform

    def __post_init__(self) -> None:
        if isinstance(self.fn, PerSample) or not (
            callable(self.fn) or isinstance(self.fn, SampleTransform)
        ):
            raise OptionError(f"ImageOnly takes a callable on an image, not {self.fn!r}")

    def bind(self, schema: Schema) -> SampleFunction:
        names = pictures_of(schema)
        if not names:
            raise OptionError("ImageOnly changes images that are no masks, but there are none")
        function = adapt(self.fn, Schema({name: schema[name] for name in names}))
        follows = len(names) < len(schema.images) or bool(schema.boxes)
        return _SameSize(function, names, name_of(self.fn)) if follows else function


@dataclass(frozen=True)
class _SameSize:
    """Calls a function, which must leave images of the size that they have."""

    function: SampleFunction
    images: tuple[str, ...]
    name: str

    def __call__(self, sample: Sample) -> Sample:
        made = self.function(sample)
        for name in self.images:
            before, after = getattr(sample, name).shape[1:], getattr(made, name).shape[1:]
            if before != after:
                raise OptionError(
                    f"{self.name} made {name!r} {tuple(after)} of {tuple(before)} (height x "
                    "width), but ImageOnly is for what leaves pixels where they are; masks and "
                    "boxes follow in T.V2(transform) and T.Albumentations(transform, ...)"
                )
        return made


@dataclass(frozen=True)
class _OnImages:
    """Calls `transform` with every image except masks, [C, H, W]."""

    transform: Callable[..., Any]
    images: tuple[str, ...]

    def __call__(self, sample: Sample) -> Sample:
        changed = {
            name: as_tensor(self.transform(getattr(sample, name)), self.transform)
            for name in self.images
        }
        return sample._replace(**changed)


def adapt(transform: Callable[..., Any] | SampleTransform, schema: Schema) -> SampleFunction:
    """Return a function on samples for a user's `transform`.

    - `SampleTransform`: its function for the fields.
    - An object of albumentations: called once, with ``image=`` the image and ``masks=`` all
      masks, arrays [H, W, C].
    - A transform of torchvision or timm for PIL images: as in `OnPIL`.
    - Any other callable: called with each image [C, H, W], as torchvision v2 transforms take it.

    Raises `OptionError` if it is not callable, or if masks or boxes would not follow.
    """
    if isinstance(transform, SampleTransform):
        return transform.bind(schema)
    if not callable(transform):
        raise OptionError(
            "a transform is one of fastdata.transforms or a callable, not the "
            f"{type(transform).__name__} {transform!r}"
        )
    if is_albumentations(transform):
        return bare_albumentations(transform, schema)
    if _taken(transform) == "PIL image":
        return OnPIL(transform).bind(schema)
    _check_nothing_follows(name_of(transform), schema, "ImageOnly(transform)")
    _check_takes_one(transform, "the image")
    return _OnImages(transform, pictures_of(schema))


def _taken(transform: object) -> str | None:
    """Return the input of a transform of torchvision or timm, "PIL image" or "tensor"; else None.

    The first known step of a composed transform decides.
    """
    for tables, taken in ((FROM_PIL, "PIL image"), (TO_PIL, "tensor")):
        if any(_is_one_of(transform, package, names) for package, names in tables.items()):
            return taken
    steps = getattr(transform, "transforms", None)
    if not isinstance(steps, (list, tuple)):
        return None
    return next(filter(None, map(_taken, steps)), None)


def _check_takes_one(function: Callable[..., Any], what: str) -> None:
    """Raise `OptionError` if a function cannot be called with one argument, as far as is known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as of some functions in C
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise OptionError(
            f"{name_of(function)}{signature} is called with one argument, {what}: {error}; "
            "functools.partial sets others"
        ) from None


def _check_nothing_follows(name: str, schema: Schema, remedy: str) -> None:
    """Raise `OptionError` if there are masks or boxes, which a callable would leave behind."""
    masks = [field for field, image in schema.images.items() if image.mask]
    others = {"mask": masks, "boxes": list(schema.boxes)}
    for kind, fields in others.items():
        if fields:
            raise OptionError(
                f"{name} is given images alone, but the dataset has the {kind} {fields[0]!r}, "
                "which would stay where it is if it moves pixels. If it moves none, write "
                f"T.{remedy}. If it does: T.V2(transform) and "
                "T.Albumentations(transform, bbox_params=...) move images, masks and boxes "
                "together, and T.PerSample(function) gives a function the whole sample"
            )


def _is_one_of(value: object, package: str, names: tuple[str, ...]) -> bool:
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == package
        for base in type(value).__mro__
    )


def _last_step(transform: Any) -> Any:
    """Return the last step of a composed transform."""
    steps = getattr(transform, "transforms", None)
    return _last_step(steps[-1]) if isinstance(steps, (list, tuple)) and steps else transform
