"""Calls of a workload's methods in another process, which may die, hang or take all memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn, TypeAlias

from fastdata.errors import FastdataError, WorkerError
from fastdata.processes.groups import kill_group, lead_group
from fastdata.processes.pool import ProcessPool, Ticket
from fastdata.processes.resources import RESERVE_BYTES, available_bytes, format_bytes
from fastdata.processes.starting import Death, Role
from fastdata.waits import wait_until

__all__ = [
    "LocalRunner",
    "ProcessRunner",
    "Runner",
    "TrialFailedError",
    "TrialTimeoutError",
    "open_runner",
]

START_SECONDS = 120.0
"""For starting the interpreter and importing torch and the user's modules."""

_TICK_SECONDS = 0.1


class TrialFailedError(FastdataError, RuntimeError):
    """A trial has no result; `refused` is fastdata's error about an argument or the data."""

    def __init__(self, message: str, refused: FastdataError | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class TrialTimeoutError(TrialFailedError):
    """A trial was ended because it took too long."""


class UnsentError(TrialFailedError):
    """The measuring process cannot receive its input, or does not start with it."""


class LocalRunner:
    """Calls methods of ``make(spec)`` in this process, without limits of time and memory."""

    def __init__(self, make: Callable[[Any], Any], spec: Any) -> None:
        self._subject = make(spec)

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Call a method; raises `TrialFailedError`.  `seconds` is ignored."""
        try:
            return getattr(self._subject, name)(*arguments)
        except Exception as error:
            raise _failure(error) from error

    def close(self) -> None:
        """Nothing stays."""


class ProcessRunner:
    """Calls them in another process, started on demand and restarted after a failure.

    It is spawned, never forked: it may use CUDA, and inherits no locks.  It ends with `close`, this
    object or this process, together with its children, their files in ``/dev/shm``, and its
    temporary files.  `make` and `spec` are pickled, which may raise anything.
    """

    def __init__(self, make: Callable[[Any], Any], spec: Any) -> None:
        self._work = _Requests(pickle.dumps((make, spec), pickle.HIGHEST_PROTOCOL))
        self._pool: ProcessPool | None = None  # once it has answered
        self._ending = ExitStack()
        self._finalizer = weakref.finalize(self, _close, self._ending, os.getpid())

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Call a method there; Ctrl-C while waiting ends the process.

        Raises `TrialFailedError`, also if it takes more than `seconds` or too much memory.
        """
        pool = self._pool or self._start()
        try:
            if self._pool is None:  # the start does not count
                _wait(pool.submit(None), seconds + START_SECONDS)
                self._pool = pool
            return _wait(pool.submit((name, arguments)), seconds)
        except BaseException as error:
            answered, self._pool = self._pool is not None, None
            self._ending.close()  # with its current call
            if not isinstance(error, WorkerError):
                raise
            if pool.death is None:  # its error cannot be pickled
                raise _failure(error) from error
            raise _died(pool.death, answered) from error

    def close(self) -> None:
        """End the process and all that it has started.  Idempotent."""
        self._finalizer()

    def _start(self) -> ProcessPool:
        self._temporary = tempfile.mkdtemp(prefix="fastdata-trials-")
        self._ending.callback(shutil.rmtree, self._temporary, ignore_errors=True)
        method = multiprocessing.get_start_method(allow_none=True)
        role = Role(
            name="fastdata-trials",
            set_up=partial(_set_up, self._temporary, method),
            remedy="In a script, measure under `if __name__ == '__main__':`, as all worker "
            "processes need it",
            end=partial(_end_group, self._temporary),
            daemon=False,
        )
        pool = ProcessPool(self._work, 1, role, context="spawn")
        self.pid = pool.pids[0]
        self._ending.callback(pool.close)
        self._ending.callback(kill_group, self.pid)
        return pool


Runner: TypeAlias = LocalRunner | ProcessRunner


def _wait(ticket: Ticket, seconds: float) -> Any:
    """Return the result of a request, within limits of time and memory."""
    deadline = time.monotonic() + seconds

    def is_done(limit: float) -> bool:
        if ticket.wait(min(limit, _TICK_SECONDS)):
            return True
        if time.monotonic() > deadline:
            raise TrialTimeoutError(
                f"gave no answer within {seconds:.0f} s, and was ended: it hangs, or is that "
                "slow (trial_seconds is the limit)"
            )
        if (free := available_bytes()) < RESERVE_BYTES // 2:
            left = format_bytes(free)
            raise TrialFailedError(f"took memory until {left} were left, and was ended")
        return False

    wait_until(is_done, f"a measurement (at most {seconds:.0f} s)")
    return ticket.result()


def _close(ending: ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        ending.close()


def _died(death: Death, answered: bool) -> TrialFailedError:
    """Return the error of a process that has ended."""
    if not answered and death.exit_code == 1:
        return UnsentError(
            "the process that measures died as it started; its own message is above, on standard "
            "error. In a script, measure under `if __name__ == '__main__':`"
        )
    if death.signal is None:
        return TrialFailedError(f"the process ended with exit code {death.exit_code}")
    hint = ": out of memory, most likely" if death.signal == signal.SIGKILL else ""
    return TrialFailedError(f"the process died of {death.signal_name}{hint}")


def _failure(error: BaseException) -> TrialFailedError:
    """Return a failed trial with the type and the message of an error in one line."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    if "Traceback (most recent call last)" in text:  # sent by a worker
        text = text.splitlines()[-1]
    refused = error if isinstance(error, FastdataError) else None
    return TrialFailedError(" ".join(text.split()), refused)


def open_runner(
    make: Callable[[Any], Any],
    spec: Any,
    local: Callable[[], Runner],
    *,
    must_be_sent: bool,
    seconds: float,
) -> tuple[Runner, Any, str]:
    """Return a runner, the result of its method ``probe``, and why it is in this process, or "".

    Data that cannot be pickled are measured by the result of `local`; with `must_be_sent` that is
    a `WorkerError`, like other failures, except errors of the data or the options.
    """
    why = ""
    try:
        runner: Runner = ProcessRunner(make, spec)
    except Exception as error:  # a user's object may raise anything as it is pickled
        runner, why = local(), str(error)
    while True:
        try:
            return runner, runner.call("probe", seconds=seconds), why
        except BaseException as error:
            runner.close()
            if not isinstance(error, TrialFailedError):
                raise
            if error.refused is not None:
                raise error.refused from None
            if must_be_sent or not isinstance(error, UnsentError):
                raise WorkerError(f"batches cannot be made: {error}") from error.__cause__
            runner, why = local(), str(error)


class _Requests:
    """The work of that process: a method's name and its arguments; None only makes the subject."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._subject: Any = None

    def __call__(self, request: tuple[str, tuple[Any, ...]] | None, memory: object) -> Any:
        try:
            if self._subject is None:
                try:
                    make, spec = pickle.loads(self._pickled)
                except Exception as error:  # classes of a notebook, say
                    raise UnsentError(str(_failure(error))) from error
                self._subject = make(spec)
            return request and getattr(self._subject, request[0])(*request[1])
        except TrialFailedError:
            raise
        except BaseException as error:  # SystemExit too: it is the user's code's
            raise _failure(error) from error


def _set_up(temporary: str, start_method: str | None) -> None:
    """Set up this process, with a folder for temporary files, which its parent removes."""
    lead_group()
    os.dup2(2, 1)  # keeps the user's prints out of the command's output
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A spawned process would spawn its own; loaders start workers as they would in the parent.
    multiprocessing.set_start_method(start_method, force=True)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary


def _end_group(temporary: str) -> NoReturn:
    """End this process and all that it has started, as the parent was killed."""
    shutil.rmtree(temporary, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
