"""How what came of a task, value or exception, gets from one process to another."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from fastdata.engine.sharing import Packet
from fastdata.errors import WorkerError

__all__ = ["DONE", "FAILED", "WorkerTraceback", "outcome_of", "packet_of_error", "packet_of_value"]

DONE, FAILED = 0, 1
"""Kinds of packets."""


class WorkerTraceback(Exception):  # noqa: N818  (it is no error: it is where one was)
    """The cause of an exception that was raised in a worker: its traceback there, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def packet_of_value(ticket: int, value: Any) -> Packet:
    """Return what a worker sends for a value; raises what pickling it does."""
    return Packet(ticket, DONE, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def packet_of_error(ticket: int, error: BaseException) -> Packet:
    """Return what a worker sends for an exception, which need not be picklable."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except Exception:  # an exception may hold anything
        pickled = b""
    content = pickled, str(error), text, trace
    return Packet(ticket, FAILED, pickle.dumps(content, pickle.HIGHEST_PROTOCOL))


def outcome_of(packet: Packet) -> tuple[Any, BaseException | None]:
    """Return value and exception of a worker's packet.

    Unpickling runs code of the user's, which may raise: that too is an outcome.
    """
    if packet.lost:
        return None, WorkerError(
            "the result of a worker process could not be received: too many open files. Raise the "
            "limit (ulimit -n), or keep fewer batches"
        )
    try:
        content = pickle.loads(packet.payload)
    except Exception as error:
        return None, WorkerError(f"a worker's result cannot be unpickled here: {error!r}")
    return (content, None) if packet.kind == DONE else (None, _raised(*content))


def _raised(pickled: bytes, message: str, text: str, trace: str) -> BaseException:
    try:
        error: BaseException = pickle.loads(pickled)
        if str(error) != message:
            # Its class makes a message of its arguments, and now has made one
            # of the message.
            error.args = (message,)
    except Exception:  # a class that takes other arguments, or is unknown here
        error = WorkerError(f"a worker process raised what cannot be sent: {text}")
    error.__cause__ = WorkerTraceback(trace)
    return error
