"""What tests of datasets in stores share: their data, their caches, and who fills those."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from pack_helpers import image_folder
from process_helpers import kill_and_wait

import fastdata

__all__ = [
    "COUNT",
    "LANES",
    "TENTH",
    "assert_same",
    "batches_of",
    "downloaders",
    "end_downloaders",
    "joined",
    "loader_of",
    "needs_store",
    "pack_served",
    "total_bytes",
]

needs_store = pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("obstore") is None,
    reason="needs obstore, and files with holes as Linux has them",
)
"""A mark of every test that reads a dataset out of a store."""

COUNT = 601
"""Samples: a prime, so that no number of ranks and no batch size divides it."""

LANES = fastdata.BlockShuffle(block_size=4, window_blocks=1, lanes=2)
"""A hundred and fifty blocks, of which few are in use at once."""

TENTH = 10
"""Of how many parts of the dataset the cache has room for one."""

Batch = tuple[torch.Tensor, torch.Tensor]


def pack_served(folder: Path) -> Path:
    """Pack the same images in several ways; return the folder that is served.

    train      three shards of raw images, of which columns are a small part
    jpegs      three shards of JPEGs
    one.h5     a shard of 40 JPEGs
    raw.lmdb   a shard of 90 raw images
    """
    images = image_folder(folder / "images", COUNT, classes=("ant", "bee", "cow"))
    served = folder / "served"
    usual: dict[str, Any] = {"resize": "exact", "num_workers": 0, "progress": False}
    fastdata.pack(images, served / "train", shards=3, size=72, codec="raw", **usual)
    fastdata.pack(images, served / "jpegs", shards=3, size=64, codec="jpeg", **usual)
    fastdata.pack(images, served / "one.h5", limit=40, size=64, codec="jpeg", **usual)
    fastdata.pack(images, served / "raw.lmdb", limit=90, size=64, codec="raw", **usual)
    return served


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def loader_of(data: Any, **options: Any) -> Any:
    """Return a loader in the order of these tests, of the main thread unless it is told."""
    usual: dict[str, Any] = {"batch_size": 24, "shuffle": LANES, "num_workers": 0}
    return fastdata.loader(data, **{**usual, **options})


def batches_of(loader: Any) -> list[Batch]:
    return [(batch.image.clone(), batch.label.clone()) for batch in loader]


def joined(of_ranks: list[list[Batch]]) -> list[Batch]:
    """Return the batches of all ranks together; every rank has as many."""
    return [
        (torch.cat([image for image, _ in parts]), torch.cat([label for _, label in parts]))
        for parts in zip(*of_ranks, strict=True)
    ]


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs)
    for (image, label), (other_image, other_label) in zip(ours, theirs, strict=True):
        assert torch.equal(label, other_label)
        assert torch.equal(image, other_image)


def downloaders(cache: Path) -> list[psutil.Process]:
    """Return the processes that fill a cache folder, or some within it."""
    found = []
    for process in psutil.process_iter():
        try:
            folders = [part for part in process.cmdline() if f"{part}/".startswith(f"{cache}/")]
            if folders and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_downloaders(cache: Path) -> int:
    """Kill them, and wait until they are dead; return how many there were.

    They are nobody's children: when they are no zombies any more is init's affair.
    """
    found = downloaders(cache)
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            kill_and_wait(process.pid)
    return len(found)
