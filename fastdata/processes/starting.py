"""Starting of worker processes, with every start method, and their roles."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from fastdata.errors import OptionError, WorkerError
from fastdata.processes.sharing import PickledFile
from fastdata.processes.worker import STOPPING, Work, end_now, run_worker

__all__ = [
    "Death",
    "Role",
    "UnpicklableWorkError",
    "context_of",
    "signals_held",
    "start_workers",
]


@dataclass(frozen=True)
class Death:
    """The unexpected end of a worker process.

    `exit_code` is minus the signal that killed it, and None if another process has reaped it.
    `ready` is whether it ever asked for tasks; `start_error` is the traceback if its work could not
    be unpickled.
    """

    name: str
    pid: int
    exit_code: int | None
    ready: bool
    start_error: str = ""

    @property
    def signal(self) -> int | None:
        """The number of the signal that killed it."""
        return None if self.exit_code is None or self.exit_code >= 0 else -self.exit_code

    @property
    def signal_name(self) -> str:
        """The signal as ``SIGKILL``, or as ``signal 37`` where it has no name."""
        name = f"signal {self.signal}"
        with contextlib.suppress(ValueError):  # most real-time signals have no names
            name = signal.Signals(self.signal or 0).name
        return name

    def __str__(self) -> str:
        if self.start_error:
            how = "could not be started: its work cannot be unpickled there"
        elif self.signal is not None:
            how = f"was killed by {self.signal_name}"
        else:
            code = "" if self.exit_code is None else f" with exit code {self.exit_code}"
            how = f"ended{code}" if self.ready else f"died{code} as it started"
        return f"worker process {self.name} (pid {self.pid}) {how}"


@dataclass(frozen=True, kw_only=True)
class Role:
    """What the processes of a pool are for; `set_up` and `end` are picklable."""

    name: str
    """Their names begin with it."""
    set_up: Callable[[], None]
    """Called first in a new process, with signals still held back."""
    remedy: str
    """What to do where no process can be started."""
    explain_death: Callable[[Death], str] = str
    """Returns the error message for a death; by default its description."""
    end: Callable[[], NoReturn] = end_now
    """Ends a process whose parent has ended, and never returns."""
    daemon: bool = True
    """Whether they may not start others."""


class UnpicklableWorkError(OptionError):
    """What worker processes are to do cannot be pickled; the cause says why."""


def start_workers(
    work: Work,
    num_workers: int,
    role: Role,
    context: str | BaseContext | None,
    ends: tuple[socket.socket, socket.socket],
) -> Iterator[Any]:
    """Start processes, and yield each as soon as it exists; it need not be ready yet.

    Tasks come from the first of the `ends`, and results go to the second.  Else see `ProcessPool`.
    """
    if num_workers < 1:
        raise OptionError(f"a pool of processes has 1 worker or more, not {num_workers}")
    chosen = context_of(context)
    method = chosen.get_start_method()
    with contextlib.ExitStack() as stack:
        sent = work if method == "fork" else stack.enter_context(_pickled(work))
        if method != "fork":
            # Starting the tracker lets signals through again, so that comes first.
            resource_tracker.ensure_running()
        if method != "forkserver":  # the server would hold them back in all that it ever forks
            stack.enter_context(signals_held())
        for number in range(num_workers):
            process = chosen.Process(
                target=run_worker,
                args=(sent, *ends, role.set_up, role.end, num_workers),
                name=f"{role.name}-{number}",
                daemon=role.daemon,
            )
            try:
                process.start()
            except (AssertionError, EOFError, OSError, RuntimeError) as error:
                raise WorkerError(
                    f"worker processes cannot be started here ({error}). {role.remedy}"
                ) from error
            # multiprocessing would end it, or wait for it, when this interpreter ends or a
            # process exits that the user has forked from this one.
            getattr(multiprocessing.process, "_children", set()).discard(process)
            yield process


def context_of(context: str | BaseContext | None) -> Any:
    """Return a start method as a multiprocessing context; `OptionError` if there is no such."""
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
    try:
        file = PickledFile.of(work)
    except Exception as error:  # a user's object may raise anything
        raise UnpicklableWorkError(f"{type(error).__name__}: {error}") from error
    with contextlib.closing(file):
        yield file


class _OpenCVThreads:
    """Ends OpenCV's threads before each fork, by us or by the user, and allows them again after it.

    A forked process does not have these threads.  It would wait for them forever as soon as it, or
    a worker that it forks, sets their number.  Threads that fork at once take turns: a process that
    is forked during another thread's call of OpenCV could never call it again.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()  # a signal handler may fork, too
        self.number: int | None = None

    def stop(self) -> None:
        """End the threads, before a fork."""
        self.turn.acquire()
        cv2: Any = sys.modules.get("cv2")
        # Without the attribute, another thread is importing it.
        if self.number is None and hasattr(cv2, "setNumThreads"):
            self.number = cv2.getNumThreads()
            cv2.setNumThreads(1)

    def allow(self) -> None:
        """Allow as many threads as before, in either process after the fork."""
        try:
            if self.number is not None:
                sys.modules["cv2"].setNumThreads(self.number)
                self.number = None
        finally:
            self.turn.release()


_opencv_threads = _OpenCVThreads()
os.register_at_fork(
    before=_opencv_threads.stop,
    after_in_parent=_opencv_threads.allow,
    after_in_child=_opencv_threads.allow,
)


@contextlib.contextmanager
def signals_held(*, blocked: bool = True) -> Iterator[None]:
    """Hold back the signals that stop a process; they arrive at the end.

    If another library may start a process meanwhile, pass ``blocked=False``: the process would
    inherit the block and never receive them.

    What their handlers raise would be lost in the hooks that Python runs around a fork
    ("Exception ignored in"), and a new process would still have its parent's handlers; raised
    while a lock of Python's library is taken, it would leave that locked.

    Notes
    -----
    The signals are blocked, for the sake of a process that is forked meanwhile.  That is not
    enough: another thread takes a signal that this one blocks, and Python then runs its handler
    in the main thread.  So there the handlers are replaced by one that notes the signal.
    """
    noted: list[int] = []
    owner = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() == owner:
            noted.append(number)
        else:  # a process that was forked meanwhile, and has its parent's handlers
            signal.signal(number, handlers[signal.Signals(number)])
            signal.raise_signal(number)

    handlers: dict[signal.Signals, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING if blocked else ())
    try:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                handler = signal.getsignal(number)
                if callable(handler):  # the kernel's own need no thread
                    handlers[number] = handler
                    signal.signal(number, note)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # those that were blocked are noted
        _restore(list(handlers.items()))
        for held in noted:
            signal.raise_signal(held)


def _restore(handlers: list[tuple[signal.Signals, Any]]) -> None:
    """Set all handlers, even if a handler is called at once and raises."""
    if handlers:
        number, handler = handlers[0]
        try:
            signal.signal(number, handler)
        finally:
            _restore(handlers[1:])
