"""Random numbers that are functions, not streams.

A draw depends only on (seed, epoch, operation, sample index, draw number), and
on the sample's place in the epoch where an order may have it more than once. So
it is the same whoever computes it: any number of workers, threads or
processes, one rank or eight, in the middle of an epoch after a resume.

The generator is SplitMix64 used as a counter-based hash (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with
Stafford's variant 13 of the finaliser): each part of the coordinate is mixed
into a 64-bit key, and draw number k of a sample is output k of SplitMix64
started at the sample's key.  It passes the usual statistical batteries and is
not meant for cryptography.  The arithmetic is modulo 2**64 and written out
here, so results change with no version of NumPy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["NO_EPOCH", "STAFFORD_13", "Draws", "SampleKeys", "operation_id"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: the step of SplitMix64."""

STAFFORD_13 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The two multipliers of SplitMix64's finaliser."""

WORD = 2**64 - 1

NO_EPOCH = 2**64
"""Epoch of samples that are read without a loader; the draws are those of epoch 0."""


def operation_id(position: int, name: str) -> int:
    """Return the 64-bit number under which an operation draws.

    Parameters
    ----------
    position : int
        Place of the transform in the user's list, from 0.
    name : str
        Its class name.

    Notes
    -----
    The number is part of the contract: the first 8 bytes, little-endian, of
    BLAKE2b over ``"{position}/{name}"``.  Two transforms of one class at
    different places draw independently; changing parameters of a transform,
    or adding transforms behind it, leaves its draws as they were.
    """
    digest = hashlib.blake2b(f"{position}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The random numbers of one operation for some samples of one epoch.

    Parameters
    ----------
    seed, epoch, operation : int
        Taken modulo 2**64.
    indices : ndarray of int64, shape [n]
        Sample indices; the same index gives the same numbers at any place.
    occurrences : ndarray of int64, shape [n], optional
        For the same index to give other numbers each time it occurs.
    """

    seed: int
    epoch: int
    operation: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None = None

    def bits(self, count: int = 1, *, first: int = 0) -> NDArray[np.uint64]:
        """Return uniform 64-bit words, uint64 [n, count]: draws first, first + 1, ..."""
        key = np.zeros(1, np.uint64)
        for part in (self.seed, self.epoch, self.operation):
            key = _mix((key + GOLDEN) ^ np.uint64(part & WORD))
        samples = _mix((key + GOLDEN) ^ np.asarray(self.indices).astype(np.uint64))
        if self.occurrences is not None:
            samples = _mix((samples + GOLDEN) ^ self.occurrences.astype(np.uint64))
        numbers = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        return _mix(samples[:, None] + numbers * GOLDEN)

    def uniform(self, count: int = 1, *, first: int = 0) -> NDArray[np.float64]:
        """Return floats in [0, 1) with 53 random bits, float64 [n, count]."""
        words = self.bits(count, first=first) >> np.uint64(11)
        floats: NDArray[np.float64] = words.astype(np.float64) * 2.0**-53
        return floats

    def integers(self, bound: ArrayLike, count: int = 1, *, first: int = 0) -> NDArray[np.int64]:
        """Return integers in [0, bound), int64 [n, count].

        Parameters
        ----------
        bound : array_like of int
            From 1 to 2**31, broadcast against [n, count].

        Notes
        -----
        Multiply and shift (Lemire, "Fast random integer generation in an
        interval", 2019) without its rejection step: no value is more than
        bound / 2**32 likelier than another.
        """
        words = self.bits(count, first=first) >> np.uint64(32)
        product: NDArray[np.uint64] = words * np.asarray(bound).astype(np.uint64)
        integers: NDArray[np.int64] = (product >> np.uint64(32)).astype(np.int64)
        return integers


@dataclass(frozen=True, slots=True, eq=False)
class SampleKeys:
    """Samples of an epoch, as random draws distinguish them.

    Parameters
    ----------
    epoch : int
    indices : ndarray of int64, shape [n]
        Sample indices.
    occurrences : ndarray of int64, shape [n], optional
        If the order may have a sample more than once, what tells these occurrences apart: their
        positions in the epoch.  Each draws anew.  None: draws depend on the sample alone.
    """

    epoch: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, some: slice | NDArray[np.bool_] | NDArray[np.int64]) -> SampleKeys:
        occurrences = None if self.occurrences is None else self.occurrences[some]
        return SampleKeys(self.epoch, self.indices[some], occurrences)

    def replaced(self, indices: NDArray[np.int64]) -> SampleKeys:
        """Return the keys of other samples in their place."""
        return SampleKeys(self.epoch, indices, self.occurrences)

    def draws(self, seed: int, operation: int) -> Draws:
        """Return the random numbers of an operation on these samples."""
        return Draws(seed, self.epoch, operation, self.indices, self.occurrences)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 finaliser of each word: a bijection of 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * STAFFORD_13[0]
    words = (words ^ (words >> np.uint64(27))) * STAFFORD_13[1]
    words = words ^ (words >> np.uint64(31))
    return words
