"""A device that does its work as late, and in as odd an order, as it may.

`SimulatedStreams` stands in for CUDA behind `fastdata.prefetch.streams.DeviceStreams`.  What
is submitted to a stream is done in order there, but at any time: a random stream that may
go on does so, and only waiting for an event forces anything.  Memory is reused like in
torch's caching allocator: that of a dead tensor goes to the next one of the stream it was
allocated on, unless a stream it was recorded on has work left.  Nothing of what is submitted
keeps memory alive, as nothing on a real device does.
"""

from __future__ import annotations

import ctypes
import math
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

POISON = 0xEE


def memory_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory as an array that does not keep it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class Lease:
    """What dies with the last view of an array."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


@dataclass(eq=False)
class Stream:
    name: str
    work: deque[Callable[[], bool]] = field(default_factory=deque)
    submitted: int = 0
    done: int = 0


class Event(NamedTuple):
    stream: Stream
    position: int

    @property
    def passed(self) -> bool:
        return self.stream.done >= self.position


@dataclass(eq=False)
class Block:
    memory: NDArray[np.uint8]
    stream: Stream
    recorded: set[Stream] = field(default_factory=set)
    until: list[Event] = field(default_factory=list)


class HostPool:
    """Page-locked memory that is overwritten as soon as nobody has it."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.uint8]] = []
        self._free: list[NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        if self._free and self._free[-1].nbytes == nbytes:
            memory = self._free.pop()
        else:
            memory = np.empty(nbytes, np.uint8)
            self.blocks.append(memory)
        lease = Lease(memory)
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return torch.from_numpy(np.asarray(lease))

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        memory[:] = POISON
        self._free.append(memory)


class SimulatedStreams:
    """See `DeviceStreams`; `wait`, `use` and `passed` are there to be broken by tests."""

    stages = True

    def __init__(self, seed: int) -> None:
        self.device = torch.device("cuda", 7)  # its name only
        self.random = random.Random(seed)
        self.default = Stream("default")
        self.streams = [self.default]
        self.pinned = HostPool()
        self._current = self.default
        self._live: dict[int, Block] = {}
        self._free: list[Block] = []
        self._every_block: list[Block] = []  # memory is never unmapped

    # -- what DeviceStreams asks for ------------------------------------------------

    def side(self) -> Stream:
        stream = Stream(f"side {len(self.streams)}")
        self.streams.append(stream)
        return stream

    def current(self) -> Stream:
        return self._current

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def mark(self, stream: Stream) -> Event:
        self.go_on()
        return Event(stream, stream.submitted)

    def wait(self, stream: Stream, event: Event) -> None:
        self._submit(stream, lambda: event.passed)

    def passed(self, event: Event) -> bool:
        self.go_on()
        return event.passed

    def synchronize(self, event: Event) -> None:
        while not event.passed:
            self._step(force=True)

    def use(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._live[tensor.untyped_storage().data_ptr()].recorded.add(stream)

    def pin(self, nbytes: int) -> torch.Tensor:
        return self.pinned.take(nbytes)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(
            block.ctypes.data <= address < block.ctypes.data + block.nbytes
            for block in self.pinned.blocks
        )

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        assert self.is_pinned(source), "a copy in the background needs pinned memory"
        target = self.twin(source)
        self._submit_copy(target, source)
        return target

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = self._allocate(tensor.numel() * tensor.element_size())
        return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def copy_within(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._submit_copy(target, source)

    # -- what a test's kernels ask for ----------------------------------------------

    def launch(self, kernel: Callable[[list[NDArray[np.uint8]]], None], *on: torch.Tensor) -> None:
        """Submit a kernel on the bytes of tensors to the current stream."""
        where = [(t.data_ptr(), t.numel() * t.element_size()) for t in on]

        def run() -> bool:
            kernel([memory_at(*place) for place in where])
            return True

        self._submit(self._current, run)

    def finish(self) -> None:
        """Do all that was submitted."""
        while any(stream.work for stream in self.streams):
            self._step(force=True)

    # -- how it works ---------------------------------------------------------------

    def _submit(self, stream: Stream, work: Callable[[], bool]) -> None:
        stream.work.append(work)
        stream.submitted += 1
        self.go_on()

    def _submit_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        nbytes = source.numel() * source.element_size()
        to, start = target.data_ptr(), source.data_ptr()

        def run() -> bool:
            memory_at(to, nbytes)[:] = memory_at(start, nbytes)
            return True

        self._submit(self._current, run)

    def go_on(self) -> None:
        """Do some of the work: often none, at times a lot."""
        for _ in range(self.random.choice((0, 0, 0, 0, 1, 1, 2, 12))):
            self._step()

    def _step(self, force: bool = False) -> None:
        order = self.random.sample(self.streams, len(self.streams))
        for stream in order if force else order[:1]:
            if stream.work and stream.work[0]():
                stream.work.popleft()
                stream.done += 1
                return
        assert not force, "streams wait for each other"

    def _allocate(self, nbytes: int) -> torch.Tensor:
        fitting = [
            block
            for block in self._free
            if block.stream is self._current
            and block.memory.nbytes == nbytes
            and all(event.passed for event in block.until)
        ]
        if fitting:
            block = fitting[-1]
            self._free.remove(block)
            block.recorded, block.until = set(), []
        else:
            block = Block(np.full(nbytes, POISON, np.uint8), self._current)
            self._every_block.append(block)
        lease = Lease(block.memory)
        weakref.finalize(lease, self._give_back, block).atexit = False
        tensor = torch.from_numpy(np.asarray(lease))
        self._live[block.memory.ctypes.data] = block
        assert math.prod(tensor.shape) == nbytes
        return tensor

    def _give_back(self, block: Block) -> None:
        del self._live[block.memory.ctypes.data]
        block.until = [Event(stream, stream.submitted) for stream in block.recorded]
        self._free.append(block)

    def allocated(self) -> int:
        """Blocks of device memory that were ever needed."""
        return len(self._every_block)


Kernel = Callable[[list[NDArray[np.uint8]]], Any]
