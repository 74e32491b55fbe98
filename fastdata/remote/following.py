"""Tells the downloader in which batches of a loader each block is needed, epochs ahead."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import FastdataError, OptionError
from fastdata.processes.resources import format_bytes, local_processes
from fastdata.remote.supply import Supply
from fastdata.sampling.batches import Batches, EpochBatches
from fastdata.sampling.shuffle import BlockShuffled
from fastdata.waits import join_threads

__all__ = ["Following"]

MOST_SINGLE = 8192
"""Samples of a batch of all ranks, if the first one is to come sample by sample: a prefix of S3
answers 5,500 requests a second."""

FIRST_BATCHES, MOST_BATCHES = 8, 512
"""Of which uses are told at once: few at first, so that fetching begins."""

_numbers = itertools.count(1)

Indices = NDArray[np.int64]


class Following:
    """The plan of a loader, as the downloader knows it; for one thread.

    `positions` returns which samples of the supply the indices of a batch are; those that are of
    none are left out.
    """

    def __init__(self, supply: Supply, positions: Callable[[Indices], Indices]) -> None:
        self._supply = supply
        self._positions = positions
        self._number = 0
        self._process = os.getpid()
        self._kept: set[object] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._start = 0, 0
        self._length = 0
        self._told = threading.Condition()
        self._reached = 0
        """The epoch in which the loader is."""

    def begin(self, batches: Batches, epoch: int, number: int) -> None:
        """Tell of the batches from one of an epoch on.

        Raises an `OptionError` where the cache cannot hold what is needed at once.
        """
        self.end()
        self._check_room(batches)
        self._number = next(_numbers)
        self._start, self._length = (epoch, number), len(batches)
        self._reached = epoch
        if not self._length:
            return
        order = batches.order
        block_size = self._supply.block_size
        if isinstance(order, BlockShuffled):
            block_size = min(order.block_size, self._supply.num_samples)
        self._say("begin", {"block_size": block_size}, keep=("plan", self._number))
        found = batches.in_epoch(epoch)
        if number < len(found) and batches.batch_size * batches.world_size <= MOST_SINGLE:
            self._supply.need(self._positions(found[number]), first=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._tell_all,
            args=(batches, found, block_size, self._stop),
            name="fastdata plan",
            daemon=True,
        )
        self._thread.start()

    def handed_out(self, epoch: int, number: int) -> None:
        """Tell that the loop has a batch: what was needed for it is needed no more."""
        if not self._number:
            return
        at = {"time": self._time(epoch, number) + 1}
        self._say("at", at, keep=("at", self._number), replace=True)
        if epoch > self._reached:
            with self._told:
                self._reached = epoch
                self._told.notify_all()

    def end(self) -> None:
        """Withdraw the plan.  Idempotent."""
        if os.getpid() != self._process:  # forked: the plan is the parent's, and so is its thread
            self._process, self._number, self._thread = os.getpid(), 0, None
            self._kept, self._told = set(), threading.Condition()
        if not self._number:
            return
        self._stop.set()
        with self._told:
            self._told.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            join_threads([self._thread], "the thread that tells what is needed next to end")
        client = self._supply.known_client
        client.forget(*self._kept)
        self._kept = set()
        end = {"kind": "end", "dataset": self._supply.name, "plan": self._number}
        client.tell(end, start=False)
        self._number, self._thread = 0, None

    def _time(self, epoch: int, number: int) -> int:
        return (epoch - self._start[0]) * self._length + number

    def _say(
        self,
        kind: str,
        body: dict[str, Any],
        array: Any = None,
        *,
        keep: object = None,
        replace: bool = False,
    ) -> None:
        told = {"kind": kind, "dataset": self._supply.name, "plan": self._number, **body}
        if keep is not None:
            self._kept.add(keep)
        self._supply.client.tell(told, array, keep_as=keep, replace=replace)

    def _tell_all(
        self, batches: Batches, found: EpochBatches, block_size: int, stop: threading.Event
    ) -> None:
        """Tell of the epoch of the loader and of the next one, as long as that goes on."""
        try:
            client, number = self._supply.client, self._number
            epoch, first = self._start
            while not stop.is_set():
                self._tell_epoch(epoch, found, first, block_size, stop)
                client.forget(("uses", number, epoch - 2))
                epoch, first = epoch + 1, 0
                with self._told:
                    while not stop.is_set() and self._reached < epoch - 1:
                        self._told.wait()
                if not stop.is_set():
                    found = batches.in_epoch(epoch)
        except FastdataError:
            return  # whoever waits for samples is told the same

    def _tell_epoch(
        self, epoch: int, found: EpochBatches, first: int, block_size: int, stop: threading.Event
    ) -> None:
        blocks = -(-self._supply.num_samples // block_size)
        at_once = FIRST_BATCHES
        while first < len(found) and not stop.is_set():
            last = min(first + at_once, len(found))
            firsts = np.full(blocks, -1, np.int64)
            lasts = np.full(blocks, -1, np.int64)
            for number in range(first, last):
                needed = self._positions(found[number]) // block_size
                lasts[needed] = self._time(epoch, number)
                firsts[needed] = np.where(firsts[needed] < 0, lasts[needed], firsts[needed])
            used = np.flatnonzero(firsts >= 0)
            uses = np.concatenate([used, firsts[used], lasts[used]])
            body = {"epoch": epoch, "block_size": block_size}
            self._say("uses", body, uses, keep=("uses", self._number, epoch))
            first, at_once = last, min(2 * at_once, MOST_BATCHES)

    def _check_room(self, batches: Batches) -> None:
        """Raise an `OptionError` where the blocks of all open windows do not fit into the cache."""
        supply, order = self._supply, batches.order
        if supply.total_bytes <= supply.cache_bytes or not isinstance(order, BlockShuffled):
            return
        here = min(local_processes(), batches.world_size) / batches.world_size
        window = (order.window_blocks + 1) * order.block_size  # it begins within a block
        # Where a window of a lane ends and the next one begins, a batch has samples of both; of
        # more than two where a lane's part of a batch is larger than a window.
        both = order.global_batch_size / order.lanes / window
        windows = max(1.0, order.lanes * here) * (1 + both)
        samples = min(windows * window + order.block_size, supply.num_samples)
        needed = samples * supply.total_bytes / supply.num_samples + supply.column_bytes
        if needed > supply.cache_bytes:
            raise OptionError(
                f"this order of {supply.url} needs {format_bytes(needed)} of it at once, and the "
                f"cache may have {format_bytes(supply.cache_bytes)}: give more with cache_bytes=, "
                "--cache-bytes, or shuffle in smaller windows: shuffle=fastdata.BlockShuffle("
                f"{order.block_size}, window_blocks={max(1, order.window_blocks // 2)}, "
                f"lanes={order.lanes})"
            )
