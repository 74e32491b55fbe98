"""What a training script does: its models, optimisers, and the events of its steps.

Hooks of torch, and functions of torch that are wrapped before the script is imported, tell it all.
Each event has the line of the user's code by which it came about.
"""

from __future__ import annotations

import functools
import os
import re
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
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from fastdata.doctor.copies import BatchCopied
from fastdata.doctor.memory import Held
from fastdata.doctor.outputs import Computed
from fastdata.doctor.slices import TakenApart
from fastdata.measuring.lines import user_frame, user_line, user_sources
from fastdata.measuring.stalls import Stall

__all__ = ["FOLLOWED_STEPS", "Event", "EventKind", "ModuleUse", "Seen", "Watch"]

EventKind: TypeAlias = Literal[
    "forward", "backward", "clip", "scale", "unscale", "step", "zero_grad", "schedule", "reduce"
]

FOLLOWED_STEPS = 4
"""In which operations are followed, so that they take longer than others."""

_TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Something that a step did: to the model or the optimiser `of`.

    Of a forward pass of a whole model is known whether it was in training mode, under autocast,
    and recorded for a backward pass.
    """

    kind: EventKind
    line: str
    of: Any = None
    training: bool = False
    autocast: bool = False
    recorded: bool = False
    set_to_none: bool = True
    """Of `zero_grad`."""
    gradients: bool = False
    """Whether parameters had gradients before a forward pass."""
    synchronises: bool = True
    """Of a backward pass: whether DDP exchanges gradients in it."""
    name: str = ""
    """Of a forward pass: what the model is called where it is called."""
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
    metrics: list[Computed] = field(default_factory=list)
    copies: list[BatchCopied] = field(default_factory=list)
    loops: list[TakenApart] = field(default_factory=list)
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
    def training_passes(self) -> Iterator[Event]:
        """Forward passes that a backward pass followed."""
        for step in self.steps:
            before: Event | None = None
            for event in step:
                if event.kind == "forward" and event.recorded:
                    before = event
                elif event.kind == "backward" and before is not None:
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

    def calls_of(self, model: nn.Module | None) -> tuple[tuple[str, str], ...]:
        """Return the lines in which a model is called, and what it is called there."""
        if model is None:
            return ()
        passes = (e for e in self.events if e.kind == "forward" and e.of is model)
        return tuple(dict.fromkeys((e.line, e.name) for e in passes))

    def sets_on_gpu(self, flag: str) -> bool:
        """Whether the script has a line that sets a flag, and may do so where there is a GPU.

        `flag` is a regular expression.  On a GPU the flag itself says whether it is set.
        """
        line = re.compile(rf"^[^#\n]*{flag}", re.MULTILINE)
        return not self.on_gpu and any(line.search(text) for text in user_sources())

    def line_of(self, what: Any) -> str:
        """Return where an object was made; "" if that was not seen."""
        return self.lines.get(id(what), "")


class Watch:
    """Sees what a script does; `on_step` is called after each step of its first optimiser.

    `backwards` counts backward passes.  Modules are watched until `only_steps`.
    """

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.seen = Seen()
        self.backwards = 0
        self.on_forward: Callable[[nn.Module], None] | None = None
        """Called after a whole model was called in evaluation mode."""
        self.part_seconds: dict[EventKind, float] = defaultdict(float)
        """How long parts of steps took, on the host: optimisers' steps, clipping."""
        self._on_step = on_step
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
        self._note_made(LRScheduler)
        self._note_made(DataLoader)
        for owner, name, label in (
            (torch.autograd, "detect_anomaly", "detect_anomaly"),
            (torch.autograd, "set_detect_anomaly", "set_detect_anomaly"),
            (torch.profiler, "profile", "profile"),
            (torch.autograd.profiler, "profile", "profile"),
        ):
            self._note_call(getattr(owner, name), "__init__", label)
        others: tuple[tuple[Any, str, str], ...] = (
            (torch.autograd, "gradcheck", "gradcheck"),
            (torch, "set_num_threads", "set_num_threads"),
            (torch, "use_deterministic_algorithms", "use_deterministic_algorithms"),
            (torch.cuda, "synchronize", "synchronize"),
            (torch.cuda, "empty_cache", "empty_cache"),
            (torch.utils.checkpoint, "checkpoint", "checkpoint"),
            (DistributedDataParallel, "join", "join"),
        )
        for owner, name, label in others:
            self._note_call(owner, name, label)
        self._wrap(torch.Tensor, "backward", "backward")
        self._wrap(torch.autograd, "backward", "backward")
        self._wrap(Optimizer, "zero_grad", "zero_grad", of_self=True)
        self._wrap(nn.Module, "zero_grad", "zero_grad", of_self=True)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                self._wrap(module, name, "clip")
        for name, kind in (("scale", "scale"), ("unscale_", "unscale")):
            self._wrap(torch.amp.GradScaler, name, kind)  # type: ignore[arg-type]
        for schedule in (LRScheduler, ReduceLROnPlateau):
            self._wrap(schedule, "step", "schedule", of_self=True)

    def only_steps(self) -> None:
        """Watch modules no more: calling them then takes as long as ever."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._made.clear()

    def add(self, kind: EventKind, line: str, of: Any = None, **facts: Any) -> None:
        """Add an event, of a step that is under way."""
        if self._handles:
            self._events.append(Event(kind, line, of, **facts))
            self.seen.after = self._events

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
            inner = self._building and kind in ("backward", "schedule")
            if kind == "backward" and not inner:
                self.backwards += 1
            facts: dict[str, Any] = {}
            if kind == "zero_grad":
                chosen = arguments[1] if len(arguments) > 1 else options.get("set_to_none", True)
                facts = {"set_to_none": bool(chosen)}
            if kind == "backward":
                ddp = [m for m in self.seen.models if isinstance(m, DistributedDataParallel)]
                facts = {"synchronises": all(m.require_backward_grad_sync for m in ddp)}
            if kind == "clip":
                facts = {"one_by_one": options.get("foreach") is False}
            # A scaler that is switched off, as every CUDA one is without a GPU, does nothing.
            is_off = kind in ("scale", "unscale") and not arguments[0].is_enabled()
            if not inner and not is_off:
                self.add(
                    kind, user_line(sys._getframe(1)), arguments[0] if of_self else None, **facts
                )
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

        setattr(owner, name, wrapped)

    def _note_made(self, made: type[Any]) -> None:
        """Remember in which line objects of a class are made."""
        original = made.__init__

        @functools.wraps(original)
        def wrapped(this: Any, *arguments: Any, **options: Any) -> None:
            self.seen.lines[id(this)] = user_line(_making(this, sys._getframe(1)))
            self._building += 1  # a scheduler steps once as it is made
            try:
                original(this, *arguments, **options)
            finally:
                self._building -= 1

        made.__init__ = wrapped

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
        self.add(
            "forward",
            user_line(sys._getframe(2)),
            module,
            training=module.training,
            autocast=any(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
            recorded=torch.is_grad_enabled(),
            gradients=any(p.grad is not None for p in parameters),
            name=_name_of(module, user_frame(sys._getframe(2))),
        )

    def _after_module(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if isinstance(output, torch.Tensor):
            self._made[id(output)] = (weakref.ref(output), module)
        if self._depth == 0:
            self.in_model = False
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
        if self._handles:
            self.add("step", user_line(sys._getframe(2)), optimizer)
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
        self._on_step()


def _making(this: Any, frame: FrameType | None) -> FrameType | None:
    """Return the frame that makes an object: not one of its own constructors."""
    while frame is not None and frame.f_code.co_name == "__init__":
        names = frame.f_code.co_varnames
        if not names or frame.f_locals.get(names[0]) is not this:
            break
        frame = frame.f_back
    return frame


def _name_of(module: nn.Module, frame: FrameType | None) -> str:
    """Return what a module is called in a frame, ``model`` or ``self.model``; "" where nothing."""
    if frame is None:
        return ""
    for scope in (frame.f_locals, frame.f_globals):
        for name, value in list(scope.items()):
            if value is module:
                return name
    this = frame.f_locals.get("self")
    owned = {**getattr(this, "__dict__", {}), **getattr(this, "_modules", {})}
    return next((f"self.{name}" for name, value in owned.items() if value is module), "")
