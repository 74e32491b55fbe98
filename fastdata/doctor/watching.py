"""Hooks that see what a training script does: its models, optimisers, and events of its steps.

Hooks of torch, and functions of torch that are wrapped before the script is imported, tell it all.
Each event has the line of the user's code by which it came about.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader

from fastdata.doctor.seen import Epoch, Event, EventKind, ModuleUse, Seen
from fastdata.measuring.lines import user_line

__all__ = ["EventKind", "Watch"]

_EVENTS: dict[EventKind, tuple[tuple[Any, str], ...]] = {
    "backward": ((torch.Tensor, "backward"), (torch.autograd, "backward")),
    "grad": ((torch.autograd, "grad"),),
    "zero_grad": ((Optimizer, "zero_grad"), (nn.Module, "zero_grad")),
    "clip": tuple(
        (owner, f"clip_grad_{what}_")
        for owner in (nn.utils, nn.utils.clip_grad)
        for what in ("norm", "value")
    ),
    "scale": ((torch.amp.GradScaler, "scale"),),
    # The latter is called to unscale gradients by hand.
    "unscale": ((torch.amp.GradScaler, "unscale_"), (torch.amp.GradScaler, "get_scale")),
}
"""Functions that are events, with their owners."""

_CALLS: tuple[tuple[Any, str, str], ...] = (
    (torch.autograd.detect_anomaly, "__init__", "detect_anomaly"),
    (torch.autograd.set_detect_anomaly, "__init__", "set_detect_anomaly"),
    (torch.profiler.profile, "__init__", "profile"),
    (torch.autograd.profiler.profile, "__init__", "profile"),
    (torch, "set_num_threads", "set_num_threads"),
    (torch, "use_deterministic_algorithms", "use_deterministic_algorithms"),
    (torch.cuda, "synchronize", "synchronize"),
    (torch.utils.checkpoint, "checkpoint", "checkpoint"),
)
"""Functions whose calls matter wherever they are, with their owners and labels."""

_HALF = torch.float16, torch.bfloat16

_TORCH = os.path.dirname(torch.__file__) + os.sep

_Gradient: TypeAlias = tuple[torch.Tensor, weakref.ref[torch.Tensor], int]
"""A parameter with its gradient, and the version of that."""


class Watch:
    """Sees what a script does; `on_step` is called after each step of its first optimiser.

    Modules are watched until `only_steps`.
    """

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.seen = Seen()
        self.on_step = on_step
        self.on_forward: Callable[[nn.Module], None] | None = None
        """Called after a whole model was called in evaluation mode."""
        self.on_event: Callable[[str], None] = lambda kind: None
        """Called with each event, and with "batch" for each batch of a loader."""
        self.part_seconds: dict[EventKind, float] = defaultdict(float)
        """How long parts of steps took, on the host: optimisers' steps, clipping."""
        self.epochs: list[Epoch] = []
        """Under way, the innermost last."""
        self.in_model = False
        """Whether a whole model, with parameters, is being called."""
        self._pass: Event | None = None
        self._left: list[_Gradient] = []  # of the last step
        self._depth = 0
        self._uses = self.seen.uses
        self._made: dict[int, tuple[weakref.ref[Any], nn.Module]] = {}
        self._handles: list[Any] = []
        self._inside = 0  # of functions that are events
        # Of steps under way: that of a class of the user's calls that of torch's.
        self._steps_began: list[float | None] = []
        self._boundary: weakref.ref[Optimizer] | None = None

    def install(self) -> None:
        """Hook into torch; for good, but for the modules."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before_module),
            hooks.register_module_forward_hook(self._after_module, always_call=True),
        ]
        optimizer_hooks.register_optimizer_step_pre_hook(self._before_step)
        optimizer_hooks.register_optimizer_step_post_hook(self._after_step)
        for made in (nn.Module, Optimizer, DataLoader):
            _replace(made, "__init__", self._make)
        for owner, name, label in _CALLS:
            _replace(owner, name, functools.partial(self._call, label))
        for kind, functions in _EVENTS.items():
            for owner, name in functions:
                _replace(owner, name, functools.partial(self._event, kind))

    @property
    def is_stepping(self) -> bool:
        """Whether an optimiser makes a step, in which it may call forward and backward passes."""
        return bool(self._steps_began)

    def only_steps(self) -> None:
        """Watch modules no more: calling them then takes as long as ever."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._made.clear()

    def add(self, kind: EventKind, line: str, of: Any = None, **facts: Any) -> Event:
        """Add an event, of a step that is under way; it is returned."""
        event = Event(kind, line, of, **facts)
        if self._handles:
            self.seen.after.append(event)
            self.on_event(kind)
        return event

    # -- what takes the place of functions -----------------------------------------------------

    def _event(self, kind: EventKind, original: Any, frame: Any, args: Any, kwargs: Any) -> Any:
        event, left = Event(kind, ""), []
        differentiates = kind in ("backward", "grad")
        # Under torch's modes a backward pass calls itself once more.
        if not (self._inside and differentiates):
            if differentiates:
                self._trains()
            if (facts := self._facts(kind, args, kwargs)) is not None:
                event = self.add(kind, user_line(frame), **facts)
            left = self._left_gradients() if kind == "backward" else []
        if forced := self.seen.forced.get(kind):
            kwargs |= forced
            args = args[:1] if kind == "zero_grad" else args
        self._inside += 1
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            self._inside -= 1
            self.part_seconds[kind] += time.perf_counter() - began
            event.kept = bool(left) and all(
                p.grad is not None and p.grad is gradient() and p.grad._version > version
                for p, gradient, version in left
            )

    def _facts(self, kind: EventKind, arguments: Any, options: Any) -> dict[str, Any] | None:
        """Return what there is to know of a call; None if it does nothing."""
        if kind == "zero_grad":
            set_to_none = (*arguments[1:], options.get("set_to_none", True))[0]
            return {"options": {"set_to_none": bool(set_to_none)}}
        if kind == "backward":
            ddp = [m for m in self.seen.models if isinstance(m, DistributedDataParallel)]
            return {"synchronises": all(m.require_backward_grad_sync for m in ddp)}
        if kind == "clip":
            limit = (*arguments[1:], options.get("max_norm"))[0]
            only_returns_the_norm = isinstance(limit, float) and math.isinf(limit)
            return None if only_returns_the_norm else {"options": options}
        if kind in ("scale", "unscale"):  # without a GPU every scaler for CUDA is off
            return {} if arguments[0].is_enabled() else None
        return {}

    def _make(self, original: Any, frame: FrameType, arguments: Any, options: Any) -> None:
        """Remember in which line an object is made: not in one of its own constructors."""
        maker: FrameType | None = frame
        while maker is not None and maker.f_code.co_name == "__init__":
            names = maker.f_code.co_varnames
            if not names or maker.f_locals.get(names[0]) is not arguments[0]:
                break
            maker = maker.f_back
        self.seen.lines[id(arguments[0])] = user_line(maker)
        original(*arguments, **options)

    def _call(self, label: str, original: Any, frame: FrameType, args: Any, kwargs: Any) -> Any:
        # `set_detect_anomaly(False)`, `profile(enabled=False)` are none.
        first = args[1:2] if original.__name__ == "__init__" else args[:1]
        off = any(one is False for one in (*first, kwargs.get("enabled"), kwargs.get("mode")))
        # Nor are torch's own calls, as its compiler's.
        line = "" if off or frame.f_code.co_filename.startswith(_TORCH) else user_line(frame)
        if line and (label, line) not in self.seen.calls:
            self.seen.calls.append((label, line))
        return original(*args, **kwargs)

    def _trains(self) -> None:
        for epoch in self.epochs:
            epoch.trains = True

    def _left_gradients(self) -> list[_Gradient]:
        """Return the gradients of the last step, or none if any was cleared or changed since."""
        left, self._left = self._left, []
        for p, gradient, version in left:
            if p.grad is None or p.grad is not gradient() or p.grad._version != version:
                return []
        # They are zero if the script has cleared `p.grad.data`, which keeps the version.  Not in
        # later steps, in which operations are followed: it reads values.
        read = [p.grad for p, *_ in left if p.grad is not None and not p.grad.is_sparse]
        if self.seen.steps_seen <= 2 and read and not any(bool(one.any()) for one in read):
            return []
        return left

    # -- hooks -----------------------------------------------------------------------------------

    def _before_module(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth == 1:
            self._uses = self.seen.uses if module.training else self.seen.uses_in_validation
            self._see_model(module)
        if self._pass is not None and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            self._pass.autocast = True
        if next(module.children(), None) is not None:
            return
        use = ModuleUse(module)
        given = arguments[0] if arguments else None
        if isinstance(given, torch.Tensor):
            made, maker = self._made.get(id(given), (None, None))
            if made is not None and made() is given:
                use.made_by = maker
                if maker in self._uses:
                    self._uses[maker].users += 1
            use.dtype, use.shape = given.dtype, tuple(given.shape)
            if self._pass is not None:
                self._pass.autocast |= given.dtype in _HALF
            use.channels_last = given.ndim == 4 and given.is_contiguous(
                memory_format=torch.channels_last
            )
        self._uses[module] = use

    def _see_model(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self.in_model = bool(parameters)
        if not parameters:
            return
        if module not in self.seen.models:
            self.seen.models.append(module)
        self._pass = self.add(
            "forward",
            user_line(sys._getframe(2)),
            module,
            training=module.training,
            recorded=torch.is_grad_enabled(),
            epoch=self.epochs[-1] if self.epochs else None,
        )

    def _after_module(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if isinstance(output, torch.Tensor):
            self._made[id(output)] = (weakref.ref(output), module)
        if self._depth == 0:
            self.in_model = False
            if self._pass is not None:
                self._pass.autocast |= getattr(output, "dtype", None) in _HALF
                self._pass = None
            self._made.clear()
            if self.on_forward is not None and not module.training:
                self.on_forward(module)

    def _before_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        # A closure makes forward and backward pass, too.
        has_closure = any(callable(one) for one in (*arguments, *options.values()))
        self._steps_began.append(None if has_closure else time.perf_counter())

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        began = self._steps_began.pop() if self._steps_began else None
        if began is not None and not self._steps_began:
            self.part_seconds["step"] += time.perf_counter() - began
        # Not before: forward and backward pass may be in a closure that the step calls.
        if optimizer not in self.seen.optimizers:
            self.seen.optimizers.append(optimizer)
        self._trains()
        if self._handles:
            self.add("step", user_line(sys._getframe(2)), optimizer)
            self._left = [
                (p, weakref.ref(p.grad), p.grad._version)
                for group in optimizer.param_groups
                for p in group["params"]
                if p.grad is not None and not p.grad.is_inference()
            ]
        if self._boundary is None:
            self._boundary = weakref.ref(optimizer)
        if self._boundary() is not optimizer:
            return
        self.seen.steps_seen += 1
        if self._handles:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            self.seen.ends.append((time.perf_counter(), faults))
            self.seen.steps.append(self.seen.after)
            self.seen.after = []
        self.on_step()


def _replace(owner: Any, name: str, run: Callable[[Any, FrameType, Any, Any], Any]) -> None:
    """Have `run` take the place of a function, with that, its caller, and what it is given."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacing(*arguments: Any, **options: Any) -> Any:
        return run(original, sys._getframe(1), arguments, options)

    setattr(owner, name, replacing)
