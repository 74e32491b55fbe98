"""What comes out of a store: how much of a dataset is in the cache, and how fast blocks come.

"In the cache" describes one moment: the downloader goes on fetching meanwhile.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.remote.downloader import STREAMS
from fastdata.remote.folder import CacheFolder
from fastdata.remote.supply import Supply, open_remote

__all__ = [
    "GIVE_UP",
    "Fetched",
    "ScratchCache",
    "StoreInfo",
    "fetched_bytes",
    "in_cache",
    "store_info",
]

WAVES = 2
"""Blocks that each stream fetches in sequence, if it is measured."""

GIVE_UP = 3
"""Multiple of the given time after which fetching ends without a result."""

THREADS_START_SECONDS = 0.6
"""Time until the downloader has a thread for each stream: it looks twice a second."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """How much of a dataset comes out of a store.

    `present` is the share of its samples, 0 to 1, whose images are in the cache; `sample_bytes`
    are those of the images of a sample.  `total_bytes` are those of all files in stores, of which
    the cache may hold `cache_bytes`; `streams` is the requested number of concurrent requests.
    """

    present: float
    sample_bytes: float
    total_bytes: int
    cache_bytes: int
    streams: int

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
    return sum(
        one.counts()["fetched_bytes"] for one in {one.cache: one for one in supplies}.values()
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes a second that some number of streams gave together.

    None if not enough came within the time, with the reason in `failure`.
    """

    streams: int
    bytes_per_second: float | None = None
    failure: str = ""


class ScratchCache:
    """A temporary cache, empty at first, to measure the network.

    It lies within the cache folder of `supply`, so on the same disk.  Its own downloader has the
    number of streams that it is told, and finds no block that is there already.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._folder = CacheFolder(supply.cache).scratch()
        self._random = np.random.default_rng(0)

    def close(self) -> None:
        """Remove the folder; the downloader sees it, and ends.  Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def fetch(self, streams: int, seconds: float) -> Fetched:
        """Fetch two blocks a stream that were not fetched here before, for about `seconds`.

        If that takes longer, one; after three times as long it gives up.  Raises what fetching
        does.
        """
        supply = open_remote(
            self._supply.url,
            storage_options=self._supply.storage_options,
            cache_dir=self._folder,
            streams=streams,
        )
        starts = np.arange(0, supply.num_samples, supply.block_size)
        absent = starts[~supply.are_there(starts)]
        if len(absent) < 1 + streams:
            return Fetched(streams, failure=f"only {len(absent)} blocks are left to fetch")
        chosen = self._random.permutation(absent)[: 1 + WAVES * streams]
        _fetch(supply, chosen[:1], math.inf)  # connections are there from now on
        time.sleep(THREADS_START_SECONDS)
        before, began = fetched_bytes([supply]), time.monotonic()
        came = _fetch(supply, chosen[1:], seconds, least=streams)
        took = time.monotonic() - began
        if came < streams:
            return Fetched(streams, failure=f"{streams} blocks did not come within {took:.0f} s")
        return Fetched(streams, (fetched_bytes([supply]) - before) / took)


def _fetch(supply: Supply, blocks: NDArray[np.int64], seconds: float, least: int = 1) -> int:
    """Fetch blocks, given by their first samples; return how many have come.

    After `seconds` the `least` number is enough; after three times as long any.
    """
    samples = (blocks[:, None] + np.arange(supply.block_size)).ravel()
    samples = samples[samples < supply.num_samples]
    began = time.monotonic()
    supply.need(samples)
    while True:
        came = int(np.count_nonzero(supply.are_there(blocks)))
        took = time.monotonic() - began
        if came == len(blocks) or took > (seconds if came >= least else GIVE_UP * seconds):
            return came
        failure = supply.client.failure(supply.name, samples, began)
        if failure is not None:
            raise failure
        time.sleep(0.002)
