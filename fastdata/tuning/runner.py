"""Who measures: a process of its own, of which nothing stays behind, or this one.

Whatever a trial does (it is killed, crashes, hangs, takes all memory), this process goes on,
and has the reason in words.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import pickle
import re
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import psutil

from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.sharing import PickledFile
from fastdata.errors import FastdataError, WorkerError
from fastdata.tuning.fitting import RESERVE_BYTES
from fastdata.tuning.serving import Answer, run
from fastdata.tuning.subject import Recipe, Subject

__all__ = ["LocalRunner", "ProcessRunner", "Runner", "TrialFailedError", "UnsentError"]

PROCESS_NAME = "fastdata-tuner"
START_SECONDS = 120.0
"""For the interpreter, torch, and what the user's modules import."""

_TICK_SECONDS = 0.1
_SHM = Path("/dev/shm")


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


class UnsentError(TrialFailedError):
    """The process that measures cannot have what it is to measure, or does not start with it."""


class Runner(Protocol):
    """Calls methods of a `Subject`."""

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Return what a method returns.

        Raises
        ------
        TrialFailedError
            If it raises, dies, takes more than `seconds` or too much memory.
        """

    def close(self) -> None: ...


class LocalRunner:
    """This process: no limit, no time-out.

    Parameters
    ----------
    recipe : Recipe
    """

    def __init__(self, recipe: Recipe) -> None:
        self._subject = Subject(recipe)

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Call a method; `seconds` is not looked at."""
        try:
            return getattr(self._subject, name)(*arguments)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise TrialFailedError(
                " ".join(text.split()), error if isinstance(error, FastdataError) else None
            ) from error

    def close(self) -> None:
        """Nothing stays."""


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
        self._lives: list[_Life] = []
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
        self._lives.append(_Life(process, here))

    def _ask(self, life: _Life, request: tuple[str, tuple[Any, ...]], seconds: float) -> Answer:
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
                raise _death(life)
            if time.monotonic() > deadline:
                raise TrialFailedError(
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


class _Life:
    """One process, from its start to its end."""

    def __init__(self, process: Any, end: Connection) -> None:
        self.process = process
        self.end = end
        self.fresh = True

    def kill(self) -> None:
        """End the process and all that it has started, and tidy up after them.  Idempotent."""
        leader = self.process.pid
        members = _tree(leader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        self.process.kill()
        self.process.join()
        psutil.wait_procs(members, timeout=5.0)
        _remove_shared([leader, *(member.pid for member in members)])
        self.end.close()
        self.process.close()


def _tree(leader: int) -> list[psutil.Process]:
    """Return who was started by a process: its descendants, and its group's orphans."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        found = {child.pid: child for child in psutil.Process(leader).children(recursive=True)}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid != leader and pid not in found and os.getpgid(pid) == leader:
                found[pid] = psutil.Process(pid)
    return list(found.values())


def _remove_shared(pids: Sequence[int]) -> None:
    """Remove memory that torch has named after processes which are no more."""
    if not _SHM.is_dir():
        return
    for file in _SHM.glob("torch_*"):
        match = re.match(r"torch_(\d+)_", file.name)
        if match and int(match[1]) in pids:
            file.unlink(missing_ok=True)


def _close(lives: list[_Life], recipe: PickledFile, temporary: str, owner: int) -> None:
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


def _death(life: _Life) -> TrialFailedError:
    """Return why a process is no more."""
    life.process.join(1.0)
    code = life.process.exitcode
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
