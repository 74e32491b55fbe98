"""Workers that are processes: a pool whose tasks write to the memory of batches."""

from __future__ import annotations

import gc
import os
import signal
import sys
from multiprocessing.context import BaseContext
from typing import Any

import torch

from fastdata.engine.buffers import Slot
from fastdata.errors import OptionError
from fastdata.native.faults import shortened_files
from fastdata.processes.pool import ProcessPool, SharedBlock, Ticket
from fastdata.processes.starting import Death, Role, UnpicklableWorkError
from fastdata.processes.worker import Work
from fastdata.transforms.generators import allow_seeding_in_process

__all__ = ["ProcessWorkers"]

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


class ProcessWorkers:
    """Worker processes; a `fastdata.engine.job.Workers`.

    They ignore Ctrl-C and compute on one thread each.  See `ProcessPool` for the parameters and
    for how they end.
    """

    def __init__(
        self, work: Work, num_workers: int, *, context: str | BaseContext | None = None
    ) -> None:
        try:
            self.pool = ProcessPool(work, num_workers, _ROLE, context=context)
        except UnpicklableWorkError as error:
            raise OptionError(
                f"the dataset and transforms cannot be sent to worker processes: {error}. Define "
                "transforms at the top level of a module (no lambda, no local function), or use "
                'multiprocessing_context="fork" or worker_method="thread"'
            ) from error.__cause__
        self.check, self.close = self.pool.check, self.pool.close

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers; empty after the end."""
        return self.pool.pids

    def submit(self, task: Any, slot: Slot | None = None) -> Ticket:
        """Give a task to whichever worker is idle; its slot is kept until the task is done."""
        if slot is None:
            return self.pool.submit(task)
        block = slot.block
        if block.descriptor is None:
            raise OptionError(f'a task\'s memory is of kind "shared", not {block}')
        return self.pool.submit(task, SharedBlock(block.number, block.descriptor, slot))


def _set_up() -> None:
    """Leave the terminal's signals to the parent, and compute on one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    allow_seeding_in_process()
    # The garbage collector need not look through torch's half a million objects again.
    gc.freeze()
    # OpenCV reads it when it is imported, which may be later.
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
    if "cv2" in sys.modules:
        # A fork's parent has ended its threads: otherwise this waits for them for ever.
        sys.modules["cv2"].setNumThreads(1)


def _explain_death(death: Death) -> str:
    """Return what a worker died of, why that may be and what to do."""
    if death.start_error:
        return (
            f"{death}. Define transforms in a module that can be imported, or use "
            f'worker_method="thread".\n{death.start_error}'
        )
    number = death.signal
    if number is None and death.ready:
        return f"{death} while the loader needed it; was os._exit called in a transform?"
    if number is None:
        return (
            f"{death}; its own message is above, on standard error. In a script, use the loader "
            "under `if __name__ == '__main__':`; worker_method=\"thread\" does without processes"
        )
    if number == signal.SIGKILL:
        return (
            f"{death}. Most likely the system was out of memory (`dmesg` tells): use fewer "
            "workers, smaller batches or a smaller prefetch_factor"
        )
    if number == signal.SIGBUS:
        files = ", ".join(map(str, shortened_files()))
        which = f"{files} was cut short or overwritten" if files else "see standard error: which"
        return (
            f"{death}: a file that it reads through a memory map could not be read ({which}). "
            "Restore the file; put a new one in the place of one that is in use by renaming (mv), "
            "never by writing over it (cp)"
        )
    if number in _CRASHES:
        return (
            f"{death}. A library crashed, perhaps on one broken image: with num_workers=0 and "
            "`python -X faulthandler` you see where"
        )
    return f"{death}. Somebody has stopped it"


_ROLE = Role(
    name="fastdata-worker",
    set_up=_set_up,
    remedy=(
        "In a script, use the loader under `if __name__ == '__main__':`; "
        'worker_method="thread" works everywhere'
    ),
    explain_death=_explain_death,
)
