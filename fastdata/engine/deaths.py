"""What to say when a worker process has died: of what, why that may be, what to do."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from fastdata.native.faults import shortened_files

__all__ = ["death_explained"]

_REAP_SECONDS = 1.0
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def death_explained(process: Any, *, started: bool, error: str) -> str:
    """Return the message of an error.

    Parameters
    ----------
    process : multiprocessing process
        One that has ended.
    started : bool
        Whether it ever got as far as asking for tasks.
    error : str
        The traceback of a worker that could not unpickle its work, or "".
    """
    process.join(_REAP_SECONDS)
    who = f"worker process {process.name} (pid {process.pid})"
    if error:
        return (
            f"{who} could not be started: what it works on cannot be unpickled there. Define "
            'transforms in a module that can be imported, or use worker_method="thread".\n'
            f"{error}"
        )
    code = process.exitcode
    if code is not None and code < 0:
        return f"{who} was killed by {_signal_explained(-code)}"
    how = "" if code is None else f" with exit code {code}"  # None: reaped by somebody else
    if started:
        return f"{who} ended{how} while the loader needed it; was os._exit called in a transform?"
    return (
        f"{who} died{how} as it started; its own message is above, on standard error. In a script, "
        "use the loader under `if __name__ == '__main__':`; worker_method=\"thread\" does without "
        "processes"
    )


def _signal_explained(number: int) -> str:
    name = f"signal {number}"
    with contextlib.suppress(ValueError):  # most real-time signals have no names
        name = signal.Signals(number).name
    if number == signal.SIGKILL:
        return (
            f"{name}. Most likely the system was out of memory (`dmesg` tells): use fewer workers, "
            "smaller batches or a smaller prefetch_factor"
        )
    if number == signal.SIGBUS:
        files = ", ".join(map(str, shortened_files()))
        which = f"{files} was cut short or overwritten" if files else "see standard error: which"
        return (
            f"{name}: a file that it reads through a memory map could not be read ({which}). "
            "Restore the file; put a new one in the place of one that is in use by renaming (mv), "
            "never by writing over it (cp)"
        )
    if number in _CRASHES:
        return (
            f"{name}. A library crashed, perhaps on one broken image: with num_workers=0 and "
            "`python -X faulthandler` you see where"
        )
    return f"{name}. Somebody has stopped it"
