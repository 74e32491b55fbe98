"""What runs in a worker process: one task after another, until the pool is closed.

A worker also ends by itself when the process that made it has ended, whatever killed that and
whatever the worker is doing.  What came of a task, value or exception, is sent as a packet.
"""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import WorkerError
from fastdata.processes.sharing import Packet, PickledFile, Pieces, map_file, receive, send

__all__ = [
    "NOT_STARTED",
    "NO_BLOCK",
    "READY",
    "STOPPING",
    "Work",
    "WorkerTraceback",
    "end_now",
    "have_one_opencv_thread",
    "outcome_of",
    "packet_of_value",
    "run_worker",
]

Work: TypeAlias = "Callable[[Any, NDArray[np.uint8] | None], Any]"
"""What a worker does with a task: leaves in the memory what is large, and returns what is small.

Picklable, and safe in any number of threads."""

STOPPING = (signal.SIGINT, signal.SIGTERM)

NO_BLOCK = -1
"""A task's packet has its block's number as its kind, or this."""

DONE, FAILED = 0, 1
"""Kinds of a worker's packets that are outcomes of a task: a value, an exception."""

READY, NOT_STARTED = 2, 3
"""The other kinds; their ticket is the worker's process ID."""

_IMPORTED_IN, _OPENCV_WAS_THERE = os.getpid(), "cv2" in sys.modules

_TICK_SECONDS = 1.0
_MAP_SECONDS = 5.0
"""A block not used for so long is unmapped: mapping it again costs a few ms."""

_OF_NUMPY = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types that tensors and arrays have in common."""


def have_one_opencv_thread() -> None:
    """Have OpenCV compute on one thread; for the `set_up` of a `Role`.

    A fork server may have run the script as its own preparation, and OpenCV with threads.  What it
    forks has none of them, and waits for them for ever as soon as it sets their number: there the
    number stays, and OpenCV computes in the thread that calls it.
    """
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"  # read when it is imported, which may be later
    if "cv2" not in sys.modules:
        return
    parent = multiprocessing.parent_process()
    served = parent is not None and parent.pid != os.getppid()
    imported_here = os.getpid() == _IMPORTED_IN and not _OPENCV_WAS_THERE
    if imported_here or not served:  # a parent that forks has ended its threads
        sys.modules["cv2"].setNumThreads(1)


def run_worker(
    work: Work | PickledFile,
    tasks: socket.socket,
    results: socket.socket,
    set_up: Callable[[], None],
    end: Callable[[], NoReturn],
) -> None:
    """Take tasks and send results; the main function of a worker process.

    `set_up` and `end` are those of the pool's `Role`.
    """
    set_up()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    _end_with_parent(end)
    try:
        try:
            if isinstance(work, PickledFile):
                work = work.load()
            assert not isinstance(work, PickledFile)
        except BaseException:
            send(results, Packet(os.getpid(), NOT_STARTED, traceback.format_exc().encode()))
            return
        send(results, Packet(os.getpid(), READY))
        _serve(work, tasks, results)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the pool was closed


def end_now() -> NoReturn:
    """End this process at once."""
    os._exit(1)


def _end_with_parent(end: Callable[[], NoReturn]) -> None:
    """Have a thread call `end` when the parent of this process has ended.

    The sentinel alone is not enough: it is a pipe that is closed once the parent
    *and all it has forked since* are gone.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a process of multiprocessing"
    signs = [parent.sentinel]
    try:
        signs.append(os.pidfd_open(parent.pid or 0))
    except ProcessLookupError:
        end()
    except (AttributeError, OSError):
        pass  # not Linux, or a container that forbids it
    home = os.getppid()

    def watch() -> None:
        while not wait(signs, _TICK_SECONDS) and os.getppid() == home:
            pass
        end()

    threading.Thread(target=watch, daemon=True).start()


def _serve(work: Work, tasks: socket.socket, results: socket.socket) -> None:
    maps = _Maps()
    # The kernel's timeout, not Python's: a blocking recv wakes one worker a task,
    # and the one that has waited longest, where poll would wake them all.
    timeout = struct.pack("@ll", int(_TICK_SECONDS), 0)
    tasks.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    while True:
        maps.drop_unused()
        try:
            packet = receive(tasks)
        except BlockingIOError:
            continue
        if packet is None:
            return
        send(results, _answer(work, packet, maps))


def _answer(work: Work, packet: Packet, maps: _Maps) -> Packet:
    try:
        memory = maps.memory(packet)
        return packet_of_value(packet.ticket, work(pickle.loads(packet.content), memory))
    except BaseException as error:  # SystemExit too: it is the user's code's, not the worker's
        return _packet_of_error(packet.ticket, error)


class _Maps:
    """The blocks that this worker has mapped, the one used last at the end."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[NDArray[np.uint8], float]] = {}

    def memory(self, packet: Packet) -> NDArray[np.uint8] | None:
        """Return the memory that a task writes to, and close its descriptor."""
        if packet.lost:
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} in a worker process")
        if packet.descriptor is None:
            return None
        try:
            memory, _ = self._maps.pop(packet.kind, (None, 0.0))
            if memory is None:
                memory = map_file(packet.descriptor, os.fstat(packet.descriptor).st_size)
        finally:
            os.close(packet.descriptor)
        self._maps[packet.kind] = memory, time.monotonic()
        return memory

    def drop_unused(self) -> None:
        """Unmap what the parent has probably freed, and would otherwise stay in memory."""
        before = time.monotonic() - _MAP_SECONDS
        while self._maps:
            number, (_, used) = next(iter(self._maps.items()))
            if used > before:
                return
            del self._maps[number]


# -- what came of a task, on its way to the other process ---------------------------------


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
        torch = sys.modules.get("torch")  # to import it takes a second; without it, no tensors
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        plain = value.dtype in _numpy_types(torch) and not value.requires_grad
        if not plain or value.device.type != "cpu" or value.layout != torch.strided:
            return NotImplemented
        return torch.from_numpy, (value.contiguous().numpy(),)


@functools.cache
def _numpy_types(torch: ModuleType) -> set[Any]:
    return {getattr(torch, name) for name in _OF_NUMPY}


def _packet_of_error(ticket: int, error: BaseException) -> Packet:
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
