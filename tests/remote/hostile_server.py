"""A server that answers as no good one does: without an end, with impossible sizes, or damaged."""

from __future__ import annotations

import contextlib
import http.server
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from serving import answering

__all__ = ["HUGE", "HostileServer", "hostile_server"]

HUGE = 10**12


@dataclass
class HostileServer:
    """A server of a folder that runs; what it does may be changed as it goes."""

    folder: Path
    fault: Callable[[str, str, int], str] = lambda method, path, first: ""
    """Given method, path and the first byte of a range (-1 without): "huge" (a body and a size of
    10^12 bytes are announced), "endless" (chunks without an end), a status, a status and "huge" or
    "endless", "drip" (a byte a tenth of a second), or ""."""
    damage: Callable[[str, bytes, int], bytes] = lambda path, data, first: data
    """Given a path, the bytes of a range and its first, returns the bytes to send."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of files, by their paths, that are said to have other sizes."""
    text: bytes = b"no"
    """The body of an answer with a status."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Methods and paths."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def of_s3(self) -> dict[str, str]:
        """Storage options by which it is taken for S3."""
        return {"endpoint": self.url, "region": "us-east-1"}


@contextlib.contextmanager
def hostile_server(folder: Path) -> Iterator[HostileServer]:
    """Serve a folder on a free port of this machine."""
    state = HostileServer(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10.0
        """Seconds until an idle connection is closed; obstore may keep one for 90."""

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            state.asked.append((self.command, path))
            given = self.headers.get("Range")
            first, _, last = (given or "").removeprefix("bytes=").partition("-")
            fault = state.fault(self.command, path, int(first or -1))
            if fault.isdecimal():
                self.send(int(fault), state.text)
            elif fault == "huge":
                self.begin(206 if given else 200, HUGE, f"bytes {first}-{last}/{HUGE}")
                with contextlib.suppress(OSError):
                    self.wfile.write(bytes(1 << 20))
                self.close_connection = True
            elif fault[:3].isdecimal() and fault.endswith("huge"):
                self.begin(int(fault[:3]), 1000 * HUGE, "")
                with contextlib.suppress(OSError):
                    self.wfile.write(bytes(1 << 20))
                self.close_connection = True
            elif fault == "drip":
                self.begin(206, int(last) + 1 - int(first), f"bytes {first}-{last}/{HUGE}")
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b"a")
                        time.sleep(0.1)
                self.close_connection = True
            elif fault.endswith("endless"):
                usual = 207 if self.command == "PROPFIND" else 200
                self.send_response(int(fault.removesuffix("endless") or usual))
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    while self.command != "HEAD":
                        self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                self.close_connection = True
            elif self.command == "PROPFIND":
                self.send(405, b"")
            elif not (state.folder / path.lstrip("/")).is_file():
                self.send(404, b"")
            else:
                data = (state.folder / path.lstrip("/")).read_bytes()
                size = state.sizes.get(path, len(data))
                start, stop = 0, size
                if given:
                    start, stop = int(first), min(int(last) + 1 if last else size, size)
                body = state.damage(path, data[start:stop].ljust(stop - start, b"\0"), start)
                whole = f"bytes {start}-{stop - 1}/{size}"
                self.begin(206 if given else 200, stop - start, whole)
                if self.command != "HEAD":
                    self.wfile.write(body)

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def begin(self, status: int, length: int, content_range: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", '"a"')
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            if status == 206:
                self.send_header("Content-Range", content_range)
            self.end_headers()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PROPFIND = answer  # noqa: N815

    with answering(Handler) as state.port:
        yield state
