"""`view`: a dataset as one HTML page, to look at and to send around."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.bounds import check_int
from fastdata.converters.opening import open_packed
from fastdata.converters.packing.job import read_rejects
from fastdata.dataset import Dataset
from fastdata.pages import check_page_path, render, write_page
from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField
from fastdata.splits import select_split
from fastdata.summary import field_texts, load_code
from fastdata.viewing.contact_sheet import Group, class_field, count_classes, draw_groups

__all__ = ["Histogram", "histogram", "view"]

_CLASSES_SHOWN = 200
_REJECTS_SHOWN = 200
_MOST_BARS = 24


def view(
    dataset: str | os.PathLike[str],
    html: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    per_class: int = 8,
    max_samples: int = 240,
    thumbnail: int = 144,
    seed: int = 0,
) -> dict[str, Any]:
    """Write an HTML page with pictures of a dataset.

    The page begins with samples of every class, with their masks and boxes.  Below them are class
    counts, distributions of sizes, the fields, the samples that packing rejected, and the code that
    loads the dataset.

    Parameters
    ----------
    dataset : path-like
        As for `fastdata.open`.
    html : path-like, optional
        The page, one file; by default in the current folder, ``train.html`` for ``train.lmdb``.
        An earlier page is replaced, but no other file.
    split : str, optional
        Show only this split, as for `fastdata.open`.
    per_class : int
        Samples of each class; without classes, ten times as many.
    max_samples : int
        Most samples on the page.
    thumbnail : int
        Pixels of the longer side of a picture.
    seed : int
        Seed for the random choice of samples.

    Returns
    -------
    dict
        A JSON object: the path of the page, its size, and numbers of samples and classes.

    Raises
    ------
    OptionError
        If a number is out of range, or `html` is a folder, or its folder does not exist.
    DestinationExistsError
        If `html` exists and is not a page of fastdata.
    DatasetNotFoundError, FormatError, ShardCorruptError
        As `fastdata.open`.  The page marks a damaged image.
    DiskFullError
        If the disk is full.

    Examples
    --------
    >>> fastdata.view("train.lmdb")["path"]        # doctest: +SKIP
    'train.html'
    """
    html = _page_of(dataset) if html is None else html
    per_class = check_int("per_class", per_class)
    max_samples = check_int("max_samples", max_samples)
    thumbnail, seed = check_int("thumbnail", thumbnail), check_int("seed", seed)
    check_page_path(html)
    opened = open_packed(dataset)
    if split is not None:
        opened = select_split(opened, split)
    classes = count_classes(opened)
    groups = draw_groups(
        opened,
        classes,
        per_class=per_class,
        max_samples=max_samples,
        side=thumbnail,
        seed=seed,
    )
    counts = [(name, len(indices)) for name, indices in classes]
    rejects = _rejects_of(dataset)
    # A sample with boxes of several classes may stand under each.
    shown = len({sample.position for group in groups for sample in group.samples})
    page = render(
        __package__,
        "view.html.jinja",
        {
            "name": os.fspath(dataset),
            "side": thumbnail,
            "cards": [
                ("samples", f"{len(opened):,}"),
                ("classes", f"{len(counts):,}" if counts else "none"),
                ("shards", f"{len(opened.paths):,}"),
                ("on disk", f"{sum(p.stat().st_size for p in opened.paths) / 1e6:,.1f} MB"),
                ("rejected", f"{len(rejects):,}"),
            ],
            "digest": opened.digest,
            "load_code": load_code(dataset, split=split),
            "schema": _schema(dataset, opened),
            "groups": groups,
            "sheet_line": _sheet_line(shown, len(opened), groups, len(counts), seed),
            "classes": _class_bars(counts),
            "classes_line": _classes_line(counts, class_field(opened)),
            "charts": [chart for chart in _histograms(opened) if chart is not None],
            "rejects": rejects[:_REJECTS_SHOWN],
            "rejects_line": _rejects_line(rejects),
        },
    )
    write_page(page, html)
    return {
        "path": os.fspath(html),
        "page_bytes": len(page.encode()),
        "num_samples": len(opened),
        "num_shown": shown,
        "num_classes": len(counts),
        "num_rejected": len(rejects),
    }


def _page_of(dataset: str | os.PathLike[str]) -> str:
    """Return the name of a dataset's page: ``train.html`` for ``a/train.lmdb`` or ``s3://b/train``.

    Wildcards of a pattern are left out.
    """
    name = re.sub(r"[][*?{}]+", "", os.path.basename(os.path.abspath(dataset)))
    return f"{re.sub(r'[.](lmdb|h5|hdf5)$', '', name) or 'dataset'}.html"


def _sheet_line(shown: int, total: int, groups: Sequence[Group], classes: int, seed: int) -> str:
    drawn = f"{shown:,} of {total:,} samples, drawn at random (seed {seed})"
    return f"{drawn} from {len(groups):,} of {classes:,} classes" if classes else drawn


def _class_bars(counts: Sequence[tuple[str, int]]) -> list[dict[str, str]]:
    largest = max((count for _, count in counts), default=0) or 1
    return [
        {"name": name, "count": f"{count:,}", "width": f"{100 * count / largest:.2f}%"}
        for name, count in counts[:_CLASSES_SHOWN]
    ]


def _classes_line(counts: Sequence[tuple[str, int]], field: str | None) -> str:
    sizes = sorted(count for _, count in counts)
    if not sizes:
        return ""
    spread = f"{sizes[0]:,} to {sizes[-1]:,}" if sizes[0] != sizes[-1] else f"{sizes[0]:,}"
    line = f"Values of {field}: {len(sizes):,} classes of {spread} samples"
    some = len(counts) > _CLASSES_SHOWN
    return f"{line}; the first {_CLASSES_SHOWN:,} are listed." if some else f"{line}."


def _rejects_of(dataset: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Return key and reason of each sample that packing rejected."""
    path = Path(dataset)
    return [
        (reject.key, reject.reason)
        for suffix in (".rejects.csv", ".append.rejects.csv")
        for reject in read_rejects(path.with_name(path.name + suffix))
    ]


def _rejects_line(rejects: Sequence[tuple[str, str]]) -> str:
    line = f"Packing rejected {len(rejects):,} sample{'s' * (len(rejects) != 1)}."
    if len(rejects) > _REJECTS_SHOWN:
        line += f" The first {_REJECTS_SHOWN:,} are listed."
    reasons = Counter(reason for _, reason in rejects).most_common(3)
    often = [f"{reason} ({number:,})" for reason, number in reasons if number > 1]
    return line + (f" Most often: {'; '.join(often)}." if often else "")


def _schema(path: str | os.PathLike[str], dataset: Dataset) -> list[tuple[str, str, str]]:
    """Return name, kind and particulars of each field, sizes of images included."""
    sizes = field_texts(path) if len(dataset) else {}
    fields = [(name, *_described(field)) for name, field in dataset.schema.items()]
    return [
        (name, kind, f"{text}; {sizes[name]}" if name in sizes else text)
        for name, kind, text in fields
    ]


def _described(field: Field) -> tuple[str, str]:
    """Return kind and particulars of a field."""
    if isinstance(field, ImageField):
        if field.mask:
            classes = f", {len(field.classes):,} classes" if field.classes else ""
            return "mask", f"a class per pixel{classes}"
        return "image", "RGB" if field.channels == 3 else "grey"
    if isinstance(field, ScalarField):
        return field.dtype, f"{len(field.classes):,} classes" if field.classes else ""
    if isinstance(field, ArrayField):
        lengths = " x ".join("any" if n is None else str(n) for n in field.shape)
        classes = f", {len(field.classes):,} classes" if field.classes else ""
        return "boxes" if field.boxes else "array", f"{field.dtype}, {lengths}{classes}"
    return ("bytes", "") if isinstance(field, BytesField) else ("text", "UTF-8")


class Histogram(NamedTuple):
    """A distribution: bars with a height from 0 to 1 and their text; least, median and largest."""

    name: str
    bars: list[tuple[float, str]]
    low: str
    middle: str
    high: str


def _histograms(dataset: Dataset) -> Iterator[Histogram | None]:
    everything = np.arange(len(dataset))
    for name in dataset.schema.images:
        stored = dataset._images(name, everything)
        yield histogram(f"{name}: width, pixels", stored.widths, _format_count)
        yield histogram(f"{name}: height, pixels", stored.heights, _format_count)
        yield histogram(f"{name}: bytes per image", stored.lengths, _format_bytes)


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _format_bytes(value: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def histogram(
    name: str, values: np.ndarray[Any, Any], text_of: Callable[[float], str]
) -> Histogram | None:
    """Return the distribution of some numbers; None without numbers.

    The rule of Freedman and Diaconis gives the width of bars (`numpy.histogram_bin_edges`); there
    are at most 24.
    """
    if len(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    middle = float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])
    ends = text_of(low), text_of(middle), text_of(high)
    if low == high:
        return Histogram(name, [(1.0, f"{text_of(low)}: {len(values):,}")], *ends)
    # 100,000 values give the same width of bars as all values.
    sampled = values[:: max(1, len(values) // 100_000)]
    edges = np.histogram_bin_edges(sampled, "fd", (low, high))
    whole = bool(np.all(values == np.round(values)))
    most = min(_MOST_BARS, int(high - low) + 1) if whole else _MOST_BARS
    bar_count = int(np.clip(len(edges) - 1, min(8, most), most))
    counts, edges = np.histogram(values, bar_count, (low, high))
    bars = [
        (float(top), f"{text_of(float(a))} - {text_of(float(b))}: {number:,}")
        for top, number, a, b in zip(
            counts / counts.max(), counts, edges[:-1], edges[1:], strict=True
        )
    ]
    return Histogram(name, bars, *ends)
