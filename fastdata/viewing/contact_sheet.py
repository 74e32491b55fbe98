"""The contact sheet: which samples of a dataset are shown, and their pictures and captions.

Columns are read whole, images only of the samples that are shown.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple, TypeAlias

import cv2
import numpy as np
from PIL import Image

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import encode_jpeg
from fastdata.dataset import Dataset
from fastdata.errors import FastdataError
from fastdata.printable import printable
from fastdata.schema import ArrayField, Field, ScalarField, Schema, StringField

__all__ = ["ClassSamples", "Group", "class_field", "count_classes", "draw_groups"]

_CAPTION_CHARACTERS = 60
"""Most characters of a value below a picture."""

_JPEG_QUALITY = 80
_MASK_OPACITY = 0.5

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, width and height, in percent of the picture."""


class Thumbnail(NamedTuple):
    """One image of a sample as a small JPEG in a data URI; `problem` says why there is none."""

    uri: str
    width: int
    height: int
    size: tuple[int, int]  # height and width of the stored image, in pixels
    boxes: list[Box]
    problem: str = ""


class SheetSample(NamedTuple):
    """A sample of the contact sheet; the caption has its other values."""

    position: int
    key: str
    pictures: list[Thumbnail]
    caption: str


class Group(NamedTuple):
    """Samples of one class, or of a dataset without classes."""

    name: str
    total: int
    samples: list[SheetSample]


class ClassSamples(NamedTuple):
    """A class, and the indices of its samples."""

    name: str
    indices: np.ndarray[Any, np.dtype[np.int64]]


def class_field(dataset: Dataset) -> str | None:
    """Return the field whose classes order the sheet: `label`, else one with class names.

    A field with one number a sample comes before one with a number a box, and `split`, the least
    informative, last.
    """
    scalars = {n: f for n, f in dataset.schema.items() if isinstance(f, ScalarField)}
    label = scalars.get("label")
    if label is not None and "int" in label.dtype:
        return "label"
    named = [name for name, field in scalars.items() if field.classes is not None]
    named += [
        name
        for name, field in dataset.schema.items()
        if isinstance(field, ArrayField) and field.classes is not None
    ]
    named.sort(key="split".__eq__)
    return named[0] if named else None


def count_classes(dataset: Dataset) -> list[ClassSamples]:
    """Return the classes and their samples; empty without classes.

    Where each box has a class, a sample counts once for every class of its boxes.
    """
    name = class_field(dataset)
    if name is None:
        return []
    field = dataset.schema[name]
    assert isinstance(field, (ScalarField, ArrayField))
    labels, owners = _labels(dataset, name)
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    samples = dict(zip(values.tolist(), np.split(owners[order], starts[1:]), strict=True))
    if field.classes is None:
        return [ClassSamples(str(value), indices) for value, indices in samples.items()]
    none = np.empty(0, np.int64)
    classes = [
        ClassSamples(text, samples.get(number, none)) for number, text in enumerate(field.classes)
    ]
    others = [indices for value, indices in samples.items() if not 0 <= value < len(field.classes)]
    if others:
        classes.append(ClassSamples("(no class)", np.unique(np.concatenate(others))))
    return classes


def _labels(dataset: Dataset, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return class numbers, and the index of each one's sample; -1 for a sample without boxes."""
    everything = np.arange(len(dataset))
    values = dataset._gather(name, everything)
    if isinstance(dataset.schema[name], ScalarField):
        return np.asarray(values), everything
    none = np.array([-1])
    rows = [np.unique(row).astype(np.int64) if row.size else none for row in values]
    owners = np.repeat(everything, [len(row) for row in rows])
    return np.concatenate([*rows, everything[:0]]), owners


def draw_groups(
    dataset: Dataset,
    classes: list[ClassSamples],
    *,
    per_class: int,
    max_samples: int,
    side: int,
    seed: int,
) -> list[Group]:
    """Draw `per_class` samples of each class, or ten times as many without classes.

    With many classes, each has fewer samples; with very many, only some classes are drawn.
    Pictures have `side` pixels at most.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    classes = [entry for entry in classes if len(entry.indices)]
    if not classes:
        classes = [ClassSamples("", np.arange(len(dataset)))]
        per_class *= 10
    if len(classes) > max_samples:
        chosen = np.sort(generator.permutation(len(classes))[:max_samples])
        classes = [classes[number] for number in chosen]
    per_class = min(per_class, max_samples // len(classes))
    groups = []
    for name, indices in classes:
        drawn = np.sort(generator.permutation(indices)[:per_class])
        samples = [_sheet_sample(dataset, int(index), side) for index in drawn]
        groups.append(Group(name, len(indices), samples))
    return groups


def _sheet_sample(dataset: Dataset, index: int, side: int) -> SheetSample:
    images = dataset.schema.images
    # A mask lies over its image; one without an image is shown itself.
    shown = [name for name in images if not images[name].mask] or list(images)
    pictures = [_thumbnail(dataset, index, name, side) for name in shown]
    return SheetSample(index, dataset.keys[index], pictures, _caption(dataset, index))


def _caption(dataset: Dataset, index: int) -> str:
    parts = []
    for name, field in dataset.schema.items():
        if name != class_field(dataset) and isinstance(field, (ScalarField, StringField)):
            text = printable(_text_of(dataset._gather(name, [index])[0], field))
            dots = "..." * (len(text) > _CAPTION_CHARACTERS)
            parts.append(f"{name}: {text[:_CAPTION_CHARACTERS]}{dots}")
    return "; ".join(parts)


def _text_of(value: Any, field: Field) -> str:
    if not isinstance(field, ScalarField):
        return str(value)
    if field.classes is not None and 0 <= value < len(field.classes):
        return field.classes[int(value)]
    return f"{value:.6g}" if "float" in field.dtype else str(value)


def _thumbnail(dataset: Dataset, index: int, name: str, side: int) -> Thumbnail:
    """Return an image of a sample; the schema's first mask and boxes belong to its first image."""
    schema = dataset.schema
    try:
        pixels = _pixels(dataset, index, name)
        mask_name = _mask_over(schema, name)
        mask = None if mask_name is None else _pixels(dataset, index, mask_name)
        boxes = _boxes(dataset, index, name, pixels.shape[:2])
    except FastdataError as error:
        return Thumbnail("", side, side, (0, 0), [], str(error))
    height, width = pixels.shape[:2]
    scale = min(1.0, side / max(height, width))
    target = max(1, round(width * scale)), max(1, round(height * scale))
    if schema.images[name].mask:
        small: Any = cv2.resize(_coloured(pixels), target, interpolation=cv2.INTER_NEAREST)
    else:
        rgb = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
        small = cv2.resize(rgb, target, interpolation=cv2.INTER_AREA)
    if mask is not None:
        tint = cv2.resize(_coloured(mask), target, interpolation=cv2.INTER_NEAREST)
        inside = cv2.resize(mask[:, :, 0], target, interpolation=cv2.INTER_NEAREST)[..., None] > 0
        blend = cv2.addWeighted(small, 1 - _MASK_OPACITY, tint, _MASK_OPACITY, 0)
        small = np.where(inside, blend, small)
    jpeg = base64.b64encode(encode_jpeg(np.ascontiguousarray(small), _JPEG_QUALITY)).decode()
    uri = f"data:image/jpeg;base64,{jpeg}"
    return Thumbnail(uri, target[0], target[1], (height, width), boxes)


def _pixels(dataset: Dataset, index: int, name: str) -> Pixels:
    """Return an image of a sample, H x W x C."""
    return dataset._images(name, [index]).read(0)


def _coloured(mask: Pixels) -> Pixels:
    """Return a mask with a colour a class: those of Pascal VOC's palette, black for 0."""
    picture = Image.fromarray(mask[:, :, 0], "L").convert("P")
    picture.putpalette(_palette())
    return np.asarray(picture.convert("RGB"))


def _palette() -> list[int]:
    """Return 256 colours that are far apart: Pascal VOC's (``VOClabelcolormap`` of its devkit)."""
    colours: list[int] = []
    for label in range(256):
        rgb = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                rgb[channel] |= (label >> (3 * bit + channel) & 1) << (7 - bit)
        colours += rgb
    return colours


def _mask_over(schema: Schema, name: str) -> str | None:
    pictures = [n for n, field in schema.images.items() if not field.mask]
    masks = [n for n, field in schema.images.items() if field.mask]
    return masks[0] if masks and pictures[:1] == [name] else None


def _boxes(dataset: Dataset, index: int, name: str, size: tuple[int, ...]) -> list[Box]:
    schema = dataset.schema
    if not schema.boxes or next(iter(schema.images)) != name:
        return []
    boxes: list[Box] = []
    height, width = size
    limits = [width, height, width, height]
    for field in schema.boxes:
        # (x1, y1, x2, y2) in pixels
        corners: Any = np.asarray(dataset._gather(field, [index])[0], np.float64).reshape(-1, 4)
        corners = np.clip(np.nan_to_num(corners), 0, limits)
        left, top, right, bottom = (corners / limits * 100).T
        boxes += zip(left, top, right - left, bottom - top, strict=True)
    return boxes
