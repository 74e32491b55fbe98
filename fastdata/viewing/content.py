"""What a page about a dataset shows: some samples, and everything counted.

Columns are read whole, images only of the samples that are shown.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.dataset import Dataset
from fastdata.pages.text import printable
from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField, StringField

from .histograms import Histogram, histogram
from .thumbnails import Thumbnail, make_thumbnail

__all__ = ["Group", "Shown", "draw_groups", "histograms", "read_rejects", "schema_rows"]

_TEXT = 60
"""Characters of a value that is shown under a picture."""


class Shown(NamedTuple):
    """A sample of the contact sheet.

    Attributes
    ----------
    place : int
        In the dataset.
    key : str
    pictures : list of Thumbnail
    caption : str
        Its other values.
    """

    place: int
    key: str
    pictures: list[Thumbnail]
    caption: str


class Group(NamedTuple):
    """Samples of one class, or of the whole dataset where there are no classes."""

    name: str
    total: int
    samples: list[Shown]


def class_field(dataset: Dataset) -> str | None:
    """Return the field by whose classes the sheet is ordered: `label`, or one with names.

    Of one number a sample before of one a box.
    """
    scalars = {n: f for n, f in dataset.schema.items() if isinstance(f, ScalarField)}
    named = [name for name, field in scalars.items() if field.classes is not None]
    label = scalars.get("label")
    if label is not None and "int" in label.dtype:
        return "label"
    named += [
        name
        for name, field in dataset.schema.items()
        if isinstance(field, ArrayField) and field.classes is not None
    ]
    named.sort(key="split".__eq__)  # which says least
    return named[0] if named else None


def count_classes(dataset: Dataset) -> list[tuple[str, int, np.ndarray[Any, np.dtype[np.int64]]]]:
    """Return name, number and places of the samples of each class; empty without classes.

    Where each box has a class, a sample counts for every class of its boxes, once.
    """
    name = class_field(dataset)
    if name is None:
        return []
    field = dataset.schema[name]
    assert isinstance(field, (ScalarField, ArrayField))
    labels, holders = _labels(dataset, name)
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    places = dict(zip(values.tolist(), np.split(holders[order], starts[1:]), strict=True))
    if field.classes is None:
        return [(str(value), len(found), found) for value, found in places.items()]
    listed = [
        (text, len(places.get(number, ())), places.get(number, np.empty(0, np.int64)))
        for number, text in enumerate(field.classes)
    ]
    others = [found for value, found in places.items() if not 0 <= value < len(field.classes)]
    if others:
        joined = np.unique(np.concatenate(others))
        listed.append(("(no class)", len(joined), joined))
    return listed


def _labels(dataset: Dataset, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return class numbers, and the sample that each is of; -1 for one without boxes."""
    everything = np.arange(len(dataset))
    if isinstance(dataset.schema[name], ScalarField):
        return np.asarray(dataset.gather(name, everything)), everything
    none = np.array([-1])
    values = dataset.gather(name, everything)
    rows = [np.unique(row).astype(np.int64) if row.size else none for row in values]
    held = np.repeat(everything, [len(row) for row in rows])
    return np.concatenate([*rows, everything[:0]]), held


def draw_groups(
    dataset: Dataset, *, per_class: int, most: int, side: int, seed: int
) -> list[Group]:
    """Draw samples for the contact sheet.

    Parameters
    ----------
    per_class : int
        Samples of each class; without classes, ten times as many of all.
    most : int
        Samples in all: with many classes fewer of each, with very many some of these.
    side : int
        Pixels of a picture's longer side.
    seed : int
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    classes = [entry for entry in count_classes(dataset) if entry[1]]
    if not classes:
        classes = [("", len(dataset), np.arange(len(dataset)))]
        per_class *= 10
    if len(classes) > most:
        chosen = np.sort(generator.permutation(len(classes))[:most])
        classes = [classes[number] for number in chosen]
    per_class = min(per_class, most // len(classes))
    groups = []
    for name, count, places in classes:
        drawn = np.sort(generator.permutation(places)[:per_class])
        samples = [_show(dataset, int(index), side) for index in drawn]
        groups.append(Group(printable(name), count, samples))
    return groups


def _show(dataset: Dataset, index: int, side: int) -> Shown:
    names = list(dataset.schema.images)
    masks = {name for name in names if dataset.schema.images[name].mask}
    # A mask lies over its image; one without an image is shown itself.
    shown = [name for name in names if name not in masks] or names
    pictures = [make_thumbnail(dataset, index, name, side) for name in shown]
    return Shown(index, printable(dataset.keys[index]), pictures, _caption(dataset, index))


def _caption(dataset: Dataset, index: int) -> str:
    parts = []
    for name, field in dataset.schema.items():
        if name != class_field(dataset) and isinstance(field, (ScalarField, StringField)):
            text = printable(_text_of(dataset.gather(name, [index])[0], field))
            parts.append(f"{name}: {text[:_TEXT]}{'...' * (len(text) > _TEXT)}")
    return "; ".join(parts)


def _text_of(value: Any, field: Field) -> str:
    if not isinstance(field, ScalarField):
        return str(value)
    if field.classes is not None and 0 <= value < len(field.classes):
        return field.classes[int(value)]
    return f"{value:.6g}" if "float" in field.dtype else str(value)


def histograms(dataset: Dataset) -> list[Histogram]:
    """Return heights, widths and bytes of every image field."""
    return list(filter(None, _histograms(dataset)))


def _histograms(dataset: Dataset) -> Iterator[Histogram | None]:
    everything = np.arange(len(dataset))
    for name in dataset.schema.images:
        stored = dataset.images(name, everything)
        yield histogram(f"{name}: width, pixels", stored.widths, _count)
        yield histogram(f"{name}: height, pixels", stored.heights, _count)
        yield histogram(f"{name}: bytes an image", stored.lengths, _bytes)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def schema_rows(dataset: Dataset) -> list[tuple[str, str, str]]:
    """Return name, kind and particulars of each field."""
    return [(name, *_described(field)) for name, field in dataset.schema.items()]


def _described(field: Field) -> tuple[str, str]:
    if isinstance(field, ImageField):
        if field.mask:
            of = f", {len(field.classes):,} classes" if field.classes else ""
            return "mask", f"a class a pixel{of}"
        return "image", "RGB" if field.channels == 3 else "grey"
    if isinstance(field, ScalarField):
        return field.dtype, f"{len(field.classes):,} classes" if field.classes else ""
    if isinstance(field, ArrayField):
        lengths = " x ".join("any" if n is None else str(n) for n in field.shape)
        classes = f", {len(field.classes):,} classes" if field.classes else ""
        return "boxes" if field.boxes else "array", f"{field.dtype}, {lengths}{classes}"
    return ("bytes", "") if isinstance(field, BytesField) else ("text", "UTF-8")


def read_rejects(dataset: str | os.PathLike[str]) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return key and reason of what was left out of a dataset, and how often each reason."""
    from fastdata.converters.packing.job import read_rejects as read

    path = Path(dataset)
    found = [
        (printable(reject.key), printable(reject.reason))
        for suffix in (".rejects.csv", ".append.rejects.csv")
        for reject in read(path.with_name(path.name + suffix))
    ]
    return found, Counter(reason for _, reason in found)
