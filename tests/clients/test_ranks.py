"""The helpers of these tests themselves: failures are reported, and pixels tell the sample."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from ranks import COUNT, RanksError, fingerprints, run_ranks, samples_of
from torch import distributed

import fastdata
from fastdata import transforms


def who(extra: int) -> tuple[Any, ...]:
    return os.environ.get("RANK"), distributed.is_initialized(), extra


def fail_on_rank_1() -> int:
    if os.environ["RANK"] == "1":
        raise ValueError("a reason")
    distributed.barrier()  # which the other rank never reaches
    return 0


def sleep_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(60)


def test_one_rank_is_a_plain_process() -> None:
    assert run_ranks(who, 1, 5) == [(None, False, 5)]


def test_ranks_are_as_torchrun_starts_them() -> None:
    assert run_ranks(who, 2, 5, group=True) == [("0", True, 5), ("1", True, 5)]


def test_a_rank_that_fails_is_reported() -> None:
    with pytest.raises(RanksError, match=r"rank 1 of 2: (.|\n)*ValueError: a reason"):
        run_ranks(fail_on_rank_1, 2, group=True)


def test_a_rank_that_hangs_is_reported() -> None:
    with pytest.raises(RanksError, match=r"^rank 1 of 2: did not finish in time$"):
        run_ranks(sleep_on_rank_1, 2, seconds=5)


def test_pixels_tell_the_sample_and_its_draws(packed: str) -> None:
    transform = [
        transforms.RandomCrop(24),
        transforms.RandomHorizontalFlip(),
        transforms.ToDtype(torch.float32),
    ]
    with fastdata.loader(packed, batch_size=COUNT, transform=transform) as loader:
        batch = next(iter(loader))
    assert samples_of(batch.image) == list(range(COUNT))
    assert batch.label.tolist() == [sample % 10 for sample in range(COUNT)]
    columns = {(left, right) for _, left, _, right in fingerprints(batch.image)}
    assert {right - left for left, right in columns} == {23, -23}
