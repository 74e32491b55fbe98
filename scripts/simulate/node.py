"""A machine of the simulation: its cache, and its downloader's choice of what to fetch and remove.

When each block is needed is asked of `fastdata.remote.schedule.Plan` itself, and the figures are
those of `fastdata.remote.downloader`.  Its rules are written again here, for all blocks at once and
once a step, as it looks at all blocks for each request:

- what is needed soonest is fetched first (``Downloader._planned_job``), the lowest number of
  several, until an eighth of the cache has blocks that are needed before it;
- where there is no room, that goes which is needed last, if that is later (``_make_room``);
- the batch with which a loader begins comes sample by sample, before all else (``_need``).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from demands import Uses
from numpy.typing import NDArray

from fastdata.remote.room import AHEAD_SHARE, LEAST_AHEAD_BYTES
from fastdata.remote.schedule import NEVER, Plan

__all__ = ["SAMPLE", "Node"]

Indices: TypeAlias = NDArray[np.int64]

SAMPLE = -1
"""In place of a block: samples of the batch with which the loader begins."""


class Node:
    """One machine: which blocks are there, which are on their way, and which come next.

    `blocks`, int64 ascending, are all that it will ever need, by their numbers in the dataset;
    within the node a block is its place there.  `cache_blocks` is what the cache has room for, and
    `total_blocks` what the dataset has.  Time of the plan is the number of steps.
    """

    def __init__(
        self, blocks: Indices, block_bytes: int, cache_blocks: int, total_blocks: int
    ) -> None:
        self.blocks = blocks
        self.present = np.zeros(len(blocks), np.bool_)
        self.fetching = np.zeros(len(blocks), np.bool_)
        self._room = cache_blocks
        self._fits = cache_blocks >= total_blocks
        least = min(LEAST_AHEAD_BYTES / block_bytes, cache_blocks / 2)
        self._most_ahead = max(least, cache_blocks * AHEAD_SHARE)
        self._plan = Plan(len(blocks))
        self._uses = self._plan.next_use()
        self._wanted = np.empty(0, np.int64)
        self._at = 0
        self._victims: Indices | None = None
        self._victim = 0
        self.missing = 0
        """Blocks of the next step that are not there."""
        self.samples_to_ask = 0
        self.samples_to_come = 0
        self.first_batch = False
        """Whether the next step is the one with which the loader begins."""
        self.running = 0
        """Requests that are under way."""
        self.generation = 0
        """Answers to requests of an earlier one are lost."""
        self.card_free_at = 0.0
        self.removed = 0
        self.tight = 0
        """Times that what is needed now found no room."""

    @property
    def is_ready(self) -> bool:
        """Whether all that the next step needs is there."""
        return not (self.samples_to_come if self.first_batch else self.missing)

    def begin(self, first_requests: int) -> None:
        """Have a loader begin that knows nothing yet of when blocks are needed."""
        self._plan = Plan(len(self.blocks))
        self.fetch_samples(first_requests)

    def fetch_samples(self, first_requests: int) -> None:
        """Have the next step's samples come one by one; in blocks if there are no requests."""
        self.samples_to_ask = self.samples_to_come = first_requests
        self.first_batch = first_requests > 0

    def steps_until(self, block: int) -> float:
        """Return in how many steps a block is needed."""
        return float(self._uses[block])

    def lose(self, *, keep_cache: bool) -> None:
        """Have the machine die, with its requests, and with its cache unless that is kept."""
        self.generation += 1
        self.running = 0
        self.fetching[:] = False
        if not keep_cache:
            self.present[:] = False

    def tell(self, epoch: int, uses: Uses, begins: int) -> None:
        """Add what an epoch needs whose first step is number `begins` of all."""
        places = np.searchsorted(self.blocks, uses.blocks)
        self._plan.add(epoch, places, uses.first + begins, uses.last + begins)

    def plan(self, now: int) -> None:
        """Decide anew what comes next, before step number `now`."""
        self._plan.now = now
        uses = self._uses = self._plan.next_use()
        self.missing = int(np.count_nonzero((uses == 0) & ~self.present))
        wanted = np.flatnonzero((uses < NEVER) & ~self.present & ~self.fetching)
        wanted = wanted[np.argsort(uses[wanted], kind="stable")]
        if not self._fits:
            when = uses[wanted]
            here = (self.present | self.fetching) & (uses > 0) & (uses < NEVER)
            ahead = np.searchsorted(np.sort(uses[here]), when)
            ahead += np.searchsorted(when, when) - np.searchsorted(when, 0, side="right")
            wanted = wanted[(when == 0) | (ahead < self._most_ahead)]
        self._wanted, self._at, self._victims = wanted, 0, None

    def next_request(self) -> int | None:
        """Return the block to ask for now, or `SAMPLE`; None where there is nothing to be asked."""
        if self.samples_to_ask:
            self.samples_to_ask -= 1
            self.running += 1
            return SAMPLE
        if self._at >= len(self._wanted):
            return None
        block = int(self._wanted[self._at])
        if not self._has_room(float(self._uses[block])):
            return None
        self._at += 1
        self.fetching[block] = True
        self.running += 1
        return block

    def arrived(self, block: int) -> None:
        """Take what was asked for."""
        self.running -= 1
        if block == SAMPLE:
            self.samples_to_come -= 1
            return
        self.fetching[block] = False
        self.present[block] = True
        self.missing -= bool(self._uses[block] == 0)

    def _has_room(self, use: float) -> bool:
        if np.count_nonzero(self.present) + np.count_nonzero(self.fetching) < self._room:
            return True
        if self._victims is None:
            here = np.flatnonzero(self.present)
            self._victims = here[np.argsort(-self._uses[here], kind="stable")]
            self._victim = 0
        while self._victim < len(self._victims):
            block = int(self._victims[self._victim])
            if self._uses[block] <= use:
                break
            self._victim += 1
            self.present[block] = False
            self.removed += 1
            return True
        if use > 0 or self.running:
            return False
        self.tight += 1
        return True
