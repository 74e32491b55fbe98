"""NumPy's ``.npy`` files from bytes, without pickle.

Source: NumPy Enhancement Proposal 1, versions 1.0 and 2.0 of the format.
"""

from __future__ import annotations

import io
import math
from typing import IO, Any, NamedTuple

import numpy as np

__all__ = ["NpyHead", "parse_npy", "read_npy_head"]


class NpyHead(NamedTuple):
    """What a ``.npy`` file says of its array."""

    shape: tuple[int, ...]
    fortran: bool  # Whether the first index runs fastest
    dtype: np.dtype[Any]
    start: int  # Where the content begins, in bytes

    @property
    def size(self) -> int:
        """Size of the content, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_head(file: IO[bytes]) -> NpyHead:
    """Read the head of a ``.npy`` file.

    Raises ValueError if it is no such file, or holds anything but numbers.
    """
    version, _ = np.lib.format.read_magic(file)
    if version not in (1, 2):  # version 3 is for records
        raise ValueError(f"version {version} of .npy is not known")
    try:
        shape, fortran, dtype = getattr(np.lib.format, f"read_array_header_{version}_0")(file)
    except ValueError:
        raise
    except Exception as error:  # Python's parser may raise anything for a damaged header
        raise ValueError(f"the header of the .npy file is damaged: {error!r}") from error
    if dtype.kind not in "biuf":
        raise ValueError(f"a .npy file of {dtype}; only numbers are read")
    if any(n < 0 for n in shape):
        raise ValueError(f"a .npy file of shape {shape}")
    return NpyHead(shape, fortran, dtype, file.tell())


def parse_npy(data: bytes) -> np.ndarray[Any, Any]:
    """Return the array of numbers in a ``.npy`` file, a view of its bytes.

    Raises ValueError if it is no such file, is cut short, or holds anything but numbers.
    """
    shape, fortran, dtype, start = head = read_npy_head(io.BytesIO(data))
    body = data[start:]
    if head.size != len(body):
        raise ValueError(
            f"a .npy file of shape {shape} and {dtype} with {len(body):,} bytes of content"
        )
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, body, order="F" if fortran else "C")
    return array
