"""Servers that answer without an end, with impossible sizes, or that something is not possible."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile_server import HostileServer, hostile_server
from object_server import CREDENTIALS
from pack_helpers import QUICK, image_folder
from remote_helpers import end_downloaders, needs_store

import fastdata
from fastdata import waits
from fastdata.errors import FormatError, ObjectChangedError, ShardCorruptError, StorageError
from fastdata.formats import sparse
from fastdata.formats.layout import FOOTER, FOOTER_BYTES, checksum, pack_footer
from fastdata.storage import Entry, open_store

pytestmark = needs_store


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    images = image_folder(folder / "images", 30)
    fastdata.pack(images, folder / "served" / "train", shards=2, **QUICK)
    fastdata.pack(images, folder / "served" / "one.lmdb", **QUICK)
    (folder / "served" / "folder").mkdir()
    return folder / "served"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of all tests, so that these start one downloader."""
    folder = tmp_path_factory.mktemp("shared") / "cache"
    yield folder
    end_downloaders(folder)


@pytest.fixture(scope="module")
def server(served: Path) -> Iterator[HostileServer]:
    """A server, of which obstore keeps open what no single test leaves behind."""
    with hostile_server(served) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        open_store(found.url).exists("a")
        open_store("s3://bucket", found.of_s3).exists("a")
        yield found


@pytest.fixture(autouse=True)
def without_faults(server: HostileServer) -> Iterator[None]:
    yield
    server.fault, server.damage = lambda *_: "", lambda path, data, first: data
    server.sizes, server.text = {}, b"no"


def faulty(path_end: str, fault: str, method: str = "GET") -> Callable[[str, str, int], str]:
    """Return a fault of one kind of request."""
    return lambda asked, path, first: fault if asked == method and path.endswith(path_end) else ""


# -- sizes -----------------------------------------------------------------------------------


def test_a_manifest_of_a_terabyte_is_refused(server: HostileServer, shared: Path) -> None:
    server.fault = faulty("manifest.json", "huge")
    said = r"train/manifest.json has 1,000,000,000,000 bytes or more, where at most 268,435,456"
    with pytest.raises(StorageError, match=said):
        fastdata.open(f"{server.url}/train", cache_dir=shared)


@pytest.mark.parametrize("name", ["plan.json", "00000.json"])
def test_a_plan_and_a_receipt_of_a_terabyte_are_refused(
    server: HostileServer, tmp_path: Path, name: str
) -> None:
    images = image_folder(tmp_path / "images", 8)
    url = tmp_path / "packed"
    for part in ("plan", "0/2"):
        fastdata.pack(images, url, shards=2, part=part, **QUICK)
    (large,) = url.rglob(name)
    os.truncate(large, 10**12)
    with pytest.raises(StorageError, match=rf"{name} has 1,000,000,000,000 bytes or more"):
        fastdata.pack(images, url, shards=2, part="commit", **QUICK)


def test_an_image_of_a_terabyte_is_refused(server: HostileServer) -> None:
    server.fault = faulty("a.jpg", "huge")
    with pytest.raises(StorageError, match=r"a.jpg has 1,000,000,000,000 bytes or more"):
        open_store(f"{server.url}/folder").read("a.jpg")


def test_a_range_that_is_longer_than_asked_for_is_refused(server: HostileServer) -> None:
    server.fault = faulty("one.lmdb", "huge")
    with pytest.raises(StorageError, match=r"one.lmdb has [\d,]+ bytes or more, where at most 100"):
        open_store(server.url).read("one.lmdb", 0, 100)


def test_images_of_a_terabyte_are_refused(server: HostileServer, cache: Path) -> None:
    data = fastdata.open(f"{server.url}/train")
    server.fault = faulty("shard-00000.lmdb", "huge")
    with pytest.raises(StorageError, match=r"shard-00000.lmdb has [\d,]+ bytes or more, where"):
        _ = data[3].image
    server.fault = lambda *_: ""
    assert data[3].image is not None


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_listing_without_an_end_is_refused(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    from fastdata.storage import requests

    monkeypatch.setattr(requests, "MOST_GROWTH_BYTES", 200 << 20)
    server.fault = lambda method, path, first: "endless"
    store = (
        open_store(f"{server.url}/folder")
        if scheme == "http"
        else open_store("s3://bucket/x", server.of_s3)
    )
    with pytest.raises(StorageError, match=r"more than 200 MiB for 1,000 objects"):
        list(store.list())


@pytest.mark.parametrize(("scheme", "status"), [("http", 403), ("http", 503), ("s3", 403)])
def test_the_body_of_an_error_without_an_end_is_refused(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, scheme: str, status: int
) -> None:
    """Whatever was asked."""
    from fastdata.storage import requests

    monkeypatch.setattr(requests, "MOST_GROWTH_BYTES", 100 << 20)
    server.fault = lambda method, path, first: f"{status}endless"
    place = (server.url, {}) if scheme == "http" else ("s3://bucket", server.of_s3)
    store = open_store(*place)
    uses: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.read("a", 0, 10),
        lambda: store.put("a", b"a"),
        lambda: store.remove("a"),
    ]
    for use in uses[: 4 if status == 403 else 1]:
        with pytest.raises(StorageError, match=r"a: the server sends more than 100 MiB") as caught:
            use()
        assert "Use another server" in str(caught.value)


def test_an_answer_that_ends_every_downloader_is_an_error(
    server: HostileServer, cache: Path
) -> None:
    """obstore takes memory for the text of an error as it is announced, or aborts."""
    server.fault = lambda *_: "403huge"
    with pytest.raises(StorageError, match=r"does not stay; it said|sends more than|403"):
        fastdata.open(f"{server.url}/train")


def test_a_body_that_comes_too_slowly_is_refused(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.storage import objects

    monkeypatch.setattr(objects, "WHOLE_SECONDS", 1)
    monkeypatch.setattr(objects, "RETRY_SECONDS", 0.1)
    server.fault = faulty("one.lmdb", "drip")
    server.sizes["/one.lmdb"] = 10
    with pytest.raises(StorageError, match=r"one.lmdb: no whole answer came"):
        open_store(server.url).read("one.lmdb", 0, 100)


def test_a_listing_of_too_many_objects_is_refused(
    tmp_path: Path, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that always says that there are more."""
    from fastdata.storage import requests

    monkeypatch.setattr(requests, "MOST_OBJECTS", 3)
    one = "<Contents><Key>x/{}</Key><Size>1</Size><LastModified>2020-01-01T00:00:00Z</LastModified>"
    listing = (
        "<ListBucketResult><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>again</NextContinuationToken>"
        + "".join(f"{one.format(n)}<ETag>1</ETag></Contents>" for n in range(2))
        + "</ListBucketResult>"
    )
    monkeypatch.setattr(server, "folder", tmp_path)
    (tmp_path / "bucket").write_text(listing)
    with pytest.raises(StorageError, match=r"s3://bucket/x: the server lists more than 3 objects"):
        list(open_store("s3://bucket/x", server.of_s3).list())


def test_a_listing_of_empty_pages_without_an_end_is_refused(
    tmp_path: Path, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.storage import requests

    monkeypatch.setattr(requests, "PAGE_SECONDS", 0.5)
    monkeypatch.setattr(server, "folder", tmp_path)
    (tmp_path / "bucket").write_text(
        "<ListBucketResult><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
    )
    with pytest.raises(StorageError, match=r"has not sent 1,000 objects within"):
        list(open_store("s3://bucket/x", server.of_s3).list())


def test_a_shard_that_announces_a_huge_header_or_column_is_refused(
    server: HostileServer, served: Path, shared: Path
) -> None:
    path, size = "/one.lmdb", 10**12
    server.sizes[path] = size
    store, entry = open_store(server.url), Entry("one.lmdb", size, "")
    data = (served / "one.lmdb").read_bytes()

    def footer_of(offset: int, length: int) -> bytes:
        found = FOOTER.pack(b"FASTDATA", 1, 0, offset, length, 0, size)
        return found + checksum(found).to_bytes(8, "little")

    def with_end(end: bytes) -> Callable[[str, bytes, int], bytes]:
        def damage(path: str, sent: bytes, first: int) -> bytes:
            whole = first + len(sent) == size
            return sent[: len(sent) - len(end)] + end if whole else sent

        return damage

    server.damage = with_end(footer_of(0, size - FOOTER_BYTES))
    with pytest.raises(FormatError, match=r"a header of 999,999,999,936 bytes"):
        sparse.columns_only(store, entry, shared.parent)

    _, _, _, offset, length, _, _ = FOOTER.unpack(data[-FOOTER_BYTES:-8])
    header = json.loads(data[offset : offset + length])
    header["columns"]["label"]["offset"] = size
    text = json.dumps(header).encode()
    server.damage = with_end(text + pack_footer(size - FOOTER_BYTES - len(text), text, size))
    with pytest.raises(ShardCorruptError, match=r"'label' ends beyond the end"):
        sparse.columns_only(store, entry, shared.parent)
    assert not (shared.parent / "one.lmdb").exists()


# -- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 405, 410, 501])
def test_what_will_not_pass_is_final(server: HostileServer, status: int) -> None:
    server.fault, server.asked = (lambda *_: str(status)), []
    store = open_store(f"{server.url}/folder")
    for use in (lambda: list(store.list()), lambda: store.put("a", b""), lambda: store.read("a")):
        before = len(server.asked)
        with pytest.raises(StorageError, match=rf"answered {status} .*\. [A-Z]") as caught:
            use()
        assert store.url in str(caught.value)
        assert len(server.asked) == before + 1


def test_a_listing_that_a_server_does_not_know_says_what_to_do(server: HostileServer) -> None:
    server.fault = lambda *_: "501"
    said = r"answered 501 Not Implemented\. This server lists no files.*give the URL"
    with pytest.raises(StorageError, match=said):
        list(open_store(f"{server.url}/folder").list())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_may_pass_is_asked_again_and_said(
    server: HostileServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    from fastdata.storage import objects

    monkeypatch.setattr(objects, "PAUSES", (0.05, 0.1))
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.1)
    tries = iter(range(12))
    server.fault = lambda *_: "" if next(tries, 99) > 10 else str(status)
    with caplog.at_level(logging.WARNING, "fastdata"):
        data = open_store(f"{server.url}/train").read("manifest.json")
    assert json.loads(bytes(data))["format"] == "fastdata"
    assert f"waiting for {server.url}/train/manifest.json ({status} " in caplog.text


def test_what_a_server_says_is_cut_short_and_moves_no_cursor(server: HostileServer) -> None:
    server.fault = lambda *_: "400"
    server.text = (
        b"<Code>a\x1b[2J\n" + b"b" * 9999 + b"</Code><Message>" + b"c" * 9999 + b"</Message>"
    )
    with pytest.raises(StorageError, match=r"answered 400 Bad Request: a") as caught:
        open_store(server.url).read("a")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


def test_an_object_of_another_content_is_noticed_though_a_server_knows_no_conditions(
    server: HostileServer,
) -> None:
    store = open_store(server.url)
    assert len(store.read("one.lmdb", 0, 10, tag='"a"')) == 10
    with pytest.raises(ObjectChangedError, match=r"one.lmdb has changed"):
        store.read("one.lmdb", 0, 10, tag='"b"')


def test_a_plain_server_says_that_it_cannot_be_packed_to(server: HostileServer) -> None:
    said = r"folder/a: a plain HTTP server cannot write .*\. Pack to a bucket or to a local folder"
    with pytest.raises(StorageError, match=said):
        open_store(f"{server.url}/folder").put_if_absent("a", b"")


def test_what_does_not_pass_names_the_status_and_the_remedy(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.storage import objects

    monkeypatch.setattr(objects, "RETRY_SECONDS", 0.1)
    server.fault = lambda *_: "503"
    with pytest.raises(StorageError, match=r"answered 503 Service Unavailable\. .*try later"):
        open_store(f"{server.url}/train").read("manifest.json")


@pytest.mark.parametrize("name", ["present", "dataset.json", "manifest.json", ".fastdata-a.new"])
def test_a_shard_with_a_name_of_our_own_is_refused(
    served: Path, tmp_path: Path, shared: Path, name: str
) -> None:
    place = tmp_path / "train"
    place.mkdir()
    text = (
        (served / "train" / "manifest.json")
        .read_bytes()
        .replace(b"shard-00001.lmdb", name.encode())
    )
    head = text[: text.rindex(b'"checksum": "') + 13]
    (place / "manifest.json").write_bytes(head + f"{checksum(head):016x}".encode() + b'"\n}')
    for path in (served / "train").glob("*.lmdb"):
        (place / path.name).write_bytes(path.read_bytes())
    said = rf"a shard cannot be called '{name}'"
    with hostile_server(tmp_path) as server, pytest.raises(FormatError, match=said):
        fastdata.open(f"{server.url}/train", cache_dir=shared)
    with pytest.raises(FormatError, match=said):
        fastdata.open(place)
