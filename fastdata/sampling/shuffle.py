"""Random orders, and what ``shuffle=`` may be: False, True, "block", "lanes" or a `BlockShuffle`.

`Shuffled` is a uniformly drawn permutation.  `BlockShuffled` is for what is slow at random reads,
disks and networks: neighbours in the file stay near each other in the order, and what is read
together is used together; with lanes, by one rank.  Both compute any position directly and keep no
list of samples: a `Permutation` takes 160 bytes for 100 million samples as for ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.random import STAFFORD_13, Draws, operation_id
from fastdata.sampling.order import Identity, Indices, Lookup, Order, Sequential

__all__ = ["BlockLookup", "BlockShuffle", "BlockShuffled", "Permutation", "Shuffled", "order_of"]

Words: TypeAlias = NDArray[np.uint64]

SHUFFLE = operation_id(0, "Shuffled")
BLOCKS = operation_id(0, "BlockShuffled blocks")
LAST_BLOCK = operation_id(0, "BlockShuffled last block")
WINDOWS = operation_id(0, "BlockShuffled windows")

LANE_BLOCK_BYTES = 8 << 20
"""Of a block of ``shuffle="lanes"``: where the first byte of a request takes 30 ms and a stream has
85 MB/s, that moves 64 MB/s."""

LEAST_LANE_BLOCKS = 512
"""Of a dataset, where that makes smaller blocks, but for those of less than a sample: else a small
dataset would have few lanes, and a small cache no room for two of its blocks."""

MOST_LANES, MOST_LANE_BLOCKS, OPEN_SHARE = 64, 32, 1 / 14
"""Of ``shuffle="lanes"``: lanes, blocks of a window, and the share of the blocks that are in use at
once, if that is less: a cache of a tenth of the dataset has room for them, and for what is next."""

LANE_SAMPLES = 128
"""Of a lane in a batch of all ranks, at most: fewer than a machine has, so that there are lanes for
all machines.  With 64 lanes, 125 machines fetch 2.9 times the bytes of the dataset in an epoch
(simulated, ``docs/design/scale.md``)."""

ROUNDS = 20
"""Even.  Measured with all permutations of 3 to 8 things over 60,000 to 806,400 keys: after 8
rounds some are clearly likelier (chi-square up to 745 standard deviations off), after 16 it shows
with 8 things only (6), after 20 nowhere (below 3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Permutation:
    """A function from 0..count-1 onto itself, one of all permutations as drawn by its keys.

    It is a cipher on the numbers 0 to count - 1: a generalised Feistel network, made to fit by
    cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
    sections 4 and 5).

        x = left * width + right          left in [0, height), right in [0, width)
        left  = (left  + F(key 0, right)) mod height
        right = (right + F(key 1, left))  mod width
        ... and so on: each step can be undone, so the whole is a bijection
        again, from the beginning, while x >= count: that walks along a cycle which leads back

    `F` is a hash, not a cipher: the result passes for random in statistics, and hides nothing
    from an adversary.  Safe to call from several threads and after a fork.  `keys` are independent
    random words, uint64 [ROUNDS].
    """

    count: int
    keys: Words

    @classmethod
    def drawn(cls, count: int, seed: int, epoch: int, operation: int, index: int) -> Permutation:
        """Return the permutation that (seed, epoch, operation, index) draws."""
        one = np.array([index], np.int64)
        return cls(count, Draws(seed, epoch, operation, one).bits(ROUNDS)[0])

    def __call__(self, positions: Indices) -> Indices:
        """Return the numbers at `positions`, int64 [n] each.

        Positions outside 0..count-1 are the caller's mistake, and may never return.
        """
        return _permuted(positions, np.array([self.count]), self.keys[:, None])


def _permuted(
    positions: Indices, counts: Indices, keys: Words, which: Indices | None = None
) -> Indices:
    """Return the numbers at some positions, int64 [n], of several permutations.

    `counts`, int64 [m], and `keys`, uint64 [ROUNDS, m], are those of the permutations, and `which`,
    int64 [n], says of which of them each position is; without, there is one.
    """
    # As square as can be, so that hardly anything walks: height * width < count + 2 height.
    # An even height lets a round be an odd permutation; without, half of them never come.
    last = np.maximum(counts - 1, 0)
    height = np.sqrt(last).astype(np.int64)
    height += 1 - (height * height > last)  # where the root was rounded up
    height += height % 2
    width = np.maximum(1, -(-counts // height))
    sides = height.astype(np.uint64), width.astype(np.uint64)
    ends = counts.astype(np.uint64)
    permuted = _rounds(positions.astype(np.uint64), sides, keys, which)
    outside = np.flatnonzero(permuted >= (ends if which is None else ends[which]))
    while outside.size:
        some = None if which is None else which[outside]
        permuted[outside] = _rounds(permuted[outside], sides, keys, some)
        outside = outside[permuted[outside] >= (ends if some is None else ends[some])]
    return permuted.view(np.int64)


def _rounds(words: Words, sides: tuple[Words, Words], keys: Words, which: Indices | None) -> Words:
    if which is not None:
        sides = sides[0][which], sides[1][which]
    first, second = STAFFORD_13
    changed = words // sides[1]
    other = words - changed * sides[1]
    hashed, shifted = np.empty_like(words), np.empty_like(words)
    for number, key in enumerate(keys):
        side = sides[number % 2]
        if which is not None:
            key = key[which]
        # Written out in place: a chain of expressions takes twice as long.
        np.bitwise_xor(other, key, out=hashed)
        np.multiply(hashed, first, out=hashed)
        np.right_shift(hashed, np.uint64(27), out=shifted)
        np.bitwise_xor(hashed, shifted, out=hashed)
        np.multiply(hashed, second, out=hashed)
        # The upper half of the word, multiplied and shifted down to 0..side-1.
        np.right_shift(hashed, np.uint64(32), out=hashed)
        np.multiply(hashed, side, out=hashed)
        np.right_shift(hashed, np.uint64(32), out=hashed)
        # Modulo without a division: what is below side wraps round to a huge word.
        np.add(changed, hashed, out=changed)
        np.subtract(changed, side, out=hashed)
        np.minimum(changed, hashed, out=changed)
        changed, other = other, changed
    # After an even number of rounds the halves are back in their places.
    joined: Words = changed * sides[1] + other
    return joined


@dataclass(frozen=True, slots=True)
class Shuffled(Order):
    """Every sample once, in an order uniformly drawn for each epoch; `count` is at most 2**62."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        check_int("count", self.count)

    def __len__(self) -> int:
        return self.count

    def in_epoch(self, epoch: int) -> Lookup:
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
    lanes : int
        Sequences of windows, of each of which a batch of all ranks together has as many samples.
        Where the number of ranks divides it, hardly a block is read by two of them.  If it does
        not divide the samples of such a batch, the next smaller number that does is taken.
    """

    block_size: int = 128
    window_blocks: int = 64
    lanes: int = 1

    def __post_init__(self) -> None:
        check_int("block_size", self.block_size)
        check_int("window_blocks", self.window_blocks)
        check_int("lanes", self.lanes)

    @classmethod
    def in_lanes(cls, count: int, sample_bytes: float, global_batch_size: int = 1) -> BlockShuffle:
        """Return what ``shuffle="lanes"`` is for so many samples of so many bytes.

        It depends on the dataset and the batch of all ranks together only, so that batches are the
        same wherever it is read; its blocks depend on the dataset only.
        """
        size = round(LANE_BLOCK_BYTES / max(1.0, sample_bytes))
        size = max(1, min(size, -(-count // LEAST_LANE_BLOCKS)))
        opened = max(1, int(-(-count // size) * OPEN_SHARE))
        # As many lanes as blocks of a window, about, and a number that many others divide.
        lanes = min(MOST_LANES, 1 << (math.isqrt(opened).bit_length() - 1))
        if opened >= MOST_LANES * MOST_LANE_BLOCKS // 4:
            lanes = MOST_LANES
        # Parts of a batch that the machines' parts are multiples of, as far as can be.
        many = global_batch_size // LANE_SAMPLES
        lanes = max(lanes, many // max(1, -(-many // opened)))
        # A window that begins within a block has a part of one block more.
        return cls(size, max(1, min(MOST_LANE_BLOCKS, opened // lanes - 1)), lanes)


@dataclass(frozen=True, slots=True)
class BlockShuffled(Order):
    """Every sample once: blocks in random order, samples shuffled in windows of blocks.

    The epoch is a sequence of windows.  Each has `window_blocks` blocks (the last of the epoch may
    have fewer) drawn from the whole dataset, and no other window has samples of these.  So the
    samples of a block are within ``block_size * window_blocks`` positions.  Inside a window every
    order of its samples is as likely as any other.  With several ranks each has its share of every
    window.

    With several `lanes` that sequence is cut into as many of equal length, whose windows begin at
    other places each.  A batch of `global_batch_size` samples, over all ranks, has the next samples
    of every lane; a rank, which has a part of the batch, those of some neighbouring lanes.
    """

    count: int
    seed: int
    block_size: int
    window_blocks: int
    lanes: int = 1
    global_batch_size: int = 1

    def __post_init__(self) -> None:
        check_int("count", self.count)
        BlockShuffle(self.block_size, self.window_blocks, self.lanes)  # checks them
        check_int("global_batch_size", self.global_batch_size)
        if self.global_batch_size % self.lanes:
            raise OptionError(
                f"{self.lanes} lanes do not divide a batch of {self.global_batch_size} samples"
            )

    def __len__(self) -> int:
        return self.count

    def in_epoch(self, epoch: int) -> Lookup:
        return BlockLookup(self, epoch) if self.count else Sequential(0).in_epoch(epoch)

    def _options(self) -> Identity:
        lanes = {"lanes": self.lanes} if self.lanes > 1 else {}
        return {
            "seed": self.seed,
            "block_size": self.block_size,
            "window_blocks": self.window_blocks,
            **lanes,
        }


class BlockLookup:
    """One epoch of a `BlockShuffled` with at least one sample.

        position -> lane, place -> window, shuffled place -> slot, sample of the block
        slot -> block

    Places are those of the sequence of blocks; slots are where blocks are in it.  The last block of
    the dataset may be short.  Its window is drawn, and there it gets the last slot, so that only
    the end of that window is missing: all else stays plain division.  Windows are told as if it
    were whole; the places behind it, with what is missing added.
    """

    def __init__(self, order: BlockShuffled, epoch: int) -> None:
        self._order = order
        self._epoch = epoch
        # No larger than the dataset, so that products stay in 64 bits.
        self._block_size = min(order.block_size, order.count)
        self._block_count = -(-order.count // self._block_size)
        window_blocks = min(order.window_blocks, self._block_count)
        self._window_size = self._block_size * window_blocks
        self._missing = self._block_count * self._block_size - order.count
        drawn = self._drawn(self._block_count, LAST_BLOCK)(np.zeros(1, np.int64))
        last_window = int(drawn[0]) // window_blocks
        self._last_slot = min((last_window + 1) * window_blocks, self._block_count) - 1
        self._end_of_short = (self._last_slot + 1) * self._block_size - self._missing
        self._blocks = self._drawn(self._block_count - 1, BLOCKS)
        # Lanes: where each begins and ends, and its windows, the first of which may be a part.
        lanes = range(order.lanes)
        starts = [lane * order.count // order.lanes for lane in (*lanes, order.lanes)]
        self._starts = np.array(starts, np.int64)
        edges = [lane * self._window_size // order.lanes for lane in lanes]
        self._edges = self._whole(self._starts[:-1]) + np.array(edges, np.int64)
        self._share = order.global_batch_size // order.lanes
        self._batches = order.count // order.global_batch_size
        self._rests = np.cumsum(np.diff(self._starts) - self._batches * self._share)

    def __call__(self, positions: Indices) -> Indices:
        lanes, places = self.places_of(positions)
        windows = (self._whole(places) - self._edges[lanes]) // self._window_size
        # All windows at once: by itself, each would take as long as 4,000 of its samples.
        which, of_sample = np.unique(windows + (lanes << 40), return_inverse=True)
        found = np.stack([windows, lanes])[:, np.unique(of_sample, return_index=True)[1]]
        starts, stops = self.window(found[1], found[0])
        order = self._order
        keys = Draws(order.seed, self._epoch, WINDOWS, which).bits(ROUNDS).T
        of = of_sample if len(which) > 1 else None
        begins = starts if of is None else starts[of]
        return self._samples(begins + _permuted(places - begins, stops - starts, keys, of))

    def places_of(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the lanes of positions, and their places in the sequence, int64 [n] each."""
        batches, inside = np.divmod(positions, self._order.global_batch_size)
        lanes, places = np.divmod(inside, self._share)
        places += batches * self._share
        # Behind the last whole batch comes what is left of each lane, one after another.
        rest = np.flatnonzero(batches >= self._batches)
        left = positions[rest] - self._batches * self._order.global_batch_size
        lanes[rest] = np.searchsorted(self._rests, left, side="right")
        before = np.concatenate(([0], self._rests))[lanes[rest]]
        places[rest] = self._batches * self._share + left - before
        return lanes, places + self._starts[lanes]

    def window(self, lanes: Indices, windows: Indices) -> tuple[Indices, Indices]:
        """Return the places at which windows of lanes begin and end, int64 [n] each.

        The first window of a lane may be -1.
        """
        start = self._edges[lanes] + windows * self._window_size
        first, last = self._starts[lanes], self._starts[lanes + 1]
        begin = self._place(start).clip(first, last)
        end: Indices = self._place(start + self._window_size).clip(first, last)
        return begin, end

    def _whole(self, places: Indices) -> Indices:
        """Return places as if the short block were whole: those behind it move up."""
        return places + self._missing * (places >= self._end_of_short)

    def _place(self, whole: Indices) -> Indices:
        """Undo `_whole`; what is missing is where the short block ends."""
        places: Indices = whole - (whole - self._end_of_short).clip(0, self._missing)
        return places

    def _samples(self, places: Indices) -> Indices:
        """Return the samples at places of the sequence of blocks."""
        slots, samples = np.divmod(self._whole(places), self._block_size)
        blocks = np.full_like(slots, self._block_count - 1)
        others = np.flatnonzero(slots != self._last_slot)
        blocks[others] = self._blocks(slots[others] - (slots[others] > self._last_slot))
        indices: Indices = blocks * self._block_size + samples
        return indices

    def _drawn(self, count: int, operation: int, index: int = 0) -> Permutation:
        return Permutation.drawn(count, self._order.seed, self._epoch, operation, index)


def order_of(
    shuffle: Any, count: int, seed: int, global_batch_size: int = 1, sample_bytes: float = 0.0
) -> Order:
    """Return the order that a loader's ``shuffle=`` asks for; `OptionError` if it asks for none.

    `global_batch_size` is that of all ranks together, and samples have `sample_bytes` on average.
    """
    if isinstance(shuffle, str) and shuffle == "block":
        shuffle = BlockShuffle()
    if isinstance(shuffle, str) and shuffle == "lanes":
        shuffle = BlockShuffle.in_lanes(count, sample_bytes, global_batch_size)
    if isinstance(shuffle, BlockShuffle):
        most = min(shuffle.lanes, global_batch_size)
        lanes = next(n for n in range(most, 0, -1) if global_batch_size % n == 0)
        return BlockShuffled(
            count, seed, shuffle.block_size, shuffle.window_blocks, lanes, global_batch_size
        )
    if not isinstance(shuffle, bool):
        raise OptionError(
            'shuffle is False, True, "block", "lanes" or a BlockShuffle(block_size=..., '
            f"window_blocks=..., lanes=...), not {shuffle!r}"
        )
    return Shuffled(count, seed) if shuffle else Sequential(count)
