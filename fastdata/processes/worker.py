"""What runs in a worker process: one task after another, until the pool is closed.

A worker also ends by itself when the process that made it has ended, whatever killed that and
whatever the worker is doing.
"""

from __future__ import annotations

import errno
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
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.processes.resources import share_memory
from fastdata.processes.sharing import (
    NOT_STARTED,
    READY,
    Packet,
    PickledFile,
    map_file,
    packet_of_error,
    packet_of_value,
    receive,
    send,
)

__all__ = [
    "STOPPING",
    "Work",
    "end_now",
    "have_one_opencv_thread",
    "run_worker",
]

Work: TypeAlias = "Callable[[Any, NDArray[np.uint8] | None], Any]"
"""The work on a task: writes large results to the memory, and returns small ones.

Picklable and thread-safe."""

STOPPING = (signal.SIGINT, signal.SIGTERM)

_IMPORTED_IN, _OPENCV_WAS_THERE = os.getpid(), "cv2" in sys.modules

_TICK_SECONDS = 1.0
_MAP_SECONDS = 5.0
"""Idle time after which a block is unmapped: mapping it again costs a few ms."""


def have_one_opencv_thread() -> None:
    """Have OpenCV compute on one thread; for the `set_up` of a `Role`.

    A fork server may have run the script, and OpenCV with threads.  Its children lack these
    threads, and would block forever when they set their number: there the number stays, and OpenCV
    computes in the calling thread.
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
    num_workers: int,
) -> None:
    """Take tasks and send results; the main function of a worker process.

    `set_up` and `end` are those of the pool's `Role`; `num_workers` share the free memory.
    """
    set_up()
    share_memory(num_workers)
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
        return packet_of_error(packet.ticket, error)


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
        """Unmap blocks that the parent has probably freed."""
        before = time.monotonic() - _MAP_SECONDS
        while self._maps:
            number, (_, used) = next(iter(self._maps.items()))
            if used > before:
                return
            del self._maps[number]
