"""What following advice does to the numbers of a step.

Gradients of one step from the same state are compared with those of the same step in float64: a
loss that agrees to a percent can hide gradients that are a third off.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from fastdata.doctor.contract import Numerics

__all__ = [
    "Compared",
    "State",
    "StepDump",
    "compare_dumps",
    "digest",
    "make_float64",
    "named_parameters",
    "to_float64",
]

_save = torch.save  # before a script's process keeps it from writing

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


def named_parameters(models: Sequence[nn.Module], optimizer: Optimizer) -> Tensors:
    """Return an optimiser's parameters, by names that stay if one is taken away."""
    names = {
        id(p): f"{number}.{name}"
        for number, model in enumerate(models)
        for name, p in model.named_parameters()
    }
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {names.get(id(p), str(n)): p for n, p in enumerate(every)}


class State:
    """Weights, buffers, gradients, and what optimisers keep, as they are now."""

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        of_models = [t for model in models for t in (*model.parameters(), *model.buffers())]
        self._optimizers = [
            (
                optimizer,
                {p: _copied(state) for p, state in optimizer.state.items()},
                [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
            )
            for optimizer in optimizers
        ]
        of_groups = [p for one in optimizers for g in one.param_groups for p in g["params"]]
        tensors = {id(t): t for t in (*of_models, *of_groups)}.values()
        self._values = [(t, t.detach().clone()) for t in tensors]
        self._gradients = [(t, _clone(t.grad)) for t in tensors if isinstance(t, nn.Parameter)]

    def restore(self) -> None:
        """Have all of it as it was; for a moment in which no advice is followed."""
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = _clone(gradient)
        for optimizer, states, groups in self._optimizers:
            optimizer.state.clear()
            optimizer.state.update({p: _copied(state) for p, state in states.items()})
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _copied(state: Any) -> Any:
    return {k: _clone(v) for k, v in state.items()} if isinstance(state, dict) else _clone(state)


class StepDump:
    """Gradients and updates of the step that comes next, for a file."""

    def __init__(self, path: str, parameters: Tensors) -> None:
        self._path, self._parameters = path, parameters
        self._before = {name: p.detach().clone() for name, p in parameters.items()}

    def write(self) -> None:
        """Write the file; after the step, which may have called a closure that made gradients."""
        every = self._parameters.items()
        gradients = {name: p.grad.detach() for name, p in every if p.grad is not None}
        updates = {name: p.detach() - self._before[name] for name, p in every}
        _save({"gradients": gradients, "updates": updates}, self._path)


def to_float64(leaf: Any) -> Any:
    """Return a tensor of floating point numbers in float64, and anything else as it is."""
    is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.double() if is_float else leaf


def make_float64(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Make weights and optimisers float64, whatever the script has made of them."""
    for model in models:
        model.double()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if name != "step":
                    state[name] = to_float64(value)


def compare_dumps(base: Path, other: Path, exact: Path) -> Compared:
    """Compare gradients and updates of a step, as `StepDump` writes them."""
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
    """Return a hash of the values of all tensors in a structure; "" without any.

    Tensors that wrap others are left out, as those of which each rank has a part.
    """
    wraps_others: Callable[[object], bool] = is_traceable_wrapper_subclass
    leaves = [
        leaf
        for leaf in tree_leaves(tensors)
        if isinstance(leaf, torch.Tensor) and not wraps_others(leaf)
    ]
    found = hashlib.sha256()
    for leaf in leaves:
        found.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        flat = leaf.detach().cpu().contiguous().flatten()
        found.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return found.hexdigest() if leaves else ""
