"""What was seen of a training script: its models and optimisers, and the events of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from fastdata.doctor.memory import Held
from fastdata.measuring.stalls import Stall

__all__ = ["FOLLOWED_STEPS", "Copied", "Epoch", "Event", "EventKind", "Metric", "ModuleUse", "Seen"]

EventKind: TypeAlias = Literal[
    "forward", "backward", "grad", "clip", "scale", "unscale", "step", "zero_grad"
]

FOLLOWED_STEPS = 5
"""In which operations are followed, so that they take longer than others."""


@dataclass(slots=True, eq=False)
class Epoch:
    """A pass through a loader, and whether it trains: a gradient is computed, or a step made."""

    loader: Any
    trains: bool = False
    is_whole: bool = False
    """Whether the script took all batches, and did not stop before the end."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A line that copies a tensor to a device, and the loader of a tensor of a batch."""

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
    """The share of a step's time, on the host."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that a step did: to the model or the optimiser `of`."""

    kind: EventKind
    line: str
    of: Any = None
    # A forward pass of a whole model:
    training: bool = False
    recorded: bool = False  # for a backward pass
    autocast: bool = False  # any part was under autocast, or in 16 bits
    epoch: Epoch | None = None  # the innermost pass through a loader
    # A backward pass:
    kept: bool = False  # it has added to the gradients of the last step
    synchronises: bool = True  # DDP exchanges gradients
    # Another call:
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ModuleUse:
    """A call of a module without children, and what its input was."""

    module: nn.Module
    made_by: nn.Module | None = None
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
    """The last call of each module in training mode."""
    uses_in_validation: dict[nn.Module, ModuleUse] = field(default_factory=dict)
    """The same, of models in evaluation mode."""
    stalls: tuple[Stall, ...] = ()
    metrics: list[Metric] = field(default_factory=list)
    copies: list[Copied] | None = None
    """None if they were not looked at."""
    attention: list[str] = field(default_factory=list)
    """Lines that compute attention by hand."""
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
        return itertools.chain(*self.steps, self.after)

    def of_kind(self, *kinds: EventKind) -> Iterator[Event]:
        """Return the events whose kind is among `kinds`, in order."""
        return (event for event in self.events if event.kind in kinds)

    def called(self, *names: str) -> list[str]:
        """Return the lines in `calls` that have one of the names."""
        return [line for name, line in self.calls if name in names]

    @property
    def on_gpu(self) -> bool:
        """Whether any parameter is on a GPU."""
        return any(p.device.type == "cuda" for model in self.models for p in model.parameters())

    @property
    def validates(self) -> bool:
        """Whether a model was called in evaluation mode."""
        return not all(event.training for event in self.of_kind("forward"))

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
        """Whether the script has one optimiser, and only `backward` makes gradients."""
        kinds = [{event.kind for event in step} for step in self.steps]
        return len(self.optimizers) == 1 and all(
            "backward" in one and "grad" not in one for one in kinds
        )

    @property
    def training_passes(self) -> Iterator[Event]:
        """Forward passes that have a backward pass."""
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
        called = {event.of for event in self.of_kind("forward") if event.recorded}
        return [model for model in self.models if model in called]

    def line_of(self, what: Any) -> str:
        """Return where an object was made; "" if that was not seen."""
        return self.lines.get(id(what), "")
