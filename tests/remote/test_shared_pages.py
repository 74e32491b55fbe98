"""Samples of a cache that share pages of a file, fetched and removed at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hostile_server import HostileServer, hostile_server
from pack_helpers import QUICK, image_folder
from remote_helpers import needs_store

import fastdata
from fastdata.errors import StorageError
from fastdata.remote import dataset as dataset_module
from fastdata.remote.dataset import StoredDataset, find_dataset
from fastdata.remote.folder import CacheFolder
from fastdata.remote.verifying import damaged_samples
from fastdata.storage import open_store

pytestmark = needs_store

FIRST_SHARD = 15
"""Samples of the first of two shards, some 700 bytes each: several lie in a page."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    images = image_folder(folder / "images", 2 * FIRST_SHARD)
    fastdata.pack(images, folder / "served" / "train", shards=2, **QUICK)
    return folder / "served"


@pytest.fixture(scope="module")
def asked(served: Path) -> Iterator[HostileServer]:
    """A server, of which obstore keeps open what no single test leaves behind."""
    with hostile_server(served) as found:
        open_store(found.url).exists("a")
        yield found


@pytest.fixture
def server(asked: HostileServer) -> Iterator[HostileServer]:
    yield asked
    asked.fault = lambda *_: ""


@pytest.fixture
def stored(server: HostileServer, tmp_path: Path) -> Iterator[StoredDataset]:
    folder = CacheFolder.open(tmp_path / "cache")
    found = StoredDataset(find_dataset(folder, f"{server.url}/train", {}))
    yield found
    found.close()


@pytest.fixture
def begin() -> Iterator[Callable[..., Future[int]]]:
    with ThreadPoolExecutor(2) as pool:
        yield pool.submit


def present(stored: StoredDataset) -> list[int]:
    return np.flatnonzero(stored.present).tolist()


def test_a_neighbour_that_comes_while_a_hole_is_made(
    stored: StoredDataset, begin: Callable[..., Future[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.fetch(0, 8)
    stored.remove(4, 8)
    coming: list[Future[int]] = []
    punch = dataset_module.punch_hole

    def slowly(*place: int) -> None:
        if not coming:
            coming.append(begin(stored.fetch, 4, 8))
            threading.Event().wait(0.3)  # for which it would come, if nothing kept it
        punch(*place)

    monkeypatch.setattr(dataset_module, "punch_hole", slowly)
    stored.remove(0, 4)
    coming[0].result()
    assert present(stored) == [4, 5, 6, 7]
    assert damaged_samples(stored.cached) == []


class Gate:
    """Keeps a server from answering for its second shard, until it is opened."""

    def __init__(self, server: HostileServer) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        server.fault = self._fault

    def _fault(self, method: str, path: str, first: int) -> str:
        if path.endswith("shard-00001.lmdb"):
            self.reached.set()
            self._open.wait(20)
        return ""

    def open(self) -> None:
        self._open.set()


def test_a_neighbour_that_goes_while_others_come(
    server: HostileServer, stored: StoredDataset, begin: Callable[..., Future[int]]
) -> None:
    last = FIRST_SHARD
    stored.fetch(last - 6, last - 2)
    gate = Gate(server)
    coming = begin(stored.fetch, last - 2, last + 2)
    gate.reached.wait(20)  # those of the first shard are written, and not present yet
    stored.remove(last - 6, last - 2)
    gate.open()
    coming.result()
    assert present(stored) == [last - 2, last - 1, last, last + 1]
    assert damaged_samples(stored.cached) == []


def test_samples_that_come_twice_of_which_one_time_fails(
    server: HostileServer, stored: StoredDataset, begin: Callable[..., Future[int]]
) -> None:
    last = FIRST_SHARD
    gate = Gate(server)
    coming = begin(stored.fetch, last - 2, last + 2)
    gate.reached.wait(20)
    blocked = server.fault
    server.fault = lambda method, path, first: "404"
    with pytest.raises(StorageError):
        stored.fetch(last - 4, last)
    assert present(stored) == []
    server.fault = blocked
    gate.open()
    coming.result()
    assert present(stored) == [last - 2, last - 1, last, last + 1]
    assert damaged_samples(stored.cached) == []
    stored.remove(last - 2, last + 2)
    assert present(stored) == []
