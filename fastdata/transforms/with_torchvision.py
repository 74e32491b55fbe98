"""torchvision's v2 transforms on whole samples: images, masks and boxes move together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.errors import MissingExtraError, OptionError
from fastdata.schema import ArrayField, ImageField, Schema
from fastdata.transforms.base import names_tuple
from fastdata.transforms.callables import (
    Sample,
    SampleFunction,
    SampleTransform,
    check_entries,
    kind_of,
    name_of,
    one_size,
    restored_boxes,
)

__all__ = ["V2"]

ROWS = "Labels", "LABELS", "labelS"
"""Keys for the numbers of boxes in the dict that transforms are given; the first that is no field
is taken.  torchvision's `SanitizeBoundingBoxes` drops the entries of the first key that is "labels"
in any case."""


@dataclass(frozen=True)
class V2(SampleTransform):
    """Have a transform of torchvision's v2 move images, masks and boxes together.

    Parameters
    ----------
    transform : callable
        Called with a dict of the sample's fields: images are ``tv_tensors.Image``, masks
        ``tv_tensors.Mask`` [H, W], boxes ``tv_tensors.BoundingBoxes`` [k, 4] with format XYXY and
        the size of the image; all else is as in the sample, and stays so.
    also : str or sequence of str, optional
        Fields with one entry a box, such as classes, whose entries are dropped with the boxes
        that ``v2.SanitizeBoundingBoxes`` drops.  Where that drops boxes and nothing is said here,
        other arrays of the same length are an error.

    Raises
    ------
    MissingExtraError
        If torchvision is not installed.
    OptionError
        When run, if the transform leaves images, masks or boxes in a form that does not fit.

    Notes
    -----
    Boxes keep the dtype of their field; those of whole numbers are moved as float32 and rounded.
    Crops cut boxes off at their edges; put ``v2.ClampBoundingBoxes()`` behind what leaves them
    beyond.  Boxes of which nothing is left stay, with a height or width of 0, unless
    ``v2.SanitizeBoundingBoxes()`` or `DropEmptyBoxes` drops them.

    Examples
    --------
    >>> V2(v2.RandomPerspective(), also="classes")  # doctest: +SKIP
    """

    transform: Callable[..., Any]
    also: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _tv_tensors()
        if not callable(self.transform):
            raise OptionError(f"V2 takes a transform, not {self.transform!r}")
        if self.also is not None:
            object.__setattr__(self, "also", names_tuple(self.also))

    def bind(self, schema: Schema) -> SampleFunction:
        if not schema.images:
            raise OptionError("V2 moves images, but the dataset has none; leave it out")
        for name in self.also or ():
            if name not in schema or name in schema.boxes:
                raise OptionError(
                    f"V2 drops entries of {name!r} with those of boxes, but it is "
                    f"{'boxes itself' if name in schema else 'no field'}"
                )
        if self.also and len(schema.boxes) != 1:
            raise OptionError(
                f"also= names what belongs to the boxes, of which there is to be one field, not "
                f"{len(schema.boxes)}: {', '.join(schema.boxes) or 'none'}"
            )
        return _V2(self.transform, schema, self.also)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _V2:
    """A `V2` bound to the fields of a dataset."""

    transform: Callable[..., Any]
    schema: Schema
    also: tuple[str, ...] | None

    def __call__(self, sample: Sample) -> Sample:
        schema, tv = self.schema, _tv_tensors()
        given: dict[str, Any] = {name: getattr(sample, name) for name in schema}
        canvas = one_size("V2", {tuple(given[name].shape[1:]) for name in schema.images})
        for name, field in schema.images.items():
            given[name] = tv.Mask(given[name][0]) if field.mask else tv.Image(given[name])
        for name in schema.boxes:
            boxes = given[name].reshape(-1, 4)
            boxes = boxes if boxes.is_floating_point() else boxes.float()
            given[name] = tv.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas)
        if len(schema.boxes) == 1:
            # In front, where SanitizeBoundingBoxes looks first.
            given = {self._rows: torch.arange(len(given[next(iter(schema.boxes))])), **given}
        made = self.transform(given)
        if not isinstance(made, dict) or set(made) != set(given):
            raise OptionError(
                f"{name_of(self.transform)} returned {kind_of(made)}; V2 expects a dict of the "
                "fields that it gave"
            )
        changed = {name: made[name] for name in schema}
        size = tuple(made[next(iter(schema.images))].shape[-2:])
        for name in schema.images:
            changed[name] = self._image(name, made[name], size)
        for name in schema.boxes:
            changed[name] = self._boxes(name, made[name], getattr(sample, name), size)
        if len(schema.boxes) == 1:
            changed |= self._entries_left(sample, made)
        return sample._replace(**changed)

    @property
    def _rows(self) -> str:
        return next(name for name in ROWS if name not in self.schema)

    def _image(self, name: str, image: Any, size: tuple[int, ...]) -> torch.Tensor:
        field = self.schema[name]
        assert isinstance(field, ImageField)
        ndim = 2 if field.mask else 3
        if not isinstance(image, torch.Tensor) or image.ndim != ndim or image.shape[-2:] != size:
            raise OptionError(
                f"{name_of(self.transform)} made {kind_of(image)} of {name!r}; expected is a "
                f"tensor of shape {'[H, W]' if field.mask else '[C, H, W]'}, of one size for all "
                "images and masks"
            )
        plain: torch.Tensor = image.as_subclass(torch.Tensor)
        return plain[None] if field.mask else plain

    def _boxes(self, name: str, boxes: Any, before: torch.Tensor, size: tuple[int, ...]) -> Any:
        kind = str(getattr(getattr(boxes, "format", None), "name", "XYXY"))
        if not isinstance(boxes, torch.Tensor) or boxes.shape[-1:] != (4,) or kind != "XYXY":
            raise OptionError(
                f"{name_of(self.transform)} made {kind_of(boxes)}, format {kind}, of {name!r}; "
                "expected are boxes [k, 4] of format XYXY"
            )
        canvas = getattr(boxes, "canvas_size", size)
        if tuple(canvas) != size:
            raise OptionError(
                f"{name_of(self.transform)} moved images to {size} (height x width), but the "
                f"boxes {name!r} to {tuple(canvas)}"
            )
        moved = restored_boxes(boxes.as_subclass(torch.Tensor), before)
        if before.ndim == 2:
            return moved
        if moved.numel() != before.numel():
            raise OptionError(
                f"{name_of(self.transform)} dropped boxes of {name!r}, of which every sample has "
                f"{tuple(before.shape)}: leave out what drops them"
            )
        return moved.reshape(before.shape)

    def _entries_left(self, sample: Sample, made: dict[str, Any]) -> dict[str, Any]:
        """Return what is left of the fields that have an entry a box, where boxes were dropped."""
        name = next(iter(self.schema.boxes))
        before, after = len(getattr(sample, name).reshape(-1, 4)), len(made[name])
        if after == before:
            return {}
        # A labels_getter of the user's may have dropped entries already.
        arrays = (field for field, one in self.schema.items() if isinstance(one, ArrayField))
        already_dropped = [field for field in arrays if len(made[field]) == after]
        check_entries(self.schema, sample, name, self.also, already_dropped)
        rest = [field for field in self.also or () if field not in already_dropped]
        rows = made[self._rows]
        if rest and len(rows) != after:
            raise OptionError(
                f"{name_of(self.transform)} dropped boxes of {name!r} without saying which, so the "
                f"entries of {', '.join(rest)} cannot follow: leave SanitizeBoundingBoxes its "
                'labels_getter="default"'
            )
        return {field: getattr(sample, field)[rows] for field in rest}


def _tv_tensors() -> Any:
    try:
        from torchvision import tv_tensors
    except ImportError as error:
        raise MissingExtraError(
            "T.V2 needs torchvision 0.16 or newer: pip install torchvision (for the build that "
            "fits your torch see https://pytorch.org/get-started)"
        ) from error
    return tv_tensors
