"""How a training loop copies the tensors of its batches to a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fastdata.measuring.lines import direct_line

__all__ = ["BatchCopied", "CopiesFollowed"]


@dataclass(frozen=True, slots=True)
class BatchCopied:
    """A line of the user's that copies a tensor of a batch, and the loader of that batch."""

    line: str
    loader: Any
    non_blocking: bool

    @property
    def pinned(self) -> bool:
        """Whether the loader is to put its batches into pinned memory."""
        return bool(getattr(self.loader, "pin_memory", False))


class CopiesFollowed(TorchFunctionMode):
    """Notes calls of ``.to(device)`` and ``.cuda()``, of the script's own code, on batches.

    `loader_of` returns the loader that made a tensor; None of all others.
    """

    def __init__(self, loader_of: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self._loader_of = loader_of
        self.copies: list[BatchCopied] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("to", "cuda") and args:
            loader = self._loader_of(args[0])
            given = (*args[1:], *options.values())
            moves = name == "cuda" or any(isinstance(v, (str, torch.device)) for v in given)
            line = direct_line(sys._getframe(1)) if loader is not None and moves else ""
            if line:
                # It is the only argument of either that may be given as a mere True, but for
                # `copy`, the fourth.
                non_blocking = options.get("non_blocking", any(v is True for v in args[1:4]))
                self.copies.append(BatchCopied(line, loader, bool(non_blocking)))
        return func(*args, **options)
