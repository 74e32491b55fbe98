"""Attention that a script computes by hand: two products with a softmax between them.

Only what `torch.nn.functional.scaled_dot_product_attention` computes as well is found.  That has no
weights to give back, so attention whose weights the script uses, keeps or returns is left out.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.measuring.lines import direct_line, tree_of, user_frame

__all__ = ["AttentionFollowed"]

LARGEST_HEAD = 256
"""The largest dimension of a query that torch has fused kernels for."""

_PRODUCTS = "matmul", "bmm", "baddbmm", "einsum"
_CASTS = "to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "view", "reshape"
_SCALED = "mul", "rmul", "imul", "div", "truediv", "itruediv"
_MASKED = "add", "radd", "iadd", "sub", "isub", "masked_fill", "where"
_OF_WEIGHTS = "dropout", "masked_fill", "nan_to_num", "transpose", "permute", "swapaxes"
_FACTS = "size", "dim", "get"
"""Calls that read no values; the last one is of properties."""


@dataclass(eq=False)
class _Attention:
    has_weights: bool = False
    line: str = ""
    """The line that multiplies weights by values."""
    uses: int = 0
    """Products of the weights, and whatever else is done with them."""


class AttentionFollowed(TorchFunctionMode):
    """Follows tensors from one product to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: Any = WeakIdKeyDictionary()
        """The attention that a tensor belongs to."""
        self._found: list[_Attention] = []

    def lines(self) -> list[str]:
        """Return the lines of attention whose weights are used for nothing else."""
        lines = (one.line for one in self._found if one.has_weights and one.uses == 1)
        return list(dict.fromkeys(filter(None, lines)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        parts = [part for one in given for part in [self._parts.get(one)] if part is not None]
        if not parts:
            if name in _PRODUCTS and _may_score(given[-2:]):
                self._found.append(_Attention())
                self._parts[result] = self._found[-1]
        elif name not in _FACTS:
            self._follow(parts[0], name, given, (args, kwargs), result)
        return result

    def _follow(self, part: _Attention, name: str, given: Any, called: Any, result: Any) -> None:
        """Follow a call on scores or weights."""
        if part.has_weights:
            goes_on = name in (*_CASTS, *_OF_WEIGHTS)
            if name in _PRODUCTS:
                frame = sys._getframe(1)
                part.line = "" if self._is_kept(part, frame) else direct_line(frame)
        elif name == "softmax" and _dimension(*called) in (-1, given[0].ndim - 1):
            goes_on = part.has_weights = True
        else:
            others = [one for one in given if one not in self._parts]
            scales = name in _SCALED and all(math.prod(one.shape[-2:]) == 1 for one in others)
            same = isinstance(result, torch.Tensor) and result.shape[-2:] == given[-1].shape[-2:]
            goes_on = scales or name in _MASKED or (name in _CASTS and same)
        if goes_on:
            self._parts[result] = part
        else:
            part.uses += 1

    def _is_kept(self, part: _Attention, frame: FrameType | None) -> bool:
        """Return whether the function that has weights returns them, or keeps them elsewhere."""
        frame = user_frame(frame)
        if frame is None:
            return True
        values = frame.f_locals.items()
        names = {k for k, one in values if isinstance(one, torch.Tensor) and one in self._parts}
        names = {name for name in names if self._parts[frame.f_locals[name]] is part}
        tree = tree_of(frame.f_code.co_filename)
        return bool(names) and (tree is None or any(names & set(_kept(tree, frame.f_lineno))))


def _may_score(operands: list[torch.Tensor]) -> bool:
    """Return whether the operands may be queries and keys. Parameters are neither."""
    batched = all(one.ndim > 2 and not isinstance(one, nn.Parameter) for one in operands)
    return len(operands) == 2 and batched and operands[0].shape[-1] <= LARGEST_HEAD


def _dimension(args: Any, kwargs: Any) -> Any:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


def _kept(tree: ast.Module, line: int) -> Iterator[str]:
    """Yield names whose values the function around a line returns, or keeps elsewhere."""
    scope: Any = tree
    node: Any
    for node in ast.walk(tree):  # outer functions come before inner ones
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if is_function and node.lineno <= line <= (node.end_lineno or line):
            scope = node
    for node in ast.walk(scope):
        elsewhere = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
        if elsewhere or isinstance(node, (ast.Return, ast.Yield)):
            yield from _bare(node.value)


def _bare(value: ast.expr | None) -> Iterator[str]:
    """Yield names that are values themselves, or items of one."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, (ast.Tuple, ast.List, ast.Dict, ast.IfExp)):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _bare(child)
