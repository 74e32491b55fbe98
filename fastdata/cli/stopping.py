"""Ctrl-C twice: the first lets what is open be closed, the second ends it there and then."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from fastdata.cli.shell import Terminated

__all__ = ["stopped_by_signals"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@contextlib.contextmanager
def stopped_by_signals(said: str) -> Iterator[None]:
    """Stop what is done inside the block by Ctrl-C or SIGTERM, even where it is slow to close.

    The first signal raises, as ever, and everything is closed.  Closing may wait for workers,
    and a second exception in the midst of that would leave some of them, or be printed by
    whatever cannot raise it.  So a second signal kills all child processes and ends this one.

    Parameters
    ----------
    said : str
        What to say after the second, behind what stopped it.

    Raises
    ------
    KeyboardInterrupt, Terminated

    Notes
    -----
    In a thread that is not the main one nothing is done: only that one may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, count, over = os.getpid(), 0, False

    def stop(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if os.getpid() != owner:
            # A forked worker has this handler too.  Ctrl-C it gets together with its parent, and
            # torch's know what to do then; SIGTERM is its parent's way of ending it.
            if number == signal.SIGTERM or count > 1:
                os._exit(128 + number)
            raise KeyboardInterrupt
        if count > 1:
            _end(number, None if over else said)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before: dict[signal.Signals, Any] = {n: signal.signal(n, stop) for n in _NAMES}
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        _let_go(error)
        raise
    finally:
        over = True
        if not count:  # else the process is about to end, which a second one may hasten
            for number, handler in before.items():
                signal.signal(number, handler)


def _let_go(error: BaseException | None) -> None:
    """Close what only the frames of an error hold, here and not when the interpreter ends."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _end(number: int, said: str | None) -> None:
    """End this process and its children at once, without any code of theirs.

    Nothing is said where it has been said already.
    """
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            child.kill()
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # in the midst of a write, say
        sys.stdout.flush()
    if said is not None:
        line = f"fastdata: stopped by {_NAMES[signal.Signals(number)]}. {said}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
    os._exit(128 + number)
