"""The downloader: the one process of a machine that uses the network, for all that read.

Whoever reads first starts it; it has a lock on the cache folder, so that there is one, and ends
when nobody has been connected for a while.  If it dies, those that wait start another one and tell
it again what they need.

    client threads   what is needed: samples now, and blocks by the plans of loaders
    fetch threads    take what is needed soonest, and remove what is needed last where there is no
                     room for it
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.bounds import check_int
from fastdata.errors import FastdataError, NotRegularFileError, OptionError, StorageError
from fastdata.processes.resources import format_bytes
from fastdata.remote.dataset import StoredDataset, find_dataset, removed
from fastdata.remote.folder import PRESENT, CachedDataset, CacheFolder
from fastdata.remote.held import Held
from fastdata.remote.messages import Channel, credentials_digest, error_to
from fastdata.remote.room import ANY, Room
from fastdata.remote.schedule import NEVER, Plan, in_blocks_of

__all__ = ["main"]

LINGER_SECONDS = 10.0
"""For which it stays when nobody is connected."""

STREAMS, MOST_STREAMS = 16, 256
"""Requests at once, unless a client asks for another number.  An S3 stream has some 85 MB/s."""

SMALL_BYTES, MOST_SMALL = 1 << 20, 64
"""Samples of less than so many bytes that somebody waits for: requests at once beside the streams,
unless somebody asks for a number.  They wait for first bytes, and use little of the network."""

OFFLINE_SECONDS = 15.0
"""After which a dataset that is in the cache is read from there, if the store does not answer."""

KEPT_SECONDS = 5.0
"""For which samples stay that somebody has waited for, and that no plan has."""

AGAIN_SECONDS = 5.0
"""After which a block is tried again that could not be fetched, and for which nobody waits."""

WAITED_SECONDS = 3.0
"""For which a block is needed now that somebody waits for, who says so every two seconds."""

TIGHT_SECONDS = 0.5
"""For which a block stays that took the room of others that are needed now."""

log = logging.getLogger("fastdata.downloader")


@dataclass(frozen=True, eq=False)
class _Job:
    """Samples to be fetched; `block` is theirs."""

    held: Held
    first: int
    last: int
    block: int
    whole: bool
    nbytes: int


@dataclass(frozen=True, eq=False)
class _Wanted:
    """Samples of a block that somebody waits for."""

    held: Held
    first: int
    last: int


class Downloader:
    """Fetches what its clients need; see the module."""

    def __init__(self, folder: CacheFolder) -> None:
        self.folder = folder
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._held: dict[str, Held] = {}
        """By their keys."""
        self._room = Room(folder, self._held)
        self._clients: dict[int, Channel] = {}
        self._credentials = credentials_digest()
        self._strangers: set[int] = set()
        """Clients that have other credentials than those by which this process uses stores."""
        self._streams: dict[int, int] = {}
        """By clients, for those that have said a number."""
        self._limited: set[int] = set()
        """Clients that were given one, which then is not to be exceeded for small things."""
        self._wanted: deque[_Wanted] = deque()
        self._running = 0
        self._streaming = 0
        """Of these, the ones that are no help for small things."""
        self._helpers = 0
        """Threads that fetch small things, as long as there are any."""
        self._next_client = 0
        self._is_tight = False
        self._room_at = 0.0
        """When a block that stays for a while need not do so any more, if room is wanted."""
        self._counts = {"fetched_bytes": 0, "requests": 0, "failed": 0}
        self._stopping = False

    def run(self) -> None:
        """Serve until nobody has been connected for a while."""
        self.folder.remove_unfinished()
        logging.getLogger("fastdata").addHandler(_Forwarded(self._tell_all))
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(self.folder.listen()))
            listener.settimeout(0.5)
            lock, place = self.folder.files
            threads: list[threading.Thread] = []
            alone_since = time.monotonic()
            while True:
                now = self.folder.files
                if now[0] != lock:
                    break  # somebody has removed it: there may be another downloader
                if now[1] != place:
                    listener = stack.enter_context(contextlib.closing(self.folder.listen()))
                    listener.settimeout(0.5)
                    _, place = self.folder.files
                if self._clients:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > LINGER_SECONDS:
                    break
                elif self._next_client and not self._held:
                    break  # nothing could be opened, by the credentials that it has, perhaps
                while len(threads) < max(STREAMS, self._most_streams()):
                    threads.append(threading.Thread(target=self._fetch_or_end, daemon=True))
                    threads[-1].start()
                with contextlib.suppress(TimeoutError, socket.timeout):
                    connection, _ = listener.accept()
                    connection.setblocking(True)
                    self._greet(connection)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _greet(self, connection: socket.socket) -> None:
        """Serve a client from now on, unless it is another user's."""
        try:
            channel = Channel(connection)
        except NotRegularFileError as error:
            log.warning("a client was refused: %s", error)
            return
        self._next_client += 1
        self._clients[self._next_client] = channel
        arguments = self._next_client, channel
        threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _most_streams(self) -> int:
        asked = [self._streams.get(client, STREAMS) for client in list(self._clients)]
        return min(MOST_STREAMS, max(asked, default=0))

    # -- clients ---------------------------------------------------------------------------------

    def _serve(self, client: int, channel: Channel) -> None:
        try:
            while True:
                body, array = channel.receive()
                self._answer(client, channel, body, array)
        except (EOFError, OSError):
            pass
        finally:
            with self._changed:
                self._clients.pop(client, None)
                self._room.budgets.pop(client, None)
                self._streams.pop(client, None)
                self._limited.discard(client)
                self._strangers.discard(client)
                self._leave_to_strangers()
                for held in self._held.values():
                    held.users.discard(client)
                    for key in [key for key in held.plans if key[0] == client]:
                        del held.plans[key]
                self._forget_removed()
                self._changed.notify()
            channel.close()

    def _answer(
        self, client: int, channel: Channel, body: dict[str, Any], array: NDArray[np.int64]
    ) -> None:
        kind = body["kind"]
        if kind == "open":
            try:
                found: dict[str, Any] = {"dataset": self._open(client, body)}
            except Exception as error:  # whatever it is, it is theirs to know
                found = {"error": self._told(client, error)}
            channel.send({"kind": "reply", "id": body["id"], **found})
            return
        if kind == "counts":
            with self._changed:
                counts = {
                    **self._counts,
                    "removed_blocks": self._room.removed_blocks,
                    "used_bytes": int(self._room.used()),
                }
            channel.send({"kind": "reply", "id": body["id"], **counts})
            return
        if kind == "hello":
            if body["credentials"] != self._credentials:
                with self._changed:
                    self._strangers.add(client)
                    self._leave_to_strangers()
            return
        if kind == "streams":
            with self._changed:
                self._streams[client] = max(STREAMS, check_int("streams", body["streams"]))
            return
        with self._changed:
            held = self._held.get(body["dataset"])
            if held is None:
                if kind in ("need", "replace"):  # the client alone knows of these files
                    gone = removed(body["url"], self.folder)
                    channel.send(_failed(body["dataset"], 0, sys.maxsize, error_to(gone)))
                return
            key = client, body.get("plan", 0)
            if kind == "need":
                held.users.add(client)
                self._need(held, array.reshape(-1, 2), body)
            elif kind == "begin":
                wish = body["block_size"]
                # Two plans with blocks of their own: those of the first one stay.
                if wish != held.block_size and not held.plans and not held.busy.any():
                    held.cut(wish)
                held.plans[key] = Plan(len(held.starts))
            elif kind == "uses" and key in held.plans:
                uses = in_blocks_of(held.block_size, body["block_size"], *array.reshape(3, -1))
                held.plans[key].add(body["epoch"], *uses)
            elif kind == "at" and key in held.plans:
                held.plans[key].now = body["time"]
            elif kind == "end":
                held.plans.pop(key, None)
            elif kind == "replace":
                self._replace(held, *array.tolist())
            self._changed.notify()  # one thread looks, and wakes the next where it finds something

    def _open(self, client: int, body: dict[str, Any]) -> dict[str, Any]:
        # Who is offline waits for nobody who asks a store.
        with contextlib.nullcontext() if body["offline"] else self._opening:
            cached = self._found(body["url"], body["options"], body["offline"])
        with self._changed:
            self._forget_removed()
            key = cached.key
            held = self._held.get(key or "")
            if held is None:
                stored = StoredDataset(cached)
                key = stored.key
                if key is None:
                    raise removed(cached.url, self.folder)
                held = self._held[key] = Held(stored, cached.block_size)
            held.users.add(client)
            if body["streams"] is not None:
                self._streams[client] = check_int("streams", body["streams"])
                self._limited.add(client)
            budget = body["cache_bytes"]
            if budget is None:
                free = shutil.disk_usage(self.folder.path).free
                budget = int(self._room.used()) + free // 2
            self._room.budgets[client] = budget
            self._room.measure_others()
            columns = held.stored.used_bytes
            if columns > budget and not held.filled.any():
                raise OptionError(
                    f"cache_bytes={budget} ({format_bytes(budget)}) is less than the columns of"
                    f" {cached.url} take by themselves, {format_bytes(columns)}"
                )
            return {
                "name": key,
                "inode": os.stat(cached.folder / PRESENT).st_ino,
                "location": str(cached.location),
                "folder": str(cached.folder),
                "block_size": held.block_size,
                "num_samples": held.stored.num_samples,
                "total_bytes": held.stored.total_bytes,
                "column_bytes": cached.column_bytes,
                "cache_bytes": budget,
                "files": {one.file: one.key for one in cached.shards},
            }

    def _leave_to_strangers(self) -> None:
        """End where all clients have other credentials: they start one that has theirs."""
        if self._clients and self._strangers.issuperset(self._clients):
            os._exit(0)

    def _told(self, client: int, error: Exception) -> list[str]:
        """Return an error as a client is sent it."""
        name, text = error_to(error)
        if isinstance(error, StorageError) and client in self._strangers:
            text += (
                f". The downloader of the cache {self.folder.path} uses the credentials of the "
                "process that started it, and in the environment of this one are others: where it "
                "is for them, end the programs that use the cache, or choose another with "
                "cache_dir=, --cache-dir"
            )
        return [name, text]

    def _forget_removed(self) -> None:
        """Close files that somebody has removed, once nobody reads them any more."""
        for key, held in list(self._held.items()):
            if not held.users and not held.busy.any() and not held.stored.is_there:
                held.stored.close()
                del self._held[key]

    def _found(self, url: str, options: dict[str, str], offline: bool) -> CachedDataset:
        """Look in the store; in the cache, where that does not answer."""
        known = [
            one
            for one in self.folder.datasets()
            if (one.url, one.options) == (url, options) and one.key is not None
        ]
        if offline:
            if known:
                return known[-1]
            raise StorageError(
                f"{url} is not in the cache {self.folder.path}, and FASTDATA_OFFLINE is set"
            )
        if not known:
            return find_dataset(self.folder, url, options)
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(find_dataset, self.folder, url, options).result(OFFLINE_SECONDS)
        except (FutureTimeoutError, TimeoutError):
            why = f"no answer in {OFFLINE_SECONDS:.0f} s"
        except StorageError as error:
            if type(error) is not StorageError:
                raise
            why = str(error)
        finally:
            pool.shutdown(wait=False)
        log.warning("%s", f"{url} cannot be asked ({why}): what the cache has of it is read")
        return known[-1]

    def _tell_all(self, text: str) -> None:
        """Have all clients log a warning, too."""
        for channel in list(self._clients.values()):
            with contextlib.suppress(OSError):
                channel.send({"kind": "warning", "text": text})

    # -- what is needed --------------------------------------------------------------------------

    def _need(self, held: Held, runs: NDArray[np.int64], body: dict[str, Any]) -> None:
        """Have samples come; those that are planned come in their turn."""
        planned = held.next_use() if held.plans else None
        fits = held.stored.total_bytes <= self._room.budget()
        for first, last in runs.tolist():
            low, high = first // held.block_size, (last - 1) // held.block_size
            for block in range(low, high + 1):
                begin, end = held.bounds(block)
                one = _Wanted(held, max(first, begin), min(last, end))
                if not held.fetching[block]:
                    held.count(block)  # others may have written there what they should not
                is_planned = planned is not None and planned[block] < NEVER
                if body["first"]:
                    self._wanted.appendleft(one)
                elif is_planned:
                    held.not_before[block] = 0.0
                    if not body["soon"]:
                        held.waited_until[block] = time.monotonic() + WAITED_SECONDS
                else:
                    # What all of it has room for comes in blocks: it will be needed anyway.
                    self._wanted.append(_Wanted(held, begin, end) if fits else one)
        if body["first"] or not fits:  # else what is wanted is blocks
            self._have_help()

    def _replace(self, held: Held, first: int, last: int) -> None:
        """Forget samples whose bytes are damaged here, and fetch them again."""
        held.stored.present[first:last] = 0
        for block in range(first // held.block_size, (last - 1) // held.block_size + 1):
            held.count(block)
        self._wanted.appendleft(_Wanted(held, first, last))

    def _next_job(self, *, helps: bool = False) -> _Job | None:
        """Return what to fetch next, with room made for it; None where there is nothing.

        Who only `helps` takes nothing but small things that somebody waits for.
        """
        for _ in range(len(self._wanted)):
            wanted = self._wanted.popleft()
            held = wanted.held
            block = wanted.first // held.block_size
            # What was cut otherwise meanwhile is asked for again by who waits for it.
            there = held.stored.present[wanted.first : min(wanted.last, held.bounds(block)[1])] > 0
            if there.all() or held.fetching[block]:
                continue
            absent = np.flatnonzero(~there)
            first = wanted.first + int(absent[0])
            last = wanted.first + int(absent[-1]) + 1
            job = self._job(held, first, last, block)
            if job is None:
                continue
            is_for_others = helps and job.nbytes > SMALL_BYTES
            if not is_for_others and self._has_room(job, 0.0):
                return job
            if is_for_others or self._running:
                self._wanted.appendleft(wanted)
                return None
        return None if helps else self._planned_job()

    def _planned_job(self) -> _Job | None:
        best: tuple[float, Held, int] | None = None
        now = time.monotonic()
        fits = sum(one.stored.total_bytes for one in self._held.values()) <= self._room.budget()
        for held in self._held.values():
            if not held.plans:
                continue
            uses = held.next_use()
            open_to_fetch = (held.filled < held.counts) & ~held.fetching & (held.not_before < now)
            uses = np.where(open_to_fetch, uses, NEVER)
            block = int(uses.argmin())
            if uses[block] < NEVER and (best is None or uses[block] < best[0]):
                best = float(uses[block]), held, block
        if best is None:
            return None
        use, held, block = best
        if not fits and use > 0 and self._room.ahead_of(use) >= self._room.most_ahead():
            return None
        job = self._job(held, *held.bounds(block), block)
        return job if job is not None and self._has_room(job, use) else None

    def _job(self, held: Held, first: int, last: int, block: int) -> _Job | None:
        """Return a job; None where it cannot be done, which those that wait are told."""
        whole = (first, last) == held.bounds(block)
        try:
            nbytes = held.stored.disk_size(first, last)
        except (FastdataError, OSError) as error:  # of files that somebody has removed or damaged
            self._fail(_Job(held, first, last, block, whole, 0), error)
            return None
        return _Job(held, first, last, block, whole, nbytes)

    # -- room ------------------------------------------------------------------------------------

    def _has_room(self, job: _Job, use: float) -> bool:
        """Make room for a job; where it is needed now and there never will be, say so.

        What is needed now and finds no room takes that of others that are needed now, at random,
        which are fetched again: loaders that are out of step have more blocks in use at once than
        the order of one of them.
        """
        if self._room.make(job.nbytes, use):
            return True
        if use > 0.0 or self._running:
            return False
        if self._room.make(job.nbytes, ANY):
            job.held.kept_until[job.block] = time.monotonic() + TIGHT_SECONDS
            if not self._is_tight:
                self._is_tight = True
                budget = format_bytes(self._room.budget())
                log.warning(
                    "%s",
                    f"the cache {self.folder.path} of {budget} has hardly room for what is needed "
                    "at once, so that blocks are fetched several times: "
                    "give more with cache_bytes=, --cache-bytes",
                )
            return True
        now = time.monotonic()
        kept = np.concatenate([one.kept_until for one in self._held.values()])
        if (kept > now).any():
            self._room_at = float(kept[kept > now].min())
        else:
            budget = format_bytes(self._room.budget())
            reason = (
                f"the cache {self.folder.path} of {budget} has no room for what is needed at once: "
                "give more with cache_bytes=, --cache-bytes"
            )
            self._fail(job, OptionError(reason))
        return False

    # -- fetching --------------------------------------------------------------------------------

    def _have_help(self) -> None:
        """Start threads for small things that are waited for, where the streams are too few."""
        if self._limited:
            return
        while self._helpers < min(len(self._wanted) - STREAMS, MOST_SMALL):
            self._helpers += 1
            threading.Thread(target=self._fetch_or_end, args=(True,), daemon=True).start()

    def _fetch_or_end(self, helps: bool = False) -> None:
        """Fetch; end the process where that fails unexpectedly: another one is started then.

        One that stayed, with threads missing, would let all wait.
        """
        try:
            self._fetch_all(helps)
        except BaseException:
            log.exception("a thread of the downloader has failed, and it ends")
            os._exit(1)

    def _fetch_all(self, helps: bool) -> None:
        while True:
            with self._changed:
                while (job := self._next_turn(helps)) is None:
                    self._helpers -= helps
                    if self._stopping or helps:
                        return
                    until_room = self._room_at - time.monotonic()
                    self._changed.wait(until_room if 0.0 < until_room < 1.0 else 1.0)
                job.held.busy[job.block] += 1
                job.held.fetching[job.block] |= job.whole
                self._room.reserved += job.nbytes
                self._running += 1
                self._streaming += not helps
                self._changed.notify()
            problem: Exception | None = None
            fetched = 0
            try:
                fetched = job.held.stored.fetch(job.first, job.last)
            except Exception as error:  # of a library or a server, which may be anything
                problem = error
            with self._changed:
                held = job.held
                held.busy[job.block] -= 1
                if job.whole:
                    held.fetching[job.block] = False
                held.count(job.block)
                self._room.reserved -= job.nbytes
                self._running -= 1
                self._streaming -= not helps
                self._counts["fetched_bytes"] += fetched
                self._counts["requests"] += 1
                if problem is not None:
                    self._stumbled(job, problem)
                else:
                    held.waited_until[job.block] = 0.0
                    if not job.whole:
                        held.kept_until[job.block] = time.monotonic() + KEPT_SECONDS

    def _next_turn(self, helps: bool) -> _Job | None:
        """Return the next job, if it is this thread's turn."""
        # Those who had others started may have gone.
        if not helps and self._streaming >= self._most_streams():
            return None
        return self._next_job(helps=helps)

    def _stumbled(self, job: _Job, error: Exception) -> None:
        """Try again in a smaller cache where the disk is full; tell who waits of anything else."""
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full and not isinstance(error, FastdataError):
            limit = self._room.used() - job.nbytes
            if limit < self._room.budget():
                if self._room.disk_limit == float("inf"):  # requests under way find it full, too
                    log.warning(
                        "%s",
                        f"the disk of the cache {self.folder.path} is full: it goes on with "
                        f"{format_bytes(limit)} instead of {format_bytes(self._room.budget())}",
                    )
                self._room.disk_limit = max(limit, 0.0)
            self._wanted.append(_Wanted(job.held, job.first, job.last))
            return
        self._fail(job, error)

    def _fail(self, job: _Job, error: Exception) -> None:
        self._counts["failed"] += 1
        job.held.not_before[job.block] = time.monotonic() + AGAIN_SECONDS
        key = job.held.stored.key or ""
        for client in list(job.held.users):
            failed = _failed(key, job.first, job.last, self._told(client, error))
            with contextlib.suppress(OSError, KeyError):
                self._clients[client].send(failed)


class _Forwarded(logging.Handler):
    """Passes on what is logged in this process, such as which store does not answer."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info:
            self._tell(record.getMessage())


def _failed(key: str, first: int, last: int, error: list[str]) -> dict[str, Any]:
    return {
        "kind": "failed",
        "dataset": key,
        "first": first,
        "last": last,
        "error": error,
    }


def main(folder: str) -> None:
    """Serve a cache folder, which is locked for this process."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)  # all that it makes is this user's alone
    Downloader(CacheFolder.open(folder)).run()
    # Threads that ask a store which does not answer would keep the lock of the folder for minutes.
    os._exit(0)
