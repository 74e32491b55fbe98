"""The room that a cache may take, and what goes where there is none for what comes."""

from __future__ import annotations

import contextlib
import time

import numpy as np

from fastdata.errors import FastdataError
from fastdata.remote.folder import CachedDataset, CacheFolder
from fastdata.remote.held import Held

__all__ = ["AHEAD_SHARE", "ANY", "LEAST_AHEAD_BYTES", "Room"]

AHEAD_SHARE = 1 / 8
"""Of the cache, for blocks that are fetched before they are needed.  What is beyond keeps blocks of
which the next epoch has need: fetched as early as can be, no block would stay so long."""

LEAST_AHEAD_BYTES = 64 << 20

ANY, NO_ROOM = -1.0, -2.0
"""In place of a number of batches: room is made for what is needed now of what is needed now, too;
and what is never removed."""


class Room:
    """Of a cache folder, for who holds the lock of its downloader; `held` has what is being read.

    What was `reserved` is on its way.  `budgets` are those of clients; the smallest counts.
    """

    def __init__(self, folder: CacheFolder, held: dict[str, Held]) -> None:
        self.folder, self.held = folder, held
        self.budgets: dict[int, int] = {}
        self.disk_limit = float("inf")
        self.reserved = 0
        self.others_bytes = 0
        self.removed_blocks = 0
        self._random = np.random.default_rng()

    def budget(self) -> float:
        """Return the bytes that all together may take."""
        return min([*self.budgets.values(), self.disk_limit])

    def used(self) -> float:
        """Return the bytes that all take on the disk."""
        return self.others_bytes + sum(one.stored.used_bytes for one in self.held.values())

    def measure_others(self) -> None:
        """Count what datasets take that nobody reads."""
        self.others_bytes = sum(one.disk_bytes for one in self._unread())

    def _unread(self) -> list[CachedDataset]:
        """Return the datasets in the folder that nobody reads."""
        read = {one.stored.cached.folder.name for one in self.held.values()}
        return [one for one in self.folder.datasets() if one.folder.name not in read]

    def make(self, nbytes: float, use: float) -> bool:
        """Remove blocks that are needed later than in `use` batches, until there is room.

        Where there is none, the answer is no, and nobody else's block has gone for it in vain but
        those that are needed last.
        """
        if nbytes + self.used() + self.reserved <= self.budget():
            return True
        if self.others_bytes:
            self._remove_others(nbytes)
        now = time.monotonic()
        uses = {}
        for name, held in self.held.items():
            needed, kept = held.next_use(), held.kept_until > now
            if use == ANY:
                at_random = self._random.random(len(needed)) + ANY
                needed = np.where(kept, NO_ROOM, np.where(needed == 0.0, at_random, needed))
            else:
                needed = np.where(kept, np.minimum(needed, 1.0), needed)
            uses[name] = np.where((held.filled > 0) & (held.busy == 0), needed, NO_ROOM)
        while nbytes + self.used() + self.reserved > self.budget():
            last = max(uses, key=lambda name: float(uses[name].max()))
            block = int(uses[last].argmax())
            if uses[last][block] <= use:
                return False
            uses[last][block] = NO_ROOM
            held = self.held[last]
            with contextlib.suppress(FastdataError, OSError):  # of files that somebody has removed
                held.stored.remove(*held.bounds(block))
            held.count(block)
            self.removed_blocks += 1
        return True

    def _remove_others(self, nbytes: float) -> None:
        """Remove datasets that nobody reads, those first that were opened longest ago."""
        for one in self._unread():  # blocks of the others go one by one
            if nbytes + self.used() + self.reserved <= self.budget():
                return
            self.folder.remove(one)
            self.measure_others()

    def ahead_of(self, use: float) -> float:
        """Return the bytes of blocks that are there, or on their way, and needed before `use`."""
        total = 0.0
        for held in self.held.values():
            uses = held.next_use()
            early = (uses > 0) & (uses < use) & ((held.filled > 0) | held.fetching)
            total += float(held.bytes_each[early].sum())
        return total

    def most_ahead(self) -> float:
        """Return the bytes of what may be there before it is needed."""
        return max(min(LEAST_AHEAD_BYTES, self.budget() / 2), self.budget() * AHEAD_SHARE)
