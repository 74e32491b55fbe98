"""The first steps of a script, in which each operation is followed.

The second and third step show metrics: results of outputs that train nothing.  The two steps after
them show waits of a GPU, copies of batches, and the memory of tensors: two, as code between steps
may use a tensor that the step before it made.  Modes of torch see each operation.  They would undo
the compilation of a model, so a compiled one runs without them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.doctor.memory import MemoryFollowed
from fastdata.doctor.seen import FOLLOWED_STEPS, Copied, Metric, Seen
from fastdata.doctor.sources import kept_names
from fastdata.doctor.watching import Watch
from fastdata.measuring.lines import direct_line, is_users, user_frame, user_line
from fastdata.measuring.stalls import StallCounter, is_copy_to_device, stall_modes

__all__ = ["WATCHED_STEPS", "FirstSteps"]

OUTPUTS_STEP, LOOK_STEP, WATCHED_STEPS = 1, 3, FOLLOWED_STEPS
"""Numbers of steps: the mode for outputs begins, the other modes begin, the last mode ends."""

LARGEST_HEAD = 256
"""The largest dimension of a query that torch has fused kernels for."""

_PRODUCTS = "matmul", "bmm", "baddbmm", "einsum"
_CASTS = "to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "view", "reshape"
_SCALED = "mul", "rmul", "imul", "div", "truediv", "itruediv"
_MASKED = "add", "radd", "iadd", "sub", "isub", "masked_fill", "where"
_OF_WEIGHTS = "dropout", "masked_fill", "nan_to_num", "transpose", "permute", "swapaxes"
_FACTS = "size", "dim", "get"
"""Calls that read no values; the last one is of properties."""


class FirstSteps:
    """Follows the first steps; `loader_of` returns the loader that made a tensor of a batch."""

    def __init__(self, watch: Watch, loader_of: Callable[[torch.Tensor], Any]) -> None:
        self._watch, self._loader_of = watch, loader_of
        self._modes = ExitStack()

    def end_step(self) -> None:
        """Note that a step of the optimiser has ended; to be called within it."""
        seen = self._watch.seen
        if seen.steps_seen in (LOOK_STEP, WATCHED_STEPS):
            self.close()
        if seen.steps_seen not in (OUTPUTS_STEP, LOOK_STEP) or seen.is_compiled:
            return
        if seen.steps_seen == OUTPUTS_STEP:
            outputs = OutputsFollowed(sys._getframe(1), self._watch)
            self._modes.enter_context(outputs)
            self._modes.callback(lambda: setattr(seen, "metrics", outputs.metrics()))
            return
        stalls = StallCounter(torch.device("cuda" if seen.on_gpu else "cpu"))
        self._modes.enter_context(stall_modes(stalls, only_moved=True))
        calls = self._modes.enter_context(CallsFollowed(self._loader_of, seen))
        memory = self._modes.enter_context(MemoryFollowed(seen.models, seen.optimizers))

        def note() -> None:
            seen.stalls, seen.attention = stalls.stalls(), calls.attention.lines()
            seen.held, seen.held_bytes = memory.at_peak(), memory.peak_bytes

        self._modes.callback(note)

    def close(self) -> None:
        """Follow nothing more.  Idempotent."""
        self._modes.close()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class OutputsFollowed(TorchFunctionMode):
    """Times operations of a loop on outputs of its model, unless their result trains something.

    `frame` is in the loop.
    """

    def __init__(self, frame: FrameType | None, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._loop = set()
        while frame is not None:
            self._loop.add(frame.f_code)
            frame = frame.f_back
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
        steps = LOOK_STEP - OUTPUTS_STEP
        return [
            Metric(*place, sum(seconds.values()) / took)
            for place, seconds in self._seconds.items()
            if place[0] and len(seconds) == steps and place in self._of_outputs - self._trains
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        ended = time.perf_counter()
        given, made = tensors_in((args, kwargs)), tensors_in(result)
        origins = {place for one in given for place in self._made_by.get(one, ())}
        if any(one.requires_grad for one in made):
            self._trains |= origins
        elif getattr(func, "__name__", "") != "backward" and not self._watch.in_model:
            # Right after the first step it is not known yet which tensors are made of outputs.
            place = self._place(sys._getframe(1))
            seconds, step = self._seconds.setdefault(place, {}), self._watch.seen.steps_seen
            seconds[step] = seconds.get(step, 0.0) + ended - began
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


class CallsFollowed(TorchFunctionMode):
    """Notes copies to a device, and attention by hand, in the script's own code."""

    def __init__(self, loader_of: Callable[[torch.Tensor], Any], seen: Seen) -> None:
        super().__init__()
        self._loader_of = loader_of
        self._copies = seen.copies = []
        self.attention = AttentionFollowed()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        is_copy = is_copy_to_device(name, args, options)
        if is_copy and (line := direct_line(sys._getframe(1))):
            # It is the only argument of either that may be given as a mere True, except `copy`,
            # the fourth.
            non_blocking = options.get("non_blocking", any(one is True for one in args[1:4]))
            self._copies.append(Copied(line, self._loader_of(args[0]), bool(non_blocking)))
        result = func(*args, **options)
        self.attention.follow(name.strip("_"), args, options, result)
        return result


@dataclass(eq=False)
class _Attention:
    has_weights: bool = False
    line: str = ""
    """The line that multiplies weights by values."""
    uses: int = 0
    """Products of the weights, and whatever else is done with them."""


class AttentionFollowed:
    """Follows tensors from one product to the next: attention that a script computes by hand.

    Only what `torch.nn.functional.scaled_dot_product_attention` computes as well is found.  That
    has no weights to give back, so attention whose weights the script uses, keeps or returns is
    left out.
    """

    def __init__(self) -> None:
        self._parts: Any = WeakIdKeyDictionary()
        """The attention that a tensor belongs to."""
        self._found: list[_Attention] = []

    def lines(self) -> list[str]:
        """Return the lines of attention whose weights are used for nothing else."""
        lines = (one.line for one in self._found if one.has_weights and one.uses == 1)
        return list(dict.fromkeys(filter(None, lines)))

    def follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Follow a call of the script's, after it."""
        given = tensors_in((args, kwargs))
        part = next((self._parts[one] for one in given if one in self._parts), None)
        if part is None:
            if name in _PRODUCTS and _may_score(given[-2:]):
                self._found.append(_Attention())
                self._parts[result] = self._found[-1]
            return
        if name in _FACTS:
            return
        if part.has_weights:
            goes_on = name in (*_CASTS, *_OF_WEIGHTS)
            if name in _PRODUCTS:
                frame = sys._getframe(1)
                part.line = "" if self._is_kept(part, frame) else direct_line(frame)
        elif name == "softmax":
            dimension = kwargs.get("dim", args[1] if len(args) > 1 else None)
            goes_on = part.has_weights = dimension in (-1, given[0].ndim - 1)
        else:
            others = [one for one in given if one not in self._parts]
            scales = name in _SCALED and all(math.prod(one.shape[-2:]) == 1 for one in others)
            same = isinstance(result, torch.Tensor) and result.shape[-2:] == given[-1].shape[-2:]
            goes_on = scales or name in _MASKED or (name in _CASTS and same)
        if goes_on:
            self._parts[result] = part
        else:
            part.uses += 1

    def _is_kept(self, part: _Attention, frame: FrameType | None) -> bool:
        """Return whether the function that has weights returns them, or keeps them elsewhere."""
        frame = user_frame(frame)
        if frame is None:
            return True
        names = {
            name
            for name, one in frame.f_locals.items()
            if isinstance(one, torch.Tensor) and self._parts.get(one) is part
        }
        kept = kept_names(frame.f_code.co_filename, frame.f_lineno)
        return bool(names) and (kept is None or bool(names & kept))


def _may_score(operands: list[torch.Tensor]) -> bool:
    """Return whether the operands may be queries and keys. Parameters are neither."""
    batched = all(one.ndim > 2 and not isinstance(one, nn.Parameter) for one in operands)
    return len(operands) == 2 and batched and operands[0].shape[-1] <= LARGEST_HEAD
