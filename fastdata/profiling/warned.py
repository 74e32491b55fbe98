"""Synchronisations that torch itself warns of, on CUDA: for what its modes do not know."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastdata.profiling.places import Places, text_of
from fastdata.profiling.where import user_line

__all__ = ["BLOCKING_COPY", "synchronisations_warned"]

BLOCKING_COPY = "a copy without non_blocking=True"


@contextmanager
def synchronisations_warned(found: Places) -> Iterator[None]:
    """Have torch warn of synchronisations inside the block, and report those not known yet."""
    before = torch.cuda.get_sync_debug_mode()
    show: Callable[..., None] = warnings.showwarning
    seen: list[str] = []

    def note(message: Any, category: Any, *others: Any, **options: Any) -> None:
        if "synchroniz" not in str(message):
            show(message, category, *others, **options)
            return
        seen.append(user_line(sys._getframe(1)))

    known = {p.where for p in found.places if p.kind == "synchronisation"}
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for where in seen:
        if where not in known:
            found.add("synchronisation", _warned_of(where), where)


def _warned_of(where: str) -> str:
    """Return what torch warned of, as far as the line tells: copies that block are, too."""
    text = text_of(where)
    copies = any(word in text for word in (".to(", ".cuda(", ".copy_("))
    return BLOCKING_COPY if copies else "a synchronising operation"
