"""Fixtures of the tests with real client libraries: the packed dataset that `ranks` describes."""

from __future__ import annotations

import multiprocessing

import pytest
from ranks import COUNT, pack_samples

CLIENTS = ["accelerate", "lightning", "transformers"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder."""
    item.add_marker(pytest.mark.clients)


@pytest.fixture(autouse=True, scope="session")
def quick_fork_server() -> None:
    """Have the fork server import the clients once, not each rank; one that is missing is ignored.

    It takes the place of the fixture of the same name in the folder above.
    """
    multiprocessing.set_forkserver_preload(
        ["fastdata.processes.worker", "fastdata.loading", *CLIENTS]
    )


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a packed dataset of `COUNT` samples; the label of ``i`` is ``i % 10``."""
    path = tmp_path_factory.mktemp("packed") / "images.lmdb"
    pack_samples(path, range(COUNT))
    return str(path)
