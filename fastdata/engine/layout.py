"""Where the arrays of a batch lie in one slot of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.transforms.pixel import word_dtype

__all__ = ["Place", "lay_out"]

ALIGNMENT = 64
"""Bytes: a cache line, and more than any dtype or vector instruction asks for."""


class Place(NamedTuple):
    """An array in a slot: picklable, so that a worker process finds it too.

    Attributes
    ----------
    name : str
        The field.
    offset : int
        Bytes from the beginning of the slot.
    shape : tuple of int
        C-contiguous; an image field's is [N, H, W, C].
    dtype : torch.dtype
    view : int
        Which of several views of the images; 0 where there is one.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    view: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the array takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the array for writing, of an integer or float dtype of that size.

        NumPy has no bfloat16; see `fastdata.transforms.pixel.as_words`.
        """
        part = memory[self.offset : self.offset + self.nbytes]
        return part.view(word_dtype(self.dtype)).reshape(self.shape)

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the array as a tensor, which keeps `memory` alive."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


def lay_out(
    fields: Iterable[tuple[str, tuple[int, ...], torch.dtype, int]],
) -> tuple[tuple[Place, ...], int]:
    """Return places for arrays one behind the other, and the bytes in all.

    `fields` are (name, shape, dtype, view) each.
    """
    places, end = [], 0
    for name, shape, dtype, view in fields:
        place = Place(name, end, shape, dtype, view)
        places.append(place)
        end += -(-place.nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(places), end
