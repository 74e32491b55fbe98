"""Counter-based draws: pure functions, and random enough."""

from __future__ import annotations

import numpy as np
import pytest

from fastdata.random import Draws, operation_id

MASK = 2**64 - 1
N = 50_000


def splitmix64(state: int) -> tuple[int, int]:
    """One step of the published algorithm, in Python integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def reference_bits(seed: int, epoch: int, operation: int, index: int, count: int) -> list[int]:
    key = 0
    for part in (seed, epoch, operation, index):
        # The finaliser of (key + golden) ^ part: one step whose state is that.
        before = (((key + 0x9E3779B97F4A7C15) ^ (part & MASK)) - 0x9E3779B97F4A7C15) & MASK
        _, key = splitmix64(before)
    words = []
    for _ in range(count):
        key, word = splitmix64(key)
        words.append(word)
    return words


@pytest.mark.parametrize(
    ("seed", "epoch", "operation", "index"),
    [(0, 0, 0, 0), (1, 2, 3, 4), (-1, 7, 2**64 - 1, 10**9), (2**70 + 5, 0, 12345, 2**40)],
)
def test_bits_are_those_of_splitmix64(seed: int, epoch: int, operation: int, index: int) -> None:
    draws = Draws(seed, epoch, operation, np.array([index, 3]))
    assert draws.bits(5)[0].tolist() == reference_bits(seed, epoch, operation, index, 5)


def test_published_output_of_splitmix64_is_reproduced() -> None:
    # State 1234567, as listed at rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    state, words = 1234567, []
    for _ in range(3):
        state, word = splitmix64(state)
        words.append(word)
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_do_not_depend_on_which_samples_are_drawn_together() -> None:
    every = Draws(3, 4, 5, np.arange(100)).uniform(7)
    some = np.array([50, 2, 99, 2])
    np.testing.assert_array_equal(Draws(3, 4, 5, some).uniform(7), every[some])


def test_first_skips_draws() -> None:
    draws = Draws(0, 1, 2, np.arange(20))
    np.testing.assert_array_equal(draws.bits(3, first=4), draws.bits(7)[:, 4:])
    np.testing.assert_array_equal(draws.uniform(3, first=4), draws.uniform(7)[:, 4:])


@pytest.mark.parametrize("change", ["seed", "epoch", "operation", "index", "draw"])
def test_every_coordinate_gives_unrelated_numbers(change: str) -> None:
    samples = np.arange(N)
    base = Draws(1, 2, 3, samples).uniform()[:, 0]
    other = {
        "seed": lambda: Draws(2, 2, 3, samples).uniform(),
        "epoch": lambda: Draws(1, 3, 3, samples).uniform(),
        "operation": lambda: Draws(1, 2, 4, samples).uniform(),
        "index": lambda: Draws(1, 2, 3, samples + 1).uniform(),
        "draw": lambda: Draws(1, 2, 3, samples).uniform(first=1),
    }[change]()[:, 0]
    assert abs(np.corrcoef(base, other)[0, 1]) < 5 / np.sqrt(N)


def test_uniform_is_uniform() -> None:
    values = Draws(11, 0, 7, np.arange(N)).uniform(2)
    assert values.min() >= 0
    assert values.max() < 1
    assert values.dtype == np.float64
    for column in values.T:
        counts, _ = np.histogram(column, 100, (0, 1))
        chi_square = ((counts - N / 100) ** 2 / (N / 100)).sum()
        assert chi_square < 180  # 99 degrees of freedom: p = 1e-6
    assert abs(values.mean() - 0.5) < 0.005


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_integers_are_uniform_below_their_bound(bound: int) -> None:
    values = Draws(5, 6, 7, np.arange(N)).integers(bound)[:, 0]
    counts = np.bincount(values, minlength=bound)
    assert len(counts) == bound
    expected = N / bound
    freedom = bound - 1
    assert ((counts - expected) ** 2 / expected).sum() <= freedom + 6 * np.sqrt(2 * freedom)


def test_integers_take_a_bound_for_each_sample() -> None:
    bounds = np.arange(1, 1001)
    values = Draws(0, 0, 0, np.arange(1000)).integers(bounds[:, None], 3)
    assert values.shape == (1000, 3)
    assert (values < bounds[:, None]).all()
    assert (values >= 0).all()


def test_every_bit_is_set_half_of_the_time() -> None:
    words = Draws(0, 0, 0, np.arange(N)).bits()[:, 0]
    ones = [int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert max(abs(count - N / 2) for count in ones) < 5 * np.sqrt(N) / 2


def test_operation_ids_are_stable() -> None:
    # Part of the contract: seeds of old experiments go on meaning the same.
    assert operation_id(0, "RandomResizedCrop") == 5262631368446594421
    assert operation_id(1, "RandomHorizontalFlip") == 6222036338712392684
    assert operation_id(0, "RandomCrop") != operation_id(1, "RandomCrop")


def test_draws_are_stable() -> None:
    draws = Draws(0, 0, operation_id(0, "RandomCrop"), np.arange(4))
    assert draws.integers(1000, 2).tolist() == [[518, 867], [797, 852], [540, 517], [263, 622]]
