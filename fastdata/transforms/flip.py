"""Random horizontal flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import GeometricTransform
from fastdata.transforms.geometry import Geometry

__all__ = ["RandomHorizontalFlip"]


@dataclass(frozen=True)
class RandomHorizontalFlip(GeometricTransform):
    """Mirror an image left to right, with probability `p`.

    Notes
    -----
    Draw 0, uniform in [0, 1), is compared with `p`.
    """

    keeps_size: ClassVar[bool] = True

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise OptionError(f"p is a probability from 0 to 1, not {self.p!r}")

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.mirror(draws.uniform()[:, 0] < self.p)
