"""What a training script does: its models, optimisers, and the events of its steps.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader

from fastdata.doctor.memory import Held
from fastdata.measuring.lines import user_line
from fastdata.measuring.stalls import Stall

__all__ = [
    "FOLLOWED_STEPS",
    "BatchCopied",
    "Epoch",
    "Event",
    "EventKind",
    "Metric",
    "ModuleUse",
    "Seen",
    "Watch",
]

EventKind: TypeAlias = Literal[
    "forward", "backward", "grad", "clip", "scale", "unscale", "step", "zero_grad"
]

FOLLOWED_STEPS = 5
"""In which operations are followed, so that they take longer than others."""

_HALF = torch.float16, torch.bfloat16

_TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(slots=True, eq=False)
class Epoch:
    """A pass through a loader, and whether it trains: a gradient is computed, or a step made."""

    loader: Any
    trains: bool = False


@dataclass(frozen=True, slots=True)
class BatchCopied:
    """A line that copies a tensor of a batch to a device, and the loader of that batch."""

    line: str
    loader: Any
    non_blocking: bool

    @property
    def pinned(self) -> bool:
        """Whether the loader is to put its batches into pinned memory."""
        return bool(getattr(self.loader, "pin_memory", False))


@dataclass(frozen=True, slots=True)
class Metric:
    """A line that computes something of outputs, the function that it calls, and its share."""

    line: str
    function: str
    share: float
    """Of the time of a step, on the host."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that a step did: to the model or the optimiser `of`.

    For a forward pass of a whole model: whether it was in training mode, and recorded for a
    backward pass.
    """

    kind: EventKind
    line: str
    of: Any = None
    training: bool = False
    autocast: bool = False
    """Whether any part of a forward pass was under autocast, or in 16 bits."""
    recorded: bool = False
    epoch: Epoch | None = None
    """The innermost pass through a loader in which a forward pass was."""
    set_to_none: bool = True
    """Of `zero_grad`."""
    kept: bool = False
    """Whether a backward pass has added to the gradients with which the last step was made."""
    synchronises: bool = True
    """Of a backward pass: whether DDP exchanges gradients in it."""
    one_by_one: bool = False
    """Of clipping: whether gradients are to be read one after another."""


@dataclass(slots=True, eq=False)
class ModuleUse:
    """A module without children that was called: by which modules its input was made."""

    module: nn.Module
    made_by: nn.Module | None
    users: int = 0
    """Modules that took its output."""
    channels_last: bool = False
    """Whether the input was four-dimensional, and dense in that order of its memory."""
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Seen:
    """What was seen of a script."""

    models: list[nn.Module] = field(default_factory=list)
    """Called from outside of any module, with parameters of their own."""
    optimizers: list[Optimizer] = field(default_factory=list)
    lines: dict[int, str] = field(default_factory=dict)
    """Where modules, optimisers and other objects were made, by ``id``."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names of calls that matter wherever they are, with their lines."""
    steps: list[list[Event]] = field(default_factory=list)
    """Events of each step; its optimiser's step is the last one."""
    after: list[Event] = field(default_factory=list)
    """Events after the last step: validation, if there was any."""
    uses: dict[nn.Module, ModuleUse] = field(default_factory=dict)
    """Of the last step in which a module was called."""
    uses_in_validation: dict[nn.Module, ModuleUse] = field(default_factory=dict)
    """The same, of models in evaluation mode."""
    stalls: tuple[Stall, ...] = ()
    metrics: list[Metric] = field(default_factory=list)
    copies: list[BatchCopied] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    """Lines that compute attention by hand."""
    moving_lines: set[str] | None = None
    """Lines of a step that move a tensor to a device; None if they were not looked at."""
    held: tuple[Held, ...] = ()
    held_bytes: int = 0
    steps_seen: int = 0
    ends: list[tuple[float, int]] = field(default_factory=list)
    """When steps ended, in seconds, and how many pages of memory the process had been given."""
    forced: dict[EventKind, dict[str, Any]] = field(default_factory=dict)
    """Options that calls of a kind have from now on, whatever the script gives them."""

    @property
    def events(self) -> Iterator[Event]:
        """Every event, in its order."""
        for step in self.steps:
            yield from step
        yield from self.after

    @property
    def on_gpu(self) -> bool:
        """Whether any parameter is on a GPU."""
        return any(p.device.type == "cuda" for model in self.models for p in model.parameters())

    @property
    def validates(self) -> bool:
        """Whether a model was called in evaluation mode."""
        return any(event.kind == "forward" and not event.training for event in self.events)

    @property
    def is_compiled(self) -> bool:
        """Whether a model, or a part of one, is compiled already."""
        return any(
            getattr(module, "_compiled_call_impl", None) is not None
            or type(module).__name__ == "OptimizedModule"
            for model in self.models
            for module in model.modules()
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain loop: one optimiser, and gradients that only `backward` makes."""
        return len(self.optimizers) == 1 and all(
            any(event.kind == "backward" for event in step)
            and not any(event.kind == "grad" for event in step)
            for step in self.steps
        )

    @property
    def training_passes(self) -> Iterator[Event]:
        """Forward passes of which gradients were computed."""
        for step in self.steps:
            before: Event | None = None
            for event in step:
                if event.kind == "forward" and event.recorded:
                    before = event
                elif event.kind in ("backward", "grad") and before is not None:
                    yield before
                    before = None

    def trained(self) -> list[nn.Module]:
        """Return models that were called in training mode and recorded."""
        called = {id(e.of) for e in self.events if e.kind == "forward" and e.recorded}
        return [model for model in self.models if id(model) in called]

    @property
    def model_line(self) -> str:
        """Where the first model that is trained was made; "" if that was not seen."""
        return next(map(self.line_of, self.trained()), "")

    def line_of(self, what: Any) -> str:
        """Return where an object was made; "" if that was not seen."""
        return self.lines.get(id(what), "")


class Watch:
    """Sees what a script does; `on_step` is called after each step of its first optimiser.

    Modules are watched until `only_steps`.
    """

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.seen = Seen()
        self.on_forward: Callable[[nn.Module], None] | None = None
        """Called after a whole model was called in evaluation mode."""
        self.on_event: Callable[[str], None] = lambda kind: None
        """Called with each event, and with "batch" for each batch of a loader."""
        self.part_seconds: dict[EventKind, float] = defaultdict(float)
        """How long parts of steps took, on the host: optimisers' steps, clipping."""
        self.epochs: list[Epoch] = []
        """Under way, the innermost last."""
        self._pass: Event | None = None
        self._left: list[tuple[torch.Tensor, weakref.ref[torch.Tensor], int]] = []
        """Parameters with the gradients of the last step, and the versions of these."""
        self.on_step = on_step
        self._events: list[Event] = []
        self._depth = 0
        self.in_model = False
        """Whether a whole model, with parameters, is being called."""
        self._uses = self.seen.uses
        self._made: dict[int, tuple[weakref.ref[Any], nn.Module]] = {}
        self._handles: list[Any] = []
        self._building = 0
        self._steps_began: list[float | None] = []
        """Of steps under way: that of a class of the user's calls that of torch's."""
        self._boundary: weakref.ref[Optimizer] | None = None

    def install(self) -> None:
        """Hook into torch; for good, but for the modules."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before_module),
            hooks.register_module_forward_hook(self._after_module, always_call=True),
        ]
        optimizer_hooks.register_optimizer_step_pre_hook(self._before_step)
        optimizer_hooks.register_optimizer_step_post_hook(self._after_step)
        self._note_made(nn.Module)
        self._note_made(Optimizer)
        self._note_made(DataLoader)
        for owner, name, label in (
            (torch.autograd, "detect_anomaly", "detect_anomaly"),
            (torch.autograd, "set_detect_anomaly", "set_detect_anomaly"),
            (torch.profiler, "profile", "profile"),
            (torch.autograd.profiler, "profile", "profile"),
        ):
            self._note_call(getattr(owner, name), "__init__", label)
        others: tuple[tuple[Any, str, str], ...] = (
            (torch, "set_num_threads", "set_num_threads"),
            (torch, "use_deterministic_algorithms", "use_deterministic_algorithms"),
            (torch.cuda, "synchronize", "synchronize"),
            (torch.utils.checkpoint, "checkpoint", "checkpoint"),
            (DistributedDataParallel, "join", "join"),
        )
        for owner, name, label in others:
            self._note_call(owner, name, label)
        self._wrap(torch.Tensor, "backward", "backward")
        self._wrap(torch.autograd, "backward", "backward")
        self._wrap(torch.autograd, "grad", "grad")
        self._wrap(Optimizer, "zero_grad", "zero_grad", of_self=True)
        self._wrap(nn.Module, "zero_grad", "zero_grad", of_self=True)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                self._wrap(module, name, "clip")
        self._wrap(torch.amp.GradScaler, "scale", "scale")
        for name in ("unscale_", "get_scale"):  # the latter to unscale gradients by hand
            self._wrap(torch.amp.GradScaler, name, "unscale")

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
            self._events.append(event)
            self.seen.after = self._events
            self.on_event(kind)
        return event

    # -- what takes the place of functions -----------------------------------------------------

    def _wrap(
        self,
        owner: Any,
        name: str,
        kind: EventKind,
        *,
        of_self: bool = False,
    ) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            # Under torch's modes a backward pass calls itself once more.
            inner = self._building and kind in ("backward", "grad")
            if kind in ("backward", "grad") and not inner:
                self._trains()
            facts: dict[str, Any] = {}
            if kind == "zero_grad":
                chosen = arguments[1] if len(arguments) > 1 else options.get("set_to_none", True)
                facts = {"set_to_none": bool(chosen)}
            if kind == "backward":
                ddp = [m for m in self.seen.models if isinstance(m, DistributedDataParallel)]
                facts = {"synchronises": all(m.require_backward_grad_sync for m in ddp)}
            if kind == "clip":
                facts = {"one_by_one": options.get("foreach") is False}
                limit = arguments[1:2] or (options.get("max_norm"),)
            # A scaler that is switched off, as every CUDA one is without a GPU, does nothing; nor
            # does clipping to infinity, which only returns the norm.
            is_off = kind in ("scale", "unscale") and not arguments[0].is_enabled()
            is_off |= kind == "clip" and isinstance(limit[0], float) and math.isinf(limit[0])
            event = Event(kind, "")
            if not inner and not is_off:
                of = arguments[0] if of_self else None
                event = self.add(kind, user_line(sys._getframe(1)), of, **facts)
            left = self._left_gradients() if kind == "backward" and not inner else []
            if forced := self.seen.forced.get(kind):
                options |= forced
                if kind == "zero_grad":
                    arguments = arguments[:1]
            self._building += 1
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                self._building -= 1
                self.part_seconds[kind] += time.perf_counter() - began
                event.kept = bool(left) and all(
                    p.grad is not None and p.grad is gradient() and p.grad._version > version
                    for p, gradient, version in left
                )

        setattr(owner, name, wrapped)

    def _note_made(self, made: type[Any]) -> None:
        """Remember in which line objects of a class are made."""
        original = made.__init__

        @functools.wraps(original)
        def wrapped(this: Any, *arguments: Any, **options: Any) -> None:
            self.seen.lines[id(this)] = user_line(_making(this, sys._getframe(1)))
            original(this, *arguments, **options)

        made.__init__ = wrapped

    def _trains(self) -> None:
        for epoch in self.epochs:
            epoch.trains = True

    def _left_gradients(self) -> list[tuple[torch.Tensor, weakref.ref[torch.Tensor], int]]:
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

    def _note_call(self, owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            # `set_detect_anomaly(False)`, `profile(enabled=False)` are none.
            first = arguments[1:2] if name == "__init__" else arguments[:1]
            options_off = options.get("enabled"), options.get("mode")
            off = any(value is False for value in (*first, *options_off))
            caller = sys._getframe(1)  # torch's own calls, as its compiler's, are none
            is_torchs = caller.f_code.co_filename.startswith(_TORCH)
            line = "" if off or is_torchs else user_line(caller)
            if line and (label, line) not in self.seen.calls:
                self.seen.calls.append((label, line))
            return original(*arguments, **options)

        setattr(owner, name, wrapped)

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
        made_by = None
        first = arguments[0] if arguments else None
        if isinstance(first, torch.Tensor):
            known = self._made.get(id(first))
            if known is not None and known[0]() is first:
                made_by = known[1]
                if made_by in self._uses:
                    self._uses[made_by].users += 1
        use = ModuleUse(module, made_by)
        if isinstance(first, torch.Tensor):
            use.dtype, use.shape = first.dtype, tuple(first.shape)
            if self._pass is not None:
                self._pass.autocast |= first.dtype in _HALF
            use.channels_last = first.ndim == 4 and first.is_contiguous(
                memory_format=torch.channels_last
            )
        self._uses[module] = use

    def _see_model(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self.in_model = bool(parameters)
        if not parameters:
            return
        if all(module is not model for model in self.seen.models):
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
        if all(optimizer is not one for one in self.seen.optimizers):
            self.seen.optimizers.append(optimizer)
        self._trains()
        if self._handles:
            self.add("step", user_line(sys._getframe(2)), optimizer)
            every = (p for group in optimizer.param_groups for p in group["params"])
            self._left = [
                (p, weakref.ref(p.grad), p.grad._version)
                for p in every
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
            self.seen.steps.append(self._events)
            self._events = []
            self.seen.after = self._events
        self.on_step()


def _making(this: Any, frame: FrameType | None) -> FrameType | None:
    """Return the frame that makes an object: not one of its own constructors."""
    while frame is not None and frame.f_code.co_name == "__init__":
        names = frame.f_code.co_varnames
        if not names or frame.f_locals.get(names[0]) is not this:
            break
        frame = frame.f_back
    return frame
