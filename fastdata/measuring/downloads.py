"""What comes out of a store: how much of it is in the cache, what a loop waits for, how fast it is.

    store_info           how much of a dataset is in the cache, and how much there is room for
    DownloadWatch        how long a loop waits because images have not come yet
    ScratchCache.fetch   how fast blocks come with some number of streams, of which none was here

"In the cache" is what is there at that moment: the downloader goes on fetching meanwhile.
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

from fastdata.engine.loader import Loader
from fastdata.measuring.loaders import inner_loader
from fastdata.remote.downloader import STREAMS
from fastdata.remote.folder import CacheFolder
from fastdata.remote.supply import Supply, open_remote
from fastdata.sampling import Batches

__all__ = [
    "GIVE_UP",
    "DownloadWatch",
    "Fetched",
    "ScratchCache",
    "StoreInfo",
    "in_cache",
    "store_info",
]

WAVES = 2
"""Blocks that each stream fetches one after another, where it is measured."""

GIVE_UP = 3
"""Times as long as it is given, after which nothing is waited for any more."""

THREADS_START_SECONDS = 0.6
"""Within which the downloader has a thread for each stream: it looks twice a second."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """How much of a dataset comes out of a store.

    `present` is the share of its samples, 0 to 1, whose images are in the cache; `sample_bytes`
    are those of the images of a sample.  `total_bytes` are those of all files in stores, of which
    the cache may hold `cache_bytes`; `streams` are the requests at once that were asked for.
    """

    url: str
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
    """Return how much of a dataset comes out of a store; None where it is all in files."""
    supplied = getattr(dataset, "_supplied", ())
    if not supplied or not len(dataset):
        return None
    supplies = list({one.supply.url: one.supply for one in supplied}.values())
    return StoreInfo(
        url=", ".join(supply.url for supply in supplies),
        present=float(in_cache(dataset).mean()),
        sample_bytes=dataset._mean_sample_bytes,
        total_bytes=sum(supply.total_bytes for supply in supplies),
        cache_bytes=min(supply.cache_bytes for supply in supplies),
        streams=max(supply.streams or STREAMS for supply in supplies),
    )


def in_cache(dataset: Any, indices: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Return which samples of a dataset have their images on this machine now, bool [n].

    Of all samples where no `indices` are given.
    """
    positions = dataset._positions(np.arange(len(dataset)) if indices is None else indices)
    there = np.ones(len(positions), np.bool_)
    for supply, first, last in dataset._supplied:
        inside = (positions >= first) & (positions < last)
        there[inside] = supply.are_there(positions[inside] - first)
    return there


# -- what a loop waits for ---------------------------------------------------------------------


class DownloadWatch:
    """Tells how much of a loop's waiting was for images that had not come yet; for its thread.

    Workers make a batch once its images are there, and make those behind it meanwhile.  So where
    images of the batch that is requested are missing, all of the wait for it is for them; else only
    what the loop itself waited for images of a batch that it planned.  Without workers it waits for
    all images itself.

    Looking which are missing takes some 50 us a batch of 256, and is part of the loop's rate.

    `before` is what there was in the cache when this was made, `after` when it was stopped; and
    `bytes_per_second` came meanwhile, for all that use the cache.
    """

    def __init__(self, loader: Loader, before: StoreInfo) -> None:
        self.before = self.after = before
        self.bytes_per_second = 0.0
        self._loader = loader
        self._epoch: tuple[int, Any] = -1, None
        self._absent = False
        self._waited = 0.0
        self._began = time.monotonic()
        self._fetched = _fetched_bytes(self._supplies)

    @classmethod
    def of(cls, loader: Any) -> DownloadWatch | None:
        """Return one for a loader; None where all its images are here, or its order is unknown."""
        loader = inner_loader(loader)
        if not isinstance(loader, Loader):
            return None
        if not (isinstance(loader.batches, Batches) and loader.batches.joins):
            return None
        info = store_info(loader.dataset)
        return None if info is None or info.present == 1 else cls(loader, info)

    @property
    def _supplies(self) -> list[Supply]:
        return [one.supply for one in getattr(self._loader.dataset, "_supplied", ())]

    def requested(self) -> None:
        """Note that the loop requests a batch now."""
        self._waited = self._waited_by_loop()
        self._absent = self._loader.num_workers > 0 and not self._is_there()

    def waited(self, seconds: float) -> float:
        """Return how many of the seconds that the loop waited for the batch were for its images."""
        return seconds if self._absent else min(seconds, self._waited_by_loop() - self._waited)

    def _waited_by_loop(self) -> float:
        if not self._loader.num_workers:  # a prefetcher's thread, perhaps
            return self._loader.backend.download_wait_seconds
        return sum(supply.waited_here for supply in self._supplies)

    def stop(self) -> None:
        """Note what has come, and what there is now."""
        fetched = _fetched_bytes(self._supplies) - self._fetched
        self.bytes_per_second = max(fetched, 0) / max(time.monotonic() - self._began, 1e-9)
        self.after = store_info(self._loader.dataset) or self.before

    def _is_there(self) -> bool:
        """Return whether all images of the batch that comes next are here."""
        state = self._loader.state_dict()
        if state["epoch"] != self._epoch[0]:
            self._epoch = state["epoch"], self._loader.batches.in_epoch(state["epoch"])
        batches = self._epoch[1]
        if state["batch"] >= len(batches):
            return True
        return bool(in_cache(self._loader.dataset, batches[state["batch"]]).all())


def _fetched_bytes(supplies: Iterable[Supply]) -> int:
    """Return what the downloaders of some supplies have fetched; each cache has one."""
    return sum(
        one.counts()["fetched_bytes"] for one in {one.cache: one for one in supplies}.values()
    )


# -- how fast it is ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes a second that some number of streams gave together.

    None where not enough came within the time, with the reason in `failure`.
    """

    streams: int
    bytes_per_second: float | None = None
    failure: str = ""


class ScratchCache:
    """A cache that is empty, and is removed in the end: for measuring the network.

    It lies within the cache folder of `supply`, so on the same disk, and has a downloader of its
    own: with as many streams as it is told, whatever others use, and blocks none of which is there.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._folder = CacheFolder(supply.cache).scratch()
        self._random = np.random.default_rng(0)

    def close(self) -> None:
        """Remove the folder; the downloader sees it, and ends.  Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def fetch(self, streams: int, seconds: float) -> Fetched:
        """Fetch two blocks a stream that were not fetched here before, for about so many seconds.

        Where that takes longer, one; after three times as long it is given up.  Raises what
        fetching does.
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
        before, began = _fetched_bytes([supply]), time.monotonic()
        came = _fetch(supply, chosen[1:], seconds, least=streams)
        took = time.monotonic() - began
        if came < streams:
            return Fetched(streams, failure=f"{streams} blocks did not come within {took:.0f} s")
        return Fetched(streams, (_fetched_bytes([supply]) - before) / took)


def _fetch(supply: Supply, blocks: NDArray[np.int64], seconds: float, least: int = 1) -> int:
    """Fetch blocks, given by their first samples; return how many have come.

    After so many seconds it is enough that the `least` number has; after three times as long none.
    """
    size, began = supply.block_size, time.monotonic()
    samples = np.concatenate(
        [np.arange(first, min(first + size, supply.num_samples)) for first in blocks.tolist()]
    )
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
