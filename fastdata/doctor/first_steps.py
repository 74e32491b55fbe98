"""The first steps of a script, in which each operation is followed.

The second and third step show metrics: results of outputs that train nothing.  The two steps after
them show waits of a GPU, copies of batches, and the memory of tensors: two, as code between steps
may use a tensor that the step before it made.  Modes of torch see each operation.  They would undo
the compilation of a model, so a compiled one runs without them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.doctor.attention import AttentionFollowed
from fastdata.doctor.memory import MemoryFollowed
from fastdata.doctor.seen import FOLLOWED_STEPS, BatchCopied, Metric, Seen
from fastdata.doctor.watching import Watch
from fastdata.measuring.lines import direct_line, is_users, user_line
from fastdata.measuring.stalls import StallCounter, is_copy_to_device, stall_modes

__all__ = ["WATCHED_STEPS", "FirstSteps"]

OUTPUTS_STEP, LOOK_STEP, WATCHED_STEPS = 1, 3, FOLLOWED_STEPS
"""Numbers of steps: the mode for outputs begins, the other modes begin, the last mode ends."""


class FirstSteps:
    """Follows the first steps; `loader_of` returns the loader that made a tensor of a batch."""

    def __init__(self, watch: Watch, loader_of: Callable[[torch.Tensor], Any]) -> None:
        self._watch, self._loader_of = watch, loader_of
        self._modes = ExitStack()
        self._outputs: OutputsFollowed | None = None
        self._stalls: StallCounter | None = None
        self._attention: AttentionFollowed | None = None
        self._memory: MemoryFollowed | None = None

    def end_step(self) -> None:
        """Note that a step of the optimiser has ended; to be called within it."""
        seen = self._watch.seen
        if self._outputs is not None:
            self._outputs.steps += 1
        if seen.steps_seen == OUTPUTS_STEP and not seen.is_compiled:
            self._outputs = OutputsFollowed(sys._getframe(1), lambda: self._watch.in_model)
            self._modes.enter_context(self._outputs)
        elif seen.steps_seen == LOOK_STEP:
            self._modes.close()
            if self._outputs is not None:
                seen.metrics = self._outputs.metrics()
                self._outputs = None
            if not seen.is_compiled:
                self._look()
        elif seen.steps_seen == WATCHED_STEPS:
            self._modes.close()
            if self._stalls is not None:
                seen.stalls = self._stalls.stalls()
            if self._attention is not None:
                seen.attention = self._attention.lines()
            if self._memory is not None:
                seen.held, seen.held_bytes = self._memory.at_peak(), self._memory.peak_bytes
                self._memory = None

    def _look(self) -> None:
        seen = self._watch.seen
        self._stalls = StallCounter(torch.device("cuda" if seen.on_gpu else "cpu"))
        self._modes.enter_context(stall_modes(self._stalls, only_moved=True))
        self._modes.enter_context(CopiesFollowed(self._loader_of, seen))
        self._attention = self._modes.enter_context(AttentionFollowed())
        self._memory = self._modes.enter_context(MemoryFollowed(seen.models, seen.optimizers))


class OutputsFollowed(TorchFunctionMode):
    """Times operations of a loop on outputs of its model, unless their result trains something.

    `frame` is in the loop.  `in_model` returns whether a model is being called.
    """

    def __init__(self, frame: FrameType | None, in_model: Callable[[], bool]) -> None:
        super().__init__()
        self.steps = 0
        self._loop = set()
        while frame is not None:
            self._loop.add(frame.f_code)
            frame = frame.f_back
        self._in_model = in_model
        self._seconds: dict[tuple[str, str], dict[int, float]] = {}
        """By line and function, and by step."""
        self._of_outputs: set[tuple[str, str]] = set()
        self._made_by: Any = WeakIdKeyDictionary()
        self._trains: set[tuple[str, str]] = set()
        self._own_seconds = 0.0
        """Overhead of this mode, which does not count as time of a step."""
        self._began = time.perf_counter()

    def metrics(self) -> list[Metric]:
        """Return the lines that compute something of outputs in each step."""
        took = time.perf_counter() - self._began - self._own_seconds
        return [
            Metric(*place, sum(seconds.values()) / took)
            for place, seconds in self._seconds.items()
            if place[0] and len(seconds) == self.steps and place in self._of_outputs - self._trains
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        ended = time.perf_counter()
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        origins = {place for one in given for place in self._made_by.get(one, ())}
        if any(one.requires_grad for one in made):
            self._trains |= origins
        elif getattr(func, "__name__", "") != "backward" and not self._in_model():
            # Right after the first step it is not known yet which tensors are made of outputs.
            place = self._place(sys._getframe(1))
            step = self._seconds.setdefault(place, {})
            step[self.steps] = step.get(self.steps, 0.0) + ended - began
            if origins or any(one.grad_fn is not None and one.numel() > 1 for one in given):
                self._of_outputs.add(place)
                for one in made:
                    self._made_by[one] = origins | {place}
        self._own_seconds += time.perf_counter() - ended
        return result

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the line of the loop that is being run, and the function that it calls."""
        called = ""
        while frame is not None and frame.f_code not in self._loop:
            called = frame.f_code.co_name if is_users(frame.f_code.co_filename) else called
            frame = frame.f_back
        in_loop = frame is not None and is_users(frame.f_code.co_filename)
        return (user_line(frame) if in_loop else ""), called


class CopiesFollowed(TorchFunctionMode):
    """Notes calls of ``.to(device)`` and ``.cuda()`` in the script's own code."""

    def __init__(self, loader_of: Callable[[torch.Tensor], Any], seen: Seen) -> None:
        super().__init__()
        self._loader_of, self._seen = loader_of, seen
        self._lines = seen.moving_lines = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        line = ""
        if is_copy_to_device(getattr(func, "__name__", ""), args, options):
            line = direct_line(sys._getframe(1))
        if line:
            self._lines.add(line)
            # It is the only argument of either that may be given as a mere True, except `copy`,
            # the fourth.
            non_blocking = options.get("non_blocking", any(one is True for one in args[1:4]))
            if (loader := self._loader_of(args[0])) is not None:
                self._seen.copies.append(BatchCopied(line, loader, bool(non_blocking)))
        return func(*args, **options)
