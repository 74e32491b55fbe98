"""Clients whose dataset is in a store: the batches of a plain loop over the files.

They are compared in epochs, over ranks, and where a run is resumed amid an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_runs import needs_lightning, plain_epochs
from range_server import range_server
from ranks import COUNT, fingerprints, pack_samples, run_ranks

import fastdata
from fastdata import transforms

pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="obstore is not installed")

on_one_and_two = pytest.mark.parametrize("ranks", [1, 2])

EPOCHS = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of shards of the samples that `ranks` describes."""
    folder = tmp_path_factory.mktemp("served") / "train"
    pack_samples(folder, range(COUNT), shard_size=40)
    return str(folder)


@pytest.fixture
def url(files: str) -> Iterator[str]:
    """Where they are served; each fourth request is refused."""
    with range_server(Path(files).parent) as server:
        server.fault = lambda number: "503" if number % 4 == 3 else ""
        yield f"{server.url}/train"


def with_cache(folder: str, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Do some work with a cache in a folder."""
    os.environ["FASTDATA_CACHE"] = folder
    return work(*arguments, **options)


def reference(files: str, rank: int, ranks: int, **options: Any) -> list[Any]:
    """Return the batches of each epoch of a plain loop over the files."""
    given = {"batch_size": 8, "shuffle": "lanes", "num_workers": 0, **options}
    found = []
    with fastdata.loader(files, rank=rank, world_size=ranks, **given) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            found.append([fingerprints(batch[0]) for batch in loader])
    samples = [sample for batches in found for batch in batches for sample, *_ in batch]
    assert ranks > 1 or sorted(samples) == sorted(EPOCHS * list(range(COUNT)))
    return found


@needs_lightning
@on_one_and_two
def test_lightning(files: str, url: str, tmp_path: Path, ranks: int) -> None:
    from test_lightning import fit_and_resume

    when = {"every_n_train_steps": 5}
    runs = run_ranks(
        with_cache,
        ranks,
        str(tmp_path / "cache"),
        fit_and_resume,
        url,
        str(tmp_path),
        ranks,
        when,
        {},
    )
    for rank, (whole, resumed) in enumerate(runs):
        assert whole == plain_epochs(files, range(EPOCHS), rank, ranks, shuffle="lanes")
        assert len(resumed) > 2
        for step, rest in resumed:
            assert rest == whole[step:]


@on_one_and_two
def test_accelerate(files: str, url: str, tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("accelerate")
    from test_accelerate import epochs

    found = run_ranks(with_cache, ranks, str(tmp_path / "cache"), epochs, url, list(range(EPOCHS)))
    transform = [transforms.RandomCrop(24), transforms.RandomHorizontalFlip()]
    for rank, images in enumerate(found):
        by_epoch = reference(files, rank, ranks, seed=5, transform=transform)
        assert images == [[image for batch in batches for image in batch] for batches in by_epoch]


@on_one_and_two
def test_transformers(files: str, url: str, tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("transformers")
    from test_transformers import train

    folder, cache = str(tmp_path / "run"), str(tmp_path / "cache")
    at = -(-COUNT // (8 * ranks)) + 2
    before = run_ranks(with_cache, ranks, cache, train, url, folder, stop_at=at)
    after = run_ranks(with_cache, ranks, cache, train, url, folder, resume=True)
    transform = [transforms.RandomCrop(24), transforms.RandomHorizontalFlip()]
    transform.append(transforms.ToDtype(torch.float32))
    for rank, ((part, stopped, _), (rest, *_)) in enumerate(zip(before, after, strict=True)):
        assert stopped == at
        by_epoch = reference(files, rank, ranks, seed=7, transform=transform)
        assert part + rest == [batch for batches in by_epoch for batch in batches]
