"""What runs in the process that measures: one request after another, until its parent is gone.

It leads a process group of its own, in which all that it starts stays: ended together, whatever
they are working on, and left alone by a Ctrl-C that is meant for the parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

from fastdata.engine.sharing import PickledFile
from fastdata.errors import FastdataError

__all__ = ["Answer", "in_a_line", "run"]

_TICK_SECONDS = 1.0


class Answer(NamedTuple):
    """What comes back of a request.

    Attributes
    ----------
    kind : {"value", "error", "refused", "unsent"}
        "refused": an error of fastdata's own that says what is wrong with an argument.
        "unsent": what to measure cannot be had in this process.
    value : Any
        Of an error: itself, pickled, where it can be; else empty.
    text : str
        Of an error: its type and message, in a line.
    """

    kind: Literal["value", "error", "refused", "unsent"]
    value: Any = None
    text: str = ""


def run(recipe: PickledFile, end: Connection, temporary: str, start_method: str | None) -> None:
    """Answer requests: the main function of the process.

    Parameters
    ----------
    recipe : PickledFile
        A function, and the argument of which it makes what has the methods.
    end : Connection
        Where requests come from: a method's name and its arguments.
    temporary : str
        Folder for temporary files of everything that runs here.  The parent removes it; where
        the parent was killed, this process does.
    start_method : str or None
        How the parent starts processes: as loaders would there, they do here.
    """
    os.setpgid(0, 0)
    os.dup2(2, 1)  # what the user's code prints is no part of a command's output
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a process of multiprocessing"
    threading.Thread(target=_end_with, args=(parent, temporary), daemon=True).start()
    # A spawned process would spawn its own.
    multiprocessing.set_start_method(start_method, force=True)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    subject: Any = None
    while True:
        try:
            name, arguments = end.recv()
        except EOFError:
            return
        try:
            if subject is None:
                try:
                    make, spec = recipe.load()
                except Exception as error:  # classes of a notebook, say
                    end.send(_failed(error)._replace(kind="unsent"))
                    return
                subject = make(spec)
            # No name: it is asked whether all is there.
            answer = Answer("value", getattr(subject, name)(*arguments) if name else None)
        except BaseException as error:  # SystemExit too: it is the user's code's
            answer = _failed(error)
        with contextlib.suppress(BrokenPipeError):
            end.send(answer)
        answer = Answer("value")


def in_a_line(error: BaseException) -> str:
    """Return an error's type and message, in one line.

    Of one that a worker has sent, with its traceback as text: the last line, which says it.
    """
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    if "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    return " ".join(text.split())


def _failed(error: BaseException) -> Answer:
    text = in_a_line(error)
    try:
        error.__traceback__ = None
        kept = pickle.dumps(error)
        pickle.loads(kept)
    except Exception:  # a user's error may do anything
        kept = b""
    return Answer("refused" if isinstance(error, FastdataError) else "error", kept, text)


def _end_with(parent: Any, temporary: str) -> None:
    """End this process, and all that it has started, when its parent has ended."""
    signs = [parent.sentinel]
    try:
        signs.append(os.pidfd_open(parent.pid))
    except ProcessLookupError:
        _end(temporary)
    except (AttributeError, OSError):
        pass  # not Linux, or a container that forbids it
    home = os.getppid()
    while not wait(signs, _TICK_SECONDS) and os.getppid() == home:
        pass
    _end(temporary)


def _end(temporary: str) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
