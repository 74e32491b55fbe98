"""What is asked for from the disk before it is needed."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_data import MemoryData, MemoryImages, digest
from worker_helpers import (
    METHODS,
    RRC,
    epochs_of,
)

import fastdata
from fastdata.engine import work as engine_work
from fastdata.errors import ShardCorruptError
from fastdata.formats import mapped
from fastdata.formats.reader import ShardReader
from fastdata.loading import loader
from fastdata.measuring.page_cache import resident

# -- read ahead -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["lmdb", "hdf5", "lmdb x 3", "hdf5 x 3"])
def test_every_stored_byte_is_asked_for_before_it_is_needed(
    mixed: dict[str, Path], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[tuple[int, int]]] = {}
    will_need = ShardReader.will_need

    def record(reader: ShardReader, starts: Any, ends: Any) -> None:
        ranges = zip(starts.tolist(), ends.tolist(), strict=True)
        asked.setdefault(os.fspath(reader.path), []).extend(ranges)
        will_need(reader, starts, ends)

    monkeypatch.setattr(ShardReader, "will_need", record)
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (0.0, 0.0, 0.0))  # never leave any out
    made = epochs_of(mixed[layout], RRC, 1, num_workers=1, worker_method="thread")
    assert digest(made) == digest(epochs_of(mixed["lmdb"], RRC, 1))
    missing = []
    for reader in fastdata.open(mixed[layout]).shards:
        ranges = asked[os.fspath(reader.path)]
        assert all(end <= reader.path.stat().st_size for _, end in ranges)
        for name in ("image", "mask"):
            for offset, length in zip(
                reader.column(f"{name}.offset").tolist(),
                reader.column(f"{name}.length").tolist(),
                strict=True,
            ):
                if not any(start <= offset and offset + length <= end for start, end in ranges):
                    missing.append((reader.path.name, offset))
    assert missing == []


class Journal(list[Any]):
    """A list whose additions are written down in another, under a name."""

    def __init__(self, name: str, journal: list[tuple[str, int]]) -> None:
        super().__init__()
        self.name, self.journal = name, journal

    def append(self, value: int) -> None:
        self.journal.append((self.name, value))

    def __iadd__(self, values: Any) -> Any:
        self.journal += [(self.name, value) for value in values]
        return self


def journal_of(num_workers: int) -> list[tuple[str, int]]:
    """Return what was asked for and read in two epochs, in order."""
    data, journal = MemoryData(48), []
    data.reads, data.read_ahead = Journal("read", journal), Journal("ask", journal)
    it = loader(data, batch_size=4, shuffle=True, transform=RRC, num_workers=num_workers)
    for _ in range(2):
        list(it)
    it.close()
    return journal


def test_batches_are_asked_for_once_and_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (0.0, 0.0, 0.0))
    journal = journal_of(1)
    asked = [index for name, index in journal if name == "ask"]
    read = [index for name, index in journal if name == "read"]
    assert len(read) >= 96
    assert asked[: len(read)] == read, "in the order of the batches"
    positions = {name: [n for n, (kind, _) in enumerate(journal) if kind == name] for name in
                 ("ask", "read")}  # fmt: skip
    leads = zip(positions["ask"], positions["read"], strict=False)
    assert all(ask < read for ask, read in leads)
    assert journal_of(0)[0][0] == "read", "the caller does not wait for what comes later"


def test_what_is_in_memory_is_asked_for_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (60.0, 0.0, 0.0))
    asked = [index for name, index in journal_of(1) if name == "ask"]
    assert 4 <= len(asked) <= 24, "batches 0, 2, 6, 14 and 30 at most"


def test_waiting_for_a_processor_is_not_taken_for_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy machines make asking slow by the clock, but not by the processor time it takes."""
    monkeypatch.setattr(engine_work, "IN_MEMORY_SECONDS", (0.01, 0.0, 0.0))
    ask = MemoryImages.read_ahead

    def ask_late(images: Any) -> None:
        time.sleep(0.03)
        ask(images)

    monkeypatch.setattr(MemoryImages, "read_ahead", ask_late)
    asked = [index for name, index in journal_of(1) if name == "ask"]
    assert 4 <= len(asked) <= 24, "as of what is in memory"


@pytest.mark.parametrize("library", [True, False])
def test_what_is_asked_for_arrives_in_the_page_cache(
    disk_path: Path, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setattr(mapped, "loaded_library", lambda: None)
    page = mmap.PAGESIZE
    path = disk_path / "file"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_SYNC)
    os.write(descriptor, bytes(64 * page))
    file = mapped.MappedFile(path)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert resident([path]) == 0
    # Ranges of whoever wrote the file: within pages, empty, inverted, and beyond its end.
    starts = np.array([page // 2, 40 * page, 7 * page, 63 * page + 1, 90 * page])
    ends = np.array([2 * page + 1, 40 * page, 5 * page, 99 * page, 91 * page])
    file.read_soon(starts, ends)
    for _ in range(1000):
        if resident([path]) * 64 >= 4:
            break
        time.sleep(0.01)
    assert resident([path]) * 64 == 4, "pages 0 to 2, and the last"


def test_a_failed_read_ahead_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is said when the sample is read, in its place."""

    def fail(images: Any) -> None:
        raise ShardCorruptError("no such range")

    monkeypatch.setattr(MemoryImages, "read_ahead", fail)
    for method in METHODS:
        it = loader(MemoryData(20), transform=RRC, num_workers=2, worker_method=method)
        assert len(list(it)) == 20
        it.close()


@pytest.mark.parametrize("method", METHODS)
def test_files_that_are_not_in_the_page_cache_load_right(
    mixed: dict[str, Path], disk_path: Path, method: Any
) -> None:
    expected = digest(epochs_of(mixed["hdf5 x 3"], RRC))
    for path in mixed["hdf5 x 3"].iterdir():
        # Pages can only be dropped once they are on the disk.
        copy = os.open(disk_path / path.name, os.O_CREAT | os.O_RDWR | os.O_SYNC)
        os.write(copy, path.read_bytes())
        os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(copy)
    assert resident(sorted(disk_path.glob("*.h5"))) == 0
    made = epochs_of(disk_path, RRC, num_workers=2, worker_method=method)
    assert digest(made) == expected
