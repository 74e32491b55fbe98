"""A proxy in this process that keeps requests with credentials at the origin they are for.

obstore follows redirects, and no option of it forbids that.  It takes ``Authorization`` out of a
request to another origin, but neither session tokens nor keys of customers.  So all connections of
a store with credentials go through this proxy.  It opens those to the origin (scheme, host and
port) that the store asks first, and to origins that give credentials.  Encrypted connections are
passed on as they are.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import secrets
import socket
import threading
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

__all__ = ["METADATA", "Guard"]

METADATA = "169.254.0.0/16,fd00:ec2::/32,metadata.google.internal"
"""Hosts that give credentials to machines in a cloud; they are asked without a proxy."""

_GIVERS = re.compile(
    r"https://((oauth2|sts|iamcredentials)\.googleapis\.com|login\.microsoftonline\.com|"
    r"sts(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?):443"
)
_NAME_GIVERS = re.compile(
    "(URL_STS|CREDENTIALS_FULL_URI|AUTHORITY_HOST|(MSI|IDENTITY)_ENDPOINT|TOKEN_SERVICE_URL)$", re.I
)
"""Origins that give credentials, and names of variables and options that have others."""

_REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
_CONNECT_SECONDS, _PIECE_BYTES, _MOST_LINES = 10.0, 1 << 18, 200


class Guard:
    """What the proxy knows of a store, which asks it at `url`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        named = {**os.environ, **options}.items()
        urls = (text for name, text in named if _NAME_GIVERS.search(name) and "://" in text)
        self._givers, self.own = set(map(_origin, urls)), ""
        self.refused = ""
        """Why a connection was refused last."""
        user = f"fastdata:{secrets.token_hex(16)}"  # other processes must not use it
        self.url = f"http://{user}@127.0.0.1:{_port(os.getpid())}"
        _guards[b"Basic " + base64.b64encode(user.encode())] = self

    def allows(self, origin: str) -> bool:
        """Return whether a connection may be opened; if not, note why."""
        if origin in self._givers or _GIVERS.fullmatch(origin):
            return True
        self.own = self.own or origin
        if origin != self.own:
            self.refused = (
                f"{self.own} redirects to {origin}, and requests with credentials stay at the "
                "scheme, host and port that they are for. If the other is right, give it with "
                "--storage-option endpoint=..., or its region (storage_options=)"
            )
        return origin == self.own


_guards: weakref.WeakValueDictionary[bytes, Guard] = weakref.WeakValueDictionary()
"""By what the requests of their stores have as Proxy-Authorization."""


@lru_cache
def _port(process: int) -> int:
    """Return the port of a process's proxy, which runs until the process ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    threading.Thread(target=_run, args=(listener,), name="fastdata guard", daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def _run(listener: socket.socket) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    """Pass on the requests of a connection, of which all are for one origin."""
    server, only = None, ""
    gone = contextlib.suppress(OSError, ValueError, http.client.HTTPException)
    with gone, contextlib.ExitStack() as stack, client, client.makefile("rb") as requests:
        while head := _head(requests):
            method, target, version = head[0].split(b" ")
            fields = {name.lower(): text for name, _, text in (x.partition(b": ") for x in head)}
            is_tunnel = method == b"CONNECT"
            origin = _origin(("https://" if is_tunnel else "") + target.decode())
            guard = _guards.get(fields.get(b"proxy-authorization", b""))
            if guard is None:  # obstore takes it out of a request that was redirected elsewhere
                referer = _origin(fields.get(b"referer", b"").decode())
                if any([one.own == referer and not one.allows(origin) for one in _guards.values()]):
                    client.sendall(_REFUSED)
                return
            if not guard.allows(origin) or only not in ("", origin):
                client.sendall(_REFUSED)
                return
            if server is None:
                server, only = stack.enter_context(_connected(origin)), origin
                stack.callback(_end, server)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if is_tunnel:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            if is_tunnel:
                _copy(client, server)
                return
            head[0] = b"%b /%b %b" % (method, target.split(b"/", 3)[3], version)
            kept = [line for line in head if not line.lower().startswith(b"proxy-")]
            server.sendall(b"\r\n".join([*kept, b"", b""]))
            left = int(fields.get(b"content-length", 0))
            while left and (data := requests.read(min(left, _PIECE_BYTES))):
                server.sendall(data)
                left -= len(data)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _head(requests: BinaryIO) -> list[bytes]:
    """Return the lines of the head of the next request; none at the end."""
    lines: list[bytes] = []
    while len(lines) < _MOST_LINES and (line := requests.readline(_PIECE_BYTES).rstrip(b"\r\n")):
        lines.append(line)
    return lines


def _connected(origin: str) -> socket.socket:
    """Return a connection to an origin, by the proxy that the environment has for it."""
    parts, found = urlsplit(origin), getproxies()
    place = parts.hostname or "", parts.port or 0
    proxy = urlsplit(found.get(parts.scheme) or found.get("all") or "")
    if proxy.hostname and not proxy_bypass(parts.netloc):
        tunnel = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=_CONNECT_SECONDS)
        user = unquote(f"{proxy.username or ''}:{proxy.password or ''}").encode()
        basic = {"Proxy-Authorization": f"Basic {base64.b64encode(user).decode()}"}
        tunnel.set_tunnel(*place, basic if proxy.username else {})
        tunnel.connect()
        server = tunnel.sock
    else:
        server = socket.create_connection(place, _CONNECT_SECONDS)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one end is closed."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
    _end(target)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
