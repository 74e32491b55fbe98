"""How much of a dataset comes out of a store, and how much of it is in the cache at the moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.remote.downloader import STREAMS
from fastdata.remote.supply import Supply

__all__ = ["StoreInfo", "fetched_bytes", "in_cache", "store_info"]


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """How much of a dataset comes out of a store."""

    present: float  # share of its samples, 0 to 1, whose images are in the cache
    sample_bytes: float  # of the images of a sample
    total_bytes: int  # of all files in stores
    cache_bytes: int  # room in the cache
    streams: int  # the requested number of concurrent requests

    @property
    def fits(self) -> bool:
        """Whether the cache has room for all of it."""
        return self.total_bytes <= self.cache_bytes


def store_info(dataset: Any) -> StoreInfo | None:
    """Return how much of a dataset comes out of a store; None if it is all in files."""
    supplies = {one.supply.url: one.supply for one in getattr(dataset, "_supplied", ())}.values()
    if not supplies or not len(dataset):
        return None
    return StoreInfo(
        present=float(in_cache(dataset).mean()),
        sample_bytes=dataset._mean_sample_bytes,
        total_bytes=sum(supply.total_bytes for supply in supplies),
        cache_bytes=min(supply.cache_bytes for supply in supplies),
        streams=max(supply.streams or STREAMS for supply in supplies),
    )


def in_cache(dataset: Any, indices: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Return which samples, all by default, have their images on this machine now, bool [n]."""
    positions = dataset._positions(np.arange(len(dataset)) if indices is None else indices)
    there = np.ones(len(positions), np.bool_)
    for supply, first, last in dataset._supplied:
        inside = (positions >= first) & (positions < last)
        there[inside] = supply.are_there(positions[inside] - first)
    return there


def fetched_bytes(supplies: Iterable[Supply]) -> int:
    """Return what the downloaders of some supplies have fetched; each cache has one."""
    by_cache = {one.cache: one for one in supplies}
    return sum(one.counts()["fetched_bytes"] for one in by_cache.values())
