"""A process of its own that measures, seen from outside: its requests, its limits.

ProcessRunner  --request-->  fastdata.tuning.serving.run  -->  Subject
               <--Answer---
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
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.sharing import PickledFile
from fastdata.errors import FastdataError, WorkerError
from fastdata.tuning.fitting import RESERVE_BYTES
from fastdata.tuning.life import Life
from fastdata.tuning.runner import TrialFailedError, TrialTimeoutError, UnsentError
from fastdata.tuning.serving import Answer, run
from fastdata.tuning.subject import Recipe

__all__ = ["ProcessRunner"]

PROCESS_NAME = "fastdata-tuner"
START_SECONDS = 120.0
"""For the interpreter, torch, and what the user's modules import."""

_TICK_SECONDS = 0.1


class ProcessRunner:
    """A process that is started when it is needed, and again after it has failed.

    Started by spawn, never by fork: it may use CUDA, and inherits no locks.  It ends with
    `close`, with this object, with the interpreter, and when this process is killed; with it
    all processes that it has started, what they left in ``/dev/shm``, and its temporary files.

    Parameters
    ----------
    recipe : Recipe

    Raises
    ------
    Exception
        Whatever pickling `recipe` raises.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = PickledFile.of(recipe)
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
