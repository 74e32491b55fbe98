"""An object store on this machine: nginx, with the latency and the rate of a real one.

A request waits before its first byte, an answer has so many bytes a second, and on a second port
some answers are errors.  The waiting is nginx's own (a timer of its event loop, by its Lua module),
so that nothing stands between it and whoever asks.  It answers plain GETs: of HTTP, and those of S3
clients that address buckets by path, whose signatures nobody looks at; it lists nothing.

On Debian and Ubuntu: ``apt install nginx-light libnginx-mod-http-lua``.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FIRST_BYTE_SECONDS = 0.030
STREAM_BYTES_PER_SECOND = 85_000_000
FAULTS = 0.01
"""Share of answers of the second port that are errors: half of them 503, the others resets."""

INSTALL = "apt install nginx-light libnginx-mod-http-lua"
MODULES = "/usr/share/nginx/modules-available/mod-http-{}.conf", "/etc/nginx/modules-enabled/*{}*"
START_SECONDS = 10.0

# nginx sends a piece and then waits as long as that should have taken, in whole milliseconds: with
# pieces of five of them, the last one, which nobody waits for, is a small part of a block.
PIECE_KIB = -(-STREAM_BYTES_PER_SECOND // 200 // 1024)

CONFIGURATION = """
{modules}
{user}
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format bytes '$status $body_bytes_sent';
    access_log {folder}/access.log bytes;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    sendfile_max_chunk {piece}k;
    limit_rate {rate};
    keepalive_requests 1000000;
    reset_timedout_connection on;
    root {root};
    init_worker_by_lua_block {{ math.randomseed(ngx.worker.pid()) }}
    server {{
        listen 127.0.0.1:{port} reuseport;
        access_by_lua_block {{ ngx.sleep({wait}) }}
    }}
    server {{
        listen 127.0.0.1:{faulty_port} reuseport;
        access_by_lua_block {{
            ngx.sleep({wait})
            local drawn = math.random()
            if drawn < {faults} then
                return ngx.exit(drawn < {faults} / 2 and 503 or 444)
            end
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Served:
    """A server that runs; `faulty` is the URL at which some answers are errors."""

    url: str
    faulty: str
    log: Path


def why_absent() -> str:
    """Return why there is no such server here, or an empty string."""
    if shutil.which("nginx") is None or _module("lua") is None:
        return f"nginx or its Lua module is not here: {INSTALL}"
    return ""


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Served]:
    """Serve the files of a folder on two free ports until this ends."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        port, faulty_port = _free_port(), _free_port()
        modules = [_module(name) for name in ("ndk", "lua")]
        text = CONFIGURATION.format(
            modules="\n".join(f"include {path};" for path in modules if path),
            user="user root;" if os.geteuid() == 0 else "",  # its workers would be somebody else's
            folder=folder,
            root=root,
            port=port,
            faulty_port=faulty_port,
            piece=PIECE_KIB,
            rate=STREAM_BYTES_PER_SECOND,
            wait=FIRST_BYTE_SECONDS,
            faults=FAULTS,
        )
        (folder / "nginx.conf").write_text(text)
        command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        with subprocess.Popen(command) as process:
            try:
                _await(port, process, folder / "error.log")
                host = "http://127.0.0.1"
                yield Served(f"{host}:{port}", f"{host}:{faulty_port}", folder / "access.log")
            finally:
                process.terminate()


def _module(name: str) -> str | None:
    """Return the file that loads a module of nginx's, or None."""
    found = [path for pattern in MODULES for path in glob.glob(pattern.format(name))]
    return found[0] if found else None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    said = log.read_text() if log.exists() else ""
    raise SystemExit(f"nginx does not start:\n{said}")
