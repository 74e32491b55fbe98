"""Worker processes that write into shared memory, and send only what fits a message.

        submit -> one socket of tasks -> whichever worker is idle
        Ticket <- one socket of results <-'

Each message is read whole by one process (see `fastdata.engine.sharing`), so the
kernel is the queue and there is no lock that a killed worker could hold.  There
is no thread either: results are taken when somebody asks for one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

from fastdata.engine.buffers import Slot
from fastdata.engine.sharing import Packet, new_file, receive, send, socket_pair
from fastdata.engine.worker import (
    DONE,
    FAILED,
    NO_BLOCK,
    NOT_STARTED,
    READY,
    PickledFile,
    Work,
    run_worker,
)
from fastdata.errors import OptionError, WorkerError

__all__ = ["PROCESS_NAME", "ProcessPool", "Ticket", "WorkerTraceback"]

PROCESS_NAME = "fastdata-worker"

_GRACE_SECONDS = 1.0
_TICK_SECONDS = 1.0
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


class WorkerTraceback(Exception):  # noqa: N818  (it is no error: it is where one was)
    """The cause of an exception that was raised in a worker: its traceback there, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class ProcessPool:
    """Worker processes that all do one kind of work.

    Parameters
    ----------
    work : callable
        ``work(message, memory)`` is called in a worker for each task; `memory`
        is the whole block of the task's slot, a writable uint8 array, or None.
        What it returns is sent back, and so should be small.  Sent to each
        worker once: it must be picklable, unless the start method is "fork".
    num_workers : int
    context : str or multiprocessing context, optional
        How processes are started: "fork", "spawn" or "forkserver"; by default,
        Python's own choice.

    Notes
    -----
    To be used by one thread at a time.  In a process forked from its owner the
    pool is of no use, and does no harm.  Workers ignore Ctrl-C, compute on one
    thread each, and end with the pool, also when it is merely dropped, with the
    interpreter, and with its process, whatever kills that.

    Raises
    ------
    OptionError
        If there is no such context, or `work` cannot be pickled and has to be.
    WorkerError
        If processes cannot be started here.
    """

    def __init__(
        self, work: Work, num_workers: int, *, context: str | BaseContext | None = None
    ) -> None:
        self._crew = _Crew()
        self._finalizer = weakref.finalize(self, self._crew.end, "was closed")
        try:
            self._crew.start(work, num_workers, _context(context))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers; empty after the end."""
        return [process.pid for process in self._crew.processes]

    def submit(self, message: Any, slot: Slot | None = None) -> Ticket:
        """Have `work` called in a worker; returns at once, unless very many tasks wait.

        Parameters
        ----------
        message : picklable
            Small: above 64 kB, it goes by way of a file.
        slot : Slot, optional
            Of shared memory.  Kept until the task is done, wherever the caller
            has gone meanwhile: no other batch gets it while a worker writes.

        Raises
        ------
        WorkerError
            If a worker has died, or the pool is closed.
        """
        return self._crew.submit(message, slot)

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

    def result(self) -> Any:
        """Wait for the task; return what `work` returned.

        Raises
        ------
        Exception
            What `work` raised: as itself, its cause the traceback in the worker.
        WorkerError
            If it raised what cannot be pickled, if a worker died before the
            task was done, or the pool was closed.
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

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self._owner = os.getpid()
        self._ended: str | None = None
        self._waiting: dict[int, tuple[Ticket, Slot | None]] = {}
        self._numbers = itertools.count()
        self._ready: set[int] = set()
        self._start_error = ""
        self._tasks, self._far_tasks = socket_pair()
        self._results, self._far_results = socket_pair()
        self._tasks.setblocking(False)
        self._results.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)

    def start(self, work: Work, num_workers: int, context: Any) -> None:
        """Start the processes."""
        if num_workers < 1:
            raise OptionError(f"a pool of processes has 1 worker or more, not {num_workers}")
        forked = context.get_start_method() == "fork"
        with contextlib.ExitStack() as stack:
            sent = work if forked else stack.enter_context(_pickled(work))
            others = (self._tasks, self._results) if forked else ()
            if forked:
                stack.enter_context(_forking())
            for number in range(num_workers):
                process = context.Process(
                    target=run_worker,
                    args=(sent, self._far_tasks, self._far_results, others),
                    name=f"{PROCESS_NAME}-{number}",
                    daemon=True,
                )
                try:
                    process.start()
                except (AssertionError, EOFError, OSError, RuntimeError) as error:
                    raise WorkerError(
                        f"worker processes cannot be started here ({error}). In a script, use the "
                        "loader under `if __name__ == '__main__':`; worker_method=\"thread\" works "
                        "everywhere"
                    ) from error
                self.processes.append(process)
                self._poll.register(process.sentinel, select.POLLIN)
                # multiprocessing would end it when a process that the user forks
                # from this one exits.  `end` does what is left to do.
                getattr(multiprocessing.process, "_children", set()).discard(process)
        self._far_results.close()

    def submit(self, message: Any, slot: Slot | None) -> Ticket:
        self._check()
        number = next(self._numbers)
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        packet = Packet(number, NO_BLOCK, payload)
        if slot is not None:
            if slot.block.descriptor is None:
                raise OptionError(f'a task\'s memory is of kind "shared", not {slot.block}')
            packet = Packet(number, slot.block.number, payload, slot.block.descriptor)
        ticket = Ticket(self)
        self._waiting[number] = ticket, slot
        try:
            while not self._sent(packet):
                self._check()
        except BaseException:
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
            self._check()
        if self._ended is not None or self._take_results():
            return
        events = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        dead = [process for process in self.processes if process.sentinel in events]
        if not events and seconds >= _TICK_SECONDS:
            # A sentinel says nothing while something that the worker forked lives on.
            dead = [process for process in self.processes if not process.is_alive()]
        self._take_results()  # also what the dead have done before
        if dead:
            self.end(self._reason(dead[0]))

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
                self._start_error = packet.payload.decode()
            else:
                ticket, _ = self._waiting.pop(packet.ticket)
                ticket.finish(*_outcome(packet))

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                f"these worker processes belong to process {self._owner}, from which this one "
                f"({os.getpid()}) was forked: make a loader of its own here"
            )
        if self._ended is not None:
            raise WorkerError(self._ended)

    def _reason(self, process: Any) -> str:
        process.join(_GRACE_SECONDS)
        who = f"worker process {process.name} (pid {process.pid})"
        if self._start_error:
            return (
                f"{who} could not be started: what it works on cannot be unpickled there. Define "
                'transforms in a module that can be imported, or use worker_method="thread".\n'
                f"{self._start_error}"
            )
        code = process.exitcode
        if code is None or code >= 0:
            if process.pid in self._ready:
                return (
                    f"{who} ended with exit code {code} while the loader needed it; was "
                    "os._exit called in a transform?"
                )
            return (
                f"{who} died as it started, with exit code {code}; its own message is above, on "
                "standard error. In a script, use the loader under `if __name__ == '__main__':`; "
                'worker_method="thread" does without processes'
            )
        with contextlib.suppress(ValueError):  # real-time signals have no names
            code = signal.Signals(-code)
        name = getattr(code, "name", f"signal {code}")
        if code == signal.SIGKILL:
            why = (
                "Most likely the system was out of memory (`dmesg` tells): use fewer workers, "
                "smaller batches or a smaller prefetch_factor"
            )
        elif code in _CRASHES:
            why = (
                "A library crashed, perhaps on one broken image: with num_workers=0 and "
                "`python -X faulthandler` you see where"
            )
        else:
            why = "Somebody has stopped it"
        return f"{who} was killed by {name}. {why}"

    def end(self, how: str) -> None:
        """End the processes; every result that is missing will be a `WorkerError`.  Idempotent."""
        if self._ended is not None:
            return
        self._ended = f"the pool of worker processes {how}" if how == "was closed" else how
        ends = self._tasks, self._results, self._far_tasks, self._far_results
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # empty, in the end
                while self._far_tasks.recv(1, socket.MSG_DONTWAIT):
                    pass
            for end in ends[:2]:  # tells the workers, whoever else holds copies of these
                end.shutdown(socket.SHUT_RDWR)
            self._join()
        for end in ends:
            end.close()
        # Only now: no worker is left that could write to these slots.
        waiting, self._waiting = self._waiting, {}
        for ticket, _ in waiting.values():
            ticket.finish(None, WorkerError(self._ended))

    def _join(self) -> None:
        processes, self.processes = self.processes, []
        deadline = time.monotonic() + _GRACE_SECONDS
        try:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()
                process.close()


def _outcome(packet: Packet) -> tuple[Any, BaseException | None]:
    """Return the value and the error of a task."""
    if packet.lost:
        return None, WorkerError(
            "the result of a worker process could not be received: too many open files. Raise the "
            "limit (ulimit -n), or keep fewer batches"
        )
    try:
        content = pickle.loads(packet.payload)
    except Exception as error:
        return None, WorkerError(f"a worker's result cannot be unpickled here: {error!r}")
    if packet.kind == DONE:
        return content, None
    assert packet.kind == FAILED
    pickled, message, text, trace = content
    try:
        raised: BaseException = pickle.loads(pickled)
        if str(raised) != message:
            # Its class makes a message of its arguments, and now has made one
            # of the message.
            raised.args = (message,)
        assert str(raised) == message
    except Exception:  # a class that takes other arguments, or is unknown here
        raised = WorkerError(f"a worker process raised what cannot be sent: {text}")
    raised.__cause__ = WorkerTraceback(trace)
    return None, raised


def _context(context: str | BaseContext | None) -> Any:
    if isinstance(context, BaseContext):
        return context
    try:
        return multiprocessing.get_context(context)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"multiprocessing_context is one of {multiprocessing.get_all_start_methods()}, a "
            f"multiprocessing context or None, not {context!r}"
        ) from error


@contextlib.contextmanager
def _pickled(work: Work) -> Iterator[PickledFile]:
    descriptor = new_file(0)
    try:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                pickle.dump(work, file, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # a user's object may raise anything
            raise OptionError(
                f"the dataset and transforms cannot be sent to worker processes: "
                f"{type(error).__name__}: {error}. Define transforms at the top level of a module "
                '(no lambda, no local function), or use multiprocessing_context="fork" or '
                'worker_method="thread"'
            ) from error
        yield PickledFile(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _forking() -> Iterator[None]:
    """Make this process one that can be forked.

    Signals whose handlers would run in the new process before it is a worker
    are held back.  OpenCV's threads are ended: a forked process has none of them,
    and waits for them for ever as soon as it sets their number.
    """
    set_threads: Callable[[int], None] | None = None
    if "cv2" in sys.modules:
        set_threads = sys.modules["cv2"].setNumThreads
        threads = sys.modules["cv2"].getNumThreads()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        if set_threads is not None:
            set_threads(1)
        yield
    finally:
        if set_threads is not None:
            set_threads(threads)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
