"""Trials: calls of a workload's methods in a process that may die, hang or take all memory.

    ProcessRunner  --request-->  subprocess_main  -->  make(spec).method(*arguments)
                   <--Answer---

Whatever a trial does (it is killed, crashes, hangs, takes all memory), its caller goes on, and
has the reason in words.  What cannot be sent to another process is measured in this one, by
`LocalRunner`, where a trial that dies or hangs does so for all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import pickle
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.sharing import PickledFile
from fastdata.errors import FastdataError, WorkerError
from fastdata.tuning.life import Life
from fastdata.tuning.serving import Answer, in_a_line, run

__all__ = [
    "RESERVE_BYTES",
    "LocalRunner",
    "ProcessRunner",
    "Runner",
    "TrialFailedError",
    "TrialTimeoutError",
    "UnsentError",
    "open_runner",
]

PROCESS_NAME = "fastdata-trials"
START_SECONDS = 120.0
"""For the interpreter, torch, and what the user's modules import."""

RESERVE_BYTES = 256 << 20
"""What has to stay free of host memory, for the training process and the system: a trial that
leaves less than half of it is ended."""

_TICK_SECONDS = 0.1


class TrialFailedError(FastdataError, RuntimeError):
    """A trial has no result; the message is the reason.

    Attributes
    ----------
    refused : FastdataError or None
        What fastdata itself said is wrong with an argument.
    """

    def __init__(self, message: str, refused: FastdataError | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class TrialTimeoutError(TrialFailedError):
    """A trial was ended because it took too long."""


class UnsentError(TrialFailedError):
    """The process that measures cannot have what it is to measure, or does not start with it."""


class Runner(Protocol):
    """Calls methods of what ``make(spec)`` returns."""

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Return what a method returns.

        Raises `TrialFailedError` where it raises, dies, or takes more than `seconds` or too much
        memory.
        """

    def close(self) -> None:
        """End what was started.  Idempotent."""


class LocalRunner:
    """Calls in this process: no limit, no time-out."""

    def __init__(self, make: Callable[[Any], Any], spec: Any) -> None:
        self._subject = make(spec)

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Call a method; `seconds` is not looked at."""
        try:
            return getattr(self._subject, name)(*arguments)
        except Exception as error:
            refused = error if isinstance(error, FastdataError) else None
            raise TrialFailedError(in_a_line(error), refused) from error

    def close(self) -> None:
        """Nothing stays."""


class ProcessRunner:
    """Calls in a process that is started when it is needed, and again after it has failed.

    Started by spawn, never by fork: it may use CUDA, and inherits no locks.  It ends with
    `close`, with this object, with the interpreter, and when this process is killed; with it
    all processes that it has started, what they left in ``/dev/shm``, and its temporary files.
    """

    def __init__(self, make: Callable[[Any], Any], spec: Any) -> None:
        self._recipe = PickledFile.of((make, spec))
        self._temporary = tempfile.mkdtemp(prefix="fastdata-tune-")
        self._lives: list[Life] = []
        self._finalizer = weakref.finalize(
            self, _close, self._lives, self._recipe, self._temporary, os.getpid()
        )

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._lives[0].process.pid if self._lives else None

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Have a method called there.  A Ctrl-C while waiting ends the process."""
        if not self._lives:
            self._start()
        life = self._lives[0]
        try:
            answer = self._ask(life, ("", ()), seconds) if life.fresh else Answer("value")
            if answer.kind == "value":  # it has started, which is no part of the time
                answer = self._ask(life, (name, arguments), seconds)
        except BaseException:
            self._end()
            raise
        if answer.kind == "value":
            return answer.value
        self._end()  # what it was in the middle of goes with it
        error = _error_of(answer)
        if answer.kind == "unsent":
            raise UnsentError(answer.text) from error
        refused = error if isinstance(error, FastdataError) else None
        raise TrialFailedError(answer.text, refused) from error

    def close(self) -> None:
        """End the process and all that it has started.  Idempotent."""
        self._finalizer()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        method = multiprocessing.get_start_method(allow_none=True)
        process = context.Process(
            target=run, args=(self._recipe, there, self._temporary, method), name=PROCESS_NAME
        )
        # Until it leads a group of its own, a Ctrl-C would have it print a traceback.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        except (AssertionError, EOFError, OSError, RuntimeError) as error:
            here.close()
            raise WorkerError(
                f"the process that measures cannot be started here ({error}). In a script, call "
                "tune_workers under `if __name__ == '__main__':`, as all worker processes need it"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            there.close()
        # multiprocessing would wait for it as this interpreter ends.
        getattr(multiprocessing.process, "_children", set()).discard(process)
        self._lives.append(Life(process, here))

    def _ask(self, life: Life, request: tuple[str, tuple[Any, ...]], seconds: float) -> Answer:
        if life.fresh:
            seconds += START_SECONDS
        with contextlib.suppress(BrokenPipeError):  # it has died: said below
            life.end.send(request)
        deadline = time.monotonic() + seconds
        while True:
            ready = wait([life.end, life.process.sentinel], _TICK_SECONDS)
            if life.end in ready:
                with contextlib.suppress(EOFError, ConnectionResetError):
                    answer: Answer = life.end.recv()
                    life.fresh = False
                    return answer
            # The sentinel says nothing while something that it has forked lives on.
            if ready or not life.process.is_alive():
                raise _died(life)
            if time.monotonic() > deadline:
                raise TrialTimeoutError(
                    f"gave no answer within {seconds:.0f} s, and was ended: it hangs, or is that "
                    "slow (trial_seconds is the limit)"
                )
            free = available_bytes()
            if free < RESERVE_BYTES // 2:
                raise TrialFailedError(
                    f"took memory until {in_words(free)} were left, and was ended"
                )

    def _end(self) -> None:
        while self._lives:
            self._lives[0].kill()
            self._lives.pop(0)
        for left in Path(self._temporary).glob("*"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _close(lives: list[Life], recipe: PickledFile, temporary: str, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that it belongs to
        return
    while lives:
        lives[0].kill()
        lives.pop(0)
    recipe.close()
    shutil.rmtree(temporary, ignore_errors=True)


def _error_of(answer: Answer) -> BaseException | None:
    """Return the error of an answer; None where its class is a script's, not loaded here."""
    try:
        error: BaseException | None = pickle.loads(answer.value) if answer.value else None
    except Exception:
        return None
    return error


def _died(life: Life) -> TrialFailedError:
    """Return the error of a process that is no more."""
    code = life.exit_code()
    if life.fresh and code == 1:
        return UnsentError(
            "the process that measures died as it started; its own message is above, on standard "
            "error. In a script, call tune_workers under `if __name__ == '__main__':`"
        )
    if code is not None and code < 0:
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        hint = ": out of memory, most likely" if -code == signal.SIGKILL else ""
        return TrialFailedError(f"the process died of {name}{hint}")
    return TrialFailedError(f"the process ended with exit code {code}")


def open_runner(
    make: Callable[[Any], Any],
    spec: Any,
    local: Callable[[], Runner],
    *,
    must_be_sent: bool,
    seconds: float,
) -> tuple[Runner, Any, str]:
    """Return a runner, what its method ``probe`` returns, and why it is in this process, or "".

    What another process cannot have is measured by what `local` returns; with `must_be_sent` that
    is an error.  What is wrong with the data or its options is raised as it is, and any other
    failure of the probe as `WorkerError`.
    """
    try:
        runner: Runner = ProcessRunner(make, spec)
    except Exception as error:  # a user's object may raise anything as it is pickled
        why = str(error)
    else:
        try:
            return runner, _probe(runner, seconds), ""
        except UnsentError as error:
            runner.close()
            if must_be_sent:
                raise WorkerError(f"batches cannot be made: {error}") from error.__cause__
            why = str(error)
        except BaseException:
            runner.close()
            raise
    runner = local()
    return runner, _probe(runner, seconds), why


def _probe(runner: Runner, seconds: float) -> Any:
    try:
        return runner.call("probe", seconds=seconds)
    except UnsentError:
        raise
    except TrialFailedError as error:
        if error.refused is not None:
            raise error.refused from None
        raise WorkerError(f"batches cannot be made: {error}") from error.__cause__
