"""What every store does, whatever it is: the same tests for folders, S3 and fsspec's stores."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_server import CREDENTIALS, S3Server, has_s3, s3_server

from fastdata.errors import (
    DiskFullError,
    FastdataError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    StorageError,
)
from fastdata.storage import Entry, Store, is_url, open_store

needs_s3 = pytest.mark.skipif(not has_s3(), reason="obstore or moto is not installed")

Make = Callable[[], Store]


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


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=needs_s3)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A function that opens the same empty store each time."""
    if request.param == "local":
        return lambda: open_store(tmp_path / "a folder")
    if request.param == "memory":
        pytest.importorskip("fsspec")
        url = f"memory://{uuid.uuid4().hex}/below"
        return lambda: open_store(url)
    found: S3Server = request.getfixturevalue("server")
    url = f"{request.getfixturevalue('bucket')}/a/prefix"
    return lambda: open_store(url, found.options)


@pytest.fixture
def store(make: Make) -> Store:
    """An empty store."""
    return make()


ODD_KEYS = ["a b", "a+b", "100%", "a#b", "ä/ö", "x/y/z.jpg", "a.txt", "a/b", "ab", "_", "~"]


def keys_of(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def test_what_was_put_is_read(store: Store) -> None:
    store.put("a/b.bin", b"0123456789")
    assert bytes(store.read("a/b.bin")) == b"0123456789"
    assert bytes(store.read("a/b.bin", 3)) == b"3456789"
    assert bytes(store.read("a/b.bin", 3, 5)) == b"34"
    assert bytes(store.read("a/b.bin", 9, 10)) == b"9"
    assert bytes(store.read("a/b.bin", 4, 4)) == b""
    store.put("a/b.bin", b"other")
    assert bytes(store.read("a/b.bin")) == b"other"


def test_an_object_may_be_empty(store: Store) -> None:
    store.put("nothing", b"")
    assert bytes(store.read("nothing")) == b""
    assert store.head("nothing").size == 0
    assert keys_of(store) == ["nothing"]


def test_a_file_is_put_whole_however_large(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "large"
    data = os.urandom(1 << 20) * 12 + b"end"  # several parts of an upload
    path.write_bytes(data)
    store.put("large.lmdb", path)
    assert store.head("large.lmdb").size == len(data)
    assert bytes(store.read("large.lmdb", len(data) - 5, len(data))) == data[-5:]
    assert bytes(store.read("large.lmdb")) == data


def test_keys_may_have_any_characters(store: Store) -> None:
    for key in ODD_KEYS:
        store.put(key, b"1")
        assert bytes(store.read(key)) == b"1"
        assert store.head(key).key == key
        assert keys_of(store) == [key]
        store.remove(key)


def test_objects_are_listed_in_the_order_of_their_keys(store: Store) -> None:
    assert keys_of(store) == []
    assert keys_of(store, "a/") == []
    keys = ["b", "a/2", "a.txt", "a/10", "a/c/1", "a b", "A"]
    for key in keys:
        store.put(key, key.encode())
    assert keys_of(store) == sorted(keys)
    assert keys_of(store, "a/") == ["a/10", "a/2", "a/c/1"]
    assert keys_of(store, "a/c/") == ["a/c/1"]
    assert keys_of(store, "c/") == []
    assert [entry.size for entry in store.list("a/")] == [4, 3, 5]
    assert list(store.list("a/c/")) == [store.head("a/c/1")]


def test_other_content_has_another_tag(store: Store) -> None:
    store.put("a", b"12")
    first = store.head("a")
    assert store.head("a") == first
    assert bytes(store.read("a", tag=first.tag)) == b"12"
    store.put("a", b"34")
    if not first.tag:
        pytest.skip("it has no tags")
    assert store.head("a").tag != first.tag
    with pytest.raises(ObjectChangedError, match="has changed"):
        store.read("a", 0, 1, tag=first.tag)


def test_an_object_is_put_once_where_it_is_to_be_absent(store: Store) -> None:
    assert store.put_if_absent("done/1.json", b"first") is True
    assert store.put_if_absent("done/1.json", b"second") is False
    assert bytes(store.read("done/1.json")) == b"first"
    store.remove("done/1.json")
    assert store.put_if_absent("done/1.json", b"third") is True


def test_of_several_writers_at_once_one_puts(make: Make) -> None:
    stores = [make() for _ in range(8)]
    for number in range(5):
        start = threading.Barrier(len(stores))
        wrote: list[int] = []

        def write(
            writer: int, number: int = number, start: threading.Barrier = start, wrote=wrote
        ) -> None:
            start.wait()
            if stores[writer].put_if_absent(f"done/{number}", str(writer).encode() * 1000):
                wrote.append(writer)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wrote) == 1
        assert bytes(stores[0].read(f"done/{number}")) == str(wrote[0]).encode() * 1000
    assert len(keys_of(stores[0])) == 5  # and nothing else is left


def test_what_is_removed_is_gone(store: Store) -> None:
    store.put("a", b"1")
    store.put("b", b"1")
    store.remove("a")
    store.remove("a")
    assert keys_of(store) == ["b"]
    assert not store.exists("a")
    assert store.exists("b")


def test_what_is_not_there_is_an_error_with_its_url(store: Store) -> None:
    for read in (lambda: store.read("no/such"), lambda: store.head("no/such")):
        with pytest.raises(ObjectNotFoundError, match="no/such") as caught:
            read()
        assert store.url in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)


def test_more_than_is_to_be_read_is_refused(store: Store) -> None:
    store.put("a", bytes(1000))
    assert len(store.read("a", most_bytes=1000)) == 1000
    with pytest.raises(StorageError, match=r"a has 1,000 bytes or more, where at most 999 are"):
        store.read("a", most_bytes=999)


def test_no_range_is_cut_short(store: Store) -> None:
    store.put("a", b"0123")
    for start, stop in ((0, 5), (3, 9), (6, 8)):
        with pytest.raises(StorageError, match="a"):
            store.read("a", start, stop)


def test_it_can_be_pickled_and_shows_no_options(store: Store) -> None:
    store.put("a", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert bytes(again.read("a")) == b"1"
    assert repr(store) == f"{type(store).__name__}({store.url!r})"


def test_another_process_opens_its_own(store: Store) -> None:
    store.put("a", b"1")
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, bytes(store.read("a")))
        except StorageError as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    said = os.read(reads, 1000).decode()
    os.close(reads)
    assert said == "1" if store.is_local else "before the process was forked" in said


# -- what a location is --------------------------------------------------------------------


def test_urls_are_told_from_paths(tmp_path: Path) -> None:
    for url in ("s3://bucket/x", "gs://b", "hf://datasets/x", "file:///tmp", "https://a/b"):
        assert is_url(url)
    for path in ("a/b", "/a", "c:x", "a:b/c", tmp_path, "s3:/x", 3, None):
        assert not is_url(path)
    assert open_store(f"file://{tmp_path}/a%20b").path("c") == tmp_path / "a b" / "c"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3://key:secret@bucket/x", {}, "a password or a signature"),
        ("https://host/x?sig=abc", {}, "a password or a signature"),
        ("s3://bucket/x", {"secret_access_key": "abc"}, "credentials are no options"),
        ("s3://bucket/x", {"aws_session_token": "abc"}, "credentials are no options"),
        ("nosuch://bucket/x", {}, "nosuch"),
        ("a/path", {"region": "x"}, "a path, which has no storage options"),
    ],
)
def test_what_is_no_location_is_refused(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        open_store(url, options)
    assert "abc" not in str(caught.value)
    assert "key:secret" not in str(caught.value)


def test_without_obstore_fsspec_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "fastdata.storage.objects", None)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(OptionError, match=r"s3://bucket/x: .*s3fs"):
        open_store("s3://bucket/x", {"endpoint": "http://127.0.0.1:1"})


def test_what_cannot_put_if_absent_is_refused_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem

    def careless(self: object, path: str, value: bytes, **ignored: object) -> None:
        raise AssertionError("it would write over what is there")

    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.put("a", b"before")
    monkeypatch.setattr(memory, "pipe_file", careless)
    with pytest.raises(StorageError, match="cannot write an object only if there is none"):
        store.put_if_absent("a", b"after")
    assert bytes(store.read("a")) == b"before"


# -- folders -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["../a", "a/../../b", "/a", "a//b", "a/.", "a/"])
def test_no_key_leads_out_of_a_folder(key: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "inside")
    for use in (store.read, store.head, store.remove, lambda key: store.put(key, b"1")):
        with pytest.raises(StorageError, match="not a key"):
            use(key)
    assert not list(tmp_path.iterdir())


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_bytes(b"1")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "no")
    assert keys_of(open_store(tmp_path)) == ["a/1", "b/1"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.put("a", b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    for write in (store.put, store.put_if_absent):
        with pytest.raises(DiskFullError, match="Make room"):
            write("a" if write == store.put else "b", b"after")
    monkeypatch.undo()
    assert list(store.list()) == [store.head("a")]
    assert bytes(store.read("a")) == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_that_is_being_written_is_no_object(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("a", b"1")
    (tmp_path / ".fastdata-0123456789abcdef.new").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"1")
    assert keys_of(store) == [".hidden", "a"]


def test_a_folder_without_hard_links_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    store = open_store(tmp_path)
    assert store.put_if_absent("a", b"1") is True
    assert store.put_if_absent("a", b"2") is False
    assert list(store.list()) == [Entry("a", 1, store.head("a").tag)]


# -- servers -------------------------------------------------------------------------------


@needs_s3
def test_a_bucket_that_is_not_there_is_said(server: S3Server, bucket: str) -> None:
    store = open_store("s3://no-such-bucket-here/x", server.options)
    for use in (lambda: list(store.list()), lambda: store.put("a", b"1")):
        with pytest.raises(StorageError, match="no such bucket") as caught:
            use()
        assert "s3://no-such-bucket-here/x" in str(caught.value)


@needs_s3
def test_a_server_that_is_not_there_is_said(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.storage import objects

    monkeypatch.setattr(objects, "RETRY_SECONDS", 1)
    store = open_store(bucket, {"endpoint": "http://127.0.0.1:1"})
    with pytest.raises(FastdataError, match=bucket):
        store.read("a")


@needs_s3
def test_credentials_are_in_no_message_and_no_pickle(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-test")
    store = open_store(bucket, server.options)
    with pytest.raises(ObjectNotFoundError) as caught:
        store.read("a")
    for text in (str(caught.value), repr(store), repr(pickle.dumps(store))):
        assert "a-secret-of-the-test" not in text


@needs_s3
def test_what_is_open_to_all_needs_no_credentials(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(bucket, server.options).put("a", b"1")
    server.open_to_all(f"{bucket}/a")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    store = open_store(bucket, {**server.options, "anonymous": "true", "region": "us-east-1"})
    assert bytes(store.read("a")) == b"1"
    with pytest.raises(OptionError, match="neither true nor false"):
        open_store(bucket, {**server.options, "anonymous": "maybe"})
