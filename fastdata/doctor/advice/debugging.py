"""What helps to find faults, and is left on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_GUIDE = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"


def _disable(context: type[Any]) -> None:
    """Have a context of torch switch nothing on any more."""

    def nothing(this: Any, *_: Any, **__: Any) -> Any:
        return this

    context.__init__ = lambda *_, **__: None
    context.__enter__ = nothing
    context.__exit__ = lambda *_: None
    for name in ("start", "stop", "step"):
        if hasattr(context, name):
            setattr(context, name, nothing)


class AnomalyDetection(Advice):
    """Anomaly detection keeps the stack of every forward operation, and checks every gradient."""

    id = "D09"
    title = "anomaly detection is on"
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for its calls."""
        for name, line in dict.fromkeys(seen.calls):
            if name in ("detect_anomaly", "set_detect_anomaly"):
                yield Finding(line, self.title, self._switch_off)

    @staticmethod
    def _switch_off() -> None:
        torch.autograd.set_detect_anomaly(False)
        _disable(torch.autograd.detect_anomaly)
        _disable(torch.autograd.set_detect_anomaly)


class ProfilerLeftOn(Advice):
    """A profiler records every operation, also those that nobody will look at."""

    id = "D30"
    title = "a profiler is on"
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for profilers that are made."""
        for name, line in dict.fromkeys(seen.calls):
            if name == "profile":
                yield Finding(line, self.title, self._switch_off)

    @staticmethod
    def _switch_off() -> None:
        _disable(torch.profiler.profile)
        _disable(torch.autograd.profiler.profile)


class BlockingLaunches(Advice):
    """``CUDA_LAUNCH_BLOCKING=1`` makes the host wait for every kernel."""

    id = "D32"
    title = "CUDA_LAUNCH_BLOCKING is set"
    gpu_only = True
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the environment."""
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            yield Finding("", self.title, environment=(("CUDA_LAUNCH_BLOCKING", "0"),))


ADVICE = AnomalyDetection(), ProfilerLeftOn(), BlockingLaunches()
