"""The cache folder: what is kept in it was verified, and what is not ours stays."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import run, run_json
from hostile_server import HostileServer, hostile_server
from pack_helpers import QUICK, image_folder
from remote_helpers import end_downloaders, needs_store

import fastdata
from fastdata.errors import (
    FastdataError,
    NotRegularFileError,
    OptionError,
    ShardCorruptError,
    StorageError,
)
from fastdata.formats.reader import ShardReader
from fastdata.remote.downloader import Downloader
from fastdata.remote.folder import CacheFolder
from fastdata.remote.messages import Channel

pytestmark = needs_store


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    images = image_folder(folder / "images", 30)
    fastdata.pack(images, folder / "served" / "train", shards=2, **QUICK)
    fastdata.pack(images, folder / "served" / "one.lmdb", limit=5, **QUICK)
    return folder / "served"


@pytest.fixture
def server(served: Path) -> Iterator[HostileServer]:
    with hostile_server(served) as found:
        yield found


def column_at(path: Path, name: str) -> int:
    """Return where a column of a shard begins."""
    return ShardReader(path).header.columns[name].offset


def flipped(damaged: set[tuple[str, int]], often: int) -> Any:
    """Return what flips bytes at places of files so often."""
    left = dict.fromkeys(damaged, often)

    def damage(path: str, data: bytes, first: int) -> bytes:
        sent = bytearray(data)
        for place, at in damaged:
            if path.endswith(place) and first <= at < first + len(data) and left[place, at]:
                left[place, at] -= 1
                sent[at - first] ^= 1
        return bytes(sent)

    return damage


def labels_of(data: fastdata.Dataset) -> list[int]:
    return [int(data[k].label) for k in range(len(data))]


# -- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["label", "image.offset", "header", "footer", "manifest"])
def test_bytes_that_were_damaged_once_on_their_way_are_fetched_again(
    server: HostileServer, served: Path, cache: Path, place: str
) -> None:
    shard = served / "train" / "shard-00001.lmdb"
    reader = ShardReader(shard)
    name, at = {
        "header": (shard.name, reader.header_range[0] + 20),
        "footer": (shard.name, reader.file_bytes - 30),
        "manifest": ("manifest.json", 200),
    }.get(place) or (shard.name, column_at(shard, place) + 3)
    server.damage = flipped({(name, at)}, 1)
    data = fastdata.open(f"{server.url}/train")
    assert labels_of(data) == labels_of(fastdata.open(served / "train"))
    assert run_json("cache", "verify")["datasets"][0]["damaged_columns"] == []


def test_damaged_columns_are_an_error_and_nothing_is_kept(
    server: HostileServer, served: Path, cache: Path
) -> None:
    """A store that is mended afterwards is read."""
    shard = served / "train" / "shard-00001.lmdb"
    server.damage = flipped({(shard.name, column_at(shard, "label"))}, 99)
    with pytest.raises(
        ShardCorruptError, match=rf"{server.url}/train/shard-00001.*'label'"
    ) as caught:
        fastdata.open(f"{server.url}/train")
    assert str(cache) not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_dir()]
    server.damage = lambda path, data, first: data
    assert len(labels_of(fastdata.open(f"{server.url}/train"))) == 30


def test_an_image_that_is_damaged_in_the_store_is_not_kept_once_that_is_mended(
    server: HostileServer, served: Path, cache: Path
) -> None:
    shard = served / "train" / "shard-00000.lmdb"
    at = int(ShardReader(shard).column("image.offset")[3]) + 40
    server.damage = flipped({(shard.name, at)}, 1)
    assert fastdata.open(f"{server.url}/train")[3].image is not None  # fetched again
    run("cache", "clear", "--all")
    server.damage = flipped({(shard.name, at)}, 99)
    data = fastdata.open(f"{server.url}/train")
    with pytest.raises(ShardCorruptError, match=r"sample 3"):
        data[3]
    assert data[4].image is not None
    del data
    server.damage = lambda path, data, first: data
    assert fastdata.open(f"{server.url}/train")[3].image is not None
    assert run_json("cache", "verify")["datasets"][0]["damaged"] == []


@pytest.mark.parametrize("place", ["label", "header"])
def test_damaged_columns_in_the_cache_are_found_and_mended(
    server: HostileServer, served: Path, cache: Path, place: str
) -> None:
    labels = labels_of(fastdata.open(f"{server.url}/train"))
    gc.collect()
    end_downloaders(cache)
    (path,) = cache.rglob("shard-00000.lmdb")
    reader = ShardReader(path)
    at = reader.header_range[0] if place == "header" else column_at(path, place)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    result = run("cache", "verify")
    assert result.exit_code == 3
    assert f"damaged columns (shard-00000.lmdb: {place})" in result.stdout
    assert labels_of(fastdata.open(f"{server.url}/train")) == labels
    assert run("cache", "verify").exit_code == 0


# -- what is not ours --------------------------------------------------------------------------


def tree_of(*places: Path) -> dict[str, bytes | str]:
    """Return all that is below some folders, by its paths."""
    found: dict[str, bytes | str] = {}
    for place in places:
        for path in place.rglob("*"):
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_dir() or path.is_file():
                found[str(path)] = path.read_bytes() if path.is_file() else b""
    return found


def test_no_foreign_file_is_ever_removed(
    server: HostileServer, served: Path, cache: Path, tmp_path: Path
) -> None:
    """Not as a downloader starts or makes room, by ``cache clear``, nor as data are made anew."""
    url = f"{server.url}/train"
    fastdata.open(url)
    gc.collect()
    end_downloaders(cache)
    (ours,) = CacheFolder(cache).datasets()
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    foreign = tmp_path / "foreign"
    shutil.copytree(ours.folder, foreign / ours.folder.name)
    for name in (
        ".git",
        ".ssh",
        "Thumbs",
        "fastdata-notes",
        ".fastdata-mine",
        ".fastdata-mine.new",
    ):
        (cache / name).mkdir()
        (cache / name / "config").write_text("mine")
    (cache / "notes.txt").write_text("mine")
    (cache / ".fastdata-link.new").symlink_to(foreign / ours.folder.name)
    (cache / "fastdata-link").symlink_to(foreign / ours.folder.name)
    (cache / ours.folder.name / "notes.txt").write_text("mine")
    document = json.loads((ours.folder / "dataset.json").read_text())
    names = ["../../victim.txt", str(victim), "a\0b", "..", "present", "link", "dir/x", "", 3, None]
    for number, name in enumerate(names):
        for folder in (cache / f"fastdata-{number}", cache / f".fastdata-{number}.new"):
            folder.mkdir()
            (folder / "link").symlink_to(victim)
            (folder / "dir").mkdir()
            (folder / "dir" / "x").write_text("mine")
            (folder / "present").write_text("mine")
            shard = {**document["shards"][0], "file": name}
            body = {**document, "folder": folder.name, "shards": [shard]}
            (folder / "dataset.json").write_text(json.dumps(body))
    of_dataset = {str(path) for path in ours.folder.iterdir() if path.name != "notes.txt"}
    # What lists a link among its files is ours otherwise.
    may_go = {
        str(cache / folder / name)
        for folder in ("fastdata-5", ".fastdata-5.new")
        for name in ("present", "dataset.json")
    }
    before = tree_of(tmp_path)

    def check() -> None:
        after = tree_of(tmp_path)
        gone = set(before) - set(after) - may_go
        changed = {path for path in before if path in after and before[path] != after[path]}
        assert gone <= of_dataset
        assert changed <= of_dataset | {str(cache / "downloader.log")}

    (present,) = (path for path in ours.folder.iterdir() if path.name == "present")
    os.truncate(present, 3)  # so that it is made anew
    with pytest.raises(StorageError, match=r"is in the way.*move it elsewhere"):
        fastdata.open(url)
    check()
    (cache / ours.folder.name / "notes.txt").unlink()
    (cache / ours.folder.name).rmdir()
    del before[str(cache / ours.folder.name / "notes.txt")], before[str(cache / ours.folder.name)]
    assert len(fastdata.open(url)) == 30
    check()
    gc.collect()
    end_downloaders(cache)
    may = os.stat(served / "one.lmdb").st_size + 8192  # other datasets make room
    assert fastdata.open(f"{server.url}/one.lmdb", cache_bytes=may)[3].image is not None
    assert not (cache / ours.folder.name).exists()
    gc.collect()
    end_downloaders(cache)
    check()
    assert run("cache", "clear", "--all").exit_code == 0
    check()
    assert not (cache / ours.folder.name).exists()
    assert victim.read_text() == "mine"


def test_what_was_being_made_by_a_process_that_was_killed_is_removed(
    server: HostileServer, cache: Path
) -> None:
    url = f"{server.url}/train"
    fastdata.open(url)
    gc.collect()
    end_downloaders(cache)
    (ours,) = CacheFolder(cache).datasets()
    shutil.copytree(ours.folder, cache / ".fastdata-left1.new")
    (cache / ".fastdata-left2.new").mkdir()
    (cache / ".fastdata-left3.new").mkdir()
    (cache / ".fastdata-left3.new" / "dataset.json.new").write_text("{")
    assert len(fastdata.open(url)) == 30
    assert not list(cache.glob(".fastdata-*"))


@pytest.mark.parametrize("name", ["present", "dataset.json.new", "shard-00000.lmdb"])
def test_links_in_place_of_files_of_a_dataset_are_not_followed(
    server: HostileServer, cache: Path, tmp_path: Path, name: str
) -> None:
    url = f"{server.url}/train"
    fastdata.open(url)
    gc.collect()
    end_downloaders(cache)
    (ours,) = CacheFolder(cache).datasets()
    victim = tmp_path / "victim"
    place = ours.folder / name
    victim.write_bytes(place.read_bytes() if place.exists() else b"mine")
    before = victim.read_bytes()
    place.unlink(missing_ok=True)
    place.symlink_to(victim)
    if name == "dataset.json.new":  # it is replaced
        assert len(fastdata.open(url)) == 30
    else:
        with pytest.raises(FastdataError, match=rf"{place}: a link, where fastdata keeps a file"):
            _ = fastdata.open(url)[3].image
    assert victim.read_bytes() == before


def test_a_list_of_files_with_impossible_numbers_is_no_dataset(
    server: HostileServer, cache: Path
) -> None:
    """It is made anew."""
    url = f"{server.url}/train"
    fastdata.open(url)
    gc.collect()
    end_downloaders(cache)
    (ours,) = CacheFolder(cache).datasets()
    place = ours.folder / "dataset.json"
    place.write_text(place.read_text().replace('"num_samples": ', '"num_samples": 10000000000'))
    assert run_json("cache", "list")["datasets"] == []
    assert run_json("cache", "verify")["datasets"] == []
    assert len(fastdata.open(url)) == 30


@pytest.mark.parametrize("name", ["downloader.log", "downloader.lock"])
def test_links_in_place_of_files_of_the_downloader_are_not_followed(
    server: HostileServer, cache: Path, tmp_path: Path, name: str
) -> None:
    (victim := tmp_path / "victim").write_text("mine")
    CacheFolder.open(cache)
    (cache / name).symlink_to(victim)
    with pytest.raises(FastdataError, match=rf"{name}: a link, where fastdata keeps a file"):
        fastdata.open(f"{server.url}/train")
    assert victim.read_text() == "mine"


def test_who_waits_for_a_store_is_told(
    server: HostileServer, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """By the reader, and with the reason by the downloader."""
    from fastdata import waits

    data = fastdata.open(f"{server.url}/train")
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.1)
    tries = iter(range(4))
    server.fault = lambda *_: "" if next(tries, 9) > 3 else "503"
    with caplog.at_level(logging.WARNING, "fastdata"):
        assert data[3].image is not None
    assert f"waiting for 1 images of {server.url}/train" in caplog.text


# -- other users -------------------------------------------------------------------------------

SPOILED: dict[str, tuple[Any, str]] = {
    "folder's mode": (lambda cache: cache.chmod(0o777), r"chmod go-w .*--cache-dir"),
    "folder's owner": (lambda cache: os.chown(cache, 12345, 12345), r"another user's \(12345"),
    "folder is a link": (lambda cache: moved(cache, cache.with_name("real")), "a link, where"),
    "mark's mode": (lambda cache: (cache / MARK).chmod(0o666), "chmod go-w .*--cache-dir"),
    "mark's owner": (lambda cache: os.chown(cache / MARK, 1, 1), r"another user's \(1, and"),
    "mark is a link": (lambda cache: moved(cache / MARK, cache.with_name("mark")), "a link, where"),
}
MARK = "fastdata-cache.json"


def moved(path: Path, place: Path) -> None:
    path.rename(place)
    path.symlink_to(place)


@pytest.mark.parametrize("what", SPOILED)
def test_a_cache_that_others_may_have_filled_is_refused(
    server: HostileServer, cache: Path, what: str
) -> None:
    if "owner" in what and os.geteuid() != 0:
        pytest.skip("needs root")
    CacheFolder.open(cache)
    spoil, said = SPOILED[what]
    spoil(cache)
    with pytest.raises(OptionError, match=f"cache folder cannot be used: .*{said}"):
        fastdata.open(f"{server.url}/one.lmdb")
    assert run("cache", "clear", "--all").exit_code == 2
    assert [path.name for path in cache.iterdir()] == [MARK]


@pytest.mark.parametrize("what", ["dataset.json", "present", "one.lmdb", "folder"])
def test_a_cached_dataset_that_others_may_have_changed_is_fetched_anew(
    server: HostileServer, cache: Path, what: str
) -> None:
    url = f"{server.url}/one.lmdb"
    expected = fastdata.open(url)[0].image
    gc.collect()
    end_downloaders(cache)
    (cached,) = CacheFolder.open(cache).datasets()
    path = cached.folder if what == "folder" else cached.folder / what
    path.chmod(0o777)
    before = os.stat(cached.folder / "present").st_ino
    assert (fastdata.open(url)[0].image == expected).all()
    assert path.stat().st_mode & 0o022 == 0
    assert os.stat(cached.folder / "present").st_ino != before


def test_nothing_in_a_cache_may_be_written_by_others_whatever_the_umask(
    server: HostileServer, cache: Path
) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            fastdata.open(f"{server.url}/train")[0]
            assert all(path.lstat().st_mode & 0o022 == 0 for path in [cache, *cache.rglob("*")])
            gc.collect()
            end_downloaders(cache)
    finally:
        os.umask(before)


def test_a_socket_of_another_user_is_refused_at_both_ends(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says who is there: this process itself, which then becomes another user."""
    folder = CacheFolder.open(cache)
    listener = folder.listen()
    client = folder.connect()
    accepted, _ = listener.accept()
    assert client is not None
    other = os.geteuid() + 1
    monkeypatch.setattr("fastdata.remote.messages.os.geteuid", lambda: other)
    with pytest.raises(NotRegularFileError, match=rf"user {other - 1} is at the other end"):
        Channel(client)
    downloader = Downloader(folder)
    downloader._greet(accepted)
    assert not downloader._clients
    monkeypatch.undo()
    (cache / "downloader.sock").chmod(0o777)
    with pytest.raises(NotRegularFileError, match=r"downloader\.sock: other users may write"):
        folder.connect()
    moved(cache / "downloader.sock", cache / "elsewhere")
    with pytest.raises(NotRegularFileError, match=r"downloader\.sock: a link"):
        folder.connect()
    listener.close()
