"""The backend of ``cache="ram"`` for files that are not packed.

Each is read once, by the worker that needs it first, and stays in memory that all of them share.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.converters.reading.locations import stat_of
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Usage
from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FileCorruptError, OptionError
from fastdata.unpacked.held import HeldFiles
from fastdata.unpacked.listing import Listing

__all__ = ["FileCacheBackend"]

log = logging.getLogger("fastdata")


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
        self._held = HeldFiles(bounds)
        held = dataset.held_in(self._held)
        for part_of_work in (work, *work.views):
            part_of_work.dataset = held
        super().__init__(work, workers, device=device, pin_memory=pin_memory)

    def usage(self) -> Usage:
        """Return what has been used and done."""
        used = super().usage()
        return Usage(used.buffers_in_use, used.skipped_samples, used.bytes_read, self._held.nbytes)

    def close(self) -> None:
        """Let go of what is held.  Idempotent."""
        dataset: Any = self.dataset
        dataset.let_go()
        self._held.close()
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
