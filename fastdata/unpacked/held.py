"""Files' bytes in memory that all workers share, one behind the other, with a flag for each."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import WorkerError
from fastdata.processes.sharing import map_file, new_file

__all__ = ["HeldFiles"]


class HeldFiles:
    """Bytes of files that stay in memory, numbered from 0.

    Parameters
    ----------
    bounds : ndarray of int64, shape [n + 1]
        Where each file begins in memory, and where the last one ends.
    descriptor : int, optional
        Of the memory, where it is made already.

    Notes
    -----
    Safe for any number of threads and processes.  Picklable as long as this process lives: who
    unpickles it maps the same memory.
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
        self._memory, self._there = memory[: self.nbytes], memory[self.nbytes :]

    def get(self, number: int) -> bytes | None:
        """Return a file's bytes, or None where they are not there."""
        if not self._there[number]:
            return None
        return self._memory[self._bounds[number] : self._bounds[number + 1]].tobytes()

    def put(self, number: int, data: bytes) -> None:
        """Keep a file's bytes, if there is a place of their length."""
        place = self._memory[self._bounds[number] : self._bounds[number + 1]]
        if data and len(place) == len(data):
            place[:] = np.frombuffer(data, np.uint8)
            self._there[number] = 1

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


def _of_process(bounds: NDArray[np.int64], process: int, descriptor: int) -> HeldFiles:
    """Return the memory that another process of this machine has."""
    # As of fastdata.cache.ram.FileCopy.
    found = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return HeldFiles(bounds, found)
