"""``cache="ram"``: the usual workers, whose bytes come to stay in host memory.

Of packed data:

    files --one thread, once, in the first epoch--> copies --> all workers

No disk then, and no page cache that others may empty.  A thread fills a copy while workers still
read the file itself, in the file's order: faster than what is read at random, which it finds in
the page cache meanwhile.

Files that are not packed are each read once, by the worker that needs it first, into memory that
all of them share.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.engine.backend import CpuBackend
from fastdata.engine.buffers import register_pinned
from fastdata.engine.contracts import BatchStream
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FastdataError, OptionError, ShardCorruptError, WorkerError
from fastdata.formats.reader import ShardReader
from fastdata.processes.resources import available_bytes, format_bytes
from fastdata.processes.sharing import map_file, new_file
from fastdata.regular_files import too_many_files
from fastdata.waits import join_threads

__all__ = ["CachedFiles", "FileCacheBackend", "FileCopy", "RamCacheBackend"]

CHUNK_BYTES = 1 << 23
"""Read at a time; between two, the filling thread looks whether to go on."""

GAP_BYTES = 1 << 16
"""Images closer than this are read as one."""

Range: TypeAlias = tuple[int, int]
"""First byte of a file, and the one behind the last."""

log = logging.getLogger("fastdata")


class HostCacheBackend(CpuBackend):
    """Makes batches by threads or processes, of stored bytes that stay in host memory.

    They are those of all samples, or of a `part`, int64 [n].  With `pin_memory`, and a GPU as
    `device`, bytes of packed data too are held in page-locked memory.  Raises an `OptionError` if
    they do not fit.
    """

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device | None = None,
        pin_memory: bool = False,
        part: NDArray[np.int64] | None = None,
    ) -> None:
        pin = device if pin_memory and device is not None and device.type == "cuda" else None
        self._cached = self.hold(work.dataset, part, pin)
        work = dataclasses.replace(work, dataset=self._cached)
        super().__init__(work, workers, device=device, pin_memory=pin_memory)

    @abstractmethod
    def hold(self, dataset: Any, part: NDArray[np.int64] | None, pin: torch.device | None) -> Any:
        """Take the memory, set `cache_bytes`, and return the dataset that is read from there."""

    def close(self) -> None:
        """Read from the files again, from now on, and free what streams share.  Idempotent."""
        self._cached._release_cached()
        super().close()


class RamCacheBackend(HostCacheBackend):
    """Holds files of packed data; an `OptionError` if the data lie in no files."""

    def hold(self, dataset: Any, part: NDArray[np.int64] | None, pin: torch.device | None) -> Any:
        """Take the memory for copies of the files, which the first stream begins to fill."""
        if not isinstance(dataset, Dataset):
            raise OptionError(
                f'cache="ram" holds files of packed data in memory, but {dataset!r} has none'
            )
        whole = part is None and not dataset.is_subset
        ranges = [
            [(0, shard.file_bytes)] if whole else _ranges(shard, rows)
            for shard, rows in dataset._rows_by_shard(part)
        ]
        self.cache_bytes = sum(stop - start for parts in ranges for start, stop in parts)
        check_memory(self.cache_bytes, "the packed dataset takes", "pack")
        copies = [FileCopy(shard.path, shard.file_bytes) for shard in dataset.shards]
        self._filler = _Filler(copies, ranges, pin)
        weakref.finalize(self, self._filler.stop).atexit = False
        return dataset._with_cached(copies)

    def stream(self) -> BatchStream:
        """Return a new stream; the first one begins to fill the cache."""
        self._filler.start()
        return super().stream()

    def close(self) -> None:
        """End filling, and release the copies.  Idempotent."""
        self._filler.close()
        super().close()


class FileCacheBackend(HostCacheBackend):
    """Holds files that are not packed, those of an `UnpackedDataset`."""

    def hold(self, dataset: Any, part: NDArray[np.int64] | None, pin: torch.device | None) -> Any:
        """Take the memory for the files; each is put there by the worker that reads it first."""
        places = np.arange(len(dataset)) if part is None else part
        positions = dataset._positions(places)
        sizes = dataset._listing.file_sizes(positions)
        bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.cache_bytes = int(bounds[-1])
        check_memory(self.cache_bytes, "the files take", "pack them")
        self._files = CachedFiles(bounds)
        return dataset._with_cached(self._files)

    def close(self) -> None:
        """Release the files' bytes.  Idempotent."""
        super().close()
        self._files.close()


def check_memory(nbytes: int, what: str, remedy: str) -> None:
    """Log what a cache takes of host memory, or raise an `OptionError` where it does not fit."""
    available = available_bytes()
    summary = (
        f"{what} {format_bytes(nbytes)} of host memory, of which {format_bytes(available)} are left"
    )
    if nbytes > available:
        raise OptionError(
            f'cache="ram": {summary}. Leave it out (the system keeps in memory what it can), '
            f'hold a part on each rank (cache_scope="rank"), or {remedy} at a smaller size'
        )
    log.info("%s", summary)


class _Filler:
    """A thread that fills copies, one after another."""

    def __init__(
        self,
        copies: list[FileCopy],
        ranges: Sequence[Sequence[Range]],
        pin: torch.device | None,
    ) -> None:
        self._copies = list(zip(copies, ranges, strict=True))
        self._pin = pin
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if that has not been done."""
        if self._thread is None and not self._stopped.is_set():
            arguments = list(self._copies), self._pin, self._stopped
            self._thread = threading.Thread(
                target=_fill, args=arguments, name="fastdata cache", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stopped.set()

    def close(self) -> None:
        """End the thread, and release the copies."""
        self.stop()
        if self._thread is not None:
            join_threads([self._thread], "the thread that fills the cache to end")
        for copy, _ in self._copies:
            copy.close()
        self._copies = []


def _fill(
    copies: list[tuple[FileCopy, Sequence[Range]]],
    pin: torch.device | None,
    stopped: threading.Event,
) -> None:
    for copy, ranges in copies:
        try:
            if not copy.fill(ranges, lambda: not stopped.is_set()):
                return
        except (OSError, FastdataError) as error:
            if stopped.is_set():
                return  # the backend is closed, and the files may have gone as well
            log.warning(
                "%s cannot be held in memory (%s); it goes on to be read from where it is",
                copy.path,
                str(error),  # the error itself would keep the copy for as long as the record
            )
            continue
        if pin is not None and not register_pinned(copy.array, pin):
            pin = None


def _ranges(shard: ShardReader, rows: NDArray[np.int64]) -> list[Range]:
    """Return what to read of a shard: header and columns, and the images of some rows."""
    header = shard.header
    first, last = shard.header_range
    always = [(c.offset, c.nbytes) for c in header.columns.values()]
    always += [(first, last - first), (len(shard.data), shard.file_bytes - len(shard.data))]
    starts = [np.array([start for start, _ in always], np.int64)]
    lengths = [np.array([length for _, length in always], np.int64)]
    for name in header.schema.images:
        starts.append(shard.column(f"{name}.offset")[rows].astype(np.int64))
        lengths.append(shard.column(f"{name}.length")[rows].astype(np.int64))
    begin = np.concatenate(starts)
    order = begin.argsort()
    begin, end = begin[order], (begin + np.concatenate(lengths))[order]
    # What a damaged column says may lie anywhere; reading says what is wrong with it.
    begin, end = begin.clip(0, shard.file_bytes), end.clip(0, shard.file_bytes)
    reached = np.maximum.accumulate(end)
    heads = np.flatnonzero(np.concatenate(([True], begin[1:] > reached[:-1] + GAP_BYTES)))
    tails = np.maximum.reduceat(end, heads)
    return list(zip(begin[heads].tolist(), tails.tolist(), strict=True))


class SharedFile:
    """Memory that worker processes map too, however they are started: a file without a name.

    `descriptor` is that of the file, where it is made already.  Picklable as long as this process
    lives: unpickled, it maps the same memory.
    """

    arguments: tuple[Any, ...]
    """Those of the constructor of a subclass, without the descriptor."""

    def __init__(self, nbytes: int, descriptor: int | None) -> None:
        self._descriptor = new_file(nbytes) if descriptor is None else descriptor
        self.array = map_file(self._descriptor, nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_process, (type(self), self.arguments, os.getpid(), self._descriptor)

    def close(self) -> None:
        """Close the descriptor: no process can get the memory any more.  Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()


def _of_process(kind: Any, arguments: tuple[Any, ...], process: int, descriptor: int) -> Any:
    """Return the shared file that another process of this machine has open."""
    # multiprocessing's own way of sending descriptors needs a server, or to be the one
    # that starts a process; this needs the same user.
    path = f"/proc/{process}/fd/{descriptor}"
    return kind(*arguments, os.open(path, os.O_RDWR | os.O_CLOEXEC))


class FileCopy(SharedFile):
    """The copy of a file of `nbytes` bytes; a `fastdata.formats.reader.HeldBytes`."""

    def __init__(self, path: Path, nbytes: int, descriptor: int | None = None) -> None:
        self.path, self.nbytes = self.arguments = path, nbytes
        self._status = os.stat(path) if descriptor is None else None
        try:
            # One byte more says that the copy is complete, to all processes.
            super().__init__(nbytes + 1, descriptor)
        except (OSError, RuntimeError) as error:
            for number in (errno.EMFILE, errno.ENFILE):
                if os.strerror(number) in str(error):  # torch's errors have no number
                    raise too_many_files(path, number) from error
            raise WorkerError(
                f"no memory for a copy of {path}, of {nbytes} bytes ({error}); "
                'leave out cache="ram"'
            ) from error
        self._memory = self.array.data[:nbytes].toreadonly()

    @property
    def memory(self) -> memoryview:
        """The copy; zeros where nothing has been read yet."""
        return self._memory

    @property
    def complete(self) -> bool:
        """Whether `fill` has done all."""
        return bool(self.array[-1])

    def fill(self, ranges: Sequence[Range], go_on: Callable[[], bool]) -> bool:
        """Read some ranges of the file; return whether `go_on` allowed all of it.

        Raises an `OSError` if the file cannot be read, and a `ShardCorruptError` if it is another
        file than when this was made, shorter, or was written to.
        """
        assert self._status is not None, "the process that made a copy fills it"
        with open(self.path, "rb", buffering=0) as file:
            if not os.path.samestat(os.fstat(file.fileno()), self._status):
                raise ShardCorruptError(f"{self.path} has been replaced since it was opened")
            target = self.array.data
            for start, stop in ranges:
                at = start
                while at < stop:
                    if not go_on():
                        return False
                    end = min(stop, at + CHUNK_BYTES)
                    count = os.preadv(file.fileno(), [target[at:end]], at)
                    if not count:
                        raise ShardCorruptError(
                            f"{self.path} ends at byte {at}, but had {self.nbytes} when it was "
                            "opened; somebody has cut it. Restore it from a copy"
                        )
                    at += count
            if os.fstat(file.fileno()).st_mtime_ns != self._status.st_mtime_ns:
                raise ShardCorruptError(f"{self.path} has been written to since it was opened")
        self.array[-1] = 1
        return True


class CachedFiles(SharedFile):
    """Bytes of files, numbered from 0, one behind the other in memory, with a flag for each.

    File number n has ``bounds[n]`` to ``bounds[n + 1]`` of it; `bounds` is int64 [files + 1].
    Safe for any number of threads and processes.
    """

    def __init__(self, bounds: NDArray[np.int64], descriptor: int | None = None) -> None:
        self._bounds, self.arguments = bounds, (bounds,)
        nbytes = int(bounds[-1])
        try:
            super().__init__(nbytes + len(bounds), descriptor)
        except (OSError, RuntimeError) as error:
            raise WorkerError(
                f'no memory for {nbytes} bytes of files ({error}); leave out cache="ram"'
            ) from error
        self._memory, self._is_there = self.array[:nbytes], self.array[nbytes:]

    def get(self, number: int) -> bytes | None:
        """Return a file's bytes, or None where they have not been put."""
        if not self._is_there[number]:
            return None
        return self._memory[self._bounds[number] : self._bounds[number + 1]].tobytes()

    def put(self, number: int, data: bytes) -> None:
        """Store a file's bytes, if they have the length that was expected."""
        reserved = self._memory[self._bounds[number] : self._bounds[number + 1]]
        if data and len(reserved) == len(data):
            reserved[:] = np.frombuffer(data, np.uint8)
            self._is_there[number] = 1
