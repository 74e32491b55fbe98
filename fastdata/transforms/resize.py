"""Resize to a short side or to an exact size, with torchvision's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import GeometricTransform, positive_int, size_pair
from fastdata.transforms.crop import check_interpolation
from fastdata.transforms.geometry import Geometry, Interpolation

__all__ = ["Resize"]


@dataclass(frozen=True)
class Resize(GeometricTransform):
    """Resize the whole image.

    Parameters
    ----------
    size : int or (int, int)
        An int is the length of the shorter side; the longer one becomes
        ``int(size * long / short)``.  A pair is (height, width).
    interpolation : {"bilinear", "bicubic", "nearest"}
        Masks always take nearest neighbour.
    max_size : int, optional
        Greatest length of the longer side; both shrink where it would be
        longer.  Only with an int `size`, and greater than it.
    antialias : bool, optional
        As in `RandomResizedCrop`.
    """

    size: int | Sequence[int]
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, Sequence) and len(self.size) == 1:
            object.__setattr__(self, "size", self.size[0])
        if isinstance(self.size, Sequence):
            object.__setattr__(self, "size", size_pair("size", self.size))
        else:
            object.__setattr__(self, "size", positive_int("size", self.size))
        check_interpolation(self.interpolation, self.antialias)
        if self.max_size is None:
            return
        if isinstance(self.size, tuple):
            raise OptionError(
                f"max_size goes with a short side, an int size; with size={self.size} leave it out"
            )
        if positive_int("max_size", self.max_size) <= int(self.size):  # type: ignore[arg-type]
            raise OptionError(f"max_size {self.max_size} must be greater than size {self.size}")

    @property
    def output_size(self) -> tuple[int, int] | None:
        return size_pair("size", self.size) if isinstance(self.size, Sequence) else None

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        if isinstance(self.size, Sequence):
            height, width = size_pair("size", self.size)
            return geometry.resize(height, width, self.interpolation, self.antialias)
        upright = geometry.height >= geometry.width
        short = np.minimum(geometry.height, geometry.width)
        long = np.maximum(geometry.height, geometry.width)
        new_short = np.full_like(short, self.size)
        new_long = (self.size * long / short).astype(np.int64)
        if self.max_size is not None:
            over = new_long > self.max_size
            shrunk = (self.max_size * new_short / new_long).astype(np.int64)
            new_short = np.where(over, np.maximum(shrunk, 1), new_short)
            new_long = np.where(over, self.max_size, new_long)
        return geometry.resize(
            np.where(upright, new_long, new_short),
            np.where(upright, new_short, new_long),
            self.interpolation,
            self.antialias,
        )
