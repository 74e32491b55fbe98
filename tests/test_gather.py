"""Gathering rows of a memory map, against slices of it."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastdata.formats import gather
from fastdata.formats.gather import gather_rows
from fastdata.formats.layout import checksum

LONG = gather.LONG_ROW_BYTES
MEMORY = np.random.default_rng(0).integers(0, 256, 3 * LONG, np.uint8)
MEMORY.flags.writeable = False


def sums_of(offsets: np.ndarray, length: int) -> np.ndarray:
    return np.array([checksum(MEMORY[x : x + length].tobytes()) for x in offsets], np.uint64)


@pytest.mark.parametrize("length", [1, 3, 784, 3072, LONG - 1, LONG, LONG + 1, 3 * LONG])
def test_rows_are_the_slices(length: int) -> None:
    last = len(MEMORY) - length
    offsets = np.array([last, 0, min(17, last), 0, *range(0, last, max(1, last // 20))], np.int64)
    for sums in (None, sums_of(offsets, length)):
        out = np.zeros((len(offsets), length), np.uint8)
        assert gather_rows(MEMORY, offsets, length, out, sums).tolist() == []
        for row, offset in zip(out, offsets, strict=True):
            np.testing.assert_array_equal(row, MEMORY[offset : offset + length])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on busy cores
@given(data=st.data())
def test_any_rows_in_chunks_of_any_size(data: st.DataObject) -> None:
    memory = MEMORY[: data.draw(st.integers(1, 200))]
    length = data.draw(st.integers(1, len(memory)))
    offsets = np.array(
        data.draw(st.lists(st.integers(0, len(memory) - length), max_size=30)), np.int64
    )
    out = np.zeros((len(offsets), length), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "CHUNK_BYTES", data.draw(st.integers(1, 500)))
        patch.setattr(gather, "LONG_ROW_BYTES", data.draw(st.sampled_from([1, 1000])))
        assert gather_rows(memory, offsets, length, out).size == 0
    expected = [memory[x : x + length] for x in offsets]
    np.testing.assert_array_equal(out, np.reshape(expected, (-1, length)))


@pytest.mark.parametrize("length", [100, LONG])
def test_rows_that_do_not_match_their_checksum_are_named(length: int) -> None:
    offsets = np.arange(8, dtype=np.int64)
    sums = sums_of(offsets, length)
    sums[[2, 7]] ^= np.uint64(1 << 63)
    out = np.zeros((8, length), np.uint8)
    bad = gather_rows(MEMORY, offsets, length, out, sums)
    assert bad.tolist() == [2, 7]
    assert bad.dtype == np.intp
    assert gather_rows(MEMORY, offsets, length, out).tolist() == []


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("length", [100, LONG])
def test_rows_outside_the_memory_are_named_and_the_others_copied(
    length: int, checked: bool
) -> None:
    last = len(MEMORY) - length
    offsets = np.array([last, last + 1, 5, -1, -(2**63), 2**63 - 1, len(MEMORY), 0], np.int64)
    inside = [0, 2, 7]
    sums = np.zeros(8, np.uint64)
    sums[inside] = sums_of(offsets[inside], length)
    out = np.zeros((8, length), np.uint8)
    bad = gather_rows(MEMORY, offsets, length, out, sums if checked else None)
    assert bad.tolist() == [1, 3, 4, 5, 6]
    for k in inside:
        np.testing.assert_array_equal(out[k], MEMORY[offsets[k] : offsets[k] + length])


@pytest.mark.parametrize("length", [11, LONG])
def test_rows_longer_than_the_memory_are_all_outside(length: int) -> None:
    out = np.zeros((3, length), np.uint8)
    assert gather_rows(MEMORY[:10], np.arange(3) - 1, length, out).tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [100, LONG])
def test_no_rows_are_no_work(length: int) -> None:
    none = np.empty(0, np.int64)
    assert gather_rows(MEMORY, none, length, np.empty((0, length), np.uint8)).tolist() == []


def test_rows_of_a_mapped_file_go_to_part_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(MEMORY.tobytes())
    with path.open("rb") as file:
        memory = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    out = np.full((4, 50), 7, np.uint8)
    gather_rows(memory, np.array([30, 3]), 50, out[1:3])
    np.testing.assert_array_equal(out[1:3], [MEMORY[30:80], MEMORY[3:53]])
    assert (out[[0, 3]] == 7).all()
