"""Shards that somebody cuts short, writes over, replaces or touches while they are in use."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process_helpers import die, pool_of
from samples import write_shard
from warm_python import WarmPython
from worker_helpers import PICTURES, damage_image, forked, pictures

import fastdata
from fastdata import shards
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import ShardCorruptError, WorkerError
from fastdata.formats.reader import ShardReader
from fastdata.loading import loader
from fastdata.native.library import loaded_library

needs_library = pytest.mark.skipif(
    loaded_library() is None, reason="the compiled library is not here"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_shard(tmp_path / "s.lmdb", pictures(60), PICTURES)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it looked at every batch whether shards are as they were."""
    monkeypatch.setattr(shards, "_LOOK_SECONDS", 0.0)
    # No look takes any time, after which none would follow for a hundred times as long.
    monkeypatch.setattr(shards, "time", SimpleNamespace(monotonic=lambda: 0.0))


def write_over(path: Path, data: bytes) -> None:
    """Write other bytes into a file as ``cp`` does, but never leave it shorter meanwhile."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


# -- cut short ------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize(
    ("earlier", "later"),
    [("", ""), ("faulthandler.enable()", ""), ("", "faulthandler.enable()")],
)
def test_a_shard_that_is_cut_short_is_named_before_sigbus(
    tmp_path: Path, earlier: str, later: str, warm_python: WarmPython
) -> None:
    """Whoever else has a handler: that one runs too."""
    path = write_shard(tmp_path / "s\x1b[31m.lmdb", pictures(60), PICTURES)
    size = path.stat().st_size
    done = warm_python.run(f"""if True:
        import faulthandler, os, fastdata
        {earlier}
        data = fastdata.open({str(path)!r})
        {later}
        data[0]
        os.truncate({str(path)!r}, 5000)
        data[50]
    """)
    assert done.returncode == -signal.SIGBUS
    shown = str(path).replace("\x1b", r"\x1b")
    assert f"fastdata: {shown}: had {size} bytes when it was opened and has 5000 now" in done.stderr
    assert "mv" in done.stderr
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(earlier or later)


@needs_library
def test_a_map_that_has_gone_is_not_named(path: Path, warm_python: WarmPython) -> None:
    done = warm_python.run(
        f"""if True:
        import mmap, os, fastdata
        data = fastdata.open({str(path)!r})
        data[0]
        del data
        os.truncate({str(path)!r}, 5000)
        with open("other", "w+b") as file:
            file.truncate(100_000)
            memory = mmap.mmap(file.fileno(), 100_000)
            file.truncate(10)
            memory[50_000]
    """,
        cwd=path.parent,
    )
    assert done.returncode == -signal.SIGBUS
    assert "s.lmdb" not in done.stderr


def test_a_worker_that_dies_of_it_is_reported_so(path: Path) -> None:
    reader = ShardReader(path)
    with pool_of(1) as pool:
        ticket = pool.submit((die, signal.SIGBUS))
        with pytest.raises(WorkerError, match=r"killed by SIGBUS: a file that it reads.*which"):
            ticket.result()
    os.truncate(path, 5000)
    with pool_of(1) as pool:
        ticket = pool.submit((die, signal.SIGBUS))
        with pytest.raises(WorkerError, match=r"s\.lmdb was cut short or overwritten"):
            ticket.result()
    del reader


# -- written over ---------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_is_written_over_ends_the_epoch(
    path: Path, tmp_path: Path, workers: int, on_corrupt: Any
) -> None:
    other = write_shard(tmp_path / "o.lmdb", pictures(90, size=(60, 60)), PICTURES).read_bytes()
    options: Any = {"batch_size": 4, "on_corrupt": on_corrupt, "num_workers": workers}
    if workers:
        options |= {"worker_method": "process", "multiprocessing_context": "fork"}
    with loader(path, transform=[T.CenterCrop(20)], **options) as it:
        epoch = iter(it)
        next(epoch)
        write_over(path, other)
        with pytest.raises(ShardCorruptError, match=r"s\.lmdb: something else was written over"):
            list(epoch)


@pytest.mark.usefixtures("at_once")
def test_bytes_that_change_after_they_were_compared_are_compared_again(path: Path) -> None:
    with loader(path, batch_size=60, num_workers=0, transform=[T.CenterCrop(20)]) as it:
        list(it)
        damage_image(path, 33)
        with pytest.raises(ShardCorruptError, match="of sample 33"):
            list(it)


@pytest.mark.usefixtures("at_once")
def test_one_sample_is_refused_too(path: Path) -> None:
    data = fastdata.open(path)
    data[0]
    write_over(path, path.read_bytes() + b"more")
    with pytest.raises(ShardCorruptError, match="written over this shard while it was in use"):
        data[1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["touched", "replaced by renaming", "removed"])
def test_what_harms_nothing_is_let_be(path: Path, tmp_path: Path, how: str) -> None:
    it = forked(path, batch_size=8, transform=[T.CenterCrop(20)])
    before = [batch.image.clone() for batch in it]
    if how == "touched":
        os.utime(path, ns=(1, 1))
    elif how == "removed":
        path.unlink()
    else:
        os.replace(write_shard(tmp_path / "o.lmdb", pictures(90), PICTURES), path)
    after = [batch.image.clone() for batch in it]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    it.close()
