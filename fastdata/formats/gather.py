"""Copy many equally long blobs out of a memory map at once.

A batch of raw images is a gather: rows of one length from anywhere in a file
to the rows of one array.  Done by large NumPy calls, without the GIL, it runs
at the speed of memory; one image at a time, Python would take longer than the
copying (0.6 µs a row, where 3 kB are copied in 0.1 µs).
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from fastdata.formats.layout import checksum
from fastdata.native.library import compiled, copy_rows

__all__ = ["gather_rows"]

LONG_ROW_BYTES = 32_768
"""Length from which on rows are copied one by one.

Indexing writes every row twice; copying it alone costs 0.6 µs of Python,
during which other threads wait.  Measured with two threads, µs a row, indexed
and alone: 3 kB 0.2 and 2.0, 8 kB 0.9 and 2.3, 16 kB 1.8 and 2.8, 64 kB 7.3 and
6.3, 150 kB 10.6 and 9.8 (`memcpy`: 9.3).
"""

CHUNK_BYTES = 1 << 20
"""Most that is indexed at a time, which bounds the temporary copy."""


def gather_rows(
    memory: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    length: int,
    out: NDArray[np.uint8],
    checksums: NDArray[np.uint64] | None = None,
) -> NDArray[np.intp]:
    """Copy ``memory[offsets[k] : offsets[k] + length]`` to ``out[k]`` for every k.

    `memory` is the file, uint8 [size]; `offsets`, int64 [n], are in any order, with repetitions;
    `out` is uint8 [n, length], rows C-contiguous.  `checksums`, uint64 [n], are what each row
    should hash to.  The copy is hashed, while it is in the cache: that adds 2-3 µs to the 10-13 µs
    of a row of 150 kB, and 0.2 µs to the 0.2 µs of one of 3 kB.

    Returns ascending the k, intp, of rows that are not to be used, because they do not lie inside
    `memory` or do not match their checksum; what is in ``out[k]`` is then not defined.
    Thread-safe; without the GIL while copying.
    """
    outside = (offsets < 0) | (offsets > len(memory) - length)
    bad = np.flatnonzero(outside).tolist()
    if bad:  # read from the beginning instead, if there is one
        if length > len(memory):
            return np.asarray(bad, np.intp)
        offsets = np.where(outside, 0, offsets)
    if compiled() and out.flags.c_contiguous:
        # Copied all at once: what is hashed is read again, but only the first time it is read.
        copy_rows(memory, offsets, length, out)
        if checksums is not None:
            pairs = zip(out, checksums.tolist(), strict=True)
            bad += [k for k, (row, due) in enumerate(pairs) if checksum(row) != due]
        return np.unique(np.asarray(bad, np.intp)) if bad else np.empty(0, np.intp)
    if checksums is None and length >= LONG_ROW_BYTES and not bad and _torch_may_copy():
        _select_rows(memory, offsets, length, out)
        return np.empty(0, np.intp)
    rows_at_once = 1 if length >= LONG_ROW_BYTES else max(1, CHUNK_BYTES // length)
    # Row b is the one that begins at byte b: they overlap, and nothing is copied yet.
    rows: NDArray[np.uint8] = np.ndarray(
        (max(0, len(memory) - length + 1), length), np.uint8, memory, strides=(1, 1)
    )
    for start in range(0, len(offsets), rows_at_once):
        stop = start + rows_at_once
        if rows_at_once == 1:
            out[start] = rows[offsets[start]]
        else:
            out[start:stop] = rows[offsets[start:stop]]
        if checksums is not None:
            pairs = zip(out[start:stop], checksums[start:stop].tolist(), strict=True)
            bad += [k for k, (row, due) in enumerate(pairs, start) if checksum(row) != due]
    return np.unique(np.asarray(bad, np.intp))


def _select_rows(
    memory: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    length: int,
    out: NDArray[np.uint8],
) -> None:
    """Copy rows that lie inside `memory` by PyTorch.

    It copies by vector instructions where NumPy calls ``memmove``, which on AMD's
    processors moves 150 kB by a string instruction: 10 GB/s in one thread, where
    this moves 11, and 14 by the two that PyTorch has for it.
    """
    import torch

    source = torch.from_numpy(np.asarray(_AsWritable(memory)))
    rows = source.as_strided((len(memory) - length + 1, length), (1, 1))
    places = torch.from_numpy(np.ascontiguousarray(offsets))
    torch.index_select(rows, 0, places, out=torch.from_numpy(out))


def _torch_may_copy() -> bool:
    """Return whether PyTorch would copy in the threads that it already has.

    From any other thread than the main one it starts as many again, which then wait by spinning:
    two workers copy at 7 GB/s so, and at 10 by NumPy.
    """
    import torch

    main = threading.current_thread() is threading.main_thread()
    return main or torch.get_num_threads() == 1


class _AsWritable:
    """Read-only memory that PyTorch takes without a warning that it cannot be written to."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory  # stays alive with the array made of this object
        interface = dict(memory.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
