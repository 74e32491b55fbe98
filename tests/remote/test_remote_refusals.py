"""What a store, a cache folder or a URL may be that is of no use: what it is, and what to do."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from object_server import CREDENTIALS
from pack_helpers import QUICK, image_folder
from range_server import RangeServer, range_server
from remote_helpers import (
    TENTH,
    assert_same,
    batches_of,
    end_downloaders,
    loader_of,
    needs_store,
    total_bytes,
)
from s3_answers import ANSWERS, S3Answers, s3_answers
from warm_python import WarmPython

import fastdata
from fastdata.errors import (
    DatasetNotFoundError,
    FastdataError,
    FormatError,
    ObjectChangedError,
    OptionError,
    ShardCorruptError,
    StorageError,
)
from fastdata.storage import open_store

pytestmark = needs_store

SAID = {
    "InvalidAccessKeyId": "the access key is not known.*Credentials come from",
    "SignatureDoesNotMatch": "the secret key is wrong.*Credentials come from",
    "AccessDenied": "the credentials do not allow it.*Credentials come from",
    "ExpiredToken": "have expired: log in again$",
    "RequestTimeTooSkewed": r"this machine's clock is wrong: set it \(chronyc, timedatectl\)$",
    "NoSuchBucket": "there is no such bucket.*Compare its name",
    "PermanentRedirect": "in another region.*region=",
    "AuthorizationHeaderMalformed": "in another region.*region=",
    "InvalidObjectState": r"not allowed \(403 \w+: InvalidObjectState: .* storage class\)",
    "NotImplemented": "answered 405 Method Not Allowed: NotImplemented: A header .*implemented. ",
}
"""Of S3's answers: the reason and the remedy."""


@pytest.fixture(scope="module", autouse=True)
def answers() -> Iterator[S3Answers]:
    """A server, of which obstore keeps open what no single test leaves behind."""
    with pytest.MonkeyPatch.context() as patch, s3_answers("NoSuchBucket") as found:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        assert not open_store("s3://bucket/x", found.options).exists("a")
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of all tests that do not get far, so that these start no downloader."""
    folder = tmp_path_factory.mktemp("shared") / "cache"
    yield folder
    end_downloaders(folder)


# -- answers of a store ------------------------------------------------------------------------


@pytest.mark.parametrize("code", ANSWERS)
def test_answers_of_s3_name_the_url_the_reason_and_the_remedy(
    answers: S3Answers, shared: Path, tmp_path: Path, code: str
) -> None:
    answers.code = code
    images = image_folder(tmp_path / "images", 2)
    url = "s3://bucket/train"

    def pack(source: object, destination: object) -> Any:
        return fastdata.pack(source, destination, storage_options=answers.options, **QUICK)

    for use in (
        lambda: fastdata.open(url, cache_dir=shared, storage_options=answers.options),
        lambda: pack(images, url),
        lambda: pack(url, tmp_path / "packed.lmdb"),
        lambda: open_store(url, answers.options).put("a", b"1"),
    ):
        with pytest.raises(StorageError, match=SAID[code]) as caught:
            use()
        said = str(caught.value)
        assert said.startswith(url)
        assert "Debug source" not in said
        assert "<" not in said


def test_a_server_that_is_busy_for_long_is_asked_on(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.storage import objects

    monkeypatch.setattr(objects, "PAUSES", (0.001, 0.002))
    server.fault = lambda number: "503" if number < 30 else ""
    data = open_store(f"{server.url}/train").read("manifest.json")
    assert json.loads(bytes(data))["format"]
    assert len(server.requests) == 31


def test_credentials_that_were_mended_count(
    answers: S3Answers, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A downloader has those of the process that started it, and leaves to others with theirs."""
    monkeypatch.setattr(answers, "refused_key", "a-wrong-key")
    monkeypatch.setattr(answers, "code", "NoSuchBucket")

    def say() -> str:
        with pytest.raises(StorageError) as caught:
            fastdata.open("s3://bucket/train", storage_options=answers.options)
        return str(caught.value)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-wrong-key")
    assert "the access key is not known" in say()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-right-key")
    gc.collect()  # an error keeps what raised it, and so a connection
    assert "no such bucket" in say()


def test_who_has_other_credentials_than_those_that_are_used_is_told(
    server: RangeServer,
    answers: S3Answers,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm_python: WarmPython,
) -> None:
    """As long as others need the downloader; once they do not, it has those of who is left."""
    monkeypatch.setattr(answers, "refused_key", "a-wrong-key")
    monkeypatch.setattr(answers, "code", "NoSuchBucket")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-wrong-key")
    data = fastdata.open(f"{server.url}/train")
    tries = """
import sys, time, fastdata
while True:
    try:
        fastdata.open("s3://bucket/train", storage_options={"endpoint": sys.argv[1]})
    except fastdata.errors.StorageError as error:
        print(error, flush=True)
    if not sys.stdin.readline():
        break
"""
    with warm_python.start(
        tries,
        answers.options["endpoint"],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "a-right-key", "AWS_REGION": "us-east-1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        said = other.stdout.readline()
        assert "the access key is not known" in said
        assert "uses the credentials of the process that started it" in said
        assert str(cache) in said
        del data
        gc.collect()
        while "no such bucket" not in said:
            time.sleep(0.1)
            other.stdin.write("\n")
            other.stdin.flush()
            said = other.stdout.readline()
            assert said, "it has ended"
        other.kill()


def test_offline_is_what_a_process_says_and_not_who_started_the_downloader(
    server: RangeServer, packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/train"
    data = fastdata.open(url)
    server.refuse = True
    monkeypatch.setenv("FASTDATA_OFFLINE", "1")
    again = fastdata.open(url)
    assert again.digest == data.digest == fastdata.open(packed / "train").digest
    with pytest.raises(StorageError, match=r"one.h5 is not in the cache .*FASTDATA_OFFLINE is set"):
        fastdata.open(f"{server.url}/one.h5")


def test_settings_of_the_environment(
    server: RangeServer, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_BYTES", "5000000")
    data = fastdata.open(f"{server.url}/train", cache_dir=shared)
    assert data._supplied[0].supply.cache_bytes == 5_000_000
    monkeypatch.setenv("FASTDATA_STORAGE_OPTIONS", "region=x")
    with pytest.raises(OptionError, match="FASTDATA_STORAGE_OPTIONS is no JSON object, such as"):
        fastdata.open(f"{server.url}/train", cache_dir=shared)


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/train", "https://host/train?sig=secret"])
def test_urls_with_secrets_are_refused_and_not_shown(url: str, shared: Path) -> None:
    with pytest.raises(OptionError, match=r"seen in logs.*Credentials come from") as caught:
        fastdata.open(url, cache_dir=shared)
    assert "secret" not in str(caught.value).replace("a password or a signature", "")


# -- datasets that are none --------------------------------------------------------------------


def test_objects_that_are_no_dataset(packed: Path, shared: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    shutil.copytree(packed / "train", served / "short")
    shutil.copytree(packed / "train", served / "missing")
    shard = sorted((served / "short").glob("*.lmdb"))[1]
    os.truncate(shard, shard.stat().st_size - 5000)
    sorted((served / "missing").glob("*.lmdb"))[2].unlink()
    (served / "notes.txt").write_text("not a dataset, and longer than the footer of a shard" * 9)
    (served / "empty.lmdb").write_bytes(b"")
    with range_server(served) as server:
        for name, kind, said in (
            ("notes.txt", FormatError, r"notes.txt: not a fastdata shard.*Pack it"),
            ("empty.lmdb", FormatError, r"empty.lmdb: 0 bytes are too few for a shard"),
            ("short", ShardCorruptError, r"shard-00001.lmdb: \d+ bytes were written but.*Restore"),
            ("missing", DatasetNotFoundError, r"shard-00002.lmdb: this shard.*missing.*Restore"),
            ("none", DatasetNotFoundError, r"none: there is no dataset.*fastdata pack"),
        ):
            with pytest.raises(kind, match=said) as caught:
                fastdata.open(f"{server.url}/{name}", cache_dir=shared)
            assert (
                str(caught.value)
                .replace(":/", "://")
                .replace(":///", "://")
                .startswith(f"{server.url}/{name}")
            )
            assert str(shared) not in str(caught.value)


def test_an_object_that_changes_in_an_epoch(packed: Path, shared: Path, tmp_path: Path) -> None:
    shutil.copytree(packed / "train", tmp_path / "served" / "train")
    may = total_bytes(packed / "train") // 10
    with range_server(tmp_path / "served") as server:
        url = f"{server.url}/train"
        loader = loader_of(url, cache_dir=shared, cache_bytes=may)
        iterator = iter(loader)
        next(iterator)
        for path in (tmp_path / "served" / "train").glob("*.lmdb"):
            os.utime(path, ns=(1, 1))
        with pytest.raises(ObjectChangedError, match=rf"{url}/shard-.*has changed.*Start again"):
            for _ in iterator:
                pass
        del iterator
        loader.close()
        with loader_of(url, cache_dir=shared) as again:  # anew
            assert sum(len(label) for _, label in batches_of(again)) == len(again.dataset)


def test_no_more_requests_at_once_than_asked_for(
    server: RangeServer, packed: Path, cache: Path
) -> None:
    """Also of the first loader of a downloader; and the loader says that it waited."""
    server.delay = 0.005
    for streams in (1, 5):
        folder = cache.parent / f"of-{streams}"
        with loader_of(f"{server.url}/train", cache_dir=folder, streams=streams) as remote:
            server.most_busy, server.gather = 0, streams
            assert sum(len(label) for _, label in batches_of(remote)) == len(remote.dataset)
            assert server.most_busy == streams
            assert remote.stats().download_wait_seconds > 0
    # Without a number, small samples that are waited for come beside the blocks.
    folder = cache.parent / "of-any"
    with loader_of(f"{server.url}/train", cache_dir=folder, batch_size=96) as remote:
        server.most_busy, server.gather = 0, 17
        assert sum(len(label) for _, label in batches_of(remote)) == len(remote.dataset)
    assert 16 < server.most_busy <= 16 + 64
    with pytest.raises(OptionError, match="streams=0 is not None or an integer from 1 to 256"):
        fastdata.open(f"{server.url}/train", streams=0)


def test_a_batch_for_which_a_cache_has_no_room_is_refused(
    server: RangeServer, packed: Path, shared: Path
) -> None:
    """It has samples of many windows of a lane."""
    may = total_bytes(packed / "train") // TENTH
    data = fastdata.open(f"{server.url}/train", cache_dir=shared, cache_bytes=may)
    too_large = pytest.raises(OptionError, match=r"needs .*MB of it at once, and the cache may")
    with loader_of(data, batch_size=200) as loader, too_large:
        next(iter(loader))


# -- cache folders -----------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Any]:
    """A function that mounts a file system in memory, with options."""
    mounted = []

    def mount(*options: str) -> Path:
        place = tmp_path / f"mounted-{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)]
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True).returncode == 0:
                mounted.append(place)
                return place
        pytest.skip("file systems cannot be mounted here")

    yield mount
    for place in mounted:
        end_downloaders(place)
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_folder_that_cannot_be_written(server: RangeServer, mount: Any) -> None:
    place = mount("ro")
    with pytest.raises(OptionError, match=rf"{place}/cache cannot be used: .*--cache-dir"):
        fastdata.open(f"{server.url}/train", cache_dir=place / "cache")


@pytest.mark.parametrize("size", ["48k", "96k"])
def test_a_disk_without_room_for_columns(server: RangeServer, mount: Any, size: str) -> None:
    place = mount(f"size={size}")
    with pytest.raises(FastdataError, match=rf"{place}/cache(?! of).*No space left.*cache.dir"):
        fastdata.open(f"{server.url}/train", cache_dir=place / "cache", cache_bytes="1GB")


def test_a_disk_that_is_full_makes_the_cache_smaller(
    server: RangeServer, packed: Path, mount: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place = mount(f"size={total_bytes(packed / 'train') // 3}")
    url = f"{server.url}/train"
    with (
        caplog.at_level(logging.WARNING, "fastdata"),
        loader_of(url, cache_dir=place / "cache", cache_bytes="1GB") as remote,
        loader_of(packed / "train") as local,
    ):
        for _ in range(2):
            assert_same(batches_of(remote), batches_of(local))
    (said,) = [one.getMessage() for one in caplog.records if "is full" in one.getMessage()]
    assert f"the disk of the cache {place}/cache is full: it goes on with" in said
