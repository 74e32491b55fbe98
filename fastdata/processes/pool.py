"""Worker processes that write into shared memory, and send only what fits a message.

        submit -> one socket of tasks -> whichever worker is idle
        Ticket <- one socket of results <-'

Each message is read whole by one process (see `fastdata.processes.sharing`), so the
kernel is the queue and there is no lock that a killed worker could hold.  There
is no thread either: results are received when one is asked for.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import time
import weakref
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

from fastdata.errors import WorkerError
from fastdata.processes.sharing import (
    NO_BLOCK,
    NOT_STARTED,
    READY,
    Packet,
    outcome_of,
    pickled,
    receive,
    send,
    socket_pair,
)
from fastdata.processes.starting import Death, Role, start_workers
from fastdata.processes.worker import Work

__all__ = ["ProcessPool", "SharedBlock", "Ticket"]

_GRACE_SECONDS = 1.0
_TICK_SECONDS = 1.0
_REAP_SECONDS = 1.0


class SharedBlock(NamedTuple):
    """Memory that a task writes to, with a file behind it.

    A worker maps each block once, and knows it by its number.  The `lease` is held until the task
    is done, also where the caller has dropped it: the memory must not be used otherwise while a
    worker writes.
    """

    number: int
    descriptor: int
    lease: object


class ProcessPool:
    """Worker processes that all do one kind of work.

    ``work(message, memory)`` is called in a worker for each task; `memory` is the whole block of
    the task, a writable uint8 array, or None.  What it returns is sent back, and so should be
    small.  It is sent to each worker once, and must be picklable unless the start method is "fork".
    `context` says how processes are started; by default, as Python chooses.

    To be used by one thread at a time.  In a process forked from its owner the
    pool is of no use, and does no harm.  Workers end with the pool, also when it is merely
    dropped, with the interpreter, and with its process, whatever kills that.  One that ends
    before ends the others too, and every missing result is a `WorkerError`.

    Raises an `OptionError` if there is no such context, or `work` cannot be pickled and has to be
    (`UnpicklableWorkError`); a `WorkerError` if processes cannot be started here.
    """

    def __init__(
        self,
        work: Work,
        num_workers: int,
        role: Role,
        *,
        context: str | BaseContext | None = None,
    ) -> None:
        self._crew = _Crew(role)
        self._finalizer = weakref.finalize(
            self, self._crew.end, "this pool of worker processes was closed"
        )
        try:
            self._crew.start(work, num_workers, context)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers; empty after the end."""
        return [process.pid for process in self._crew.processes]

    @property
    def death(self) -> Death | None:
        """How the worker ended whose death ended the pool."""
        return self._crew.death

    def submit(self, message: Any, block: SharedBlock | None = None) -> Ticket:
        """Have `work` called in a worker; returns at once, unless very many tasks wait.

        A message of more than 64 kB goes by way of a file in memory.  Raises a `WorkerError` if a
        worker has died, or the pool is closed.
        """
        return self._crew.submit(message, block)

    def check(self) -> None:
        """Raise `WorkerError` if a worker has died or the pool is closed; does not wait."""
        self._crew.check()

    def close(self) -> None:
        """End the workers, if need be in the middle of a task.  Idempotent."""
        self._finalizer()


class Ticket:
    """The claim to the result of one task."""

    def __init__(self, crew: _Crew) -> None:
        self._crew = crew
        self._finished = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise at once; does not wait."""
        if not self._finished:
            self._crew.step(0.0)
        return self._finished

    def wait(self, seconds: float) -> bool:
        """Wait for any news, at most so long; return whether this task is done."""
        if not self._finished:
            self._crew.step(seconds)
        return self._finished

    def result(self) -> Any:
        """Wait for the task; return what `work` returned, or raise what it raised.

        That is raised as itself, its cause the traceback in the worker; a `WorkerError` if it
        cannot be pickled, if a worker died before the task was done, or the pool was closed.
        """
        while not self._finished:
            self._crew.step(_TICK_SECONDS)
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            # The error holds this frame, which would hold the error.
            del self

    def finish(self, value: Any, error: BaseException | None = None) -> None:
        """Set the result."""
        self._value, self._error, self._finished = value, error, True


class _Crew:
    """What pool and tickets share; does not know the pool, which ends it when dropped."""

    def __init__(self, role: Role) -> None:
        self.processes: list[Any] = []
        self.death: Death | None = None
        self._role = role
        self._owner = os.getpid()
        self._ended: str | None = None
        self._waiting: dict[int, tuple[Ticket, object]] = {}
        self._numbers = itertools.count()
        self._ready: set[int] = set()
        self._start_error = ""
        self._signs: dict[int, Any] = {}
        """Descriptors that become readable as a process ends."""
        self._pidfds: list[int] = []
        self._tasks, self._far_tasks = socket_pair()
        self._results, self._far_results = socket_pair()
        self._tasks.setblocking(False)
        self._results.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)

    def start(self, work: Work, num_workers: int, context: str | BaseContext | None) -> None:
        """Start the processes."""
        ends = self._far_tasks, self._far_results
        for process in start_workers(work, num_workers, self._role, context, ends):
            self.processes.append(process)
            for sign in (process.sentinel, self._pidfd_of(process)):
                if sign is not None:
                    self._signs[sign] = process
                    self._poll.register(sign, select.POLLIN)
        # The far end of tasks stays open: to send when all workers have died is
        # no error of its own, and theirs is found.
        self._far_results.close()

    def _pidfd_of(self, process: Any) -> int | None:
        """Return what becomes readable as a process ends, whatever it has forked lives on."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            return None  # not Linux, forbidden, or the process has gone and is reaped
        self._pidfds.append(descriptor)
        return descriptor

    def submit(self, message: Any, block: SharedBlock | None) -> Ticket:
        self.check()
        number = next(self._numbers)
        payload = pickled(message)
        if block is None:
            packet = Packet(number, NO_BLOCK, payload)
        else:
            packet = Packet(number, block.number, payload, block.descriptor)
        ticket = Ticket(self)
        self._waiting[number] = ticket, None if block is None else block.lease
        try:
            while not self._sent(packet):
                self.check()
        except Exception:  # not Ctrl-C: it may have been sent, and its memory be in use
            self._waiting.pop(number, None)
            raise
        return ticket

    def _sent(self, packet: Packet) -> bool:
        """Send a task; where there is no room for it, take results until there may be."""
        try:
            send(self._tasks, packet)
        except BlockingIOError:
            self._poll.register(self._tasks, select.POLLOUT)
            try:
                self.step(_TICK_SECONDS)
            finally:
                self._poll.unregister(self._tasks)
            return False
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            self.step(0.01)  # files on their way are limited, over all processes of a user
            return False
        return True

    def step(self, seconds: float) -> None:
        """Take the results that have come; if there are none, wait for one so long.

        A worker that has died ends the crew.
        """
        if os.getpid() != self._owner:
            self._refuse()
        if self._ended is None and not self._take_results():
            self._look(seconds)

    def check(self) -> None:
        """Raise `WorkerError` if a worker has died, or the crew has ended; does not wait.

        Asked before every batch: as long as other workers keep up, there is no wait, which
        is where a death would be seen otherwise.
        """
        if self._ended is None and os.getpid() == self._owner:
            self._look(0.0)
        self._refuse()

    def _look(self, seconds: float) -> None:
        """Wait so long for a result or a death, and end the crew after a death."""
        events = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        dead = next((self._signs[sign] for sign in events if sign in self._signs), None)
        if dead is None and not self._take_results() and seconds:
            # Without pidfd, a sentinel says nothing while a child of the worker's lives on.
            dead = next((process for process in self.processes if not process.is_alive()), None)
        if dead is not None:
            self._take_results()  # what they have done before
            dead.join(_REAP_SECONDS)
            ready = dead.pid in self._ready
            self.death = Death(dead.name, dead.pid, dead.exitcode, ready, self._start_error)
            self.end(self._role.explain_death(self.death), grace_seconds=0.0)

    def _take_results(self) -> bool:
        found = False
        while True:
            try:
                packet = receive(self._results)
            except BlockingIOError:
                return found
            if packet is None:  # all are dead, which is for their sentinels to say
                return found
            found = True
            if packet.kind == READY:
                self._ready.add(packet.ticket)
            elif packet.kind == NOT_STARTED:
                self._start_error = bytes(packet.content).decode()
            else:
                ticket, _ = self._waiting.pop(packet.ticket)
                ticket.finish(*outcome_of(packet))

    def _refuse(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                f"these worker processes belong to process {self._owner}, from which this one "
                f"({os.getpid()}) was forked: make a loader of its own here"
            )
        if self._ended is not None:
            raise WorkerError(self._ended)

    def end(self, why: str, grace_seconds: float = _GRACE_SECONDS) -> None:
        """End the processes; every result that is missing will be a `WorkerError`.  Idempotent."""
        if self._ended is not None:
            return
        self._ended = why
        ends = self._tasks, self._results, self._far_tasks, self._far_results
        if os.getpid() == self._owner:
            # Tells the workers, whoever else holds copies of these: one that works
            # learns it when it sends its result, and so begins no further task.
            for end in ends[:2]:
                end.shutdown(socket.SHUT_RDWR)
            self._join(grace_seconds)
        for end in ends:
            end.close()
        self._signs.clear()
        while self._pidfds:
            os.close(self._pidfds.pop())
        # Only now: no worker is left that could write to these blocks.
        waiting, self._waiting = self._waiting, {}
        for ticket, _ in waiting.values():
            ticket.finish(None, WorkerError(self._ended))

    def _join(self, grace_seconds: float) -> None:
        processes, self.processes = self.processes, []
        deadline = time.monotonic() + grace_seconds
        try:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()
