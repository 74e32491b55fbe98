"""Formats read out of a store: what comes out is what a pack of a local copy gives."""

from __future__ import annotations

import contextlib
import gc
import http.server
import json
import os
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import pytest
from case_webdataset import members_of, write_tar
from cases import Case, all_cases, make_pictures
from object_server import CREDENTIALS, S3Server, has_s3, s3_server
from pack_helpers import QUICK, image_folder, rejects_of
from serving import answering
from warm_python import WarmPython

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.packing import parts as parts_module
from fastdata.converters.packing.engines import open_source
from fastdata.converters.packing.job import json_with_checksum, read_rejects
from fastdata.converters.packing.plan import Plan
from fastdata.converters.parquet import RangedFile
from fastdata.converters.reading.mirror import Mirror
from fastdata.errors import (
    FormatError,
    JobChangedError,
    MachineError,
    ObjectChangedError,
    OptionError,
    RejectedError,
    SourceError,
    StorageError,
)
from fastdata.regular_files import PLACEHOLDER, open_regular, read_piece, read_regular
from fastdata.storage import Store, open_store

pytestmark = pytest.mark.skipif(not has_s3(), reason="obstore or moto is not installed")

FORMATS = ("litdata", "manifest", "mds", "parquet", "tfrecord", "webdataset")
CASES = [case for case in all_cases() if case.format in FORMATS]
KINDS = ("webdataset", "parquet", "mds", "manifest-ids")
"""A case of each way to read: whole files, ranges, chunks by an index, images of a list."""
COUNT = 40


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, in which nothing is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert os.listdir(folder) == []


@pytest.fixture
def store(server: S3Server, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder of a new bucket, and credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = server.bucket(f"bucket-{uuid.uuid4().hex}")
    return open_store(f"{url}/sets/here", server.options)


@pytest.fixture
def remote(server: S3Server) -> dict[str, Any]:
    return {"storage_options": server.options}


@pytest.fixture
def got(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is read of stores: keys, and how many bytes of each."""
    read, found = type(store).read, list[tuple[str, int]]()

    def counted(self: Any, key: str, *given: Any, **options: Any) -> Any:
        data = read(self, key, *given, **options)
        found.append((key, len(data)))
        return data

    monkeypatch.setattr(type(store), "read", counted)
    return found


class Mirrored:
    """A mirror of a store, which is closed again."""

    def __init__(self, store: Store) -> None:
        self.mirror = Mirror(store)

    def __enter__(self) -> Mirror:
        return self.mirror

    def __exit__(self, *_: object) -> None:
        self.mirror.close()


def upload(folder: Path, store: Store) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path)


def url_at(location: Any, folder: Path, store: Store) -> str:
    return store.url_of(os.path.relpath(location, folder).removeprefix("."))


def written(case: Case, folder: Path, store: Store, count: int = COUNT) -> tuple[Any, str]:
    """Return where a case is written to: on the disk and in a store."""
    folder.mkdir()
    location = case.write(folder, make_pictures(count))
    upload(folder, store)
    return location, url_at(location, folder, store)


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def first_of_each_kind(*given: Any) -> list[Any]:
    """Return parameters of a test, names of cases first; those that come after `KINDS` marked."""
    first, found = set(KINDS), []
    for one in given:
        values = one if isinstance(one, tuple) else (one,)
        marks = () if values[0] in first else pytest.mark.formats
        first.discard(values[0])
        found.append(pytest.param(*values, marks=marks))
    return found


def tars(folder: Path, count: int = COUNT, files: int = 8) -> Path:
    """Write shards of WebDataset of unlike sizes."""
    folder.mkdir()
    pictures, ends = make_pictures(count), [round(count * (k / files) ** 0.7) for k in range(files)]
    for number, (start, end) in enumerate(zip(ends, [*ends[1:], count], strict=True)):
        write_tar(folder / f"train-{number:02}.tar", members_of(pictures[start:end]))
    return folder


def step_by_step(source: str, place: str, **options: Any) -> Any:
    """Pack by commands that know nothing of each other."""
    for part in ("plan", "1/3", "0/3", "2/3"):
        assert fastdata.pack(source, place, part=part, **options).digest == ""
    return fastdata.pack(source, place, part="commit", **options)


# -- the same digest ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", first_of_each_kind(*(case.name for case in CASES)))
def test_a_format_is_read_of_a_store(
    name: str, store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    case = case_named(name)
    location, url = written(case, tmp_path / "in", store)
    options = {**QUICK, "source_options": case.options}
    local = fastdata.pack(location, tmp_path / "local.lmdb", **options)
    report = fastdata.pack(url, tmp_path / "remote.lmdb", **remote, **options)
    assert local.num_samples == COUNT
    assert (report.digest, report.num_samples) == (local.digest, COUNT)
    assert report.read_as == local.read_as
    assert report.notes == local.notes


@pytest.mark.parametrize(
    ("name", "options"),
    first_of_each_kind(
        ("webdataset", {"shards": 2}),
        ("webdataset-gzip", {"shard_size": "10KB"}),
        ("tfrecord", {"shard_size": "1KB"}),
        ("parquet", {"shards": 3}),
        ("parquet", {"shard_size": "10KB"}),
        ("parquet", {"shard_size": 11}),
        ("mds", {"shards": 4}),
        ("mds-zstd", {"shard_size": "1GB"}),
        ("litdata", {"shard_size": "20KB"}),
        ("manifest-ids", {"shard_size": 9, "shuffle": True}),
        ("manifest-boxes", {"shard_size": "10KB", "limit": 21}),
    ),
    ids=str,
)
def test_step_by_step(
    name: str, options: dict[str, Any], store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    case = case_named(name)
    location, url = written(case, tmp_path / "in", store)
    options = {**QUICK, **options, "source_options": case.options}
    local = fastdata.pack(location, tmp_path / "local", **options)
    report = step_by_step(url, str(tmp_path / "remote"), **remote, **options)
    assert (report.digest, report.num_samples) == (local.digest, local.num_samples)
    to = f"{store.url}/../to".replace("sets/here/../", "")
    assert fastdata.pack(url, to, **remote, **options).digest == local.digest


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("threads", name) for name in KINDS),
        ("processes", "webdataset"),
        *(pytest.param("processes", name, marks=pytest.mark.formats) for name in KINDS[1:]),
    ],
)
def test_tasks_of_an_engine(
    kind: str, name: str, store: Store, remote: dict[str, Any], tmp_path: Path, scratch: Path
) -> None:
    location, url = written(case_named(name), tmp_path / "in", store)
    local = fastdata.pack(location, tmp_path / "local.lmdb", **QUICK)
    executor: Executor = ThreadPoolExecutor(2)
    if kind == "processes":
        # Not the fork server, which has the environment of when it was started.
        executor = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    to = store.url.replace("sets/here", "to")
    with executor:
        report = fastdata.pack(url, to, executor=executor, shards=2, **remote, **QUICK)
    assert (report.digest, report.num_samples) == (local.digest, COUNT)


def test_many_files_of_unlike_sizes(store: Store, remote: dict[str, Any], tmp_path: Path) -> None:
    folder = tars(tmp_path / "in")
    upload(folder, store)
    local = fastdata.pack(folder, tmp_path / "local", **QUICK)
    for number, cut in enumerate(({"shards": 8}, {"shards": 5}, {"shard_size": "45KB"})):
        place = str(tmp_path / f"to{number}")
        report = step_by_step(store.url, place, **remote, **QUICK, **cut)
        assert report.digest == local.digest
        if "shards" in cut:
            assert report.num_shards == cut["shards"]
        else:
            sizes = sorted(path.stat().st_size for path in folder.iterdir())
            assert sum(sizes) / 45e3 <= report.num_shards < len(sizes)


@pytest.mark.parametrize(
    "pattern", ["train-{00..07}.tar", "*.tar", "train-0[0-7].tar", "../he*/train-??.tar"]
)
def test_patterns(pattern: str, store: Store, remote: dict[str, Any], tmp_path: Path) -> None:
    folder = tars(tmp_path / "in")
    upload(folder, store)
    local = fastdata.pack(folder, tmp_path / "local", **QUICK)
    url = f"{store.url}/{pattern}".replace("here/../", "")
    assert fastdata.pack(url, tmp_path / "to", **remote, **QUICK).digest == local.digest


def test_patterns_and_files_that_are_not_there(
    store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    upload(tars(tmp_path / "in"), store)
    with pytest.raises(SourceError, match=f"{store.url}/train-.00.*1 of the files .* missing"):
        fastdata.pack(f"{store.url}/train-{{00..08}}.tar", tmp_path / "to", **remote, **QUICK)
    with pytest.raises(SourceError, match=f"{store.url}/none.*no file is called so"):
        fastdata.pack(f"{store.url}/none*", tmp_path / "to", **remote, **QUICK)
    with pytest.raises(SourceError, match=r"none\.tar: the store has no objects there"):
        fastdata.pack(f"{store.url}/none.tar", tmp_path / "to", **remote, **QUICK)


# -- rejects -----------------------------------------------------------------------------------


def test_rejects_are_those_of_a_local_pack(
    store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    folder = tars(tmp_path / "in")
    pictures = make_pictures(3)
    write_tar(
        folder / "train-02.tar",
        [("a.jpg", b"no image"), ("a.cls", b"1"), *members_of(pictures), ("z.jpg", b"y")],
    )
    (folder / "train-04.tar").write_bytes((folder / "train-04.tar").read_bytes()[:9000])
    (folder / "train-05.tar").write_bytes(b"no tar file at all" * 99)
    upload(folder, store)
    local = fastdata.pack(folder, tmp_path / "local", shards=1, **QUICK)
    assert local.num_rejected >= 4
    parts = step_by_step(store.url, str(tmp_path / "parts"), shards=3, **remote, **QUICK)
    whole = fastdata.pack(store.url, tmp_path / "whole", **remote, **QUICK)
    expected = rejects_of(tmp_path / "local").replace(str(folder), store.url)
    assert store.url in expected
    assert (tmp_path / "parts" / "rejects.csv").read_text() == expected
    assert rejects_of(tmp_path / "whole") == expected
    assert parts.digest == whole.digest == local.digest


def test_rejects_of_a_list(store: Store, remote: dict[str, Any], tmp_path: Path) -> None:
    case = case_named("manifest-ids")
    location, url = written(case, tmp_path / "in", store)
    images = sorted((tmp_path / "in").rglob("*.jpg"))
    images[3].write_bytes(b"no image")
    upload(tmp_path / "in", store)
    local = fastdata.pack(location, tmp_path / "local.lmdb", **QUICK)
    report = step_by_step(url, str(tmp_path / "to"), shard_size=7, **remote, **QUICK)
    assert (report.digest, report.num_rejected) == (local.digest, 1)
    rejects = (tmp_path / "to" / "rejects.csv").read_text()
    assert rejects == rejects_of(tmp_path / "local.lmdb").replace(str(tmp_path / "in"), store.url)


def test_a_part_of_files_that_fails_is_packed_by_the_same_call_again(
    store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    folder = tars(tmp_path / "in")
    upload(folder, store)
    options: dict[str, Any] = {**remote, **QUICK, "shards": 3}

    class Dying(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            if args[1] == 1:
                return super().submit(os.close, -1)
            return super().submit(fn, *args, **kwargs)

    to_url = store.url.replace("sets/here", "to")
    with Dying(1) as executor, pytest.raises(MachineError, match="part 1 was not packed by Dying"):
        fastdata.pack(store.url, to_url, executor=executor, **options)
    report = fastdata.pack(store.url, to_url, **options)
    assert report.num_rejected == 0
    assert report.digest == fastdata.pack(folder, tmp_path / "local.lmdb", **QUICK).digest


# -- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", first_of_each_kind("webdataset", "tfrecord", "mds", "litdata"))
def test_a_plan_reads_the_first_file(
    name: str, store: Store, remote: dict[str, Any], tmp_path: Path, got: list[tuple[str, int]]
) -> None:
    folder = tmp_path / "in"
    url = store.url
    if name == "webdataset":
        upload(tars(folder, 100), store)
    else:
        _, url = written(case_named(name), folder, store, 300)
    fastdata.pack(url, tmp_path / "to", part="plan", shards=2, **remote, **QUICK)
    whole = {path.name: path.stat().st_size for path in folder.iterdir()}
    read = dict.fromkeys(whole, 0)
    for key, count in got:
        if key in read:
            read[key] += count
    data = sorted(key for key in whole if key != "index.json")
    assert len(data) > 1
    assert read[data[0]] >= (whole[data[0]] if name in ("webdataset", "tfrecord") else 0)
    for key in data[1:]:
        assert read[key] <= min(whole[key] - 1, 9000), key  # twice the start of it
    # A task reads that too, and the files of its part, each once.
    got.clear()
    fastdata.pack(url, tmp_path / "to", part="1/2", shards=2, **remote, **QUICK)
    bounds = json.loads((tmp_path / "to/unfinished/plan.json").read_text())["body"]["bounds"]
    for number, key in enumerate(data):
        count = sum(size for name, size in got if name == key)
        assert count >= whole[key] if number >= bounds[1] else number == 0 or count <= 9000
        assert count < 2 * whole[key]


def test_a_plan_reads_no_images_of_parquet_nor_of_lists(
    store: Store, remote: dict[str, Any], tmp_path: Path, got: list[tuple[str, int]]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    noise = [os.urandom(100_000) for _ in range(60)]
    pictures = make_pictures(60)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = slice(20 * number, 20 * number + 20)
        table = pa.table(
            {
                "image": [p.data + n for p, n in zip(pictures[rows], noise[rows], strict=True)],
                "label": [f"class {p.label}" for p in pictures[rows]],
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=5)
    upload(folder, store)
    whole = sum(path.stat().st_size for path in folder.iterdir())
    fastdata.pack(store.url, tmp_path / "to", part="plan", shards=3, **remote, **QUICK)
    assert sum(count for _, count in got) < whole / 4
    got.clear()
    fastdata.pack(store.url, tmp_path / "to", part="1/3", shards=3, **remote, **QUICK)
    read = sum(count for _, count in got)
    assert whole / 3 < read < whole * 0.75
    got.clear()
    case = case_named("manifest-ids")
    images = open_store(store.url.replace("sets/here", "lists"), remote["storage_options"])
    _, url = written(case, tmp_path / "list", images)
    got.clear()
    fastdata.pack(url, tmp_path / "rows", part="plan", shards=3, **remote, **QUICK)
    assert {key.rpartition(".")[2] for key, _ in got} == {"csv"}


def test_scratch_holds_few_files_at_once(
    store: Store,
    remote: dict[str, Any],
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tars(tmp_path / "in", count=1500, files=15)
    upload(folder, store)
    most = 0
    fetch = Mirror._fetch

    def watched(self: Mirror, path: str) -> None:
        nonlocal most
        fetch(self, path)
        there = [p for p in Path(self.root).rglob("*.tar") if p.stat().st_mode & 0o400]
        most = max(most, len(there))

    monkeypatch.setattr(Mirror, "_fetch", watched)
    report = fastdata.pack(store.url, tmp_path / "to", **remote, **QUICK)
    assert report.num_samples == 1500
    assert 2 <= most <= 8


def test_an_abandoned_mirror_is_removed(
    store: Store, remote: dict[str, Any], tmp_path: Path, scratch: Path,
    monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython,
) -> None:  # fmt: skip
    upload(tars(tmp_path / "in"), store)
    code = (
        "import sys, os, signal, json\n"
        "from fastdata.converters.finding import find_source\n"
        "from fastdata.storage import open_store\n"
        "kept = find_source(open_store(sys.argv[1], json.loads(sys.argv[2])))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    options = json.dumps(remote["storage_options"])
    assert warm_python.run(code, store.url, options).returncode == -signal.SIGKILL
    (left,) = scratch.iterdir()
    foreign = scratch / "fastdata-mirror-thesis" / "thesis.txt"
    foreign.parent.mkdir()
    foreign.write_text("all my work")
    with Mirrored(store) as mine:
        assert left.exists()  # it may be one that is just being made
        assert mine.root != str(left)
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    with Mirrored(store) as one, Mirrored(store) as other:
        assert not left.exists()
        assert foreign.read_text() == "all my work"
        shutil.rmtree(foreign.parent)
        assert Path(one.root).is_dir()
        assert Path(other.root).is_dir()


# -- what changes, and what is refused ---------------------------------------------------------


@pytest.mark.parametrize("name", ["webdataset", "parquet", "manifest-ids"])
def test_a_source_that_changed_since_the_plan_is_refused(
    name: str, store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    _, url = written(case_named(name), tmp_path / "in", store)
    options: dict[str, Any] = {**remote, **QUICK, "shards": 2}
    fastdata.pack(url, tmp_path / "to", part="plan", **options)
    last = max(path for path in (tmp_path / "in").rglob("*") if path.is_file())
    data = bytearray(last.read_bytes())
    data[-1] ^= 1  # of the same size
    store.put(last.relative_to(tmp_path / "in").as_posix(), bytes(data))
    with pytest.raises(JobChangedError, match="files of the source have changed"):
        fastdata.pack(url, tmp_path / "to", part="0/1", **options)


@pytest.mark.parametrize(("name", "lost"), [("webdataset", 1), ("parquet", 8), ("manifest-ids", 1)])
def test_an_object_that_changes_meanwhile_is_a_reject(
    name: str, lost: int, store: Store, remote: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _, url = written(case_named(name), tmp_path / "in", store)
    files = (path for path in (tmp_path / "in").rglob("*") if path.suffix != ".csv")
    last = max(path for path in files if path.is_file())
    run = parts_module.Parts.pack

    def change_first(self: Any, part: int, **options: Any) -> Any:
        if part == 1:
            store.put(last.relative_to(tmp_path / "in").as_posix(), last.read_bytes() + b"0")
        return run(self, part, **options)

    monkeypatch.setattr(parts_module.Parts, "pack", change_first)
    to = store.url.replace("sets/here", "to")
    report = fastdata.pack(url, to, shards=2, **remote, **QUICK)
    assert report.num_rejected >= lost
    rejects = bytes(open_store(to, remote["storage_options"]).read("rejects.csv")).decode()
    assert f"{store.url}/" in rejects
    assert "has changed since it was listed" in rejects
    assert rejects.count("\n") == report.num_rejected + 1


@pytest.mark.parametrize("name", first_of_each_kind(*KINDS, "tfrecord"))
def test_a_store_that_gives_nothing_stops_the_pack(
    name: str, store: Store, remote: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    location, url = written(case_named(name), tmp_path / "in", store)
    last = max(p for p in (tmp_path / "in").rglob("*") if p.is_file() and p.suffix != ".csv")
    refused = last.relative_to(tmp_path / "in").as_posix()
    local = fastdata.pack(location, tmp_path / "local", **QUICK)
    read, stops = type(store).read, dict[Path, str]()
    asked = after = 0

    def reading(self: Any, key: str, *given: Any, **options: Any) -> Any:
        nonlocal asked
        if key == refused:
            asked += 1
            if asked > after:
                raise StorageError(f"{key}: the credentials have expired: log in again")
        return read(self, key, *given, **options)

    options: dict[str, Any] = {**remote, **QUICK, "shards": 2}
    to = store.url.replace("sets/here", "to")
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "read", reading)
        for after in range(6):  # at the first request, at the second, ...
            asked = 0
            try:
                report = fastdata.pack(url, tmp_path / f"whole{after}", **remote, **QUICK)
            except StorageError as error:
                stops[tmp_path / f"whole{after}"] = str(error)
            else:  # it did not ask so often
                assert (report.digest, report.num_rejected) == (local.digest, 0)
        after = 0
        with pytest.raises(StorageError, match="log in again"):
            fastdata.pack(url, to, **options)
    assert stops
    assert all("log in again" in stop for stop in stops.values())
    for place in stops:  # nothing was kept as a reject
        report = fastdata.pack(url, place, **remote, **QUICK)
        assert (report.digest, report.num_rejected) == (local.digest, 0)
    report = fastdata.pack(url, to, **options)
    assert (report.digest, report.num_rejected) == (local.digest, 0)


def test_other_formats_are_local(store: Store, remote: dict[str, Any], tmp_path: Path) -> None:
    options = {**remote, **QUICK}
    for name in ("coco", "arrow", "hdf5", "lmdb"):
        with pytest.raises(OptionError, match=f"{name}' is read of files on this machine"):
            fastdata.pack(store.url, tmp_path / "x", format=name, **options)
    folder = tmp_path / "in"
    folder.mkdir()
    next(c for c in all_cases() if c.name == "arrow-feather").write(folder, make_pictures(5))
    upload(folder, store)
    with pytest.raises(OptionError, match=f"{store.url}: out of a store, folder.*'arrow' is read"):
        fastdata.pack(store.url, tmp_path / "x", **options)
    store.put("notes.doc", b"nothing")
    with pytest.raises(SourceError, match=f"{store.url}/notes.doc: not recognised"):
        fastdata.pack(store.url_of("notes.doc"), tmp_path / "x", **options)


def test_what_needs_all_files_is_refused(
    store: Store, remote: dict[str, Any], tmp_path: Path
) -> None:
    upload(tars(tmp_path / "in"), store)
    options: dict[str, Any] = {**remote, **QUICK}
    to = tmp_path / "to"
    for given, match in (
        ({"shuffle": True, "shards": 2}, "shuffle needs to reach any sample"),
        ({"limit": 5, "shards": 2}, "limit needs to know where the samples"),
        ({"shard_size": 5}, "shard_size=5 counts samples"),
        ({"shards": 9}, "shards=9 are more than the source's 8 files"),
    ):
        with pytest.raises(OptionError, match=match):
            fastdata.pack(store.url, to, part="plan", **given, **options)
    with pytest.raises(OptionError, match="give shard_size instead"):
        fastdata.pack(store.url, to, shards=2, **options)
    with pytest.raises(OptionError, match="shuffle needs to reach any sample"):
        fastdata.pack(store.url, to, shuffle=True, **options)
    limited = fastdata.pack(store.url, to, limit=5, **options)
    assert limited.num_samples == 5
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:  # noqa: SIM117
        with pytest.raises(OptionError, match="an executor's processes cannot read them"):
            fastdata.pack(store.url, tmp_path / "x", executor=executor, **options)


@pytest.mark.parametrize("unit", ["samples", "files"])
def test_a_plan_is_read_as_it_was_written(unit: Literal["samples", "files"]) -> None:
    plan = Plan({}, "x", (0, 5), unit)
    assert Plan.from_json(plan.to_json(), "here") == plan
    body = json.loads(plan.to_json())["body"]
    for wrong in ({"other": 2}, {"bounds": ["x"]}):
        with pytest.raises(FormatError, match=r"here is no plan of a pack: .*plan again"):
            Plan.from_json(json_with_checksum({**body, **wrong}), "here")


def test_class_folders_are_listed_once(
    store: Store, remote: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = image_folder(tmp_path / "in", 6)
    upload(images, store)
    listed = 0
    list_all = type(store).list

    def counted(self: Any, prefix: str = "") -> Any:
        nonlocal listed
        listed += 1
        return list_all(self, prefix)

    monkeypatch.setattr(type(store), "list", counted)
    fastdata.pack(store.url, tmp_path / "to", **remote, **QUICK)
    assert listed == 1


# -- placeholders ------------------------------------------------------------------------------


def test_a_placeholder_is_never_read(
    store: Store, tmp_path: Path, scratch: Path, warm_python: WarmPython
) -> None:
    store.put("a/b.bin", b"content")
    with Mirrored(store) as mirror:
        path = Path(mirror.path("a/b.bin"))
        status = path.stat()
        assert (status.st_size, status.st_blocks) == (7, 0)
        assert status.st_mode & 0o7777 == PLACEHOLDER
        # Another process, which has no mirror, and the same functions with the mirror forgotten.
        code = (
            "import sys\n"
            "from fastdata.regular_files import open_regular, read_piece, read_regular\n"
            "from fastdata.errors import MachineError, StorageError\n"
            "for read in (open_regular, read_regular, lambda path: read_piece(path, 3)):\n"
            "    try:\n"
            "        print(read(sys.argv[1]))\n"
            "    except StorageError as error:\n"
            "        print('refused' if 'another process has listed' in str(error) else error)\n"
        )
        found = warm_python.run(code, path)
        assert found.stdout.split() == ["refused"] * 3
        assert (read_piece(path, 4), read_piece(path, 4, at_end=True)) == (b"cont", b"tent")
        assert read_regular(path) == b"content"
        assert path.stat().st_blocks == 0, "nothing was downloaded for these"
        with open(path, "rb", opener=open_regular) as file:
            assert file.read() == b"content"
        assert path.stat().st_mtime_ns == status.st_mtime_ns
        mirror.drop()
        assert path.stat().st_mode & 0o7777 == PLACEHOLDER
        assert path.stat().st_mtime_ns == status.st_mtime_ns
        held = mirror.hold(path)
        mirror.drop()
        assert path.read_bytes() == b"content"
        del held
        mirror.drop()
        assert path.stat().st_mode & 0o7777 == PLACEHOLDER
        store.put("a/b.bin", b"another")
        for read in (read_regular, open_regular):
            with pytest.raises(ObjectChangedError):
                read(path)
    assert not path.exists()


def test_a_file_read_by_ranges_has_the_same_bytes(store: Store, scratch: Path) -> None:
    content = random.Random(0).randbytes(3 << 20)
    store.put("a", content)
    with Mirrored(store) as mirror:
        file = RangedFile(mirror, str(mirror.path("a")))
        draw = random.Random(1)
        for _ in range(30):
            place, count = draw.randrange(len(content)), draw.choice((1, 95, 5000, 300_000))
            assert file.seek(place) == place
            assert file.read(count) == content[place : place + count]
        assert file.seek(-8, os.SEEK_END) == len(content) - 8
        assert (file.read(), file.read(5), file.tell()) == (content[-8:], b"", len(content))


def test_times_are_of_tags(store: Store, scratch: Path) -> None:
    def time_of(key: str) -> int:
        with Mirrored(store) as mirror:
            return os.stat(mirror.path(key)).st_mtime_ns

    store.put("a", b"one")
    first = time_of("a")
    assert time_of("a") == first
    store.put("a", b"two")
    assert time_of("a") != first
    store.put("a", b"one")
    assert time_of("a") == first


ODD_KEYS = {
    "../up.png": "a part of it is empty, . or ..",
    "..": "a part of it is empty, . or ..",
    "/absolute.png": "a part of it is empty, . or ..",
    "ant//double.png": "a part of it is empty, . or ..",
    "ant/./same.png": "a part of it is empty, . or ..",
    "ant/slash.png/": "a part of it is empty, . or ..",
    "ant/new\nline.png": "it has a control character",
    "ant/0.png/inside.png": "another object has this key, or a part of it",
    f"ant/{'x' * 300}.png": "File name too long",
}


@contextlib.contextmanager
def bucket_of(objects: dict[str, bytes]) -> Iterator[dict[str, str]]:
    """Serve objects by any keys, also those that moto's paths cannot have; give the options."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if "list-type" in parts.query:
                keys = (
                    f"<Contents><Key>{quote(key) if 'encoding-type' in parts.query else key}</Key>"
                    f"<LastModified>2020-01-01T00:00:00Z</LastModified><ETag>x</ETag>"
                    f"<Size>{len(data)}</Size></Contents>"
                    for key, data in sorted(objects.items())
                )
                found = (
                    f"<ListBucketResult><EncodingType>url</EncodingType>{''.join(keys)}"
                    "</ListBucketResult>"
                )
                self.give(200, found.encode())
            else:
                data = objects.get(unquote(parts.path).removeprefix("/bucket/"))
                self.give(404 if data is None else 200, data or b"")

        def give(self, code: int, body: bytes) -> None:
            first, end = 0, len(body)
            if code == 200 and (asked := self.headers.get("Range")):
                first, end = (int(n) for n in asked.removeprefix("bytes=").split("-"))
                code, end = 206, min(end + 1, len(body))
                self.send_response(code)
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(body)}")
            else:
                self.send_response(code)
            self.send_header("ETag", "x")
            self.send_header("Last-Modified", self.date_time_string())
            self.send_header("Content-Length", str(end - first))
            self.end_headers()
            self.wfile.write(body[first:end])

    with answering(Handler) as port:
        yield {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}


@pytest.mark.parametrize("how", ["usual", "shuffled", "in parts"])
def test_objects_that_cannot_be_files_are_rejects_and_all_others_are_packed(
    store: Store, tmp_path: Path, how: str
) -> None:
    images = image_folder(tmp_path / "in", 6, classes=("ant", "bee"))
    files = [path for path in sorted(images.rglob("*")) if path.is_file()]
    objects = {f"ds/{path.relative_to(images)}": path.read_bytes() for path in files}
    first = next(path.name for path in files if path.parent.name == "ant")
    odd = {key.replace("0.png", first): why for key, why in ODD_KEYS.items()}
    objects |= {f"ds/{key}": b"x" for key in odd}
    target, more = tmp_path / "to.lmdb", dict[str, Any]()
    if how == "shuffled":
        more = {"shuffle": True}
    elif how == "in parts":
        target, more = tmp_path / "to", {"shards": 2, "part": "plan"}
    with bucket_of(objects) as options:
        usual = {"storage_options": options, **QUICK}
        report = fastdata.pack("s3://bucket/ds", target, **usual, **more)
        if how == "in parts":
            for part in ("0/1", "commit"):
                report = fastdata.pack("s3://bucket/ds", target, **usual, shards=2, part=part)
        with pytest.raises(RejectedError, match=r"\.\.: this key cannot be the name of a file"):
            fastdata.pack("s3://bucket/ds", tmp_path / "no.lmdb", on_error="stop", **usual)
    assert (report.num_samples, report.num_rejected) == (6, len(odd))
    assert report.rejects_path is not None
    found = {one.key: one.reason for one in read_rejects(report.rejects_path)}
    assert found.keys() == odd.keys()
    assert all(why in found[key] for key, why in odd.items())


def test_a_url_that_is_a_path_needs_no_mirror(tmp_path: Path, scratch: Path) -> None:
    folder = tars(tmp_path / "in")
    for name in ("", "/train-{00..07}.tar"):
        location = open_source(f"file://{folder}{name}", {})
        source = find_source(location)
        assert (source.name, source.mirror) == ("webdataset", None)
