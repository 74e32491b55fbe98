"""How much memory a script takes: its peak, and what holds it then."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastdata.measuring.lines import user_line

__all__ = ["Held", "MemoryFollowed", "forget_peak", "peak_bytes", "uses_cuda"]

BEFORE = "made before the step"


def uses_cuda() -> bool:
    """Return whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def forget_peak() -> None:
    """Have the peak of memory be that of what comes, and not of steps before advice was followed.

    Source: ``/proc/PID/clear_refs`` in proc(5).
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # neither is everywhere
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    if uses_cuda():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """Return the most memory that was resident."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors that are in memory when a step takes the most: those of one operation of a line."""

    operation: str
    """Of torch; or what else they are, as parameters."""
    where: str
    """``FILE:LINE function`` of the user's code; "" of what no operation of the step made."""
    nbytes: int
    tensors: int


class MemoryFollowed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors of a step, from when they are made until their memory is given back.

    Only those of one device: of the GPU, where there is one.  What operations take for themselves
    while they run is not seen.  Memory that tensors share is counted once, where it was made.
    """

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        parameters = [p for model in models for p in model.parameters()]
        self._device = "cuda" if any(p.is_cuda for p in parameters) else "cpu"
        self._alive: dict[int, weakref.ref[Any]] = {}
        """By address of a storage."""
        self._held: dict[tuple[str, str], tuple[int, int]] = {}
        """Bytes and tensors that are alive, by operation and line."""
        self._bytes = 0
        self.peak_bytes = 0
        self._at_peak = self._held
        groups: dict[str, list[Any]] = {
            "parameters": parameters,
            "gradients of the step before": [p.grad for p in parameters],
            "buffers of the model": [b for model in models for b in model.buffers()],
            "state of the optimiser": tree_leaves([list(one.state.values()) for one in optimizers]),
        }
        for name, tensors in groups.items():
            for tensor in tensors:
                self._add(tensor, (name, ""))

    def at_peak(self) -> tuple[Held, ...]:
        """Return what was in memory when that was the most, the largest first."""
        found = [
            Held(operation, where, nbytes, tensors)
            for (operation, where), (nbytes, tensors) in self._at_peak.items()
            if nbytes
        ]
        return tuple(sorted(found, key=lambda one: (-one.nbytes, one.where, one.operation)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            self._add(leaf, (BEFORE, ""))
        result = func(*args, **(kwargs or {}))
        place = func.overloadpacket.__name__, user_line(sys._getframe(1))
        for leaf in tree_leaves(result):
            self._add(leaf, place)
        return result

    def _add(self, leaf: Any, place: tuple[str, str]) -> None:
        """Count the memory of a tensor that was not seen before, until it is given back."""
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != self._device:
            return
        try:
            storage = leaf.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse ones, and those without values
            return
        address, nbytes = storage._cdata, storage.nbytes()
        if address in self._alive:
            return

        def remove(_: object) -> None:
            del self._alive[address]
            self._count(place, -nbytes, -1)

        self._alive[address] = weakref.ref(storage, remove)
        self._count(place, nbytes, 1)
        if self._bytes > self.peak_bytes:
            self.peak_bytes, self._at_peak = self._bytes, self._held.copy()

    def _count(self, place: tuple[str, str], nbytes: int, tensors: int) -> None:
        before = self._held.get(place, (0, 0))
        self._held[place] = before[0] + nbytes, before[1] + tensors
        self._bytes += nbytes
