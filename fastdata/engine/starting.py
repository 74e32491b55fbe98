"""How worker processes are started, under every start method."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

from fastdata.engine.sharing import PickledFile
from fastdata.engine.signals import signals_held
from fastdata.engine.worker import Work, run_worker
from fastdata.errors import OptionError, WorkerError

__all__ = ["PROCESS_NAME", "start_workers"]

PROCESS_NAME = "fastdata-worker"


def start_workers(
    work: Work,
    num_workers: int,
    context: str | BaseContext | None,
    ends: tuple[socket.socket, socket.socket],
) -> Iterator[Any]:
    """Start processes, and yield each as soon as it is there; they need not be up yet.

    Parameters
    ----------
    work, num_workers, context
        As of `fastdata.engine.processes.ProcessPool`.
    ends : pair of sockets
        Where tasks come from, and where results go.

    Raises
    ------
    OptionError
        If there is no such context, or `work` cannot be pickled and has to be.
    WorkerError
        If processes cannot be started here.
    """
    if num_workers < 1:
        raise OptionError(f"a pool of processes has 1 worker or more, not {num_workers}")
    made = _context(context)
    forked = made.get_start_method() == "fork"
    with contextlib.ExitStack() as stack:
        sent = work if forked else stack.enter_context(_pickled(work))
        if forked:
            stack.enter_context(_forking())
        for number in range(num_workers):
            process = made.Process(
                target=run_worker,
                args=(sent, *ends),
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
            # multiprocessing would end it when a process that the user forks from
            # this one exits.
            getattr(multiprocessing.process, "_children", set()).discard(process)
            yield process


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
    try:
        file = PickledFile.of(work)
    except Exception as error:  # a user's object may raise anything
        raise OptionError(
            f"the dataset and transforms cannot be sent to worker processes: "
            f"{type(error).__name__}: {error}. Define transforms at the top level of a module "
            '(no lambda, no local function), or use multiprocessing_context="fork" or '
            'worker_method="thread"'
        ) from error
    with contextlib.closing(file):
        yield file


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
    with signals_held():
        try:
            if set_threads is not None:
                set_threads(1)
            yield
        finally:
            if set_threads is not None:
                set_threads(threads)
