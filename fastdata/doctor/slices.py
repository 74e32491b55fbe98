"""Loops over a dimension of a tensor, which do with one slice after another what one call does."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.measuring.lines import direct_line

__all__ = ["LEAST_SLICES", "SlicesFollowed", "TakenApart"]

LEAST_SLICES = 16
"""Of a tensor, that a line takes in a step; of fewer a loop costs little."""

JOINS = frozenset({"stack", "cat", "concat", "__iadd__", "add_", "__setitem__", "copy_"})
"""What puts results of several slices together, after they were computed one by one."""

ADDS = frozenset({"add", "__add__", "__radd__"})
"""What adds up results, where one of the two is such a sum already."""

Index: TypeAlias = "tuple[TakenApart, int]"


@dataclass(slots=True, eq=False)
class TakenApart:
    """A line that takes slices of a tensor, one after another."""

    line: str
    indices: set[int] = field(default_factory=set)
    computes: bool = False
    """Whether anything is computed of a slice."""
    chained: bool = False
    """Whether what is computed of a slice needs what was computed of another, as in an RNN."""

    @property
    def is_avoidable(self) -> bool:
        """Whether all slices could be computed at once, and are enough for it to matter."""
        return len(self.indices) >= LEAST_SLICES and self.computes and not self.chained


class SlicesFollowed(TorchFunctionMode):
    """Follows what a step makes of the slices of tensors, in the script's own code."""

    def __init__(self) -> None:
        super().__init__()
        self._loops: Any = WeakIdKeyDictionary()
        """By tensor, what takes it apart, by line."""
        self._of: Any = WeakIdKeyDictionary()
        """By tensor, the slices that it was made of."""
        self._sums: Any = WeakIdKeyDictionary()
        """Results of additions."""
        self.found: list[TakenApart] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "select", "unbind"):
            self._take(name, args, result, sys._getframe(1))
        elif name not in ("backward", "__get__", "size", "dim"):
            self._follow(name, args, kwargs, result)
        return result

    def _take(self, name: str, args: Any, result: Any, frame: Any) -> None:
        index = None
        if name == "__getitem__":
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            numbers = [key for key in keys if type(key) is int]
            index = numbers[0] if len(numbers) == 1 else None
        elif name == "select":
            index = args[2] if len(args) > 2 else None
        before: frozenset[Index] = self._of.get(args[0], frozenset())
        taken = list(enumerate(result)) if name == "unbind" else [(index, result)]
        line = direct_line(frame) if index is not None or name == "unbind" else ""
        loop = self._loop(args[0], line) if line else None
        for number, one in taken:
            own: set[Index] = set()
            if loop is not None and number is not None:
                loop.indices.add(number)
                own.add((loop, number))
            if isinstance(one, torch.Tensor) and (own or before):
                self._of[one] = before | own

    def _loop(self, tensor: torch.Tensor, line: str) -> TakenApart:
        loops = self._loops.setdefault(tensor, {})
        if line not in loops:
            loops[line] = TakenApart(line)
            self.found.append(loops[line])
        found: TakenApart = loops[line]
        return found

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        slices: frozenset[Index] = frozenset().union(*(self._of.get(t, ()) for t in given))
        if not slices:
            return
        adds = name in ADDS
        joins = name in JOINS or (adds and (len(given) == 1 or any(t in self._sums for t in given)))
        for loop in {loop for loop, _ in slices}:
            loop.computes |= not joins
            if not joins and len({number for one, number in slices if one is loop}) > 1:
                loop.chained |= any(self._is_of_one(self._of.get(t, ()), loop) for t in given)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for tensor in (*made, *(given[:1] if joins and not made else ())):
            self._of[tensor] = slices
            if adds:
                self._sums[tensor] = True

    @staticmethod
    def _is_of_one(slices: Any, loop: TakenApart) -> bool:
        return len({number for one, number in slices if one is loop}) == 1
