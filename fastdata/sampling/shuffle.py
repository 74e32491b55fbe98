"""Random orders, and what ``shuffle=`` may be: False, True, "block" or a `BlockShuffle`.

`Shuffled` is a uniformly drawn permutation.  `BlockShuffled` is for disks that
hate random reads: neighbours in the file stay near each other in the order,
and what is read together is used together.  Both find any position at once
and keep no list of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import OptionError
from fastdata.random import operation_id
from fastdata.sampling.order import Identity, Indices, Lookup, Order, Sequential, check_count
from fastdata.sampling.permutation import Permutation

__all__ = ["BlockShuffle", "BlockShuffled", "Shuffled", "order_of"]

SHUFFLE = operation_id(0, "Shuffled")
BLOCKS = operation_id(0, "BlockShuffled blocks")
LAST_BLOCK = operation_id(0, "BlockShuffled last block")
WINDOWS = operation_id(0, "BlockShuffled windows")


@dataclass(frozen=True, slots=True)
class Shuffled(Order):
    """Every sample once, in an order uniformly drawn for each epoch.

    Parameters
    ----------
    count : int
        Number of samples, up to 2**62.
    seed : int
        Epochs of one seed are independent permutations.
    """

    count: int
    seed: int

    def __post_init__(self) -> None:
        check_count("count", self.count, 0)

    def __len__(self) -> int:
        return self.count

    def of(self, epoch: int) -> Lookup:
        return Permutation.drawn(self.count, self.seed, epoch, SHUFFLE, 0)

    def _options(self) -> Identity:
        return {"seed": self.seed}


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """How `BlockShuffled` cuts a dataset: what a user passes as ``shuffle=``.

    Parameters
    ----------
    block_size : int
        Consecutive samples that stay together.  The default, 128, is about
        4 MB of 30 kB JPEGs: a hard disk that seeks in 10 ms and reads 200 MB/s
        spends two thirds of its time reading, against 1.5% with single samples.
    window_blocks : int
        Blocks that are mixed with one another.  With the default, 64, a batch
        of 256 from a dataset packed class by class meets about 63 blocks of
        it, wherever they lie, and a window is about 250 MB: what the page
        cache must hold for each byte to be read once.
    """

    block_size: int = 128
    window_blocks: int = 64

    def __post_init__(self) -> None:
        check_count("block_size", self.block_size, 1)
        check_count("window_blocks", self.window_blocks, 1)


@dataclass(frozen=True, slots=True)
class BlockShuffled(Order):
    """Every sample once: blocks in random order, samples shuffled in windows of blocks.

    The epoch is a sequence of windows.  Each has `window_blocks` blocks (the
    last of the epoch may have fewer) drawn from the whole dataset, and no
    other window has samples of these.  So the samples of a block stand within
    ``block_size * window_blocks`` positions.  Inside a window every order of
    its samples is as likely as any other.

    With several ranks each has its share of every window.

    Parameters
    ----------
    count : int
        Number of samples, up to 2**62.
    seed : int
        Epochs of one seed are independent orders.
    block_size, window_blocks : int
        See `BlockShuffle`.
    """

    count: int
    seed: int
    block_size: int
    window_blocks: int

    def __post_init__(self) -> None:
        check_count("count", self.count, 0)
        BlockShuffle(self.block_size, self.window_blocks)  # checks them

    def __len__(self) -> int:
        return self.count

    def of(self, epoch: int) -> Lookup:
        return _BlockLookup(self, epoch) if self.count else Sequential(0).of(epoch)

    def _options(self) -> Identity:
        return {
            "seed": self.seed,
            "block_size": self.block_size,
            "window_blocks": self.window_blocks,
        }


class _BlockLookup:
    """One epoch of a `BlockShuffled` with at least one sample.

        position -> window, offset -> shuffled offset -> slot, sample of the block
        slot -> block

    Slots are the places of blocks, `window_blocks` to a window.  The last
    block of the dataset may be short.  Its window is drawn, and there it gets
    the last slot, so that only the end of that window is missing: all else
    stays plain division.
    """

    def __init__(self, order: BlockShuffled, epoch: int) -> None:
        self._order = order
        self._epoch = epoch
        # No larger than the dataset, so that products stay in 64 bits.
        self._block_size = min(order.block_size, order.count)
        self._block_count = -(-order.count // self._block_size)
        self._window_blocks = min(order.window_blocks, self._block_count)
        self._missing = self._block_count * self._block_size - order.count
        drawn = self._drawn(self._block_count, LAST_BLOCK)(np.zeros(1, np.int64))
        self._last_window = int(drawn[0]) // self._window_blocks
        slots = min((self._last_window + 1) * self._window_blocks, self._block_count)
        self._last_slot = slots - 1
        self._blocks = self._drawn(self._block_count - 1, BLOCKS)

    def __call__(self, positions: Indices) -> Indices:
        block_size = self._block_size
        window_size = block_size * self._window_blocks
        # As if the short block were whole: the windows behind it move up.
        behind = positions >= (self._last_window + 1) * window_size - self._missing
        places = positions + self._missing * behind
        windows = places // window_size
        for window in np.unique(windows).tolist():
            here = np.flatnonzero(windows == window)
            start = window * window_size
            stop = min(start + window_size, self._block_count * block_size)
            size = stop - start - self._missing * (window == self._last_window)
            shuffle = self._drawn(size, WINDOWS, window)
            places[here] = start + shuffle(places[here] - start)
        slots, samples = np.divmod(places, block_size)
        blocks = np.full_like(slots, self._block_count - 1)
        others = np.flatnonzero(slots != self._last_slot)
        blocks[others] = self._blocks(slots[others] - (slots[others] > self._last_slot))
        found: Indices = blocks * block_size + samples
        return found

    def _drawn(self, count: int, operation: int, index: int = 0) -> Permutation:
        return Permutation.drawn(count, self._order.seed, self._epoch, operation, index)


def order_of(shuffle: Any, count: int, seed: int) -> Order:
    """Return the order that a loader's ``shuffle=`` asks for.

    Parameters
    ----------
    shuffle : bool, "block" or BlockShuffle
        "block" is ``BlockShuffle()``.
    count : int
        Number of samples.
    seed : int
        Of the shuffle.

    Raises
    ------
    OptionError
        If `shuffle` is something else.
    """
    if isinstance(shuffle, str) and shuffle == "block":
        shuffle = BlockShuffle()
    if isinstance(shuffle, BlockShuffle):
        return BlockShuffled(count, seed, shuffle.block_size, shuffle.window_blocks)
    if not isinstance(shuffle, bool):
        raise OptionError(
            f'shuffle is False, True, "block" or a BlockShuffle(block_size=..., '
            f"window_blocks=...), not {shuffle!r}"
        )
    return Shuffled(count, seed) if shuffle else Sequential(count)
