"""Signals that stop a process, held back while it does what they must not cut short."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["STOPPING", "signals_held"]

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals that stop a process; they arrive at the end.

    What their handlers raise would be lost in the hooks that Python runs around a fork
    ("Exception ignored in"), and a new process would still have its parent's handlers; raised
    as a lock of Python's library is taken, it would leave that locked.

    Notes
    -----
    They are blocked, for a process that is forked meanwhile.  That is not enough: another
    thread takes a signal that this one blocks, and Python then runs its handler in the main
    thread.  So there the handlers are replaced by one that notes the signal.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)

    handlers: dict[signal.Signals, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
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
    """Set handlers, all of them, even if one that is set is called at once and raises."""
    if handlers:
        number, handler = handlers[0]
        try:
            signal.signal(number, handler)
        finally:
            _restore(handlers[1:])
