"""What a user means by a callable among the transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdata.errors import OptionError
from fastdata.schema import Schema
from fastdata.transforms.callables import (
    OnImages,
    PerSample,
    Sample,
    SampleFunction,
    SampleTransform,
    name_of,
    pictures_of,
)
from fastdata.transforms.generators import is_albumentations
from fastdata.transforms.on_pil import OnPIL, check_nothing_follows, made_for_pil
from fastdata.transforms.with_albumentations import bare_albumentations

__all__ = ["ImageOnly", "adapt"]


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


def adapt(transform: Callable[..., Any] | SampleTransform, schema: Schema) -> SampleFunction:
    """Return a function on samples that does what the user means by `transform`.

    - `SampleTransform`: as it says.
    - An object of albumentations: called once, with ``image=`` the image and ``masks=`` all
      masks, H x W x C arrays.
    - What is surely made for PIL images, by torchvision or timm: as in `OnPIL`.
    - Any other callable: called with each image [C, H, W], as torchvision v2 transforms take it.

    Raises
    ------
    OptionError
        If it is no callable; if there are masks or boxes that would not follow.
    """
    if isinstance(transform, SampleTransform):
        return transform.bind(schema)
    if not callable(transform):
        raise OptionError(
            f"a transform is one of fastdata.transforms or a callable, not {transform!r}"
        )
    if is_albumentations(transform):
        return bare_albumentations(transform, schema)
    if made_for_pil(transform):
        return OnPIL(transform).bind(schema)
    check_nothing_follows(name_of(transform), schema, "ImageOnly(transform)")
    return OnImages(transform, pictures_of(schema))
