"""``cache="ram"`` for files that are not packed.

Each is read once, by the worker that needs it first, and stays in memory that all of them share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.ram import check_memory
from fastdata.converters.reading.locations import stat_of
from fastdata.engine.backend import with_dataset
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.memory import available_bytes
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FileCorruptError
from fastdata.unpacked.held import HeldFiles
from fastdata.unpacked.listing import Listing

__all__ = ["FileCacheBackend"]


class FileCacheBackend(CpuBackend):
    """Makes batches by threads or processes, of files that are read once.

    Parameters
    ----------
    work : BatchWork
        Of an `UnpackedDataset`.
    workers, device, pin_memory
        As of `CpuBackend`.
    part : ndarray of int64, optional
        The samples to hold; all by default.

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
        bounds = _bounds(dataset.listing, dataset.positions(part))
        self.cache_bytes = int(bounds[-1])
        check_memory(self.cache_bytes, available_bytes(), "the files take", "pack them")
        self._files = HeldFiles(bounds)
        self._held = dataset.held_in(self._files)
        work = with_dataset(work, self._held)
        super().__init__(work, workers, device=device, pin_memory=pin_memory)

    def close(self) -> None:
        """Release the files' bytes.  Idempotent."""
        self._held.let_go()
        self._files.close()
        super().close()


def _bounds(listing: Listing, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the files of some samples go in memory, field by field, as they are now."""
    names = list(listing.schema.images)
    sizes = np.zeros((len(names), len(listing)), np.int64)
    for position in np.unique(positions).tolist():
        try:
            values = dict(zip(listing.schema, listing.values(position), strict=True))
        except FileCorruptError:
            continue  # said when it is read
        sizes[:, position] = [stat_of(values[name])[0] for name in names]
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
