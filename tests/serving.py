"""HTTP servers for tests: a handler's answers on a free port of this machine, as long as wanted."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["answering"]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)  # before its thread begins, which may be after the end
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that have gone, and faults


@contextlib.contextmanager
def answering(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """Have requests answered by `handler`, without a log; give the port."""

    class Quiet(handler):  # type: ignore[misc, valid-type]
        disable_nagle_algorithm = True  # else a body comes 40 ms after its header

        def log_message(self, *args: Any) -> None:
            pass

    server = _Server(Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in list(server.connections):  # which clients keep
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
