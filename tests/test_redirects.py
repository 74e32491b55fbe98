"""Redirects of servers: credentials stay at the scheme, host and port that they are for."""

from __future__ import annotations

import contextlib
import gc
import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from serving import answering

import fastdata
from fastdata.errors import OptionError, StorageError
from fastdata.storage import Store, open_store

pytest.importorskip("obstore", reason="redirects are those of obstore")

SECRETS = "THE-ACCESS-KEY", "THE-SECRET-KEY", "THE-SESSION-TOKEN"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
    for name, secret in zip(names, SECRETS, strict=True):
        monkeypatch.setenv(name, secret)


@pytest.fixture(scope="module", autouse=True)
def used() -> None:
    """Leave what obstore and our proxy keep open, which no single test does."""
    with asked() as server:
        bucket(server)
        with pytest.raises(StorageError):
            open_store(f"{server.origin()}/x").read("y")


@dataclass
class Asked:
    """A server, and what it was asked."""

    port: int = 0
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    answer: Callable[[Any], None] = lambda handler: status(handler, 404)

    def origin(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}"


def status(handler: Any, code: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(code)
    for name, text in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), text)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@contextlib.contextmanager
def asked() -> Iterator[Asked]:
    found = Asked()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.requests.append((self.command, self.path, dict(self.headers)))
            found.answer(self)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    with answering(Handler) as found.port:
        yield found


@pytest.fixture
def first() -> Iterator[Asked]:
    with asked() as found:
        yield found


@pytest.fixture
def second() -> Iterator[Asked]:
    with asked() as found:
        yield found


def bucket(server: Asked, **options: str) -> Store:
    given = {"endpoint": server.origin(), "region": "us-east-1", **options}
    return open_store("s3://bucket/ds", given)


def upload(store: Store, path: Path) -> None:
    path.write_bytes(bytes(12 << 20))
    store.put("x", path)


USES: dict[str, Callable[[Store, Path], Any]] = {
    "read": lambda store, _: store.read("x"),
    "range": lambda store, _: store.read("x", 3, 5, tag="a"),
    "head": lambda store, _: store.head("x"),
    "list": lambda store, _: list(store.list()),
    "put": lambda store, _: store.put("x", b"1"),
    "put_if_absent": lambda store, _: store.put_if_absent("x", b"1"),
    "upload in parts": lambda store, folder: upload(store, folder / "large"),
    "remove": lambda store, _: store.remove("x"),
}


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_request_with_credentials_goes_to_another_origin(
    first: Asked, second: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    targets = second.origin(), second.origin("localhost"), second.origin().replace("p:", "ps:")
    for target in targets:
        first.answer = lambda handler, to=target: status(  # type: ignore[misc]
            handler, code, Location=f"{to}{handler.path}"
        )
        for use in USES.values():
            began = time.monotonic()
            with pytest.raises(StorageError) as caught:
                use(bucket(first), tmp_path)
            said = str(caught.value)
            if f"answered {code} " not in said:  # as obstore does not follow, of an upload
                assert f"{first.origin()} redirects to {target}, and" in said
            assert not any(secret in said for secret in SECRETS)
            assert time.monotonic() - began < 5
    monkeypatch.setenv("AWS_ENDPOINT_URL", first.origin())
    with pytest.raises(StorageError, match="redirects to"):
        bucket(first).read("x")
    assert second.requests == []


def test_a_redirect_within_the_origin_is_followed_and_connections_are_used_again(
    first: Asked,
) -> None:
    def answer(handler: Any) -> None:
        if handler.path.endswith("/x"):
            status(handler, 307, Location="/bucket/ds/y")
        else:
            status(handler, 200, b"content", ETag='"a"', Last_Modified=handler.date_time_string())

    first.answer = answer
    store = bucket(first)
    for _ in range(3):
        assert bytes(store.read("x")) == b"content"
    assert [path for _, path, _ in first.requests] == ["/bucket/ds/x", "/bucket/ds/y"] * 3
    for _, _, headers in first.requests:
        assert headers["x-amz-security-token"] == SECRETS[2]
        assert not any(name.lower().startswith("proxy-") for name in headers)


def test_without_credentials_redirects_are_followed(first: Asked, second: Asked) -> None:
    first.answer = lambda handler: status(handler, 302, Location=f"{second.origin()}{handler.path}")
    second.answer = lambda handler: status(
        handler, 200, b"content", ETag='"a"', Last_Modified=handler.date_time_string()
    )
    for store in (bucket(first, anonymous="true"), open_store(f"{first.origin()}/ds")):
        assert bytes(store.read("x")) == b"content"
    assert not any("THE-" in text for _, _, sent in second.requests for text in sent.values())


def endless(handler: Any) -> None:
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(10**7):
            handler.wfile.write(b"X-%d: y\r\n" % number)


REFUSED: dict[str, tuple[Callable[[Any], None], str]] = {
    "circle": (lambda handler: status(handler, 302, Location=handler.path), "in a circle"),
    "ftp": (lambda handler: status(handler, 302, Location="ftp://a/b"), "not of https"),
    "file": (lambda handler: status(handler, 302, Location="file:///etc/passwd"), "302 Found"),
    "no URL": (lambda handler: status(handler, 302, Location="http://[x"), "302 Found"),
    "headers without an end": (endless, "headers without an end"),
    "a long header": (
        lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"y" * (1 << 22)),
        "headers without an end",
    ),
    "no HTTP": (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n"), "no HTTP"),
}


@pytest.mark.parametrize("answer", REFUSED)
def test_answers_that_lead_nowhere_are_refused_at_once(first: Asked, answer: str) -> None:
    first.answer, said = REFUSED[answer]
    for store in (bucket(first), open_store(f"{first.origin()}/ds")):
        began = time.monotonic()
        with pytest.raises(StorageError, match=said):
            store.read("x")
        assert time.monotonic() - began < 5


def test_https_is_not_left_for_http() -> None:
    from fastdata.storage.answers import explanation, may_pass

    error = StorageError("Error performing GET - HTTP error: x { kind: Redirect, source: BadScheme")
    assert "not of https" in explanation(error)
    assert not may_pass(error)


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def test_the_proxy_of_the_environment_is_used_and_other_processes_cannot_use_ours(
    first: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that opens a tunnel, as companies have one."""
    first.answer = lambda handler: status(
        handler, 200, b"content", ETag='"a"', Last_Modified=handler.date_time_string()
    )
    heads: list[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def tunnel() -> None:
        client, _ = proxy.accept()
        heads.append(client.recv(1 << 16))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        server = socket.create_connection(("127.0.0.1", first.port))
        back = threading.Thread(target=copy, args=(server, client))
        back.start()
        copy(client, server)
        back.join()
        client.close()
        server.close()

    thread = threading.Thread(target=tunnel)
    thread.start()
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.getsockname()[1]}")
    monkeypatch.setenv("no_proxy", "example.com")
    store: Any = bucket(first)
    assert bytes(store.read("x")) == b"content"
    assert heads[0].startswith(f"CONNECT 127.0.0.1:{first.port} ".encode())
    assert b"Proxy-Authorization: Basic bWU6cGFzcw==" in heads[0]
    ours = store._guard.url.rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(ours))) as stranger:
        stranger.sendall(f"GET {first.origin()}/x HTTP/1.1\r\n\r\n".encode())
        assert stranger.recv(100) == b""
    del store
    gc.collect()
    thread.join()
    proxy.close()


@pytest.mark.parametrize("offline", ["0", "1"])
def test_no_secret_of_a_url_or_an_option_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    monkeypatch.setenv("FASTDATA_OFFLINE", offline)
    urls = (
        "https://user:s3cr3t@127.0.0.1:1/x.lmdb",
        "HTTPS://s3cr3t@127.0.0.1:1/x.lmdb",
        "https://127.0.0.1:1/x.lmdb?X-Amz-Signature=s3cr3t",
        "http://user:pa[s3cr3t@host/x",
        "https:///user:s3cr3t@127.0.0.1/x",
        "s3://KEY:s3cr3t@bucket/x",
    )
    options = (
        {"endpoint": "http://user:s3cr3t@127.0.0.1:1"},
        {"proxy_url": "http://user:s3cr3t@127.0.0.1:1"},
        {"endpoint": "http://127.0.0.1:1/?sig=s3cr3t"},
        *({name: "s3cr3t"} for name in ("key", "aws_session_token", "sse_customer_key_base64")),
        *({name: "s3cr3t"} for name in ("default_headers", "connection_string", "Cookie")),
    )
    cases: list[tuple[str, dict[str, str]]] = [(url, {}) for url in urls]
    cases += [("s3://bucket/x", option) for option in options]
    for url, given in cases:
        for use in (
            lambda url, given: fastdata.open(url, cache_dir=tmp_path / "c", storage_options=given),
            lambda url, given: fastdata.pack(url, tmp_path / "to", storage_options=given),
        ):
            with pytest.raises(OptionError) as caught:
                use(url, given)
            assert "s3cr3t" not in str(caught.value)
    assert not (tmp_path / "c").exists() or not os.listdir(tmp_path / "c")
