"""What helps to find faults, and is left on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from fastdata.doctor.contract import Advice, Finding, Undo
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]


class _Switchable:
    """Objects of a context of torch, which do nothing if they are made while it is off."""

    def __init__(self, context: type[Any]) -> None:
        self.off = False
        self._made_off: set[int] = set()
        make = context.__init__

        @functools.wraps(make)
        def making(this: Any, *arguments: Any, **options: Any) -> None:
            self._made_off.discard(id(this))
            if self.off:
                self._made_off.add(id(this))
            else:
                make(this, *arguments, **options)

        context.__init__ = making
        for name in ("__enter__", "__exit__", "start", "stop", "step"):
            if hasattr(context, name):
                setattr(context, name, self._method(getattr(context, name)))

    def _method(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(this: Any, *arguments: Any, **options: Any) -> Any:
            if id(this) in self._made_off:
                return None if original.__name__ == "__exit__" else this
            return original(this, *arguments, **options)

        return method

    def switch_off(self) -> Undo:
        self.off = True
        return functools.partial(setattr, self, "off", False)


_switchable = functools.cache(_Switchable)


class AnomalyDetection(Advice):
    id = "D09"
    title = "switch anomaly detection off"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for its calls."""
        for name, line in dict.fromkeys(seen.calls):
            if name in ("detect_anomaly", "set_detect_anomaly"):
                everywhere = name == "set_detect_anomaly"
                yield Finding(line, self.title, functools.partial(self._switch_off, everywhere))

    @staticmethod
    def _switch_off(everywhere: bool) -> Undo:
        undo = ExitStack()
        if everywhere:
            undo.callback(torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled())
        torch.autograd.set_detect_anomaly(False)
        for context in (torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly):
            undo.callback(_switchable(context).switch_off())
        return undo.close


class ProfilerLeftOn(Advice):
    id = "D30"
    title = "switch the profiler off"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for profilers that are made."""
        for name, line in dict.fromkeys(seen.calls):
            if name == "profile":
                yield Finding(line, self.title, self._switch_off)

    @staticmethod
    def _switch_off() -> Undo:
        undo = ExitStack()
        for context in (torch.profiler.profile, torch.autograd.profiler.profile):
            undo.callback(_switchable(context).switch_off())
        return undo.close


class BlockingLaunches(Advice):
    id = "D32"
    title = "unset CUDA_LAUNCH_BLOCKING"
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the environment."""
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            yield Finding("", self.title, environment=(("CUDA_LAUNCH_BLOCKING", "0"),))


ADVICE = AnomalyDetection(), ProfilerLeftOn(), BlockingLaunches()
