"""Ranks of a training that all call `pack`: one packs, the others wait, and nothing is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import fastdata
from fastdata import waits
from fastdata.converters.packing.packer import Packer
from fastdata.errors import DestinationExistsError, DestinationLockedError, RejectedError

COUNT = 12


def samples(pause: float = 0.0) -> Iterator[dict[str, Any]]:
    for number in range(COUNT):
        time.sleep(pause)
        yield {"image": np.full((8, 8, 3), number, np.uint8), "number": number}


def pack(path: Path, pause: float = 0.0, **options: Any) -> fastdata.PackReport:
    usual: dict[str, Any] = {"num_workers": 0, "progress": False, "codec": "png"}
    return fastdata.pack(samples(pause), path, **{**usual, **options})


def pack_and_load(path: Path, **options: Any) -> tuple[str, int, bool, list[int]]:
    """Do what the first example of the README does."""
    report = pack(path, pause=0.02, **options)
    with fastdata.loader(path, 4, shuffle=True, num_workers=0) as loader:
        numbers = [number for batch in loader for number in batch.number.tolist()]
    waited = "another rank has packed it" in report.notes
    return report.digest, report.num_samples, waited, numbers


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"shard_size": 5}], ids=str)
def test_one_rank_packs_and_all_load(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / ("data" if options.get("shard_size") else "data.lmdb")
    first, second = run_ranks(pack_and_load, 2, path, **options)
    assert first[:2] == second[:2] == (fastdata.open(path).digest, COUNT)
    assert [first[2], second[2]].count(True) == 1
    assert sorted(first[3] + second[3]) == list(range(COUNT))


def pack_what_is_bad(path: Path) -> str:
    bad = {"image": np.full((8, 8, 3), 0.1234, np.float32), "number": 1}
    try:
        fastdata.pack([*samples(), bad], path, num_workers=0, progress=False, on_error="stop")
    except RejectedError as error:
        return str(error)
    return ""


def test_a_pack_that_fails_fails_on_every_rank(tmp_path: Path) -> None:
    assert all(run_ranks(pack_what_is_bad, 2, tmp_path / "data.lmdb"))


def hold(path: Path, locked: Any) -> None:
    Packer(path)
    locked.set()
    time.sleep(0.5)
    os._exit(1)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A destination that another process has locked, which soon dies."""
    path, context = tmp_path / "data.lmdb", get_context("fork")
    locked = context.Event()
    child = context.Process(target=hold, args=(path, locked))
    child.start()
    locked.wait()
    yield path
    child.join()


def test_the_next_rank_packs_where_one_has_died(
    held: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)
    assert pack(held).num_samples == COUNT
    assert f"waiting for {held}, which another rank packs" in caplog.text


def test_a_process_that_is_no_rank_does_not_wait(held: Path) -> None:
    with pytest.raises(DestinationLockedError, match="another process"):
        pack(held)


def test_only_what_this_call_would_pack_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.lmdb"
    with get_context("fork").Pool(1) as another:
        another.apply(pack, (path,))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(DestinationExistsError):
            pack(path, size=4)  # other options
        with pytest.raises(DestinationExistsError):
            pack(path)  # it was there when the call before ended
        another.apply(pack, (path,), {"overwrite": True})
        assert "another rank has packed it" in pack(path).notes
    os.utime(path, (0, 0))
    with pytest.raises(DestinationExistsError):
        pack(path)
    assert pack(path, overwrite=True, size=4).notes == ()
