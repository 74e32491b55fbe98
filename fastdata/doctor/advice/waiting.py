"""What makes a GPU wait for the host."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_GUIDE = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_READS = "it has to be read later, or less often, which only the script's author can decide"
_MADE = "the script has to make it there"


class Synchronisations(Advice):
    """Reading a value of the GPU makes the host wait for all that it was given to do."""

    id = "D11"
    title = "values that are read in each step"
    gpu_only = True
    source = _GUIDE

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
    """What is made on the host is copied; made on the device, it is there."""

    id = "D12"
    title = "device= where tensors are made"
    gpu_only = True
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the stalls of a step."""
        for stall in seen.stalls:
            if stall.kind == "host tensor":
                yield Finding(stall.where, f"{stall.operation}(device=...)", why_not=_MADE)


ADVICE = Synchronisations(), HostTensors()
