"""A loader that the parent has used, in a forked process: it loads or raises, and never hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_helpers import in_child
from torch.utils.data import DataLoader, IterableDataset

import fastdata

COUNT = 12
OPTIONS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {"num_workers": 2, "worker_method": "process"},
    "cache in RAM": {"num_workers": 2, "worker_method": "thread", "cache": "ram"},
    "cache on the device": {"num_workers": 2, "worker_method": "thread", "cache": "device"},
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forked") / "data.lmdb"
    samples = ({"image": np.full((16, 16, 3), k, np.uint8), "number": k} for k in range(COUNT))
    fastdata.pack(samples, path, codec="png", num_workers=0, progress=False)
    return path


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.number.tolist()]


@pytest.mark.parametrize("used", ["a whole epoch", "no batch of an iterator", "a part of an epoch"])
@pytest.mark.parametrize("kind", list(OPTIONS))
def test_a_used_loader_loads_in_a_forked_process(packed: Path, kind: str, used: str) -> None:
    with fastdata.loader(packed, batch_size=3, shuffle=True, **OPTIONS[kind]) as loader:
        epoch = iter(loader)
        if used == "a whole epoch":
            list(epoch)
        elif used == "a part of an epoch":
            next(epoch)
        following = loader.epoch + (used == "a part of an epoch")
        with fastdata.loader(packed, batch_size=3, shuffle=True, num_workers=0) as other:
            other.set_epoch(following)
            expected = numbers(other)
        assert in_child(lambda: numbers(loader)) == expected
        assert in_child(loader.close) is None
        del epoch
        assert numbers(loader) == expected  # the parent's workers are as they were


@pytest.mark.parametrize("kind", ["threads", "processes", "cache on the device"])
def test_an_iterator_of_the_parent_raises_in_a_forked_process(packed: Path, kind: str) -> None:
    with fastdata.loader(packed, batch_size=3, **OPTIONS[kind]) as loader:
        epoch = iter(loader)
        first = numbers([next(epoch)])
        error = in_child(lambda: next(epoch))
        assert isinstance(error, fastdata.errors.WorkerError)
        assert "call iter() on the loader here" in str(error)
        assert first + numbers(epoch) == list(range(COUNT))


def test_an_iterator_without_workers_goes_on_in_a_forked_process(packed: Path) -> None:
    with fastdata.loader(packed, batch_size=3, num_workers=0) as loader:
        epoch = iter(loader)
        next(epoch)
        assert in_child(lambda: numbers(epoch)) == numbers(epoch) == list(range(3, COUNT))


class Loaded(IterableDataset[int]):
    """Samples of a loader, for the workers of a stock `DataLoader`."""

    def __init__(self, loader: fastdata.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[int]:
        return iter(numbers(self.loader))


def test_a_used_loader_loads_in_workers_of_a_stock_dataloader(packed: Path) -> None:
    with fastdata.loader(packed, batch_size=3, **OPTIONS["threads"]) as loader:
        assert numbers(loader) == list(range(COUNT))
        stock = DataLoader(
            Loaded(loader), None, num_workers=2, multiprocessing_context="fork", timeout=60
        )
        assert sorted(stock) == sorted(2 * list(range(COUNT)))
