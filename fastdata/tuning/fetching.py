"""How fast blocks come out of a store, with some number of streams: measured in an empty cache."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdata.measuring.downloads import fetched_bytes
from fastdata.measuring.workload import Workload, WorkloadSpec
from fastdata.remote.folder import CacheFolder
from fastdata.remote.supply import Supply, open_remote

__all__ = ["GIVE_UP", "Fetched", "ScratchCache", "TunedWorkload"]

WAVES = 2
"""Blocks that each stream fetches in sequence."""

GIVE_UP = 3
"""Multiple of the given time after which fetching ends without a result."""

THREADS_START_SECONDS = 0.6
"""Time until the downloader has a thread for each stream: it looks twice a second."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes a second that some number of streams gave together.

    None if not enough came within the time, with the reason in `failure`.
    """

    streams: int
    bytes_per_second: float | None = None
    failure: str = ""


class TunedWorkload(Workload):
    """A workload that also measures its store."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        self._scratch: ScratchCache | None = None

    def fetch(self, streams: int, seconds: float) -> Fetched:
        """Measure `streams` concurrent requests to the largest store, for new blocks."""
        if self._scratch is None:
            supplies = (one.supply for one in self.loaders.dataset._supplied)
            self._scratch = ScratchCache(max(supplies, key=lambda supply: supply.num_samples))
        return self._scratch.fetch(streams, seconds)

    def end_fetching(self) -> None:
        """Remove the blocks that were fetched.  Idempotent."""
        if self._scratch is not None:
            self._scratch.close()
        self._scratch = None


class ScratchCache:
    """A temporary cache, empty at first.

    It lies within the cache folder of `supply`, so on the same disk.  Its own downloader has the
    given number of streams, and finds an empty folder.
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
