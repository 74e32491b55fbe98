"""Fixtures of the tests of datasets in stores: the data, a server of it, and a cache to fill."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from range_server import RangeServer, range_server
from remote_helpers import end_downloaders, pack_served


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all that is served, which `pack_served` describes; tests leave it as it is."""
    return pack_served(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def server(packed: Path) -> Iterator[RangeServer]:
    with range_server(packed) as found:
        yield found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that is not there yet.

    Downloaders are ended afterwards, also those of other folders of the test, when nothing is open
    any more: what is open has another one started.
    """
    monkeypatch.setenv("FASTDATA_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    gc.collect()  # tracebacks that a test has caught
    end_downloaders(tmp_path)
