"""An S3 server for tests, moto's, in a process of its own on a free port of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fastdata.storage import open_store

__all__ = ["CREDENTIALS", "S3Server", "has_s3", "s3_server"]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}

_SERVE = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def serve(environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return moto(environ, start_response)
    with lock:  # moto looks for the object, and then puts it: two requests could both succeed
        return moto(environ, start_response)

run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True)
"""


def has_s3() -> bool:
    """Return whether the server and a client are installed."""
    return all(importlib.util.find_spec(name) for name in ("moto", "flask", "obstore"))


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """Storage options by which it is reached."""
        return {"endpoint": self.endpoint}

    def bucket(self, name: str) -> str:
        """Make a bucket; return its URL."""
        self._put(name)
        return f"s3://{name}"

    def open_to_all(self, url: str) -> None:
        """Let anybody read an object."""
        self._put(f"{url.removeprefix('s3://')}?acl", {"x-amz-acl": "public-read"})

    def _put(self, path: str, headers: Mapping[str, str] | None = None) -> None:
        signed = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=testing/x/us-east-1/s3/aws4_request"
        }
        url, headers = f"{self.endpoint}/{path}", {**signed, **(headers or {})}
        request = urllib.request.Request(url, method="PUT", headers=headers)
        with urllib.request.urlopen(request):
            pass


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server, and make a first request by obstore, which keeps what it opens for that."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    server = S3Server(f"http://127.0.0.1:{port}")
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{server.endpoint}/moto-api/"):
                    break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, "the server has ended"
                time.sleep(0.05)
        url = server.bucket("first")
        assert not open_store(url, {**server.options, "anonymous": "yes"}).exists("a")
        open_store(url, server.options)  # starts the proxy of stores with credentials
        yield server
    finally:
        process.kill()
        process.wait()
