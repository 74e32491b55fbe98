"""Arrays of ``.mat`` files as columns: MATLAB has pictures H x W x C x N, and labels N x 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .columns import Column
from .mat_file import MatArray
from .roles import Known

__all__ = ["MatColumn", "ShiftedColumn"]


class MatColumn(Column):
    """The rows of an array whose last index is the sample; of a vector, its numbers."""

    def __init__(self, array: MatArray) -> None:
        self._array, self.label = array, array.name
        shape, refused = array.shape, array.refused
        self.shape, self.dtype = shape, array.dtype
        if refused or array.stored is None:
            pass
        elif len(shape) < 2 or math.prod(shape) == 0:
            refused = "it is empty" if len(shape) > 1 else "it has one dimension only"
        elif len(shape) == 2:
            # Whole numbers may be called double and be stored as bytes.
            self.shape, self.dtype = (math.prod(shape),), array.stored
            refused = "" if min(shape) == 1 else "it is a matrix, neither labels nor pictures"
        elif len(shape) == 4 and shape[3] in (1, 3) and shape[2] not in (1, 3):
            refused = "the sample is not its last index; in MATLAB: permute(X, [2 3 4 1])"
        else:
            self.shape = (shape[-1], *shape[:-1])
        self.known = Known(self.shape, self.dtype, refused=refused)

    def read(self, start: int, stop: int) -> Any:
        assert self._array.elements is not None
        stop = min(stop, self.shape[0])
        row = math.prod(self.shape[1:])
        numbers = self._array.elements(start * row, stop * row)
        rows = numbers.reshape(stop - start, *self.shape[:0:-1])
        # The first index of a row runs fastest: it is the last one here, and becomes the first.
        turned = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        return turned.astype(self.dtype, copy=False)


class ShiftedColumn(Column):
    """Labels of which one number stands for another: the 10 of SVHN for a zero."""

    dtype = np.dtype("int64")

    def __init__(self, column: Column, number: int, instead: int) -> None:
        self._column, self._number, self._instead = column, number, instead
        self.label, self.shape = column.label, column.shape

    def read(self, start: int, stop: int) -> Any:
        rows = np.asarray(self._column.read(start, stop)).astype(np.int64)
        return np.where(rows == self._number, self._instead, rows)
