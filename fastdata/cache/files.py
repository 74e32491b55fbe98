"""``cache="ram"`` for files that are not packed: each is read once, by the worker that needs it
first, and stays in memory that all workers share.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Usage
from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.sharing import map_file, new_file
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import OptionError, WorkerError

__all__ = ["CachedFiles", "FileCacheBackend"]

log = logging.getLogger("fastdata")


class CachedFiles:
    """Bytes of files, numbered from 0, one behind the other in memory, with a flag for each.

    Parameters
    ----------
    bounds : ndarray of int64, shape [n + 1]
        Where each file begins in memory, and where the last one ends.
    descriptor : int, optional
        Of the memory, where it is made already.

    Notes
    -----
    Safe for any number of threads and processes.  Picklable as long as this process lives:
    unpickled, it maps the same memory.
    """

    def __init__(self, bounds: NDArray[np.int64], descriptor: int | None = None) -> None:
        self._bounds = bounds
        self.nbytes = int(bounds[-1])
        count = self.nbytes + len(bounds)
        try:
            self._descriptor = new_file(count) if descriptor is None else descriptor
            memory = map_file(self._descriptor, count)
        except (OSError, RuntimeError) as error:
            raise WorkerError(
                f'no memory for {self.nbytes} bytes of files ({error}); leave out cache="ram"'
            ) from error
        self._memory, self._is_stored = memory[: self.nbytes], memory[self.nbytes :]

    def get(self, number: int) -> bytes | None:
        """Return a file's bytes, or None where they have not been put."""
        if not self._is_stored[number]:
            return None
        return self._memory[self._bounds[number] : self._bounds[number + 1]].tobytes()

    def put(self, number: int, data: bytes) -> None:
        """Store a file's bytes, if they have the length that is reserved for them."""
        reserved = self._memory[self._bounds[number] : self._bounds[number + 1]]
        if data and len(reserved) == len(data):
            reserved[:] = np.frombuffer(data, np.uint8)
            self._is_stored[number] = 1

    def close(self) -> None:
        """Close the descriptor: no process can get the memory any more.  Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_process, (self._bounds, os.getpid(), self._descriptor)


def _of_process(bounds: NDArray[np.int64], process: int, descriptor: int) -> CachedFiles:
    """Return the memory that another process of this machine has."""
    # As of fastdata.cache.copies.FileCopy.
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return CachedFiles(bounds, opened)


class FileCacheBackend(CpuBackend):
    """Makes batches by threads or processes, of files that are read once.

    Parameters
    ----------
    work : BatchWork
        Of an `UnpackedDataset`.
    workers : WorkerOptions
    device : torch.device, optional
    pin_memory : bool
        Whether batches are made in page-locked memory.
    part : ndarray of int64, optional
        The samples to cache; all by default.

    Raises
    ------
    OptionError
        If they do not fit.
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
        dataset: Any = work.dataset
        sizes = dataset.listing.file_sizes(dataset.positions(part))
        bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        nbytes, available = int(bounds[-1]), available_bytes()
        summary = (
            f"the files take {in_words(nbytes)} of host memory, of which {in_words(available)} "
            "are left"
        )
        if nbytes > available:
            raise OptionError(
                f'cache="ram": {summary}. Leave it out (the system keeps in memory what it can), '
                'hold a part on each rank (cache_scope="rank"), or pack them at a smaller size'
            )
        log.info("%s", summary)
        self._cached = CachedFiles(bounds)
        cached = dataset.held_in(self._cached)
        for part_of_work in (work, *work.views):
            part_of_work.dataset = cached
        super().__init__(work, workers, device=device, pin_memory=pin_memory)

    def usage(self) -> Usage:
        """Return what has been used and done."""
        used = super().usage()
        cached = self._cached.nbytes
        return Usage(used.buffers_in_use, used.skipped_samples, used.bytes_read, cached)

    def close(self) -> None:
        """Release what is cached.  Idempotent."""
        dataset: Any = self.dataset
        dataset.let_go()
        self._cached.close()
        super().close()
