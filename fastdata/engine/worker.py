"""What runs in a worker process: one task after another, until nobody has more.

A worker ends by itself when its pool is closed and when the process that made
it is gone, whatever that died of and whatever it is working on.
"""

from __future__ import annotations

import errno
import gc
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
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.outcomes import packet_of_error, packet_of_value
from fastdata.engine.sharing import Packet, PickledFile, map_file, receive, send
from fastdata.engine.signals import STOPPING
from fastdata.transforms.generators import own_generators

__all__ = [
    "NOT_STARTED",
    "NO_BLOCK",
    "READY",
    "Work",
    "run_worker",
]

Work: TypeAlias = "Callable[[Any, NDArray[np.uint8] | None], Any]"

NO_BLOCK = -1
"""A task's packet has its block's number as its kind, or this."""

READY, NOT_STARTED = 2, 3
"""Kinds of a worker's packets, besides outcomes; their ticket is its process ID."""

_TICK_SECONDS = 1.0
_MAP_SECONDS = 5.0
"""A block not used for so long is unmapped: mapping it again costs a few ms."""


def run_worker(work: Work | PickledFile, tasks: socket.socket, results: socket.socket) -> None:
    """Take tasks and send results; the main function of a worker process."""
    _become_worker()
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


def _become_worker() -> None:
    """Leave the terminal's signals to the parent, end with it, and take one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a process of multiprocessing"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    own_generators()
    # What is there now, torch's half a million objects, is looked through no more.
    gc.freeze()
    # OpenCV reads it when it is imported, which may be later.
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
    if "cv2" in sys.modules:
        # A fork's parent has ended its threads: otherwise this waits for them for ever.
        sys.modules["cv2"].setNumThreads(1)


def _end_with(parent: Any) -> None:
    """End this process when its parent has ended.

    The sentinel alone is not enough: it is a pipe that is closed once the parent
    *and all it has forked since* are gone.
    """
    signs = [parent.sentinel]
    try:
        signs.append(os.pidfd_open(parent.pid))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        pass  # not Linux, or a container that forbids it
    home = os.getppid()
    while not wait(signs, _TICK_SECONDS) and os.getppid() == home:
        pass
    os._exit(1)


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
        return packet_of_value(packet.ticket, work(pickle.loads(packet.payload), memory))
    except BaseException as error:  # SystemExit too: it is the transform's, not the worker's
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
        """Unmap what the parent has probably freed, and would otherwise stay in memory."""
        before = time.monotonic() - _MAP_SECONDS
        while self._maps:
            number, (_, used) = next(iter(self._maps.items()))
            if used > before:
                return
            del self._maps[number]
