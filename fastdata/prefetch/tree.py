"""Tensors and arrays in nested batches.

Dicts, lists, tuples, named tuples and dataclasses are gone into, whatever else is in
them is passed on as it is.  `torch.utils._pytree` would do it for all but dataclasses,
but is private.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["leaves", "map_leaves"]


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch with `function` applied to every tensor and array in it.

    Parameters
    ----------
    function : callable
        Of one `torch.Tensor` or `numpy.ndarray`.
    batch : nested dict, list, tuple, named tuple, dataclass or leaf
        Never changed.

    Returns
    -------
    Any
        Containers of the same types; of other mappings a copy, or a dict where it cannot
        be changed.  What is no container, tensor or array is the same object as before.
    """
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return function(batch)
    if isinstance(batch, Mapping):
        found = {key: map_leaves(function, value) for key, value in batch.items()}
        return found if type(batch) is dict else _like_mapping(batch, found)
    if isinstance(batch, tuple):
        values = [map_leaves(function, value) for value in batch]
        if type(batch) is tuple:
            return tuple(values)
        make = getattr(type(batch), "_make", type(batch))
        return make(values)
    if isinstance(batch, list):
        return [map_leaves(function, value) for value in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        # Neither its constructor nor `dataclasses.replace`, which refuses fields that are
        # not arguments.
        changed = copy.copy(batch)
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                value = map_leaves(function, getattr(batch, field.name))
                object.__setattr__(changed, field.name, value)
        return changed
    return batch


def leaves(batch: Any) -> list[Any]:
    """Return the tensors and arrays of a batch, in order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(note, batch)
    return found


def _like_mapping(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    try:
        changed: Any = copy.copy(batch)
        for key, value in values.items():
            changed[key] = value
    except TypeError:  # cannot be assigned to
        return values
    return changed
