"""Packing in parts, on folders and on S3: the dataset that one process packs, whatever happens."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import CREDENTIALS, S3Server, has_s3, s3_server
from pack_helpers import (
    QUICK,
    Pictures,
    digest_of,
    image_folder,
    jpegs,
    rejects_of,
    start_pack_apart,
    with_bad_images,
)

import fastdata
from fastdata import waits
from fastdata.converters.packing import driver
from fastdata.converters.packing import parts as parts_module
from fastdata.converters.packing.job import json_with_checksum
from fastdata.converters.packing.parts import Parts
from fastdata.errors import (
    DestinationExistsError,
    FormatError,
    JobChangedError,
    MachineError,
    MissingExtraError,
    OptionError,
    PartsMissingError,
    RejectedError,
    SourceError,
    StorageError,
    WorkerError,
)
from fastdata.storage import Store, open_store

needs_s3 = pytest.mark.skipif(not has_s3(), reason="obstore or moto is not installed")

SHARDS: dict[str, Any] = {**QUICK, "shard_size": 5}
"""Eighteen images are four shards, the last of three."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[S3Server | None]:
    """An S3 server, which no single test leaves behind; nor what obstore keeps open."""
    if not has_s3():
        yield None
        return
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, and credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return server.bucket(f"bucket-{uuid.uuid4().hex}")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "images", 18, classes=("ant", "bee", "cow"))


@pytest.fixture(params=["folder", pytest.param("s3", marks=needs_s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Where a dataset is packed to, and the options of `pack` for it."""
    if request.param == "folder":
        return str(tmp_path / "train"), {}
    found: S3Server = request.getfixturevalue("server")
    url = f"{request.getfixturevalue('bucket')}/sets/train"
    return url, {"storage_options": found.options}


def store_of(place: tuple[str, dict[str, Any]]) -> Store:
    return open_store(place[0], place[1].get("storage_options"))


def copied(store: Store, folder: Path) -> Path:
    """Copy a dataset to a folder."""
    folder.mkdir()
    for entry in store.list():
        assert "/" not in entry.key, "nothing is left of an unfinished pack"
        (folder / entry.key).write_bytes(store.read(entry.key))
    return folder


def upload(images: Path, store: Store) -> None:
    for path in jpegs(images):
        store.put(path.relative_to(images).as_posix(), path)


def step_by_step(source: Any, place: tuple[str, dict[str, Any]], **options: Any) -> Any:
    """Pack by commands that know nothing of each other."""
    for part in ("plan", "2/3", "0/3", "1/3"):
        report = fastdata.pack(source, place[0], part=part, **place[1], **options)
        assert report.digest == ""
    return fastdata.pack(source, place[0], part="commit", **place[1], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"shard_size": 5},
        {"shards": 3, "container": "hdf5"},
        {"shard_size": "3KB", "shuffle": True, "seed": 3},
        {"shard_size": 4, "limit": 11, "shuffle": True},
    ],
    ids=str,
)
def test_parts_are_the_dataset_that_is_packed_at_once(
    options: dict[str, Any], place: tuple[str, dict[str, Any]], images: Path, tmp_path: Path
) -> None:
    at_once = fastdata.pack(images, tmp_path / "at_once", **QUICK, **options)
    report = step_by_step(images, place, **QUICK, **options)
    assert report.digest == at_once.digest
    assert report.num_samples == at_once.num_samples
    copy = copied(store_of(place), tmp_path / "copy")
    assert digest_of(copy) == digest_of(tmp_path / "at_once")
    shards = list(fastdata.open(copy).shards)
    assert len(shards) > 1
    said = [json.loads(p.read_text())["options"] for p in (copy / "manifest.json",)]
    assert said == [json.loads((tmp_path / "at_once/manifest.json").read_text())["options"]]
    assert all(shard.header.options == said[0] for shard in shards)


def test_all_steps_at_once(place: tuple[str, dict[str, Any]], images: Path, tmp_path: Path) -> None:
    if not place[1]:
        pytest.skip("that is what the others do with a folder")
    report = fastdata.pack(images, place[0], **SHARDS, **place[1])
    assert report.digest == fastdata.pack(images, tmp_path / "local.lmdb", **QUICK).digest
    assert (report.num_samples, report.num_shards, report.path) == (18, 4, place[0])
    with pytest.raises(DestinationExistsError, match="has a dataset already"):
        fastdata.pack(images, place[0], **SHARDS, **place[1])


@needs_s3
@pytest.mark.parametrize("shuffle", [False, True])
def test_class_folders_are_read_of_a_store(
    shuffle: bool, bucket: str, server: S3Server, images: Path, tmp_path: Path
) -> None:
    (images / "bee" / "README.md").write_text("left out")
    store = open_store(f"{bucket}/a/images", server.options)
    upload(images, store)
    store.put("bee/README.md", b"left out")
    store.put("bee", b"")  # as a console makes a folder
    options = {**QUICK, "shuffle": shuffle}
    local = fastdata.pack(images, tmp_path / "local.lmdb", **options)
    remote = fastdata.pack(
        store.url, tmp_path / "remote.lmdb", storage_options=server.options, **options
    )
    assert remote.digest == local.digest
    assert remote.read_as == local.read_as
    assert remote.notes == local.notes
    both = fastdata.pack(f"{store.url}/", f"{bucket}/to", storage_options=server.options, **options)
    assert both.digest == local.digest


@needs_s3
def test_what_a_store_has_not_is_refused(bucket: str, server: S3Server, tmp_path: Path) -> None:
    options = {**QUICK, "storage_options": server.options}
    with pytest.raises(SourceError, match="the store has no objects there"):
        fastdata.pack(f"{bucket}/none", tmp_path / "x.lmdb", **options)
    with pytest.raises(StorageError, match="no such bucket"):
        fastdata.pack("s3://no-such-bucket-here/x", tmp_path / "x.lmdb", **options)
    with pytest.raises(OptionError, match="'coco' is read of files on this machine"):
        fastdata.pack(f"{bucket}/none", tmp_path / "x.lmdb", format="coco", **options)
    with pytest.raises(OptionError, match="is not one of"):
        fastdata.pack(f"{bucket}/none", tmp_path / "x.lmdb", format="tfrecrd", **options)
    store = open_store(f"{bucket}/flat", server.options)
    for name in ("a.jpg", "b.jpg"):
        store.put(name, b"x")
    with pytest.raises(OptionError, match="'flat' is read of files on this machine"):
        fastdata.pack(store.url, tmp_path / "x.lmdb", **options)


@needs_s3
def test_an_object_that_changes_is_a_reject(
    bucket: str, server: S3Server, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{bucket}/images", server.options)
    upload(images, store)
    changed = jpegs(images)[7].relative_to(images).as_posix()
    run = parts_module.Parts.pack

    def change_first(self: Any, part: int, **options: Any) -> Any:
        if part == 0:
            store.put(changed, jpegs(images)[8])
        return run(self, part, **options)

    monkeypatch.setattr(parts_module.Parts, "pack", change_first)
    report = fastdata.pack(
        store.url, f"{bucket}/to", storage_options=server.options, shards=2, **QUICK
    )
    assert (report.num_samples, report.num_rejected) == (17, 1)
    rejects = bytes(open_store(f"{bucket}/to", server.options).read("rejects.csv")).decode()
    assert changed in rejects
    assert "has changed since it was listed" in rejects


@needs_s3
def test_a_store_that_gives_nothing_stops_the_pack(
    bucket: str, server: S3Server, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{bucket}/images", server.options)
    upload(images, store)
    kind = type(store)
    read = kind.read

    def refused(self: Any, key: str, *given: Any, **options: Any) -> Any:
        if key.startswith("cow/"):
            raise StorageError(f"{key}: the credentials have expired: log in again")
        return read(self, key, *given, **options)

    options: dict[str, Any] = {**SHARDS, "storage_options": server.options}
    with monkeypatch.context() as patch:
        patch.setattr(kind, "read", refused)
        with pytest.raises(StorageError, match="log in again"):
            fastdata.pack(store.url, f"{bucket}/to", **options)
        with pytest.raises(StorageError, match="log in again"):
            fastdata.pack(store.url, tmp_path / "to", **options)
    report = fastdata.pack(store.url, f"{bucket}/to", **options)
    assert (report.num_samples, report.num_rejected) == (18, 0)


@needs_s3
def test_what_may_be_no_class_folders_is_refused(
    bucket: str, server: S3Server, images: Path, tmp_path: Path
) -> None:
    store = open_store(f"{bucket}/images", server.options)
    upload(images, store)
    options: dict[str, Any] = {**QUICK, "storage_options": server.options}
    wrapped = fastdata.pack(bucket, tmp_path / "wrapped.lmdb", **options)
    assert any("the wrapper folder images is not a class" in note for note in wrapped.notes)
    store.put("boxes.json", b"{}")
    with pytest.raises(SourceError, match=r"boxes\.json may describe the images"):
        fastdata.pack(store.url, tmp_path / "x.lmdb", **options)
    report = fastdata.pack(store.url, tmp_path / "x.lmdb", format="folder", **options)
    assert "boxes.json not read: the folders are the classes" in report.notes


# -- rejects -----------------------------------------------------------------------------------


def test_rejects_are_those_of_a_pack_at_once(
    place: tuple[str, dict[str, Any]], images: Path, tmp_path: Path
) -> None:
    with_bad_images(images, (1, 5, 6, 7, 8, 9, 17))  # all of the second shard
    at_once = fastdata.pack(images, tmp_path / "at_once", **SHARDS)
    report = step_by_step(images, place, **SHARDS)
    assert report.digest == at_once.digest
    assert (report.num_samples, report.num_rejected, report.num_shards) == (11, 7, 3)
    rejects = bytes(store_of(place).read("rejects.csv")).decode()
    assert rejects == rejects_of(tmp_path / "at_once")
    if not place[1]:
        assert report.rejects == at_once.rejects
    again = fastdata.pack(images, place[0], part="commit", **SHARDS, **place[1])
    assert again.num_rejected == 7


def test_only_rejects_are_no_dataset(place: tuple[str, dict[str, Any]], images: Path) -> None:
    with_bad_images(images, tuple(range(18)))
    with pytest.raises(SourceError, match="all 18 samples were rejected"):
        step_by_step(images, place, **SHARDS)
    assert not store_of(place).exists("manifest.json")


def test_a_bad_image_may_stop_a_part(place: tuple[str, dict[str, Any]], images: Path) -> None:
    with_bad_images(images, (6,))
    with pytest.raises(RejectedError):
        step_by_step(images, place, **SHARDS, on_error="stop")
    assert not store_of(place).exists("manifest.json")


# -- what is refused ---------------------------------------------------------------------------


def test_steps_out_of_their_order_are_refused(
    place: tuple[str, dict[str, Any]], images: Path
) -> None:
    options = {**SHARDS, **place[1]}
    for part in ("0/2", "commit"):
        with pytest.raises(PartsMissingError, match="run the same command with --plan first"):
            fastdata.pack(images, place[0], part=part, **options)
    fastdata.pack(images, place[0], part="plan", **options)
    fastdata.pack(images, place[0], part="1/2", **options)
    with pytest.raises(PartsMissingError, match=r"2 of 4 parts are missing \(0, 2\)"):
        fastdata.pack(images, place[0], part="commit", **options)
    fastdata.pack(images, place[0], part="0/1", **options)
    fastdata.pack(images, place[0], part="commit", **options)
    again = fastdata.pack(images, place[0], part="commit", **options)
    assert "it was complete already" in again.notes
    with pytest.raises(DestinationExistsError, match="packed otherwise"):
        fastdata.pack(images, place[0], part="commit", **{**options, "quality": 50})


def test_a_pack_of_something_else_is_refused(
    place: tuple[str, dict[str, Any]], images: Path
) -> None:
    fastdata.pack(images, place[0], part="plan", **SHARDS, **place[1])
    for part in ("plan", "0/2", "commit"):
        with pytest.raises(JobChangedError, match="quality was 90 and is 50"):
            fastdata.pack(images, place[0], part=part, quality=50, **SHARDS, **place[1])
    shutil.copy(jpegs(images)[0], images / "bee" / "new.jpg")
    with pytest.raises(JobChangedError, match="were added or removed"):
        fastdata.pack(images, place[0], part="0/2", **SHARDS, **place[1])


def test_a_folder_with_something_else_in_it_is_refused(
    place: tuple[str, dict[str, Any]], images: Path
) -> None:
    store_of(place).put("notes.txt", b"mine")
    with pytest.raises(DestinationExistsError, match=r"it has notes\.txt"):
        fastdata.pack(images, place[0], part="plan", **SHARDS, **place[1])


@pytest.mark.parametrize("part", ["2/2", "-1/2", "1", "a/b", "0/0", "1/2/3", ""])
def test_a_part_is_counted_from_nought(part: str, images: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="from 0 to N - 1"):
        fastdata.pack(images, tmp_path / "x", part=part, **SHARDS)


def test_options_that_do_not_go_together_are_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one of several shards"):
        fastdata.pack(images, tmp_path / "x", part="plan", **QUICK)
    with pytest.raises(OptionError, match="not both"):
        fastdata.pack(images, tmp_path / "x", part="plan", executor="dask:local", **SHARDS)
    with pytest.raises(OptionError, match="overwrite=True does not work for packs in parts"):
        fastdata.pack(images, tmp_path / "x", part="plan", overwrite=True, **SHARDS)
    with pytest.raises(OptionError, match="none that is known"):
        fastdata.pack(images, tmp_path / "y", executor="spark:local", **SHARDS)
    once = ({"image": np.zeros((9, 9, 3), np.uint8)} for _ in range(3))
    with pytest.raises(OptionError, match="can be read only once"):
        fastdata.pack(once, tmp_path / "z", part="plan", **SHARDS)
    with ThreadPoolExecutor(1) as pool, pytest.raises(OptionError, match="open the source them"):
        fastdata.pack(Pictures(), "memory://x/y", executor=pool, **SHARDS)


def test_a_plan_that_is_damaged_is_refused(images: Path, tmp_path: Path) -> None:
    fastdata.pack(images, tmp_path / "x", part="plan", **SHARDS)
    plan = tmp_path / "x/unfinished/plan.json"
    other = json_with_checksum({"version": 2})
    for data, message in ((b"{", "is no plan"), (other, "is no plan")):
        plan.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            fastdata.pack(images, tmp_path / "x", part="0/1", **SHARDS)


@pytest.mark.parametrize("name", ["plan.json", "00000.json"])
def test_a_byte_of_a_plan_or_a_receipt_that_changed_is_noticed(tmp_path: Path, name: str) -> None:
    images = with_bad_images(image_folder(tmp_path / "images", 10), (1,))
    for part in ("plan", "0/1"):
        fastdata.pack(images, tmp_path / "x", part=part, **SHARDS)
    (file,) = (tmp_path / "x/unfinished").rglob(name)
    data = file.read_bytes()
    places = [data.index(b'"body"') + at for at in range(0, 200, 7)]
    places += [data.find(text) for text in (b"not an image", b"00000.jpg") if text in data]
    for at in places:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(FormatError, match=f"{name} is (no|not a) .*Remove it"):
            fastdata.pack(images, tmp_path / "x", part="commit", **SHARDS)


@pytest.mark.parametrize("name", ["plan.json", "00000.json"])
def test_a_pipe_in_the_place_of_a_plan_or_a_receipt_is_refused(
    images: Path, tmp_path: Path, name: str
) -> None:
    for part in ("plan", "0/1"):
        fastdata.pack(images, tmp_path / "x", part=part, **SHARDS)
    (file,) = (tmp_path / "x/unfinished").rglob(name)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises((StorageError, PartsMissingError), match=r"a named pipe|are missing"):
        fastdata.pack(images, tmp_path / "x", part="commit", **SHARDS)


def test_a_receipt_that_is_damaged_is_refused(images: Path, tmp_path: Path) -> None:
    fastdata.pack(images, tmp_path / "x", part="plan", **SHARDS)
    fastdata.pack(images, tmp_path / "x", part="0/1", **SHARDS)
    receipt = next((tmp_path / "x/unfinished").rglob("00002.json"))
    text = receipt.read_text()
    for damaged in (text[:50], text.replace("shard-", "../shard-")):
        receipt.write_text(damaged)
        with pytest.raises(FormatError, match="is not a valid receipt"):
            fastdata.pack(images, tmp_path / "x", part="commit", **SHARDS)
    receipt.unlink()
    fastdata.pack(images, tmp_path / "x", part="0/1", **SHARDS)
    fastdata.pack(images, tmp_path / "x", part="commit", **SHARDS)
    assert digest_of(tmp_path / "x") == fastdata.pack(images, tmp_path / "y.lmdb", **QUICK).digest


# -- twice, late and killed --------------------------------------------------------------------


def test_a_part_that_is_packed_twice_counts_once(
    place: tuple[str, dict[str, Any]], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SHARDS, **place[1]}
    fastdata.pack(images, place[0], part="plan", **options)
    seen: list[Parts] = []
    put = Parts._put

    def twice(self: Parts, receipt: Any) -> Any:
        if not seen:
            seen.append(self)
            self.pack(receipt.part, num_workers=0)  # somebody is faster
        return put(self, receipt)

    monkeypatch.setattr(Parts, "_put", twice)
    fastdata.pack(images, place[0], part="0/1", **options)
    shards = [one.key for one in store_of(place).list() if one.key.startswith("shard-")]
    assert len(shards) == 4
    report = fastdata.pack(images, place[0], part="commit", **options)
    assert report.digest == fastdata.pack(images, tmp_path / "local.lmdb", **QUICK).digest

    seen[0].pack(2, num_workers=0)  # and somebody is late
    assert sorted(one.key for one in store_of(place).list()) == sorted(["manifest.json", *shards])


def test_a_receipt_that_was_put_though_it_seemed_not_counts(
    place: tuple[str, dict[str, Any]], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SHARDS, **place[1]}
    fastdata.pack(images, place[0], part="plan", **options)
    kind = type(store_of(place))
    put = kind.put_if_absent
    # As when the answer to a request is lost: made again, it finds what it has put itself.
    monkeypatch.setattr(kind, "put_if_absent", lambda *given: put(*given) and False)
    fastdata.pack(images, place[0], part="0/1", **options)
    report = fastdata.pack(images, place[0], part="commit", **options)
    assert report.num_shards == 4
    assert sum(one.key.startswith("shard-") for one in store_of(place).list()) == 4


def test_two_commits_at_once_are_one(
    place: tuple[str, dict[str, Any]], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SHARDS, **place[1]}
    fastdata.pack(images, place[0], part="plan", **options)
    fastdata.pack(images, place[0], part="0/1", **options)
    receipts = Parts.receipts
    digests = []

    def other_first(self: Parts) -> Any:
        monkeypatch.setattr(Parts, "receipts", receipts)
        digests.append(fastdata.pack(images, place[0], part="commit", **options).digest)
        return receipts(self)

    monkeypatch.setattr(Parts, "receipts", other_first)
    digests.append(fastdata.pack(images, place[0], part="commit", **options).digest)
    assert digests[0] == digests[1]
    with pytest.raises(DestinationExistsError, match="has a dataset already"):
        fastdata.pack(images, place[0], part="0/1", **options)


def interrupted_commit(monkeypatch: pytest.MonkeyPatch, method: str) -> Callable[[], None]:
    """Have a method fail once."""
    original = getattr(Parts, method)

    def fails(self: Any, *_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Parts, method, fails)
    return lambda: monkeypatch.setattr(Parts, method, original)


def test_a_commit_that_was_interrupted_is_finished_by_another(
    place: tuple[str, dict[str, Any]], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SHARDS, **place[1]}
    fastdata.pack(images, place[0], part="plan", **options)
    fastdata.pack(images, place[0], part="0/1", **options)
    store_of(place).put(f"shard-00001-{'0' * 16}.lmdb", b"of a task that was killed")
    store_of(place).put("shard-00001.lmdb", b"not of ours")
    mend = interrupted_commit(monkeypatch, "tidy")
    with pytest.raises(KeyboardInterrupt):
        fastdata.pack(images, place[0], part="commit", **options)
    mend()
    fastdata.pack(images, place[0], part="commit", **options)
    left = [one.key for one in store_of(place).list()]
    assert "shard-00001.lmdb" in left
    assert len(left) == 4 + 2


def test_no_shard_stays_mapped_until_all_are_counted(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest_of_columns = parts_module.content_digest
    mapped: list[str] = []

    def counting(*given: Any) -> str:
        digest = digest_of_columns(*given)
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped.extend(line for line in maps if str(tmp_path) in line)
        return digest

    monkeypatch.setattr(parts_module, "content_digest", counting)
    fastdata.pack(images, tmp_path / "packed", part="plan", **SHARDS)
    for part in ["0/1", "commit"]:
        fastdata.pack(images, tmp_path / "packed", part=part, **SHARDS)
    assert not mapped


def pack_and_kill(source: Path, place: str, options: dict[str, Any], seconds: float) -> bool:
    """Pack in a process that is killed after so long; return whether it was done before."""
    process = start_pack_apart(source, place, options, source.parent)
    process.join(seconds)
    done = process.exitcode is not None
    process.kill()
    process.join()
    process.close()
    return done


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("steps", [None, ["plan", "0/2", "1/2", "commit"]], ids=["whole", "steps"])
def test_killed_at_any_moment_it_is_finished_by_the_same_command(
    steps: list[str] | None, place: tuple[str, dict[str, Any]], images: Path, tmp_path: Path
) -> None:
    if steps is None and not place[1]:
        pytest.skip("that is a pack on one machine")
    digest = fastdata.pack(images, tmp_path / "local.lmdb", **QUICK).digest
    draw = random.Random(5)
    options = {**SHARDS, "shard_size": 3, **place[1]}
    assert pack_and_kill(images, str(tmp_path / "first.lmdb"), QUICK, 60)  # starts the server
    began = time.monotonic()
    assert pack_and_kill(images, str(tmp_path / "timed.lmdb"), QUICK, 60)
    whole = time.monotonic() - began
    for step in steps or [None]:
        for _ in range(5):
            seconds = whole * draw.random() * 1.5
            pack_and_kill(images, place[0], {**options, "part": step}, seconds)
        fastdata_again(images, place[0], {**options, "part": step})
    report = fastdata.pack(images, place[0], **options, part="commit")
    assert report.digest == digest
    left = files_below(place)
    manifest = json.loads(bytes(store_of(place).read("manifest.json")))
    listed = {shard["file"] for shard in manifest["shards"]}
    assert left == {"manifest.json", *listed}
    assert digest_of(copied(store_of(place), tmp_path / "copy")) == digest


def fastdata_again(source: Path, place: str, options: dict[str, Any]) -> None:
    """Run a step as somebody would at a shell who does not know whether it is done."""
    with contextlib.suppress(DestinationExistsError):  # a whole pack that was complete, and tidy
        fastdata.pack(source, place, **options)


def files_below(place: tuple[str, dict[str, Any]]) -> set[str]:
    """Return everything there is, empty folders and files that are being written too."""
    if place[1]:
        return {one.key for one in store_of(place).list()}
    return {os.path.relpath(path, place[0]) for path in Path(place[0]).rglob("*")}


# -- engines -----------------------------------------------------------------------------------


@needs_s3
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_tasks_of_an_executor(
    kind: str, bucket: str, server: S3Server, images: Path, tmp_path: Path
) -> None:
    store = open_store(f"{bucket}/images", server.options)
    upload(images, store)
    spawn = multiprocessing.get_context("spawn")
    pool: Executor = (
        ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, mp_context=spawn)
    )
    options: dict[str, Any] = {**SHARDS, "storage_options": server.options, "shuffle": True}
    with pool:
        report = fastdata.pack(store.url, f"{bucket}/train", executor=pool, **options)
    local = fastdata.pack(images, tmp_path / "local.lmdb", **QUICK, shuffle=True)
    assert report.digest == local.digest


@needs_s3
def test_a_process_that_lost_its_threads_by_a_fork_says_so(
    bucket: str, server: S3Server, images: Path
) -> None:
    fork = multiprocessing.get_context("fork")
    options: dict[str, Any] = {**SHARDS, "storage_options": server.options}
    pool = ProcessPoolExecutor(1, mp_context=fork)
    with pool, pytest.raises(StorageError, match="spawn"):
        fastdata.pack(images, f"{bucket}/train", executor=pool, **options)


class FailingPool(ThreadPoolExecutor):
    """An executor in which the second part fails so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(2)
        self.left = times

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        if args[1] == 1 and self.left:
            self.left -= 1
            return super().submit(self._fail)
        return super().submit(fn, *args, **options)

    @staticmethod
    def _fail() -> None:
        raise RuntimeError("the worker was killed")


@needs_s3
def test_a_task_that_fails_is_run_again(
    bucket: str, server: S3Server, images: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {**SHARDS, "storage_options": server.options}
    digest = fastdata.pack(images, tmp_path / "local.lmdb", **QUICK).digest
    with FailingPool(2) as pool:
        report = fastdata.pack(images, f"{bucket}/a", executor=pool, **options)
    assert (report.digest, report.num_rejected) == (digest, 0)

    with FailingPool(3) as pool, pytest.raises(WorkerError, match="the worker was killed"):
        fastdata.pack(images, f"{bucket}/b", executor=pool, **options)
    report = fastdata.pack(images, f"{bucket}/b", **options)
    assert (report.digest, report.num_rejected) == (digest, 0)


class LocalRayletDiedError(Exception):
    """As Ray's, which need not be installed."""


class SilentError(Exception):
    """An engine's error without a text."""


@pytest.mark.parametrize(
    ("error", "raised", "message", "tries"),
    [
        (LocalRayletDiedError("the raylet died"), WorkerError, "the raylet died", 1),
        (CancelledError(), WorkerError, "its scheduler has stopped", 1),
        (SilentError(), WorkerError, "SilentError: the engine gives no reason", 3),
        (PermissionError(13, "Permission denied", "/x"), MachineError, "Permission denied", 3),
        (OSError(5, "Input/output error"), MachineError, "Input/output error", 3),
        (MemoryError(), MachineError, "MemoryError", 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_failure_of_the_engine_ends_the_pack_and_the_same_call_continues(
    error: Exception,
    raised: type[Exception],
    message: str,
    tries: int,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = []

    class Engine(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
            if args[1] != 2 or broken is False:
                return super().submit(fn, *args, **options)
            failed.append(args[1])
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    monkeypatch.setattr(driver, "named_executor", lambda name: Engine(1))
    options: dict[str, Any] = {**SHARDS, "executor": "ray:auto"}
    broken = True
    with pytest.raises(raised, match=rf"{message}.*finished parts stay") as found:
        fastdata.pack(images, tmp_path / "train", **options)
    assert "part 2" in str(found.value)
    assert len(failed) == tries
    assert not (tmp_path / "train/manifest.json").exists()
    broken = False
    report = fastdata.pack(images, tmp_path / "train", **options)
    assert report.num_rejected == 0
    assert report.digest == fastdata.pack(images, tmp_path / "local.lmdb", **QUICK).digest


def test_a_pack_says_that_the_engine_does_not_answer(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)

    class Frozen(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
            def later() -> Any:
                while "4 of 4 parts from dask:frozen" not in caplog.text:
                    time.sleep(0.01)
                return fn(*args, **options)

            return super().submit(later)

    monkeypatch.setattr(driver, "named_executor", lambda name: Frozen(1))
    report = fastdata.pack(images, tmp_path / "train", **SHARDS, executor="dask:frozen")
    assert report.num_samples == 18


def test_an_engine_that_is_not_there_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise OSError("Timed out trying to connect")

    fake = types.SimpleNamespace(Client=refuse)
    monkeypatch.setitem(sys.modules, "dask", types.SimpleNamespace(distributed=fake))
    monkeypatch.setitem(sys.modules, "dask.distributed", fake)
    with pytest.raises(WorkerError, match=r"dask:tcp://x:1.*cannot be reached.*its address"):
        fastdata.pack(images, tmp_path / "train", **SHARDS, executor="dask:tcp://x:1")


DASK = """
import fastdata
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        name = f"dask:{cluster.scheduler_address}"
        for shuffle in (False, True):
            options = {"size": 24, "shard_size": 5, "shuffle": shuffle, "executor": name}
            print(fastdata.pack("images", f"train-{shuffle}", **options).digest)
"""


def test_dask_packs_it(images: Path, tmp_path: Path) -> None:
    # Not imported here: it has every process pickle tracebacks.
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("distributed is not installed")
    script = tmp_path / "pack.py"
    script.write_text(DASK)
    # Its workers have other folders: names are not relative to these.
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
    )
    for shuffle, digest in zip((False, True), done.stdout.split(), strict=True):
        local = fastdata.pack(images, tmp_path / f"{shuffle}.lmdb", **QUICK, shuffle=shuffle)
        packed = tmp_path / f"train-{shuffle}"
        assert digest == local.digest == digest_of(packed)
        assert sorted(path.name[:11] for path in packed.glob("*.lmdb")) == [
            f"shard-{part:05}" for part in range(4)
        ]


def test_an_engine_that_is_not_installed_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (("dask.distributed", "dask:local"), ("ray", "ray:auto")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match="pip install"):
            fastdata.pack(images, tmp_path / "train", executor=name, **SHARDS)
