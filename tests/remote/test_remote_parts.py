"""What a cache of blocks is made of: holes in files, the order of blocks, and its commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import run, run_json
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_helpers import image_folder
from range_server import range_server
from remote_helpers import needs_store

import fastdata
from fastdata.formats.reader import ShardReader
from fastdata.formats.sparse import columns_only
from fastdata.remote.extents import PAGE_BYTES, Extents
from fastdata.remote.schedule import NEVER, Plan, in_blocks_of, next_uses
from fastdata.storage import open_store


@pytest.fixture(scope="module", params=["lmdb", "h5"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    folder = tmp_path_factory.mktemp("extents")
    images = image_folder(folder / "images", 60, side=30)
    path = folder / f"packed.{request.param}"
    fastdata.pack(images, path, size=30, num_workers=0, progress=False, codec="jpeg")
    return ShardReader(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_holes_are_as_large_as_can_be_and_no_larger(reader: ShardReader, data: Any) -> None:
    """Against a map of the file's bytes: who needs which."""
    first = data.draw(st.integers(0, 59))
    last = data.draw(st.integers(first + 1, 60))
    kept = data.draw(st.lists(st.booleans(), min_size=60, max_size=60))
    present = np.array(kept)
    present[first:last] = False
    needed = np.zeros(reader.file_bytes, np.bool_)
    gone = np.zeros(reader.file_bytes, np.bool_)
    header = reader.header
    needed[slice(*reader.header_range)] = True
    needed[-64:] = True
    for column in header.columns.values():
        needed[column.offset : column.offset + column.nbytes] = True
    for row in range(60):
        start = int(reader.column("image.offset")[row])
        end = start + int(reader.column("image.length")[row])
        (needed if present[row] else gone)[start:end] |= present[row] or first <= row < last
    expected = [
        page
        for page in range(0, len(needed) - PAGE_BYTES + 1, PAGE_BYTES)
        if gone[page : page + PAGE_BYTES].any() and not needed[page : page + PAGE_BYTES].any()
    ]
    holes = Extents(reader).holes(first, last, present)
    found = [page for low, high in holes for page in range(low, high, PAGE_BYTES)]
    assert found == expected


def test_ranges_have_all_of_the_samples_and_hardly_more(reader: ShardReader) -> None:
    extents = Extents(reader)
    ranges = extents.ranges(10, 40)
    for row in range(10, 40):
        start = int(reader.column("image.offset")[row])
        end = start + int(reader.column("image.length")[row])
        assert any(low <= start and end <= high for low, high in ranges)
    assert sum(high - low for low, high in ranges) <= extents.sizes(60)[10:40].sum() + 30 * 4096


def test_columns_come_by_few_requests(
    reader: ShardReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    store = open_store("memory://columns", {})
    store.put(reader.path.name, reader.path)
    read, asked = store.read, []
    monkeypatch.setattr(store, "read", lambda *of, **at: asked.append(of) or read(*of, **at))
    sparse = ShardReader(columns_only(store, store.head(reader.path.name), tmp_path))
    assert len(asked) == 2  # the end with the header, and the columns, which are beside each other
    for name in reader.header.columns:
        assert np.array_equal(sparse.column(name), reader.column(name))


def test_the_next_use_of_a_block_by_several_loaders() -> None:
    one, other = Plan(4), Plan(4)
    one.add(0, np.array([0, 1, 2]), np.array([0, 3, 7]), np.array([2, 5, 9]))
    one.add(1, np.array([0, 1]), np.array([15, 11]), np.array([16, 12]))
    other.add(0, np.array([3, 0]), np.array([4, 6]), np.array([4, 6]))
    assert one.next_use().tolist() == [0, 3, 7, NEVER]
    one.now = 4
    assert one.next_use().tolist() == [11, 0, 3, NEVER]
    assert next_uses([one, other], 4).tolist() == [6, 0, 3, 4]
    assert next_uses([], 2).tolist() == [NEVER, NEVER]
    one.now = 100
    assert one.next_use().tolist() == [NEVER] * 4


@pytest.mark.parametrize(("size", "theirs"), [(4, 6), (6, 4), (5, 5), (1, 3), (7, 2)])
def test_blocks_of_another_size_have_the_same_samples(size: int, theirs: int) -> None:
    blocks = np.array([0, 3, 4])
    ours, first, last = in_blocks_of(size, theirs, blocks, blocks * 10, blocks * 10 + 5)
    for block in blocks.tolist():
        samples = range(block * theirs, (block + 1) * theirs)
        expected = {sample // size for sample in samples}
        assert set(ours[first == block * 10].tolist()) == expected
        assert set(ours[last == block * 10 + 5].tolist()) == expected


@needs_store
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_folder(tmp_path / "images", 30)
    fastdata.pack(images, tmp_path / "served" / "train", size=24, num_workers=0, shards=2)
    monkeypatch.setenv("FASTDATA_CACHE", str(tmp_path / "unused"))
    cache = ["--cache-dir", str(tmp_path / "cache")]
    with range_server(tmp_path / "served") as server:
        url = f"{server.url}/train"
        info = run_json("info", url, *cache)
        of_files = run_json("info", tmp_path / "served" / "train")
        assert info["digest"] == of_files["digest"]
        assert info["num_samples"] == 30
        report = run_json("verify", url, *cache, "--cache-bytes", "1MB")
        assert (report["intact"], report["num_samples"]) == (True, 30)
        run_json("export", url, tmp_path / "out", *cache)
        assert len(list((tmp_path / "out").rglob("*.png"))) == 30
        other = shutil.copytree(tmp_path / "served" / "train", tmp_path / "copy")
        run_json("merge", url, other, tmp_path / "twice.lmdb", *cache)
        assert len(fastdata.open(tmp_path / "twice.lmdb")) == 60
    (one,) = run_json("cache", "list", *cache)["datasets"]
    assert (one["url"], one["num_present"], one["num_samples"]) == (url, 30, 30)
    assert "30 of 30 samples" in run("cache", "list", *cache).stdout
    assert run_json("cache", "verify", *cache)["datasets"][0]["damaged"] == []
    reader = ShardReader(next(Path(one["folder"]).glob("*.lmdb")))
    with open(reader.path, "r+b") as file:
        file.seek(int(reader.column("image.offset")[3]) + 100)
        file.write(b"damage")
    assert len(run_json("cache", "verify", *cache, code=3)["datasets"][0]["damaged"]) == 1
    assert run("cache", "clear", *cache).exit_code == 2
    assert run("cache", "clear", f"{url}-other", *cache).exit_code == 2
    assert run_json("cache", "clear", url, *cache)["removed"] == [url]
    assert run_json("cache", "list", *cache)["datasets"] == []
    assert not (tmp_path / "unused").exists()
