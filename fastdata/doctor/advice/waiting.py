"""What makes a GPU wait for the host, or has it do little at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import DataLoader

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.sources import blocking_copies, mentions
from fastdata.doctor.watching import Seen
from fastdata.measuring.stalls import COPIED_ARRAY

__all__ = ["ADVICE"]

_READS = "it has to be read later, or less often, which only the script's author can decide"
_LOADING = "loading takes no part in a trial: fastdata profile measures it"
_THERE = "the script has to make it there"
_MADE = {
    COPIED_ARRAY: ("torch.as_tensor(array), which shares memory", "if the array stays as it is"),
    "torch.tensor": ("torch.tensor of Python values, which is copied", _THERE),
}
"""What to do about other tensors than those of a function that takes ``device=``."""


class Synchronisations(Advice):
    id = "D11"
    title = "values that are read in each step"
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the stalls of a step."""
        # Anomaly detection reads every gradient, and DDP which parameters were used; they are
        # advice of their own.
        checks = any("anomaly" in name for name, _ in seen.calls) or any(
            getattr(model, "find_unused_parameters", False) for model in seen.models
        )
        backward = {event.line for event in seen.events if event.kind == "backward"}
        for stall in seen.stalls:
            if stall.kind == "synchronisation" and not (checks and stall.where in backward):
                yield Finding(stall.where, stall.operation, why_not=_READS)
        for name, line in dict.fromkeys(seen.calls):
            if name == "synchronize":
                yield Finding(line, "torch.cuda.synchronize()", why_not=_READS)


class HostTensors(Advice):
    id = "D12"
    title = "tensors that are made on the host in each step"
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the stalls of a step."""
        for stall in seen.stalls:
            if stall.kind == "host tensor" and stall.count > 1:  # in two steps
                what, why = _MADE.get(stall.operation, (f"{stall.operation}(device=...)", _THERE))
                yield Finding(stall.where, what, why_not=why)


class BlockingCopies(Advice):
    id = "D21"
    title = ".to(device, non_blocking=True)"
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the copies of a step."""
        for line in dict.fromkeys(c.line for c in seen.copies if c.pinned and not c.non_blocking):
            yield Finding(line, self.title, why_not=_LOADING)
        if seen.on_gpu or seen.moving_lines is None:
            return
        what = self.title if mentions("pin_memory") else f"{self.title} and pin_memory=True"
        steps = {event.line for event in seen.events if event.kind in ("backward", "step")}
        reached = {line.partition(" ")[0] for line in seen.moving_lines}
        for line in dict.fromkeys(blocking_copies(steps, reached)):
            yield Finding(line, what, why_not=_LOADING)


class UnpinnedBatches(Advice):
    id = "D22"
    title = "DataLoader(pin_memory=True)"
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the copies of a step, and at their loaders."""
        if not seen.on_gpu and mentions("pin_memory"):
            return
        unpinned = [c.loader for c in seen.copies if c.non_blocking and not c.pinned]
        loaders = [loader for loader in unpinned if isinstance(loader, DataLoader)]
        for line in dict.fromkeys(map(seen.line_of, loaders)):
            yield Finding(line, self.title, why_not=_LOADING)


ADVICE = Synchronisations(), HostTensors(), BlockingCopies(), UnpinnedBatches()
