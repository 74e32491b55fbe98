"""What a script leaves on: debugging, deterministic algorithms, gradients of a validation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from fastdata.doctor.contract import Finding, Numerics, Undo, advice, at, replaced
from fastdata.doctor.seen import Seen


class _Nothing:
    """Takes the place of an object of a context of torch, and does nothing."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *arguments, **options: self


def _make(context: type[Any], *arguments: Any, **options: Any) -> Any:
    return object.__new__(context)


def _make_nothing(context: type[Any], *arguments: Any, **options: Any) -> Any:
    return _Nothing()


def _without(*contexts: Any) -> Undo:
    """Have these classes make objects that do nothing; those that are made already go on."""
    undo = ExitStack()
    for context in contexts:
        context.__new__ = _make_nothing
        # A class whose `__new__` is deleted refuses arguments from then on.
        undo.callback(setattr, context, "__new__", _make)
    return undo.close


@advice("D09", "switch anomaly detection off")
def anomaly_detection(seen: Seen) -> Iterator[Finding]:
    """Look for its calls."""
    for name, everywhere in (("detect_anomaly", False), ("set_detect_anomaly", True)):
        yield from at(seen.called(name), change=functools.partial(_no_anomalies, everywhere))


def _no_anomalies(everywhere: bool) -> Undo:
    undo = ExitStack()
    if everywhere:
        undo.callback(torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled())
    torch.autograd.set_detect_anomaly(False)
    undo.callback(_without(torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly))
    return undo.close


_PROFILERS = torch.profiler.profile, torch.autograd.profiler.profile


@advice("D30", "switch the profiler off")
def profiler_left_on(seen: Seen) -> Iterator[Finding]:
    """Look for profilers that are made."""
    return at(seen.called("profile"), change=functools.partial(_without, *_PROFILERS))


@advice("D34", "remove use_deterministic_algorithms", numerics=Numerics.ROUNDING)
def determinism(seen: Seen) -> Iterator[Finding]:
    """Look at the flag."""
    if torch.are_deterministic_algorithms_enabled():
        calls = seen.called("use_deterministic_algorithms")
        yield Finding(calls[-1] if calls else "", change=_not_deterministic)


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
    epochs = (event.epoch for event in seen.events)
    loaders = {id(epoch.loader) for epoch in epochs if epoch and epoch.trains}
    found: dict[str, Finding] = {}
    for event in seen.of_kind("forward"):
        learnable = event.recorded and any(p.requires_grad for p in event.of.parameters())
        if id(event) in learns or not learnable:
            continue
        if (epoch := event.epoch) is None:
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
        with torch.set_grad_enabled(model.training and torch.is_grad_enabled()):
            return forward(*arguments, **options)

    return replaced(model, "forward", unrecorded)
