"""`view`: a dataset as one HTML page, to look at and to send around."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastdata.errors import OptionError
from fastdata.opening import open as open_dataset
from fastdata.pages.text import printable
from fastdata.pages.writing import check_page_path, render, write_page
from fastdata.summary import load_line

from .content import (
    Group,
    class_field,
    count_classes,
    draw_groups,
    histograms,
    read_rejects,
    schema_rows,
)

__all__ = ["view"]

_CLASSES_SHOWN = 200
_REJECTS_SHOWN = 200


def view(
    dataset: str | os.PathLike[str],
    html: str | os.PathLike[str],
    *,
    per_class: int = 8,
    max_samples: int = 240,
    thumbnail: int = 144,
    seed: int = 0,
) -> dict[str, Any]:
    """Write an HTML page that shows what is in a dataset.

    A contact sheet with samples drawn from every class (masks laid over their images, boxes
    drawn), class counts, distributions of sizes, the samples that packing left out
    with their reasons, the schema, and the line of Python that loads it.

    Parameters
    ----------
    dataset : path-like
        As `fastdata.open` takes it.
    html : path-like
        The page; an earlier one is replaced.  It holds all that it shows.
    per_class : int
        Samples of each class; ten times as many where there are no classes.
    max_samples : int
        Samples in all.
    thumbnail : int
        Pixels of the longer side of a picture.
    seed : int
        Of the draw.

    Returns
    -------
    dict
        A JSON object: what was shown, and how much of it.

    Raises
    ------
    OptionError
        If a number is not sensible, or there can be no page at `html`.
    DatasetNotFoundError, FormatError, ShardCorruptError
        As `fastdata.open`.  A damaged image is shown as such.
    DiskFullError
        If there is no room.

    Examples
    --------
    >>> fastdata.view("train.lmdb", "train.html")        # doctest: +SKIP
    """
    for name, value, high in (
        ("per_class", per_class, 1000),
        ("max_samples", max_samples, 10_000),
        ("thumbnail", thumbnail, 1024),
    ):
        if not 1 <= value <= high:
            raise OptionError(f"{name}={value!r} is not from 1 to {high:,}")
    check_page_path(html)
    opened = open_dataset(dataset)
    opened.check_packed()
    groups = draw_groups(opened, per_class=per_class, most=max_samples, side=thumbnail, seed=seed)
    counts = [(printable(name), count) for name, count, _ in count_classes(opened)]
    rejects, reasons = read_rejects(dataset)
    # A sample with boxes of several classes may stand under each.
    shown = len({sample.place for group in groups for sample in group.samples})
    page = render(
        __package__,
        "view.html.jinja",
        {
            "name": printable(os.fspath(dataset)),
            "side": thumbnail,
            "cards": [
                ("samples", f"{len(opened):,}"),
                ("classes", f"{len(counts):,}" if counts else "none"),
                ("shards", f"{len(opened.paths):,}"),
                ("on disk", f"{sum(p.stat().st_size for p in opened.paths) / 1e6:,.1f} MB"),
                ("left out", f"{len(rejects):,}"),
            ],
            "digest": opened.digest,
            "load_line": printable(load_line(dataset)),
            "schema": schema_rows(opened),
            "groups": groups,
            "sheet_line": _sheet_line(shown, len(opened), groups, len(counts), seed),
            "classes": _class_bars(counts),
            "classes_line": _classes_line(counts, class_field(opened)),
            "charts": histograms(opened),
            "rejects": rejects[:_REJECTS_SHOWN],
            "rejects_line": _rejects_line(len(rejects), reasons.most_common(3)),
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


def _sheet_line(shown: int, total: int, groups: Sequence[Group], classes: int, seed: int) -> str:
    drawn = f"{shown:,} of {total:,}, drawn at random (seed {seed})"
    return f"{drawn}, from {len(groups):,} of {classes:,} classes" if classes else drawn


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
    more = len(counts) - _CLASSES_SHOWN
    return f"{line}; {more:,} of them are not listed here." if more > 0 else f"{line}."


def _rejects_line(count: int, reasons: Sequence[tuple[str, int]]) -> str:
    line = f"{count:,} samples were left out when packing."
    if count > _REJECTS_SHOWN:
        line += f" The first {_REJECTS_SHOWN:,} are listed."
    often = [f"{reason} ({number:,})" for reason, number in reasons if number > 1]
    return line + (f" Most often: {'; '.join(often)}." if often else "")
