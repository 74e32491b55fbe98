"""The segment index of a JPEG as offsets, checked against the file."""

from __future__ import annotations

import numpy as np

from fastdata.codecs.jpeg import read_jpeg_header
from fastdata.codecs.jpeg_segments import INDEX_PREFIX_BYTES, index_spans

__all__ = ["read_segment_index"]


def read_segment_index(
    data: bytes | memoryview,
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return where each coded segment begins, and where the last one ends.

    Returns
    -------
    numpy.ndarray of int64, shape (segments + 1,)
        Offsets into `data`; a segment ends 2 bytes (a restart marker) before
        the next begins, the last one at the last entry less 2.  None where
        the JPEG has no index, or one that does not fit it.

    Raises
    ------
    ImageError
        If there is an index but the JPEG breaks before its first scan.
    """
    spans = index_spans(data)
    if spans is None:
        return None
    body = b"".join(data[start + INDEX_PREFIX_BYTES : end] for start, end in spans)
    lengths = np.frombuffer(body, ">u2").astype(np.int64) + 2
    scan = read_jpeg_header(data).scan_offset
    starts: np.ndarray[tuple[int], np.dtype[np.int64]] = np.concatenate(([0], np.cumsum(lengths)))
    return starts + scan if starts[-1] + scan == len(data) else None
