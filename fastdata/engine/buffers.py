"""Memory of batches, reused when its last view is gone.

Fresh memory is expensive: the kernel zeroes each page at the first access,
which made a normalised float32 batch of 256 x 3 x 224 x 224 (154 MB) cost more
than decoding its images.  So blocks are reused: when the last view of a batch
is gone (a tensor, a NumPy array or a storage), its block returns.

    take -> Slot: a lease of a block --- last view dies ---> unused -> take, or freed
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import WorkerError
from fastdata.processes.sharing import map_file, new_file
from fastdata.transforms.pixel import word_dtype

__all__ = ["Block", "BufferPool", "Kind", "Slot", "TensorLayout", "lay_out", "register_pinned"]

log = logging.getLogger("fastdata")

Kind: TypeAlias = Literal["private", "pinned", "shared"]

ALIGNMENT = 64
"""Bytes: that of torch's own memory and of a cache line, and more than any dtype asks for."""

_numbers = itertools.count()


class Block:
    """Memory that goes from batch to batch.

    Its `number` is never used again in this process or those forked from it.  `descriptor` is that
    of the file behind shared memory, open as long as this object lives.
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.number = next(_numbers)
        self.nbytes = nbytes
        self.descriptor = descriptor
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor).atexit = False

    def __repr__(self) -> str:
        kind = "memory" if self.descriptor is None else "shared memory"
        return f"<Block {self.number}: {self.nbytes} bytes of {kind}>"


@dataclass(frozen=True, eq=False)
class Slot:
    """A lease of a block: views of `tensor` keep it; the block alone does not.

    `tensor`, uint8 [n], is the memory, with undefined content, aligned to 64 bytes.  The tensors of
    a batch are views of it.  In pinned memory they share torch's storage, by which torch tracks
    unfinished copies to a GPU; NumPy arrays and tensors of ``torch.from_numpy`` do not.
    """

    tensor: torch.Tensor
    block: Block

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The same memory as an array, uint8 [n]; keeps the lease like any other view."""
        array: NDArray[np.uint8] = self.tensor.numpy()
        return array


class BufferPool:
    """Hands out memory; takes it back by itself.

    At most `keep` unused blocks are kept; more are freed, the oldest first.  So the pool grows
    while a hundred batches are kept, and shrinks after.  Pinned memory is from torch's caching
    allocator, which has its own rules.  A block of shared memory is a file without a name: it can
    be sent to another process, takes no space of ``/dev/shm``, and ends with its last process.

    With `register`, a GPU, shared memory is page-locked for this process: each block is registered
    with CUDA once, and then copied like pinned memory.  If CUDA refuses, the block is used without.
    Callers of asynchronous copies must hold a view.

    Thread-safe.  Slots stay valid after the pool is closed or gone.  A forked process has an empty
    pool; shared memory taken before the fork is the parent's, which will reuse it.
    """

    def __init__(
        self, keep: int, *, kind: Kind = "private", register: torch.device | None = None
    ) -> None:
        self.kind = kind
        self._register = register
        self._state = _State(keep)
        self._largest = 0
        weakref.finalize(self, _State.close, self._state).atexit = False

    def take(self, nbytes: int) -> Slot:
        """Return a slot of `nbytes` bytes of undefined content.

        Raises a `WorkerError` if the system has no shared memory or file descriptors left.
        """
        if self.kind == "pinned":
            tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            block = Block(nbytes)
            self._state.lease(tensor.untyped_storage(), block, None)
            return Slot(tensor, block)
        self._largest = max(self._largest, nbytes)
        block, memory = self._state.unused_of(nbytes) or self._new()
        lease = _Lease(memory)
        self._state.lease(lease, block, memory)
        return Slot(torch.from_numpy(np.asarray(lease)[:nbytes]), block)

    def _new(self) -> _Memory:
        # As large as the largest, so that a short last batch leaves no block
        # that is too small for the next.  Pages never touched take no memory.
        nbytes = max(self._largest, 1)
        if self.kind == "private":
            spacious = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
            start = -spacious.ctypes.data % ALIGNMENT
            return Block(nbytes), spacious[start : start + nbytes]
        try:
            block = Block(nbytes, new_file(nbytes))
            assert block.descriptor is not None
            memory = map_file(block.descriptor, nbytes)
            if self._register is not None and not register_pinned(memory, self._register):
                self._register = None  # nor will it the next one
            return block, memory
        except (OSError, RuntimeError) as error:
            raise WorkerError(
                f"no shared memory for another batch of {nbytes} bytes ({error}); {self.in_use} "
                "batches are in use. Keep fewer batches, or copies of their data (a batch lives as "
                "long as any view of it); raise the limit of open files "
                '(ulimit -n); or use worker_method="thread"'
            ) from error

    @property
    def in_use(self) -> int:
        """Slots that still have a view."""
        return len(self._state.leased)

    @property
    def unused(self) -> int:
        """Blocks that wait for the next batch."""
        return len(self._state.free)

    def close(self) -> None:
        """Free unused blocks now, and others as soon as they come back.  Idempotent."""
        self._state.close()


_Memory: TypeAlias = "tuple[Block, NDArray[np.uint8]]"


class _Lease:
    """Base of all views of a block; without it, NumPy would make them refer to the block."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


@dataclass(eq=False)
class _State:
    """Shared state of a pool and its leases, which must not keep the pool alive.

    A batch may be freed in any thread and, by the garbage collector, in the middle of any line
    here.  So there is no lock, which the thread itself might hold, and no step relies on the
    result of the step before.
    """

    keep: int
    free: dict[int, _Memory] = field(default_factory=dict)  # oldest first
    leased: dict[int, None] = field(default_factory=dict)
    owner: int = field(default_factory=os.getpid)

    def unused_of(self, nbytes: int) -> _Memory | None:
        """Take the most recently returned block that is large enough."""
        if os.getpid() != self.owner:  # forked: these blocks are the parent's
            self.free, self.leased, self.owner = {}, {}, os.getpid()
        for number, (block, _) in reversed(list(self.free.items())):
            if block.nbytes >= nbytes:
                found = self.free.pop(number, None)
                if found is not None:
                    return found
        return None

    def lease(self, lease: Any, block: Block, memory: NDArray[np.uint8] | None) -> None:
        """Have a block come back when `lease` dies; without `memory`, it is only counted."""
        self.leased[block.number] = None
        weakref.finalize(lease, self._give_back, os.getpid(), block, memory).atexit = False

    def _give_back(self, owner: int, block: Block, memory: NDArray[np.uint8] | None) -> None:
        if os.getpid() != owner:
            return
        self.leased.pop(block.number, None)
        if memory is not None:
            self.free[block.number] = block, memory
            self._trim()

    def _trim(self) -> None:
        for number in list(self.free)[: max(0, len(self.free) - self.keep)]:
            self.free.pop(number, None)

    def close(self) -> None:
        self.keep = 0
        self._trim()


# -- where the arrays of a batch lie in a slot -------------------------------------------


class TensorLayout(NamedTuple):
    """Place of an array in a slot; picklable, for worker processes.

    It is the array of the image field `name`, at byte `offset`; `shape` is [N, H, W, C].  Its
    memory is contiguous in that order, or, if `planar`, as [N, C, H, W].  `view` is the number of
    the view, by default 0.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    view: int = 0
    planar: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that the array takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the array [N, H, W, C] for writing, of an integer or float dtype of that size.

        NumPy has no bfloat16; see `fastdata.transforms.pixel.as_words`.
        """
        part = memory[self.offset : self.offset + self.nbytes].view(word_dtype(self.dtype))
        shape = self._planes if self._has_planes else self.shape
        array: NDArray[Any] = part.reshape(shape)
        return array.transpose(0, 2, 3, 1) if self._has_planes else array

    def part(self, memory: NDArray[np.uint8], start: int, stop: int) -> NDArray[Any]:
        """Return some images of the array."""
        return self.array(memory)[start:stop]

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the array as a tensor [N, C, H, W], which keeps `memory` alive."""
        part = memory[self.offset : self.offset + self.nbytes].view(self.dtype)
        if self.planar or self.shape[3] == 1:  # one channel is a plane, and has the strides of one
            return part.view(self._planes)
        return part.view(self.shape).permute(0, 3, 1, 2)

    @property
    def _has_planes(self) -> bool:
        # With one pixel both orders are the same memory, and OpenCV does not write to its planes.
        return self.planar and self.shape[3] > 1 and self.shape[1:3] != (1, 1)

    @property
    def _planes(self) -> tuple[int, ...]:
        count, height, width, channels = self.shape
        return count, channels, height, width


def lay_out(
    fields: Iterable[tuple[str, tuple[int, ...], torch.dtype, int]], *, planar: bool = False
) -> tuple[tuple[TensorLayout, ...], int]:
    """Return layouts of arrays one behind the other, and the bytes in all.

    `fields` are (name, shape, dtype, view) each, as `TensorLayout` has them.
    """
    layouts, end = [], 0
    for name, shape, dtype, view in fields:
        layout = TensorLayout(name, end, shape, dtype, view, planar)
        layouts.append(layout)
        end += -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(layouts), end


# -- page-locking existing memory, so that a GPU copies from it by DMA ------------------


def register_pinned(memory: NDArray[np.uint8], device: torch.device) -> bool:
    """Page-lock an array's memory, uint8 [n], until it dies; return whether that worked.

    `memory` is the one object that keeps the memory mapped; views keep it alive.  Torch then takes
    tensors over it for pinned ones (``Tensor.is_pinned``), in this process alone: another one that
    maps the same memory does not.  `device` is the GPU whose context is used; a new thread would
    have that of the first.  A failure is logged.  Thread-safe.
    """
    with torch.cuda.device(device):
        return _register(memory)


def _register(memory: NDArray[np.uint8]) -> bool:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # 1 is cudaHostRegisterPortable: pinned for every device, not only the current one.
    status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 1)
    if int(status) != 0:
        log.warning(
            "CUDA cannot page-lock %.0f MB of shared memory (cudaHostRegister: error %d): its "
            "content is copied once more on its way to a GPU",
            memory.nbytes / 1e6,
            int(status),
        )
        # CUDA also keeps the error for the next call, which would be that of an innocent kernel.
        with suppress(RuntimeError, AssertionError):
            torch.zeros(1, device="cuda")
        return False
    # The callback comes before the memory is unmapped: the array is what keeps it.
    weakref.finalize(memory, _unregister, runtime, memory.ctypes.data).atexit = False
    return True


def _unregister(runtime: Any, address: int) -> None:
    runtime.cudaHostUnregister(address)
