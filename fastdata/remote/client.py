"""The connection of a process to the downloader of a cache folder."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import FastdataError, StorageError
from fastdata.remote.folder import CacheFolder
from fastdata.remote.messages import Channel, credentials_digest, error_from
from fastdata.waits import result_of

__all__ = ["Client", "client_of"]

START_SECONDS = 60.0
"""Within which a downloader is there, once it was started."""

STARTS = 5
"""Of downloaders, one after another that does not stay, before it is an error."""

MOST_ENDED = 50
"""Connections, one after another, that may end at once."""

log = logging.getLogger("fastdata")

_Message = tuple[dict[str, Any], "NDArray[np.int64] | None"]


@dataclass(eq=False)
class _Asked:
    """A message that waits for its answer; `ended` downloaders have ended before they gave it."""

    message: _Message
    future: Future[dict[str, Any]] = field(default_factory=Future)
    ended: int = 0


class Client:
    """Tells the downloader what this process needs, and starts it where there is none.

    For any number of threads, in the process that made it; `client_of` returns that of a process.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self.folder = folder
        self._lock = threading.RLock()  # a collection of garbage, at any place, may end a user
        self._channel: Channel | None = None
        self._users = 0
        self._ended = 0
        """Connections that have ended within a second, one after another."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._said: dict[object, list[_Message]] = {}
        """What is told again to another downloader, in this order."""
        self._failures: dict[str, list[tuple[float, int, int, list[str]]]] = {}
        self._lost: str | None = None
        """Why; an error that is kept would hold on to what its traceback sees."""

    @property
    def is_lost(self) -> bool:
        """Whether there was no downloader any more, and none could be started."""
        return self._lost is not None

    def used_by(self, user: object, name: object) -> None:
        """Stay connected as long as an object lives; what was kept under `name` is forgotten then.

        The connection ends with the last of these objects.
        """
        with self._lock:
            self._users += 1
        weakref.finalize(user, self._unused, name, os.getpid()).atexit = False

    def _unused(self, name: object, process: int) -> None:
        if os.getpid() != process:
            return  # of the process that this one was forked from
        self.forget(name)
        with self._lock:
            self._users -= 1
            channel = self._channel
            if not self._users and channel is not None:
                self._channel = None
                channel.close()

    # -- what is said ----------------------------------------------------------------------------

    def tell(
        self,
        body: dict[str, Any],
        array: NDArray[np.int64] | None = None,
        *,
        keep_as: object = None,
        replace: bool = False,
        start: bool = True,
    ) -> None:
        """Send a message; with `keep_as` it is sent again to a downloader that comes after this.

        It takes the place of others kept under this name where `replace` says so.  Where `start` is
        False, it is of no use to another downloader than the one that is there, if there is one.
        """
        message = body, array
        with self._lock:
            if keep_as is not None:
                kept = self._said.setdefault(keep_as, [])
                if replace:
                    kept.clear()
                kept.append(message)
            if start or self._channel is not None:
                self._send(message)

    def forget(self, *names: object) -> None:
        """Say nothing again that was kept under these names."""
        with self._lock:
            for name in names:
                self._said.pop(name, None)

    def ask(self, body: dict[str, Any], *, keep_as: object = None) -> dict[str, Any]:
        """Send a message and wait for the answer; raise the error that it is."""
        number = next(self._numbers)
        asked = _Asked(({**body, "id": number}, None))
        try:
            with self._lock:
                if self._lost is not None:
                    raise StorageError(self._lost)
                self._asked[number] = asked
                if keep_as is not None:
                    self._said.setdefault(keep_as, []).append(asked.message)
                self._send(asked.message)
            reply = result_of(asked.future, f"the downloader of the cache {self.folder.path}")
            if "error" in reply:
                raise error_from(reply["error"])
        except BaseException:
            with self._lock:
                self._asked.pop(number, None)
                self._said.pop(keep_as, None)
            raise
        return reply

    def failure(
        self, dataset: str, samples: NDArray[np.int64], since: float
    ) -> FastdataError | None:
        """Return why some samples could not be fetched, as was said since a moment."""
        for when, first, last, error in list(self._failures.get(dataset, ())):
            if when >= since and ((samples >= first) & (samples < last)).any():
                return error_from(error)  # a new one: it will hold on to whoever raises it
        return None if self._lost is None else StorageError(self._lost)

    # -- the connection --------------------------------------------------------------------------

    def _send(self, message: _Message) -> None:
        """Send, or have it sent once there is a downloader; `_lock` is held."""
        if self._lost is not None:
            return
        if self._channel is None and id(message) in self._begin():
            return
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has just ended: said again to the next one
                self._channel.send(*message)

    def _begin(self) -> set[int]:
        """Connect, or start a downloader and wait until it is there; then say all again.

        Returns the identities of the messages that were sent.
        """
        said = [message for messages in self._said.values() for message in messages]
        known = set(map(id, said))
        said += [one.message for one in self._asked.values() if id(one.message) not in known]
        for attempt in range(STARTS):
            channel = self._connected()
            try:
                channel.send({"kind": "hello", "credentials": credentials_digest()})
                for message in said:
                    channel.send(*message)
                break
            except OSError as error:  # it has ended again
                channel.close()
                if attempt == STARTS - 1:
                    raise self._does_not_start() from error
        if not self._users:  # the last one was collected meanwhile, in this thread
            channel.close()
            return set()
        self._channel = channel
        threading.Thread(
            target=self._receive_all, args=(channel,), name="fastdata client", daemon=True
        ).start()
        return set(map(id, said))

    def _connected(self) -> Channel:
        deadline = time.monotonic() + START_SECONDS
        started = 0
        while time.monotonic() < deadline:
            connection = self.folder.connect()
            if connection is not None:
                return Channel(connection)
            if not self.folder.is_served:
                if started == STARTS:
                    break
                started += 1
                self.folder.start_downloader()
            time.sleep(0.02)
        raise self._does_not_start()

    def _does_not_start(self) -> StorageError:
        said = self.folder.said
        return StorageError(
            f"the downloader of the cache {self.folder.path} does not start, or does not stay"
            + (f"; it said:\n{said}" if said else "")
        )

    def _receive_all(self, channel: Channel) -> None:
        began = time.monotonic()
        with contextlib.suppress(EOFError, OSError):
            while True:
                body, _ = channel.receive()
                self._take(body)
        channel.close()
        with self._lock:
            if self._channel is not channel:
                return
            self._channel = None
            self._ended = 0 if time.monotonic() - began > 1.0 else self._ended + 1
            for number, asked in list(self._asked.items()):
                asked.ended += 1
                if asked.ended == STARTS:  # what is asked ends them
                    self._said = {
                        name: [one for one in kept if one is not asked.message]
                        for name, kept in self._said.items()
                    }
                    del self._asked[number]
                    asked.future.set_exception(self._does_not_start())
            if not self._users or not (self._said or self._asked):
                return
            try:
                if self._ended > MOST_ENDED:
                    raise self._does_not_start()
                self._begin()
            except (StorageError, OSError) as error:
                self._lost = str(error)
                for asked in self._asked.values():
                    asked.future.set_exception(StorageError(self._lost))
                self._asked.clear()

    def _take(self, body: dict[str, Any]) -> None:
        kind = body["kind"]
        if kind == "reply":
            with self._lock:
                asked = self._asked.pop(body["id"], None)
            if asked is not None:
                asked.future.set_result(body)
        elif kind == "failed":
            failure = time.monotonic(), body["first"], body["last"], body["error"]
            self._failures.setdefault(body["dataset"], []).append(failure)
            del self._failures[body["dataset"]][:-1000]
        elif kind == "warning":
            log.warning("%s", body["text"])


_clients: dict[tuple[int, Path], Client] = {}
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)


def client_of(folder: CacheFolder) -> Client:
    """Return the connection of this process to the downloader of a folder."""
    with _making:
        key = os.getpid(), folder.path
        if key in _clients and _clients[key].is_lost:
            del _clients[key]
        return _clients.setdefault(key, Client(folder))
