"""A plain HTTP server of a folder for tests, with ranges, and with faults if asked for."""

from __future__ import annotations

import contextlib
import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from serving import answering

__all__ = ["RangeServer", "range_server"]


@dataclass
class RangeServer:
    """A server that runs; what it does may be changed as it goes."""

    folder: Path
    port: int = 0
    fault: Callable[[int], str] = lambda number: ""
    """Given a request's number, "503", "reset", "cut" (a body that ends too early) or ""."""
    delay: float = 0.0
    """Seconds until an answer begins."""
    stream_bytes_per_second: float = float("inf")
    """That an answer to GET has, however many others there are."""
    requests: list[tuple[str, int]] = field(default_factory=list)
    """Paths and bytes of the answers to GET."""
    busy: int = 0
    most_busy: int = 0
    """Answers to GET that are, and were, waited for at once."""
    gather: int = 0
    """Until so many answers to GET are waited for at once, each is held back, for 5 s at most."""
    refuse: bool = False
    """Whether every connection is closed at once."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def range_server(folder: Path) -> Iterator[RangeServer]:
    """Serve a folder on a free port of this machine."""
    state = RangeServer(folder)
    counting = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_PROPFIND(self) -> None:
            self.send_error(405)

        def wait(self, seconds: float) -> None:
            """Keep a client waiting, who may ask for more as soon as the last byte has come."""
            with counting:
                state.busy += 1
                state.most_busy = max(state.most_busy, state.busy)
            time.sleep(seconds)
            until = time.monotonic() + 5
            while state.most_busy < state.gather and time.monotonic() < until:
                time.sleep(0.002)
            with counting:
                state.busy -= 1

        def answer(self, *, body: bool) -> None:
            fault = "reset" if state.refuse else state.fault(len(state.requests)) if body else ""
            path = state.folder / self.path.lstrip("/")
            if body:
                state.requests.append((self.path, 0))
                self.wait(state.delay)
            else:
                time.sleep(state.delay)
            if fault == "503":
                self.send_error(503)
                return
            if fault == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                self.connection.close()
                return
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            status = path.stat()
            tag = f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
            if self.headers.get("If-Match") not in (None, tag):
                self.send_error(412)
                return
            start, stop = 0, len(data)
            given = self.headers.get("Range")
            if given is not None:
                first, _, last = given.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
            self.send_response(206 if given else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", self.date_time_string(int(status.st_mtime)))
            if given:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
            self.end_headers()
            if body:
                end = start + (stop - start) // 2 if fault == "cut" else stop
                self.wait((end - start) / state.stream_bytes_per_second)
                self.wfile.write(data[start:end])
                self.close_connection |= fault == "cut"
                state.requests[-1] = self.path, end - start

    with answering(Handler) as state.port:
        yield state
