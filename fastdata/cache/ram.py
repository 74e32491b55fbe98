"""The backend of ``cache="ram"``: the usual one, whose bytes come to stay in memory.

files --one thread, once, in the first epoch--> copies --> all workers
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.copies import FileCopy, Range
from fastdata.dataset import Dataset
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import BatchStream, Usage
from fastdata.engine.memory import available_bytes, in_words
from fastdata.engine.pinning import register_pinned
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FastdataError, OptionError
from fastdata.formats.reader import ShardReader

__all__ = ["RamCacheBackend"]

GAP_BYTES = 1 << 16
"""Images closer than this are read as one."""

log = logging.getLogger("fastdata")


class RamCacheBackend(CpuBackend):
    """Makes batches by threads or processes, of packed bytes that stay in memory.

    Parameters
    ----------
    work : BatchWork
        Of a `Dataset`.
    workers : WorkerOptions
    device : torch.device, optional
    pin_memory : bool
        Whether batches are made in page-locked memory, and, with a GPU as `device`, the
        bytes are held in it.
    part : ndarray of int64, optional
        The samples to hold; all by default.

    Raises
    ------
    OptionError
        If they do not fit, or the data lie in no files.
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
        if not isinstance(work.dataset, Dataset):
            raise OptionError(
                f'cache="ram" holds files of packed data in memory, but {work.dataset!r} has none'
            )
        whole = part is None and not work.dataset.is_subset
        ranges = [
            [(0, shard.file_bytes)] if whole else _ranges(shard, rows)
            for shard, rows in work.dataset.rows_by_shard(part)
        ]
        self._cache_bytes = sum(stop - start for some in ranges for start, stop in some)
        available = available_bytes()
        summary = (
            f"the packed dataset takes {in_words(self._cache_bytes)} of host memory, of which "
            f"{in_words(available)} are left"
        )
        if self._cache_bytes > available:
            raise OptionError(
                f'cache="ram": {summary}. Leave it out (the system keeps in memory what it can), '
                'hold a part on each rank (cache_scope="rank"), or pack at a smaller size'
            )
        log.info("%s", summary)
        copies = [FileCopy(shard.path, shard.file_bytes) for shard in work.dataset.shards]
        work.dataset = work.dataset.held_in(copies)
        super().__init__(work, workers, device=device, pin_memory=pin_memory)
        pin = device if pin_memory and device is not None and device.type == "cuda" else None
        self._filler = _Filler(copies, ranges, pin=pin)
        weakref.finalize(self, self._filler.stop).atexit = False

    def stream(self) -> BatchStream:
        """Return a new stream; the first one begins to fill the cache."""
        self._filler.start()
        return super().stream()

    def usage(self) -> Usage:
        """Return what has been used and done."""
        used = super().usage()
        return Usage(used.buffers_in_use, used.skipped_samples, used.bytes_read, self._cache_bytes)

    def close(self) -> None:
        """End filling, and let go of what is held.  Idempotent."""
        self._filler.close()
        dataset = self.dataset
        assert isinstance(dataset, Dataset), "that was checked"
        dataset.let_go()
        super().close()


class _Filler:
    """A thread that fills copies, one after another."""

    def __init__(
        self,
        copies: list[FileCopy],
        ranges: Sequence[Sequence[Range]],
        *,
        pin: torch.device | None,
    ) -> None:
        self._copies = copies
        self._ranges = ranges
        self._pin = pin
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if nobody has."""
        if self._thread is None and not self._stopped.is_set():
            arguments = (list(zip(self._copies, self._ranges, strict=True)), self._pin)
            self._thread = threading.Thread(
                target=_fill, args=(*arguments, self._stopped), name="fastdata cache", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stopped.set()

    def close(self) -> None:
        """End the thread, and let go of the copies."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        for copy in self._copies:
            copy.close()
        self._copies = []


def _fill(
    work: list[tuple[FileCopy, Sequence[Range]]],
    pin: torch.device | None,
    stopped: threading.Event,
) -> None:
    for copy, ranges in work:
        try:
            if not copy.fill(ranges, lambda: not stopped.is_set()):
                return
        except (OSError, FastdataError) as error:
            log.warning(
                "%s cannot be held in memory (%s); it goes on to be read from where it is",
                copy.path,
                error,
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
