"""Memory and messages between processes, of which nothing is left behind.

Shared memory is a file without a name, mapped; it is gone with the last process
that has it.  A packet is one message of a ``SOCK_SEQPACKET`` socket: it arrives
whole or not at all, also when its sender is killed, and several processes can
read from one socket, each packet going to one of them.  Files travel with it.
What came of a task, a value or an exception, is a packet too.
"""

from __future__ import annotations

import array
import functools
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import traceback
from multiprocessing.reduction import DupFd
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import WorkerError

__all__ = [
    "NOT_STARTED",
    "NO_BLOCK",
    "READY",
    "Packet",
    "PickledFile",
    "Pieces",
    "WorkerTraceback",
    "map_file",
    "new_file",
    "outcome_of",
    "packet_of_error",
    "packet_of_value",
    "pickled",
    "receive",
    "send",
    "socket_pair",
]

NO_BLOCK = -1
"""A task's packet has its block's number as its kind, or this."""

DONE, FAILED = 0, 1
"""Kinds of a worker's packets that are outcomes of a task: a value, an exception."""

READY, NOT_STARTED = 2, 3
"""The other kinds; their ticket is the worker's process ID."""

_HEAD = struct.Struct("<qq?")
"""Two numbers, and whether the payload is in a file."""

_LARGEST_PAYLOAD = 1 << 16
"""Bytes sent as they are: well below what a socket holds by default (208 KiB)."""

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_RIGHTS_SPACE = socket.CMSG_SPACE(2 * array.array("i").itemsize)

_OF_NUMPY = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types that tensors and arrays have in common."""


def new_file(nbytes: int) -> int:
    """Return the descriptor of a new file of `nbytes` zeros, in memory, without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fastdata", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="fastdata-") as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_file(descriptor: int, nbytes: int) -> NDArray[np.uint8]:
    """Return a file's first `nbytes` bytes as a shared, writable array, uint8 [nbytes].

    The array needs the descriptor no longer: ``mmap.mmap`` would keep a second
    one, and a user who keeps five hundred batches would be out of descriptors.
    """
    import torch  # takes a second, and a pack has no such memory

    tensor = torch.from_file(f"/dev/fd/{descriptor}", shared=True, size=nbytes, dtype=torch.uint8)
    memory: NDArray[np.uint8] = tensor.numpy()
    return memory


class PickledFile:
    """A pickled object in a file, of which a process that is started gets the descriptor.

    multiprocessing itself would write the object into a pipe, and wait for ever
    where the worker dies before it has read all of it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, value: Any) -> PickledFile:
        """Pickle an object; raises what that does."""
        return cls(_written(pickled(value)))

    def __reduce__(self) -> Any:
        return _received, (DupFd(self._descriptor),)

    def load(self) -> Any:
        """Return the object, and close the file."""
        # Read by position: that of the file is shared by all who have it.
        with open(self._descriptor, "rb") as file:
            return pickle.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _received(descriptor: Any) -> PickledFile:
    return PickledFile(descriptor.detach())


class Pieces(list[Any]):
    """Bytes in pieces, as a pickler writes them: large ones are not copied into one another."""

    write = list.append


def pickled(value: Any) -> Pieces:
    """Pickle an object, which has to live as long as the pieces; raises what that does."""
    pieces = Pieces()
    pickle.Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(value)
    return pieces


class Packet(NamedTuple):
    """One message.

    Attributes
    ----------
    ticket, kind : int
        Whatever sender and receiver agree on.
    payload : bytes or Pieces; memoryview if it has arrived in a file
        Of any size.
    descriptor : int or None
        A file that is sent along.  The receiver's is the receiver's to close.
    lost : bool
        The receiver had no descriptor left for a file; payload and descriptor
        are missing.
    """

    ticket: int
    kind: int
    payload: bytes | Pieces | memoryview = b""
    descriptor: int | None = None
    lost: bool = False

    @property
    def content(self) -> bytes | memoryview:
        """The payload in one piece."""
        return b"".join(self.payload) if isinstance(self.payload, Pieces) else self.payload


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection for packets."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.settimeout(None)  # whatever ``socket.setdefaulttimeout`` says
    return pair


def send(end: socket.socket, packet: Packet) -> None:
    """Send a packet.

    Raises
    ------
    OSError
        `BlockingIOError` if `end` does not block and is full; in that case
        nothing has been sent.  With errno ETOOMANYREFS, too many files are on
        their way; `BrokenPipeError` if nobody can receive it any more.
    """
    pieces = packet.payload if isinstance(packet.payload, Pieces) else Pieces([packet.payload])
    descriptors = [] if packet.descriptor is None else [packet.descriptor]
    in_file = sum(memoryview(piece).nbytes for piece in pieces) > _LARGEST_PAYLOAD
    if in_file:
        descriptors.append(_written(pieces))
        pieces = Pieces()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        end.sendmsg(
            [_HEAD.pack(packet.ticket, packet.kind, in_file), *pieces],
            rights if descriptors else [],
        )
    finally:
        if in_file:
            os.close(descriptors[-1])


def receive(end: socket.socket) -> Packet | None:
    """Return the next packet, or None if no more can come.

    Raises
    ------
    BlockingIOError
        If there is none (yet) and `end` does not block, or not any longer.
    """
    data, ancillary, flags, _ = end.recvmsg(_HEAD.size + _LARGEST_PAYLOAD, _RIGHTS_SPACE, _CLOEXEC)
    if not data:
        return None
    descriptors = array.array("i")
    for _level, _type, rights in ancillary:
        descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
    ticket, kind, in_file = _HEAD.unpack_from(data)
    if flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        return Packet(ticket, kind, lost=True)
    payload = _read(descriptors.pop()) if in_file else data[_HEAD.size :]
    return Packet(ticket, kind, payload, descriptors[0] if descriptors else None)


def _written(pieces: Pieces) -> int:
    descriptor = new_file(0)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(pieces)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(descriptor: int) -> memoryview:
    # At once: page faults one by one take as long again as unpickling 10 MB.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    try:
        return memoryview(mmap.mmap(descriptor, 0, flags, mmap.PROT_READ))
    except OSError:  # there is no descriptor left for the second one that a map takes
        return memoryview(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    finally:
        os.close(descriptor)


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
