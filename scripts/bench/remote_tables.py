"""The tables of `remote.py`: what is asked of loading from a store, and fastdata beside peers."""

from __future__ import annotations

from cells import markdown, times, version
from results import Figure, Measured

OURS = "fastdata"
TENTH = ", cache of a tenth"
PEERS = {
    "LitData": ("LitData{}", "litdata"),
    "MosaicML Streaming": ("MosaicML Streaming{}", "mosaicml-streaming"),
    "WebDataset": ("WebDataset{}, with its cache", "webdataset"),
    "WebDataset, no cache": ("WebDataset{}, without a cache", "webdataset"),
}


def asked_of_stores(found: Measured) -> list[str]:
    """What is asked of loading from a store, and what is reached."""
    asked = {
        "warm cache over files": ("a cache that has all, over local files", "0.97", 2),
        "first epoch over the best peer's": ("first epoch over that of the best peer", "1.5", 2),
        "bytes fetched in the first epoch over those of the data": (
            "bytes fetched in the first epoch, over those of the data",
            "at most 1.02",
            3,
        ),
        "first batch": ("from the call of `loader()` to the first batch, s", "at most 1", 2),
        "a cache of a tenth over a whole one, later epochs": (
            "epochs 2 and 3 with a cache of a tenth, over one that has all",
            "0.9",
            2,
        ),
        "a cache of a tenth over a whole one, three epochs from nothing": (
            "epochs 1 to 3, from an empty cache of a tenth, over an empty one for all",
            "0.9",
            2,
        ),
        "disk over cache_bytes": (
            "what a cache of a tenth takes on the disk, over `cache_bytes`",
            "at most 1",
            3,
        ),
        "errors in 1% of answers over none": (
            "one of a hundred answers an error, over none",
            "0.9",
            2,
        ),
    }
    rows = [
        [said, bar, f"{figure['median']:.{digits}f}", _wide(figure, digits)]
        for name, (said, bar, digits) in asked.items()
        if (figure := found.figure(name))
    ]
    return markdown(["", "asked", "reached, median", "lowest-highest"], "lrrr", rows)


def stores(found: Measured) -> list[str]:
    """Fastdata beside its peers."""
    labels = {"fastdata": "`fastdata.loader`"}
    for name, (said, package) in PEERS.items():
        labels[name] = said.format(version(found, f"{name}: first batch", package))
    labels["fastdata, a tenth"] = f"`fastdata.loader`{TENTH}"
    for name, (said, _) in PEERS.items():
        labels[f"{name}, a tenth"] = said.format("") + TENTH
    rows = []
    for name, label in labels.items():
        one = {what: found.figure(f"{name}: {what}") for what in COLUMNS}
        if one["first batch"] is None:
            continue
        over = found.ratio(f"{name}: first epoch", f"{OURS}: first epoch")
        cells = [_cell(figure, *COLUMNS[what][1:]) for what, figure in one.items()]
        rows.append([label, *cells, times(over, 2).rstrip("x")])
    heads = [head for head, _, _ in COLUMNS.values()]
    return markdown(["", *heads, "first epoch over fastdata's"], "l" + "r" * (1 + len(heads)), rows)


COLUMNS = {
    "first batch": ("first batch, s", 2, True),
    "first epoch": ("first epoch, images/s", 0, True),
    "later epochs": ("later epochs, images/s", 0, True),
    "fetched over data": ("bytes fetched over those of the data", 2, False),
    "dispersion": ("dispersion of classes", 1, False),
    "disk": ("cache, MB", 0, False),
    "memory": ("memory, MB", 0, False),
}
"""Heads, digits, and whether lowest and highest are shown, by the names of figures."""


def _cell(figure: Figure | None, digits: int, is_wide: bool) -> str:
    if figure is None:
        return ""
    wide = f" ({_wide(figure, digits)})" if is_wide else ""
    return f"{figure['median']:,.{digits}f}{wide}"


def _wide(figure: Figure, digits: int) -> str:
    return f"{figure['lowest']:,.{digits}f}-{figure['highest']:,.{digits}f}"
