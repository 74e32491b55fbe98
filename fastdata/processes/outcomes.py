"""How what came of a task, value or exception, gets from one process to another."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import torch

from fastdata.errors import WorkerError
from fastdata.processes.sharing import Packet, Pieces

__all__ = ["DONE", "FAILED", "WorkerTraceback", "outcome_of", "packet_of_error", "packet_of_value"]

DONE, FAILED = 0, 1
"""Kinds of packets."""

_OF_NUMPY = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_OF_NUMPY |= {torch.float16, torch.float32, torch.float64}


class WorkerTraceback(Exception):  # noqa: N818  (it is no error: it is where one was)
    """The cause of an exception that was raised in a worker: its traceback there, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def packet_of_value(ticket: int, value: Any) -> Packet:
    """Return what a worker sends for a value; raises what pickling it does."""
    pieces = Pieces()
    _Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(value)
    return Packet(ticket, DONE, pieces)


class _Pickler(pickle.Pickler):
    """Sends tensors as arrays.

    torch's own way takes 360 us for a tensor of two numbers, where this takes 10, sends the whole
    storage that a tensor is a view of, and warns of itself in torch 2.4 and 2.5.
    """

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is torch.Tensor and value.dtype in _OF_NUMPY and not value.requires_grad
        if not plain or value.device.type != "cpu" or value.layout != torch.strided:
            return NotImplemented
        return torch.from_numpy, (value.contiguous().numpy(),)


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
        content = pickle.loads(packet.content)
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
