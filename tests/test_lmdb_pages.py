"""The walker over LMDB's pages, against LMDB's own cursor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastdata.errors import SourceError
from fastdata.formats.lmdb_pages import Entry, LmdbFile


def write(path: Path, transactions: list[list[tuple[bytes, bytes | None]]]) -> None:
    """Put, or where there is no value delete, in some transactions."""
    environment = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 29, lib_version=0)
    with environment:
        for changes in transactions:
            with environment.begin(write=True) as transaction:
                for key, value in changes:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)


def read(path: Path) -> tuple[list[tuple[bytes, bytes]], int]:
    """Return all items in order, by a cursor, and the depth of the tree."""
    environment = lmdb.open(str(path), subdir=False, lock=False, readonly=True, lib_version=0)
    with environment, environment.begin() as transaction:
        return list(transaction.cursor()), environment.stat()["depth"]


def entries(file: LmdbFile) -> list[Entry]:
    """Return all entries, none of which is damaged."""
    found = list(file.entries())
    assert all(isinstance(entry, Entry) for entry in found)
    return [entry for entry in found if isinstance(entry, Entry)]


def check(path: Path) -> int:
    """Compare the walker with the cursor; return the depth of the tree."""
    items, depth = read(path)
    data = path.read_bytes()
    file = LmdbFile(path)
    walked = entries(file)
    assert [(e.key, data[e.offset : e.offset + e.length]) for e in walked] == items
    assert file.data_end <= len(data)
    assert all(e.offset + e.length <= file.data_end for e in walked)
    # LMDB, too, needs no more of the file than that.
    os.truncate(path, file.data_end)
    assert read(path)[0] == items
    return depth


PAGE_LIMITS = [0, 1, 2, 3, 1000, 2000, *range(2020, 2050), 4079, 4080, 4081, 8176, 8177, 100_000]
"""Lengths about those at which LMDB begins to use whole pages, and one or two more."""


def test_values_of_any_length_are_found(tmp_path: Path) -> None:
    for length in PAGE_LIMITS:
        random = np.random.default_rng(length)
        items: list[Any] = [(f"k{n}".encode(), random.bytes(length)) for n in range(5)]
        write(tmp_path / f"{length}", [items])
        check(tmp_path / f"{length}")


@pytest.mark.parametrize(
    ("count", "key_bytes", "value_bytes", "depth"),
    [(0, 1, 1, 0), (1, 1, 1, 1), (300, 11, 8, 2), (20_000, 16, 4, 3), (3000, 500, 10, 5)],
)
def test_trees_of_any_depth_are_walked(
    tmp_path: Path, count: int, key_bytes: int, value_bytes: int, depth: int
) -> None:
    order = np.random.default_rng(0).permutation(count).tolist()
    items: list[Any] = [
        (str(n).encode().rjust(key_bytes, b"0"), n.to_bytes(value_bytes, "little")) for n in order
    ]
    write(tmp_path / "file", [items])
    assert check(tmp_path / "file") >= depth


def test_freed_pages_are_not_walked(tmp_path: Path) -> None:
    """Deleting and overwriting leaves pages behind whose contents look alive."""
    random = np.random.default_rng(1)
    rounds: list[list[tuple[bytes, bytes | None]]] = []
    for _ in range(12):
        keys = random.integers(0, 200, 80)
        lengths = random.choice([3, 300, 1900, 2100, 9000], 80)
        rounds.append(
            [
                (f"{key:05}".encode(), None if random.random() < 0.4 else random.bytes(length))
                for key, length in zip(keys.tolist(), lengths.tolist(), strict=True)
            ]
        )
    for number in range(1, len(rounds) + 1):
        write(tmp_path / "file", [rounds[number - 1]])
        check(tmp_path / "file")


def test_pages_have_numbers_of_more_than_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    value = bytes(2**16 * 4096)
    items: list[Any] = [(f"k{n:05}".encode(), n.to_bytes(900, "big")) for n in range(400)]
    write(path, [[(b"a", value)], items])
    found = {entry.key: (entry.offset, entry.length) for entry in entries(LmdbFile(path))}
    assert found.pop(b"a")[1] == len(value)
    with open(path, "rb") as file:
        read_back = {k: os.pread(file.fileno(), n, at) for k, (at, n) in found.items()}
    assert read_back == dict(items)
    assert min(offset for offset, _ in found.values()) > 2**28


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.binary(min_size=1, max_size=30),
                st.one_of(st.none(), st.integers(0, 10_000).map(bytes)),
            ),
            max_size=20,
        ),
        max_size=4,
    )
)
def test_any_history_of_changes_is_walked(
    tmp_path: Path, transactions: list[list[tuple[bytes, bytes | None]]]
) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    write(path, transactions)
    check(path)


@pytest.mark.parametrize("data", [b"", bytes(100), bytes(20_000), b"\x89HDF" * 5000])
def test_what_is_no_lmdb_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(SourceError, match="no LMDB file"):
        LmdbFile(tmp_path / "file")


@pytest.mark.parametrize("version", [0, 1])
def test_damage_stands_in_the_place_of_entries(tmp_path: Path, version: int) -> None:
    """Whatever page is overwritten, all others are read."""
    path = tmp_path / "file"
    environment = lmdb.open(str(path), subdir=False, lock=False, lib_version=version)
    with environment, environment.begin(write=True) as transaction:
        for number in range(2000):
            transaction.put(f"{number:05}".encode(), bytes(20))
    sound = path.read_bytes()
    count = LmdbFile(path).data_end // 4096
    for page in range(2, count):
        path.write_bytes(sound[: page * 4096] + b"\xff" * 4096 + sound[(page + 1) * 4096 :])
        found = list(LmdbFile(path).entries())
        good = [entry for entry in found if isinstance(entry, Entry)]
        assert len(good) < len(found)
        assert "entries are not there" in str(found[-1])
