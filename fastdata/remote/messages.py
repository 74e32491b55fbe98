"""Messages between the downloader and the processes that read: JSON, and arrays of numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata import errors
from fastdata.errors import FastdataError, NotRegularFileError, StorageError

__all__ = ["Channel", "credentials_digest", "error_from", "error_to"]

_LARGEST = 1 << 28

_PEER = struct.Struct("iII")
"""Linux's ``struct ucred``: process, user and group."""

_OF_STORES = "AWS_", "AZURE_", "GOOGLE_", "HF_"
"""Beginnings of the names of variables by which a process may use stores."""


class Channel:
    """One end of a connection; sends from any thread, and receives in one.

    `NotRegularFileError` if the process at the other end is another user's.
    """

    def __init__(self, end: socket.socket) -> None:
        _check_peer(end)
        self._socket = end
        self._connection = Connection(os.dup(end.fileno()))
        self._sending = threading.Lock()

    def send(self, body: dict[str, Any], array: NDArray[np.int64] | None = None) -> None:
        """Send a message, with an int64 array behind it perhaps; `OSError` if nobody is there."""
        with self._sending:
            self._connection.send_bytes(json.dumps({**body, "array": array is not None}).encode())
            if array is not None:
                self._connection.send_bytes(np.ascontiguousarray(array, np.int64).tobytes())

    def receive(self) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """Wait for a message; `EOFError` or `OSError` when the other end is closed."""
        body = json.loads(self._connection.recv_bytes(_LARGEST))
        array = np.empty(0, np.int64)
        if body.pop("array"):
            array = np.frombuffer(self._connection.recv_bytes(_LARGEST), np.int64)
        return body, array

    def close(self) -> None:
        """Close this end; who waits for a message here is told.  Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _check_peer(end: socket.socket) -> None:
    """Ask the kernel who is at the other end: names and modes of files may change meanwhile."""
    _, user, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        end.close()
        raise NotRegularFileError(
            f"user {user} is at the other end of the socket of the cache, and you are "
            f"{os.geteuid()}: each user needs a cache of their own (cache_dir=, --cache-dir, "
            "FASTDATA_CACHE)"
        )


def credentials_digest() -> str:
    """Return what tells the credentials in the environment of this process from others."""
    found = sorted(one for one in os.environ.items() if one[0].startswith(_OF_STORES))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def error_to(error: Exception) -> list[str]:
    """Return an error as it is sent."""
    name = type(error).__name__ if isinstance(error, FastdataError) else StorageError.__name__
    return [name, str(error) or type(error).__name__]


def error_from(sent: list[str]) -> FastdataError:
    """Return an error that was sent."""
    name, text = sent
    kind = getattr(errors, name, StorageError)
    found: FastdataError = kind(text)
    return found
