"""The table of transforms, made of the results that are kept; see `pages.py`."""

from __future__ import annotations

from cells import markdown, over, version, whole
from results import Measured

LIBRARIES = ("fastdata", "torchvision", "albumentations")
OURS, *PEERS = LIBRARIES


def name(library: str, transform: str) -> str:
    """Return what the rate of a library's transform is called."""
    return f"{library}: {transform}"


def transforms(found: Measured) -> list[str]:
    """Images a second of each transform, by library."""
    mine = name(OURS, "")
    known = [one[len(mine) :] for run, names in found.news() for one in names if mine in one]
    heads = ["transform", f"{OURS}, images/s"]
    for peer in PEERS:
        heads += [f"{peer}{version(found, name(peer, 'none'), peer)}", f"{OURS} over it"]
    rows = []
    for one in known:
        ours = name(OURS, one)
        label = one if one == "none" else f"`{one}`"
        row = [label, whole(found.figure(ours))]
        for peer in PEERS:
            row += [whole(found.figure(name(peer, one))), over(found, ours, name(peer, one))]
        rows.append(row)
    return markdown(heads, "l" + "r" * (len(heads) - 1), rows)
