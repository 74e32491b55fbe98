"""Transforms of other libraries on whole samples: image, masks and boxes move together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.errors import MissingExtraError, OptionError
from fastdata.schema import ArrayField, ImageField, Schema
from fastdata.transforms.base import (
    Sample,
    SampleFunction,
    SampleTransform,
    kind_of,
    name_of,
    names_tuple,
    parse,
    pictures_of,
)
from fastdata.transforms.boxes import check_entries, restored_boxes
from fastdata.transforms.generators import is_albumentations
from fastdata.transforms.image_tensors import as_array, as_tensor, one_size

__all__ = ["V2", "Albumentations", "bare_albumentations"]

FORMAT = "pascal_voc"
"""What albumentations calls left, top, right and bottom in pixels."""


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
            parse(self, also=names_tuple)

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


@dataclass(frozen=True)
class Albumentations(SampleTransform):
    """Have an albumentations transform move image, masks and boxes together.

    Parameters
    ----------
    transform : albumentations transform
        Called once a sample, with ``image=``, ``masks=`` and ``bboxes=``, arrays [H, W, C] and
        [k, 4].  Masks are all of the sample's.
    bbox_params : albumentations.BboxParams or dict, optional
        How boxes are treated: ``{"min_visibility": 0.1}``.  Needed where there are boxes, unless
        `transform` is a ``Compose`` that has its own; their format is "pascal_voc".
    boxes : str, optional
        The field of boxes, of shape (None, 4); by default the only one.
    also : str or sequence of str, optional
        Fields with one entry a box, such as classes, whose entries are dropped with the boxes
        that albumentations drops; the ``label_fields`` of `bbox_params` too.  Where it drops some
        and none are named, other arrays of the same length are an error.

    Raises
    ------
    MissingExtraError
        If albumentations is not installed.
    OptionError
        If the parts do not fit; where the fields are not as said.

    Notes
    -----
    By default albumentations drops boxes of which nothing is left.  It takes none that are empty
    before: put ``DropEmptyBoxes(also=...)`` behind geometry that comes before this.

    Examples
    --------
    >>> Albumentations(A.Rotate(), bbox_params={}, also="classes")  # doctest: +SKIP
    """

    transform: Callable[..., Any]
    bbox_params: Any = None
    boxes: str | None = None
    also: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _albumentations()
        if not is_albumentations(self.transform):
            raise OptionError(
                f"Albumentations takes a transform of albumentations, not {self.transform!r}"
            )
        if self.also is not None:
            parse(self, also=names_tuple)

    def bind(self, schema: Schema) -> SampleFunction:
        if not schema.boxes:
            if self.bbox_params is not None or self.boxes is not None or self.also:
                raise OptionError(
                    "bbox_params, boxes and also are for boxes, but the dataset has none; leave "
                    "them out"
                )
            return bare_albumentations(self.transform, schema)
        [boxes, *more] = schema.boxes
        if more or self.boxes not in (None, boxes):
            raise OptionError(
                f"albumentations moves one field of boxes, but the dataset has "
                f"{', '.join(schema.boxes)}, and boxes= is {self.boxes!r}; call the transform "
                "from a T.PerSample function"
            )
        composed, labels = self._composed(boxes)
        also = self.also
        if labels is not None:
            also = tuple(dict.fromkeys((*(also or ()), *labels)))
        for name in (boxes, *(also or ())):
            field = schema.get(name)
            if not isinstance(field, ArrayField) or field.shape[0] is not None:
                raise OptionError(
                    f"albumentations may drop entries of {name!r}, which has to be an array field "
                    f"whose first length varies; it is {field or 'no field'}"
                )
        image, masks = _images(schema)
        return _Albumentations(
            composed, schema, image, masks, boxes, None if also is None else tuple(also), labels
        )

    def _composed(self, boxes: str) -> tuple[Any, tuple[str, ...] | None]:
        """Return a ``Compose`` that moves boxes, and its label fields."""
        package, transform, params = _albumentations(), self.transform, self.bbox_params
        # Single transforms know those of a Compose that they are in.
        composed = isinstance(transform, package.Compose)
        own = transform.processors.get("bboxes") if composed else None  # type: ignore[attr-defined]
        if own is None and params is None:
            raise OptionError(
                f"the dataset has the boxes {boxes!r}, so albumentations has to know how to treat "
                'them: T.Albumentations(transform, bbox_params={}), or {"min_visibility": 0.1}, '
                "say"
            )
        if own is not None and params is not None:
            raise OptionError(
                "bbox_params are given twice: to the Compose and to Albumentations; leave one out"
            )
        if own is None:
            if isinstance(params, Mapping):
                params = package.BboxParams(**{"format": FORMAT, **params})
            # A copy, as a Compose changes what it is made of.
            transform = package.Compose([copy.deepcopy(transform)], bbox_params=params)
        else:
            params = own.params
        if params.format != FORMAT:
            raise OptionError(
                f"bbox_params have the format {params.format!r}, but boxes of a dataset are "
                f"left, top, right and bottom in pixels: {FORMAT!r}"
            )
        return transform, tuple(params.label_fields) if params.label_fields else None


@dataclass(frozen=True)
class _Albumentations:
    """An albumentations transform bound to the fields of a dataset."""

    transform: Any
    schema: Schema
    image: str
    masks: tuple[str, ...]
    boxes: str | None = None
    also: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None

    def __call__(self, sample: Sample) -> Sample:
        arguments: dict[str, Any] = {"image": as_array(getattr(sample, self.image))}
        if self.masks:
            arguments["masks"] = [as_array(getattr(sample, name)) for name in self.masks]
        before = None if self.boxes is None else getattr(sample, self.boxes)
        if before is not None:
            # A number behind its corners stays with a box: it tells which boxes are left.
            rows = np.arange(len(before), dtype=np.float64)[:, None]
            arguments["bboxes"] = np.concatenate([before.double().numpy(), rows], 1)
            for name in self.labels or ():
                arguments[name] = getattr(sample, name).numpy()
        result = self.transform(**arguments)
        changed = {self.image: as_tensor(result["image"], self.transform)}
        for name, mask in zip(self.masks, result.get("masks", ()), strict=True):
            if isinstance(mask, torch.Tensor) and mask.ndim == 3 and mask.shape[0] != 1:
                mask = mask.permute(2, 0, 1)  # as ToTensorV2 leaves masks: [H, W, C]
            changed[name] = as_tensor(mask, self.transform)
        if before is not None:
            changed |= self._moved(sample, before, result["bboxes"])
        return sample._replace(**changed)

    def _moved(self, sample: Sample, before: torch.Tensor, boxes: Any) -> dict[str, torch.Tensor]:
        """Return the boxes, and what belongs to them."""
        made = np.asarray([box[:5] for box in boxes], np.float64).reshape(-1, 5)
        assert self.boxes is not None, "there are boxes"
        changed = {self.boxes: restored_boxes(torch.from_numpy(made[:, :4].copy()), before)}
        rows = torch.from_numpy(made[:, 4].round().astype(np.int64))
        if len(rows) != len(before):
            check_entries(self.schema, sample, self.boxes, self.also)
        if not torch.equal(rows, torch.arange(len(before))):
            changed |= {name: getattr(sample, name)[rows] for name in self.also or ()}
        return changed


def bare_albumentations(transform: Callable[..., Any], schema: Schema) -> SampleFunction:
    """Return the function that calls a transform with image and masks.

    Raises `OptionError` if the dataset has boxes, or not one image a sample.
    """
    if schema.boxes:
        raise OptionError(
            f"{name_of(transform)} is given image and masks, but the dataset has the boxes "
            f"{next(iter(schema.boxes))!r}, which would stay where they are. Write "
            "T.Albumentations(transform, bbox_params={}, also=...), which moves them too; or, if "
            "it moves no pixels, T.ImageOnly(transform)"
        )
    return _Albumentations(transform, schema, *_images(schema))


def _images(schema: Schema) -> tuple[str, tuple[str, ...]]:
    """Return the one image that is no mask, and the masks."""
    images = pictures_of(schema)
    if len(images) != 1:
        raise OptionError(
            f"albumentations transforms take one image a sample, but this dataset has "
            f"{len(images)} ({', '.join(images) or 'only masks'}); call the transform from a "
            "T.PerSample function"
        )
    return images[0], tuple(name for name, field in schema.images.items() if field.mask)


def _albumentations() -> Any:
    try:
        import albumentations
    except ImportError as error:
        raise MissingExtraError(
            "T.Albumentations needs albumentations: pip install albumentations"
        ) from error
    return albumentations


def _tv_tensors() -> Any:
    try:
        from torchvision import tv_tensors
    except ImportError as error:
        raise MissingExtraError(
            "T.V2 needs torchvision 0.16 or newer: pip install torchvision (for the build that "
            "fits your torch see https://pytorch.org/get-started)"
        ) from error
    return tv_tensors
