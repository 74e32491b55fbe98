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

    def __init__(self, entered: list[object]) -> None:
        self._entered = entered

    def __enter__(self) -> _Nothing:
        self._entered.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.remove(self)

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *arguments, **options: self


def _without(*contexts: Any, entered: list[object]) -> Undo:
    """Have these classes make objects that do nothing; those that are made already go on.

    `entered` has those whose block is being run.
    """
    undo = ExitStack()
    for context in contexts:
        context.__new__ = lambda *arguments, **options: _Nothing(entered)
        # A class whose `__new__` is deleted refuses arguments from then on.
        undo.callback(setattr, context, "__new__", lambda made, *_, **options: object.__new__(made))
    return undo.close


@advice("D09", "switch anomaly detection off")
def anomaly_detection(seen: Seen) -> Iterator[Finding]:
    return at(seen.called("detect_anomaly", "set_detect_anomaly"), change=_no_anomalies)


_entered: list[object] = []  # instead of contexts that look for anomalies


def _no_anomalies() -> Undo:
    undo = ExitStack()
    was_on = torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(False)
    # If a step has entered such a context without effect, the next step's context has one.
    undo.callback(lambda: torch.autograd.set_detect_anomaly(was_on and not _entered))
    contexts = torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly
    undo.callback(_without(*contexts, entered=_entered))
    return undo.close


_PROFILERS = torch.profiler.profile, torch.autograd.profiler.profile

profiler_left_on = advice("D30", "switch the profiler off")(
    lambda seen: at(
        seen.called("profile"), change=functools.partial(_without, *_PROFILERS, entered=[])
    )
)


@advice("D34", "remove use_deterministic_algorithms", numerics=Numerics.ROUNDING)
def determinism(seen: Seen) -> Iterator[Finding]:
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
    learns = set(seen.training_passes)
    trained = {event.of for event in learns}
    epochs = (event.epoch for event in seen.events)
    loaders = {id(epoch.loader) for epoch in epochs if epoch and epoch.trains}
    found: dict[str, Finding] = {}
    for event in seen.of_kind("forward"):
        learnable = event.recorded and any(p.requires_grad for p in event.of.parameters())
        if event in learns or not learnable:
            continue
        if (epoch := event.epoch) is None:
            validates = not event.training and event.of in trained
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
