"""The order in which a process runs its rows and the baseline, and its ratios for each row.

A machine drifts: what runs later is faster or slower for reasons of its own.  So every round runs
all rows in another random order, and each row is compared with the baseline blocks around it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from fastdata.measuring.windows import in_turns

__all__ = ["ROUNDS", "ROWS_PER_BASELINE", "plan", "ratios_of"]

ROUNDS = 20
"""In the same time, many short blocks say more than few long ones: machines change within seconds.

The spread of a row is a third to a half of that of five rounds with blocks of half a second.
"""

ROWS_PER_BASELINE = 5
"""Rows between two baseline blocks: two blocks for ten rows make the spread 5-20% smaller."""

K = TypeVar("K", bound=Hashable)


def plan(rows: Sequence[K], baseline: K, order: random.Random, rounds: int = ROUNDS) -> Iterator[K]:
    """Yield the blocks of one process: each row once a round, and baseline blocks around them."""
    groups = math.ceil(len(rows) / ROWS_PER_BASELINE)
    for turn in in_turns(rows, rounds, order):
        for group in range(groups):
            yield baseline
            yield from turn[group::groups]
    yield baseline


def ratios_of(blocks: Sequence[K], seconds: Sequence[float], baseline: K) -> dict[K, list[float]]:
    """Return logarithms of baseline time over the time of each row, one for each round.

    `seconds` has the time of a step in each block, in the order of `plan`.  The baseline's time at
    a row's block is interpolated between the two baseline blocks around it, so a steady drift
    cancels.  Rows without a baseline block on both sides do not count: a process may be cut short.
    """
    times = [math.log(one) for one in seconds]
    there = [n for n, block in enumerate(blocks[: len(times)]) if block == baseline]
    found: dict[K, list[float]] = {}
    for before, after in pairwise(there):
        for n in range(before + 1, after):
            share = (n - before) / (after - before)
            expected = (1 - share) * times[before] + share * times[after]
            found.setdefault(blocks[n], []).append(expected - times[n])
    return found
