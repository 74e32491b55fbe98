"""What following advice does to the numbers of a step.

Gradients of one step from the same state are compared with those of the same step in float64: a
loss that agrees to a percent can hide gradients that are a third off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from fastdata.doctor.contract import Numerics

__all__ = ["Compared", "compare_dumps"]

Tensors: TypeAlias = dict[str, torch.Tensor]

ROUNDING_FACTOR = 4.0
"""An error that is so many times that of the script itself is rounding still."""

LEAST_ERROR = 1e-6
"""Relative: some float32 operations, summed in another order."""

MOST_ERROR = 0.1
"""Relative: gradients that are further off train something else."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The class of a difference, and the relative error of gradients; None where not known.

    Not known where the script itself has other gradients each time, or cannot run in float64.
    """

    numerics: Numerics | None = None
    error: float | None = None


def compare_dumps(base: Path, other: Path, exact: Path) -> Compared:
    """Compare gradients and parameters of a step, which `session.Dump` has written."""
    first, second = _load(base), _load(other)
    if first is None or second is None:
        return Compared()
    if all(_equal(first[kind], second[kind]) for kind in ("gradients", "after")):
        return Compared(Numerics.EQUAL, 0.0)
    right = _load(exact)
    if right is None:
        return Compared()
    if not first["gradients"].keys() & right["gradients"].keys():
        return Compared()
    ours = _error(first["gradients"], right["gradients"])
    theirs = _error(second["gradients"], right["gradients"])
    # An optimiser that rounds otherwise has the same gradients, and other parameters.
    moved = _error(second["after"], first["after"])
    if theirs <= max(ROUNDING_FACTOR * ours, LEAST_ERROR) and moved <= max(ours, LEAST_ERROR):
        return Compared(Numerics.ROUNDING, theirs)
    return Compared(Numerics.PRECISION if theirs < MOST_ERROR else Numerics.TRAINING, theirs)


def _load(path: Path) -> dict[str, Tensors] | None:
    if not path.exists() or not path.stat().st_size:
        return None
    loaded: dict[str, Tensors] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def _equal(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def _error(tensors: Tensors, right: Tensors) -> float:
    """Return the norm of the difference over that of `right`, of what both have."""
    names = tensors.keys() & right.keys()
    difference = sum(float((tensors[n].double() - right[n].double()).norm() ** 2) for n in names)
    norm = sum(float(right[n].double().norm() ** 2) for n in names)
    return float((difference / norm) ** 0.5) if norm else math.nan
