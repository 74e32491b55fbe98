"""Attention that a script computes by hand: two products with a softmax between them.

Only what `torch.nn.functional.scaled_dot_product_attention` computes as well is found.  That has no
weights to give back, so attention whose weights the script uses, keeps or returns is left out.
"""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.measuring.lines import direct_line, tree_of, user_frame

__all__ = ["AttentionFollowed", "tensors_in"]

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


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of what a call is given, or returns."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class AttentionFollowed:
    """Follows tensors from one product to the next."""

    def __init__(self) -> None:
        self._parts: Any = WeakIdKeyDictionary()
        """The attention that a tensor belongs to."""
        self._found: list[_Attention] = []

    def lines(self) -> list[str]:
        """Return the lines of attention whose weights are used for nothing else."""
        lines = (one.line for one in self._found if one.has_weights and one.uses == 1)
        return list(dict.fromkeys(filter(None, lines)))

    def follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Follow a call of the script's, after it."""
        given = tensors_in((args, kwargs))
        part = next((self._parts[one] for one in given if one in self._parts), None)
        if part is None:
            if name in _PRODUCTS and _may_score(given[-2:]):
                self._found.append(_Attention())
                self._parts[result] = self._found[-1]
            return
        if name in _FACTS:
            return
        if part.has_weights:
            goes_on = name in (*_CASTS, *_OF_WEIGHTS)
            if name in _PRODUCTS:
                frame = sys._getframe(1)
                part.line = "" if self._is_kept(part, frame) else direct_line(frame)
        elif name == "softmax":
            dimension = kwargs.get("dim", args[1] if len(args) > 1 else None)
            goes_on = part.has_weights = dimension in (-1, given[0].ndim - 1)
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
        names = {
            name
            for name, one in frame.f_locals.items()
            if isinstance(one, torch.Tensor) and self._parts.get(one) is part
        }
        tree = tree_of(frame.f_code.co_filename)
        return bool(names) and (tree is None or bool(names & _kept(tree, frame.f_lineno)))


def _may_score(operands: list[torch.Tensor]) -> bool:
    """Return whether the operands may be queries and keys. Parameters are neither."""
    batched = all(one.ndim > 2 and not isinstance(one, nn.Parameter) for one in operands)
    return len(operands) == 2 and batched and operands[0].shape[-1] <= LARGEST_HEAD


def _kept(tree: ast.Module, line: int) -> set[str]:
    """Return names whose values the function around a line returns, or keeps elsewhere."""
    scope: Any = tree
    functions = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    for node in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or line):
            scope = node
    names: set[str] = set()
    for node in ast.walk(scope):
        elsewhere = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
        if elsewhere or isinstance(node, (ast.Return, ast.Yield)):
            names |= _bare(node.value)  # type: ignore[attr-defined]
    return names


def _bare(value: ast.AST | None) -> set[str]:
    """Return names that are values themselves, or items of one."""
    if isinstance(value, ast.Name):
        return {value.id}
    has_items = isinstance(value, (ast.Tuple, ast.List, ast.Dict, ast.IfExp))
    return set().union(*map(_bare, ast.iter_child_nodes(value))) if value and has_items else set()
