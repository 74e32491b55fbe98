"""A file's bytes in memory that stays: no disk, and no page cache that others may empty.

The memory is a file without a name, which worker processes map too, however they are
started; it is gone with the last of them.  A thread fills it while everybody still reads the
file itself, in the file's order: faster than what is read at random, which it finds in the
page cache meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import ShardCorruptError, WorkerError
from fastdata.processes.sharing import map_file, new_file
from fastdata.regular_files import too_many_files

__all__ = ["FileCopy", "Range"]

CHUNK_BYTES = 1 << 23
"""Read at a time; between two, it is looked whether to go on."""

Range = tuple[int, int]
"""First byte of a file, and the one behind the last."""


class FileCopy:
    """The copy of one file; a `fastdata.formats.reader.HeldBytes`.

    Parameters
    ----------
    path : Path
    nbytes : int
        Its length.

    Notes
    -----
    Picklable as long as this process lives: who unpickles it maps the same memory.
    """

    def __init__(self, path: Path, nbytes: int, descriptor: int | None = None) -> None:
        self.path = path
        self.nbytes = nbytes
        self._status = os.stat(path) if descriptor is None else None
        try:
            # One byte more says that the copy is complete, to all processes.
            self._descriptor = new_file(nbytes + 1) if descriptor is None else descriptor
            self._array = map_file(self._descriptor, nbytes + 1)
        except (OSError, RuntimeError) as error:
            for number in (errno.EMFILE, errno.ENFILE):
                if os.strerror(number) in str(error):  # torch's errors have no number
                    raise too_many_files(path, number) from error
            raise WorkerError(
                f"no memory for a copy of {path}, of {nbytes} bytes ({error}); "
                'leave out cache="ram"'
            ) from error
        self._memory = self._array.data[:nbytes].toreadonly()

    @property
    def memory(self) -> memoryview:
        """The copy; zeros where nothing has been read yet."""
        return self._memory

    @property
    def array(self) -> NDArray[np.uint8]:
        """What keeps the memory mapped, uint8 [nbytes + 1]."""
        return self._array

    @property
    def complete(self) -> bool:
        """Whether `fill` has done all."""
        return bool(self._array[-1])

    def fill(self, ranges: Sequence[Range], go_on: Callable[[], bool]) -> bool:
        """Read some ranges of the file; return whether `go_on` allowed all of it.

        Raises
        ------
        OSError
            If the file cannot be read.
        ShardCorruptError
            If it is another file than when this was made, shorter, or was written to.
        """
        assert self._status is not None, "who has it from another process does not fill it"
        with open(self.path, "rb", buffering=0) as file:
            if not os.path.samestat(os.fstat(file.fileno()), self._status):
                raise ShardCorruptError(f"{self.path} has been replaced since it was opened")
            target = self._array.data
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
        self._array[-1] = 1
        return True

    def close(self) -> None:
        """Close the descriptor: no process can get the memory any more.  Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_process, (self.path, self.nbytes, os.getpid(), self._descriptor)


def _of_process(path: Path, nbytes: int, process: int, descriptor: int) -> FileCopy:
    """Return the copy that another process of this machine has."""
    # multiprocessing's own way of sending descriptors needs a server, or to be the one
    # that starts a process; this needs the same user.
    found = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return FileCopy(path, nbytes, found)
