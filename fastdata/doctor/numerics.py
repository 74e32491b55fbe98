"""What following advice does to the numbers of a step.

Gradients of one step from the same state are compared with those of the same step in float64: a
loss that agrees to a percent can hide gradients that are a third off.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves

from fastdata.doctor.contract import Numerics

__all__ = ["Compared", "compare_dumps", "digest"]

Tensors: TypeAlias = dict[str, torch.Tensor]

ROUNDING_FACTOR = 4.0
"""An error that is so many times that of the script itself is rounding still."""

ROUNDING_ERROR = 5e-3
"""Relative: float32 sums in another order turn the sign of what some ReLU is given.  In four
residual blocks channels last was 2e-4 off and no biases 8e-5, and bfloat16 2e-2."""

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
    """Compare gradients and updates of a step, which `messages.Dump` has written."""
    first, second = _load(base), _load(other)
    if first is None or second is None:
        return Compared()
    same_gradients = _equal(first["gradients"], second["gradients"])
    if same_gradients and _equal(first["updates"], second["updates"]):
        return Compared(Numerics.EQUAL, 0.0)
    if same_gradients:  # an optimiser that rounds otherwise
        error = _error(second["updates"], first["updates"])
        near = error <= ROUNDING_ERROR
        return Compared(Numerics.ROUNDING if near else Numerics.TRAINING, error)
    right = _load(exact)
    if right is None or not first["gradients"].keys() & right["gradients"].keys():
        return Compared()
    ours = _error(first["gradients"], right["gradients"])
    theirs = _error(second["gradients"], right["gradients"])
    if theirs <= max(ROUNDING_FACTOR * ours, ROUNDING_ERROR):
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


def digest(tensors: Any) -> str:
    """Return a hash of the values of all tensors in a structure; "" without any."""
    leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    found = hashlib.sha256()
    for leaf in leaves:
        found.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        flat = leaf.detach().cpu().contiguous().flatten()
        found.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return found.hexdigest() if leaves else ""
