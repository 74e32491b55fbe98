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
from torch.nn.utils.rnn import PackedSequence

__all__ = ["leaves", "map_leaves"]


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch with `function` applied to every tensor and array in it.

    The batch itself is never changed.  Containers are of the same types; a dict or tuple takes the
    place of a mapping or tuple that cannot be made of its values.  What is no container, tensor or
    array is the same object as before.
    """
    if isinstance(batch, np.ma.MaskedArray):  # no tensor has a mask
        return batch
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return function(batch)
    if isinstance(batch, PackedSequence):  # whose batch sizes are for the CPU
        data, sizes, *orders = batch
        moved = [None if order is None else function(order) for order in orders]
        return PackedSequence(function(data), sizes, *moved)
    if isinstance(batch, Mapping):
        entries = {key: map_leaves(function, value) for key, value in batch.items()}
        return entries if type(batch) is dict else _like_mapping(batch, entries)
    if isinstance(batch, tuple):
        values = [map_leaves(function, value) for value in batch]
        if type(batch) is tuple:
            return tuple(values)
        try:
            return getattr(type(batch), "_make", type(batch))(values)
        except TypeError:  # made of something else
            return tuple(values)
    if isinstance(batch, list):
        values = [map_leaves(function, value) for value in batch]
        if type(batch) is list:
            return values
        rows = copy.copy(batch)
        rows[:] = values
        return rows
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
    collected: list[Any] = []

    def collect(leaf: Any) -> Any:
        collected.append(leaf)
        return leaf

    map_leaves(collect, batch)
    return collected


def _like_mapping(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if isinstance(batch, dict):  # keeps its values itself: a copy has its own
        changed = copy.copy(batch)
        changed.update(values)
        return changed
    try:
        return type(batch)(values)  # type: ignore[call-arg]
    except TypeError:
        return values
