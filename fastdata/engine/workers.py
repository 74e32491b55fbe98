"""Which workers there are, and how many batches they are ahead."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Literal, TypeAlias

from fastdata.engine.job import Work, Workers
from fastdata.engine.processes import ProcessPool
from fastdata.engine.threads import CallerWorkers, ThreadWorkers

__all__ = ["WorkerMethod", "WorkerOptions", "choose_method"]

WorkerMethod: TypeAlias = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How batches are made.

    Attributes
    ----------
    num_workers : int
        0 makes them in the calling thread.
    method : {"thread", "process"}
    prefetch_factor : int
        Batches made ahead of the one that is waited for.
    persistent : bool
        Whether workers outlive an epoch, and go on with the next.
    context : str or multiprocessing context, optional
        How processes are started; the default is the platform's.
    """

    num_workers: int
    method: WorkerMethod = "thread"
    prefetch_factor: int = 2
    persistent: bool = True
    context: str | BaseContext | None = None

    @property
    def ahead(self) -> int:
        """Batches in the making behind the one that is waited for."""
        return self.prefetch_factor if self.num_workers else 0

    def start(self, work: Work) -> Workers:
        """Return workers that do `work`."""
        if self.num_workers == 0:
            return CallerWorkers(work)
        if self.method == "thread":
            return ThreadWorkers(work, self.num_workers)
        return ProcessPool(work, self.num_workers, context=self.context)


def choose_method(
    num_workers: int,
    *,
    calls_python: bool,
    releases_lock: bool = False,
    context: str | BaseContext | None = None,
) -> WorkerMethod:
    """Return what ``worker_method="auto"`` means.

    Parameters
    ----------
    num_workers : int
    calls_python : bool
        Whether Python functions of the user's run on each sample.
    releases_lock : bool
        Whether the compiled library does nearly all of the work.
    context : str or multiprocessing context, optional
        How processes would be started.

    Notes
    -----
    What the compiled library does scales with threads as with processes, and they
    start at once and share all memory.  Callables are for processes, even for one: only there
    can the generators be seeded that they draw from (`fastdata.transforms.generators`), so that
    batches are the same for any number of workers.  Other Python code runs in one thread at a
    time, except in a free-threaded interpreter, and threads that wait for each other
    lose more than that time: without that library, two processes make 1.1 times as
    many JPEGs as two threads, 1.2 times as many raw images that are resized, and 1.6
    times as many raw ones of 32 x 32 (``docs/design/loading.md``).  Processes that
    are not forked take seconds to start, and a script that is made for them: only
    callables are worth that without being asked for.
    """
    if calls_python and num_workers:
        return "process"
    if num_workers <= 1 or releases_lock or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "thread"
    return "process" if _forks(context) else "thread"


def _forks(context: str | BaseContext | None) -> bool:
    """Return whether processes are started by fork."""
    method = context.get_start_method() if isinstance(context, BaseContext) else context
    return (method or multiprocessing.get_start_method(allow_none=False)) == "fork"
