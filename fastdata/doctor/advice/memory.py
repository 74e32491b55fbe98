"""What a step keeps in memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastdata.doctor.contract import Finding, Undo, advice, replaced
from fastdata.doctor.seen import Seen

LEAST_BLOCKS = 4
_EXPANDABLE = "expandable_segments:True"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@advice("D35", "checkpoint repeated blocks", saves="memory")
def activation_checkpointing(seen: Seen) -> Iterator[Finding]:
    """Look for models with many blocks of one class, without checkpoints."""
    if seen.is_compiled or seen.called("checkpoint"):
        return
    for model in seen.trained():
        for name, blocks in _blocks(model, seen).items():
            if len(blocks) >= LEAST_BLOCKS:
                what = f"checkpoint {len(blocks)} blocks of {name}"
                change = functools.partial(_checkpoint, blocks)
                yield Finding(seen.line_of(model), what, change)


def _blocks(model: nn.Module, seen: Seen) -> dict[str, list[nn.Module]]:
    """Return the outermost blocks that stand in a row with others of their class."""
    found: dict[str, list[nn.Module]] = {}
    inside: set[int] = set()
    for row in model.modules():
        if id(row) in inside or not isinstance(row, (nn.Sequential, nn.ModuleList)):
            continue
        for block in row:
            alike = sum(type(other) is type(block) for other in row) > 1
            used = any(part in seen.uses for part in block.modules())
            if alike and used and next(block.children(), None) is not None:
                found.setdefault(type(block).__name__, []).append(block)
                inside |= {id(part) for part in block.modules()}
    return found


def _checkpoint(blocks: list[nn.Module]) -> Undo:
    undo = ExitStack()
    for block in blocks:
        undo.callback(replaced(block, "forward", _checkpointed(block, block.forward)))
    return undo.close


def _checkpointed(block: nn.Module, forward: Any) -> Any:
    @functools.wraps(forward)
    def checkpointed(*arguments: Any, **options: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return forward(*arguments, **options)
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    return checkpointed


UNUSED = 0.25
"""The unused share of torch's memory that is a sign of fragmentation."""


@advice("D36", _EXPANDABLE, saves="memory", gpu_only=True)
def expandable_segments(seen: Seen) -> Iterator[Finding]:
    """Look at the figures of torch's allocator."""
    if not seen.on_gpu or any(name in os.environ for name in _ALLOCATOR):
        return
    figures = torch.cuda.memory_stats()
    taken, used = (figures[f"{kind}_bytes.all.peak"] for kind in ("reserved", "active"))
    retries = figures.get("num_alloc_retries", 0)
    if retries or used < (1 - UNUSED) * taken:
        name = _ALLOCATOR[0]
        what = f"{name}={_EXPANDABLE} ({retries:,} retries, {used / taken:.0%} in use)"
        yield Finding("", what, environment=((name, _EXPANDABLE),))
