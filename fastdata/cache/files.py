"""``cache="ram"`` for files that are not packed.

Each is read once, by the worker that needs it first, and stays in memory that all of them share.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.ram import SharedFile, check_memory, open_shared
from fastdata.engine.backend import CpuBackend
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import WorkerError
from fastdata.processes.resources import available_bytes

__all__ = ["CachedFiles", "FileCacheBackend"]


class FileCacheBackend(CpuBackend):
    """Makes batches by threads or processes, of files that are read once.

    The work is that of an `UnpackedDataset`.  Raises an `OptionError` if the files of all samples,
    or of a `part`, int64 [n], do not fit.
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
        self.cache_bytes = int(bounds[-1])
        check_memory(self.cache_bytes, available_bytes(), "the files take", "pack them")
        self._files = CachedFiles(bounds)
        self._cached = dataset.with_cached(self._files)
        work = dataclasses.replace(work, dataset=self._cached)
        super().__init__(work, workers, device=device, pin_memory=pin_memory)

    def close(self) -> None:
        """Release the files' bytes.  Idempotent."""
        self._cached.release_cached()
        self._files.close()
        super().close()


class CachedFiles(SharedFile):
    """Bytes of files, numbered from 0, one behind the other in memory, with a flag for each.

    File number n has ``bounds[n]`` to ``bounds[n + 1]`` of it; `bounds` is int64 [files + 1].
    Safe for any number of threads and processes.
    """

    def __init__(self, bounds: NDArray[np.int64], descriptor: int | None = None) -> None:
        self._bounds = bounds
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _files_of_process, (self._bounds, self.address)


def _files_of_process(bounds: NDArray[np.int64], address: tuple[int, int]) -> CachedFiles:
    return CachedFiles(bounds, open_shared(*address))
