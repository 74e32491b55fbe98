"""What a script leaves on: debugging, deterministic algorithms, gradients of a validation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from fastdata.doctor.contract import Finding, Numerics, Undo, advice, replaced
from fastdata.doctor.seen import Seen


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


@advice("D09", "switch anomaly detection off")
def anomaly_detection(seen: Seen) -> Iterator[Finding]:
    """Look for its calls."""
    for name in ("detect_anomaly", "set_detect_anomaly"):
        change = functools.partial(_no_anomalies, name == "set_detect_anomaly")
        yield from (Finding(line, change=change) for line in seen.called(name))


def _no_anomalies(everywhere: bool) -> Undo:
    undo = ExitStack()
    if everywhere:
        undo.callback(torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled())
    torch.autograd.set_detect_anomaly(False)
    for context in (torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly):
        undo.callback(_switchable(context).switch_off())
    return undo.close


@advice("D30", "switch the profiler off")
def profiler_left_on(seen: Seen) -> Iterator[Finding]:
    """Look for profilers that are made."""
    return (Finding(line, change=_no_profiler) for line in seen.called("profile"))


def _no_profiler() -> Undo:
    undo = ExitStack()
    for context in (torch.profiler.profile, torch.autograd.profiler.profile):
        undo.callback(_switchable(context).switch_off())
    return undo.close


@advice("D32", "unset CUDA_LAUNCH_BLOCKING", gpu_only=True)
def blocking_launches(seen: Seen) -> Iterator[Finding]:
    """Look at the environment."""
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield Finding("", environment=(("CUDA_LAUNCH_BLOCKING", "0"),))


@advice("D34", "remove use_deterministic_algorithms", numerics=Numerics.ROUNDING)
def determinism(seen: Seen) -> Iterator[Finding]:
    """Look at the flag."""
    if torch.are_deterministic_algorithms_enabled():
        lines = "", *seen.called("use_deterministic_algorithms")
        yield Finding(lines[-1], change=_not_deterministic)


def _not_deterministic() -> Undo:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    return functools.partial(torch.use_deterministic_algorithms, True, warn_only=warn_only)


_NO_GRAPH = "torch.inference_mode()"


@advice(
    "D10",
    f"{_NO_GRAPH} in validation",
    phase="evaluate",
    why_not="only passes in evaluation mode are measured",
)
def validation_records_gradients(seen: Seen) -> Iterator[Finding]:
    """Look for forward passes of a validation that are recorded."""
    learns = {id(event) for event in seen.training_passes}
    trained = {id(event.of) for event in seen.training_passes}
    loaders = {
        id(event.epoch.loader) for event in seen.events if event.epoch and event.epoch.trains
    }
    found: dict[str, Finding] = {}
    for event in seen.forwards:
        has_gradients = any(p.requires_grad for p in event.of.parameters())
        if not event.recorded or id(event) in learns or not has_gradients:
            continue
        epoch = event.epoch
        if epoch is None:
            validates = not event.training and id(event.of) in trained
        else:
            other = epoch.is_whole and bool(loaders) and id(epoch.loader) not in loaders
            validates = not epoch.trains and (other or not event.training)
        if validates and not event.training:
            change = functools.partial(_record_nothing, event.of)
            found[event.line] = Finding(event.line, _NO_GRAPH, change)
        elif validates:
            what = f"{_NO_GRAPH} and (unless training mode is meant) model.eval()"
            found.setdefault(event.line, Finding(event.line, what))
    yield from found.values()


def _record_nothing(model: nn.Module) -> Undo:
    forward = model.forward

    @functools.wraps(forward)
    def unrecorded(*arguments: Any, **options: Any) -> Any:
        if model.training:
            return forward(*arguments, **options)
        with torch.no_grad():
            return forward(*arguments, **options)

    return replaced(model, "forward", unrecorded)
