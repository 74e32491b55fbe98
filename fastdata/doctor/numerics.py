"""What following advice does to the numbers of a step.

Gradients of one step from the same state are compared with those of the same step in float64: a
loss that agrees to a percent can hide gradients that are a third off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from fastdata.doctor.contract import Numerics

__all__ = [
    "Compared",
    "compare_dumps",
    "make_float64",
    "named_parameters",
    "remember",
    "step_dump",
    "to_float64",
]

_save = torch.save  # before a script's process keeps it from writing

Tensors: TypeAlias = dict[str, torch.Tensor]

ROUNDING_FACTOR = 4.0
"""An error up to this many times the error of the script itself is rounding."""

ROUNDING_ERROR = 5e-3
"""Relative: float32 sums in another order change the sign of some inputs of ReLU.  In four
residual blocks, channels_last was 2e-4 off, no biases 8e-5, and bfloat16 2e-2."""

MOST_ERROR = 0.1
"""Relative: gradients that are further off train something else."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The class of a difference, and the relative error of gradients; None where not known.

    Both are unknown if the script has other gradients each time, or cannot run in float64.
    """

    numerics: Numerics | None = None
    error: float | None = None


def named_parameters(models: Sequence[nn.Module], optimizer: Optimizer) -> Tensors:
    """Return an optimiser's parameters; a name stays if another parameter is removed."""
    names = {
        id(p): f"{number}.{name}"
        for number, model in enumerate(models)
        for name, p in model.named_parameters()
    }
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {names.get(id(p), str(n)): p for n, p in enumerate(every)}


def remember(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Callable[[], None]:
    """Return a function that restores weights, buffers, gradients, and the state of optimisers.

    Call it while no advice is followed.
    """
    every = [t for model in models for t in (*model.parameters(), *model.buffers())]
    every += [p for one in optimizers for group in one.param_groups for p in group["params"]]
    tensors = [
        (t, _cloned(t), _cloned(t.grad) if t.is_leaf else None)
        for t in {id(t): t for t in every}.values()
    ]
    states = [
        (one, _cloned(dict(one.state)), [_cloned(_options(group)) for group in one.param_groups])
        for one in optimizers
    ]

    def restore() -> None:
        for tensor, value, gradient in tensors:
            # In a GAN, the other optimiser's backward pass is still to come: `data` has no version.
            tensor.data.copy_(value)
            if tensor.is_leaf:
                tensor.grad = _cloned(gradient)
        for optimizer, state, options in states:
            optimizer.state.clear()
            optimizer.state.update(_cloned(state))
            for group, values in zip(optimizer.param_groups, options, strict=True):
                group.update(_cloned(values))

    return restore


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _cloned(tree: Any) -> Any:
    """Return a copy of a structure with copies of its tensors."""
    return tree_map(lambda one: one.detach().clone() if torch.is_tensor(one) else one, tree)


def step_dump(path: str, parameters: Tensors) -> Callable[[], None]:
    """Return a function that writes the gradients and updates of the next step to a file.

    Call it after the step, whose closure may make gradients.
    """
    before = _cloned(parameters)

    def write() -> None:
        gradients = {n: p.grad.detach() for n, p in parameters.items() if p.grad is not None}
        updates = {name: p.detach() - before[name] for name, p in parameters.items()}
        _save({"gradients": gradients, "updates": updates}, path)

    return write


def to_float64(leaf: Any) -> Any:
    """Return a tensor of floating point numbers in float64, and anything else as it is."""
    return leaf.double() if torch.is_tensor(leaf) and leaf.is_floating_point() else leaf


def make_float64(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Convert weights and the state of optimisers to float64."""
    for model in models:
        model.double()
    for state in (state for one in optimizers for state in one.state.values()):
        state.update({k: to_float64(value) for k, value in state.items() if k != "step"})


def compare_dumps(base: Path, other: Path, exact: Path) -> Compared:
    """Compare gradients and updates of a step, as `step_dump` writes them."""
    first, second = _load(base), _load(other)
    if first is None or second is None:
        return Compared()
    if _equal(first["gradients"], second["gradients"]):
        if _equal(first["updates"], second["updates"]):
            return Compared(Numerics.EQUAL, 0.0)
        error = _error(second["updates"], first["updates"])  # an optimiser that rounds otherwise
        is_near = error <= ROUNDING_ERROR
        return Compared(Numerics.ROUNDING if is_near else Numerics.TRAINING, error)
    right = _load(exact)
    if right is None or not first["gradients"].keys() & right["gradients"].keys():
        return Compared()
    ours = _error(first["gradients"], right["gradients"])
    theirs = _error(second["gradients"], right["gradients"])
    if theirs <= max(ROUNDING_FACTOR * ours, ROUNDING_ERROR):
        return Compared(Numerics.ROUNDING, theirs)
    return Compared(Numerics.PRECISION if theirs < MOST_ERROR else Numerics.TRAINING, theirs)


def _load(path: Path) -> dict[str, Tensors] | None:
    is_there = path.exists() and path.stat().st_size
    return torch.load(path, map_location="cpu", weights_only=True) if is_there else None


def _equal(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def _error(tensors: Tensors, right: Tensors) -> float:
    """Return the norm of the difference over the norm of `right`, for the names of both."""
    names = tensors.keys() & right.keys()
    difference = sum(float((tensors[n].double() - right[n].double()).norm() ** 2) for n in names)
    norm = sum(float(right[n].double().norm() ** 2) for n in names)
    return float((difference / norm) ** 0.5) if norm else math.nan
