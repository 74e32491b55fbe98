"""Fixtures of the tests with real client libraries: the packed dataset that `ranks` describes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fork_servers import FurtherServer
from ranks import COUNT, pack_samples

CLIENTS = ["accelerate", "lightning", "transformers"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder."""
    item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def clients_server() -> Iterator[FurtherServer]:
    """A fork server that imports the clients once, not each rank; other tests do without it."""
    server = FurtherServer(CLIENTS)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def processes_have_clients(clients_server: FurtherServer) -> Iterator[None]:
    """Start processes from that server."""
    with clients_server.used():
        yield


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a packed dataset of `COUNT` samples; the label of ``i`` is ``i % 10``."""
    path = tmp_path_factory.mktemp("packed") / "images.lmdb"
    pack_samples(path, range(COUNT))
    return str(path)
