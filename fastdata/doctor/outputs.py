"""What a training loop computes of its model's outputs, and no gradient flows to: metrics.

`OutputsFollowed` sees the calls of torch of whole steps, and what becomes of their results.  What
is computed of a tensor of the graph without being recorded, outside of the model, is taken for a
metric, unless something recorded uses the result, in this step or the next, or might use it:
a value that was read on the host before the loss was complete leaves no trace.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.measuring.lines import user_line

__all__ = ["Computed", "OutputsFollowed", "codes_of"]

READS = "item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"
MOVES = "to", "cpu", "cuda", "detach", "clone", "float", "__get__"

Target: TypeAlias = tuple[Any, str]
"""An object and the name of a function in it."""


@dataclass(slots=True, eq=False)
class Computed:
    """A place in the training loop, where something is computed of the model's outputs."""

    line: str
    targets: list[Target] = field(default_factory=list)
    """Where the function is to be found that the line calls; none, where it calls none."""
    trains: bool = False
    """Whether it does anything that is trained with, or might."""
    operations: int = 0
    steps: int = 0
    """In which it computes something."""
    share: float = 1.0
    """Of the time of the step, on the host; of several steps, the smallest."""
    seconds: float = 0.0


class OutputsFollowed(TorchFunctionMode):
    """Follows what is made of outputs, for some steps of the loop that `loop` is the stack of.

    `in_model` says whether a model is being called.
    """

    def __init__(self, loop: Sequence[CodeType], in_model: Callable[[], bool]) -> None:
        super().__init__()
        self._loop = loop
        self._in_model = in_model
        self._places: dict[tuple[str, CodeType | None], Computed] = {}
        self._made_by: Any = WeakIdKeyDictionary()
        self._read: set[Computed] = set()
        self._loss_begun = False
        self._steps = 0
        self._began = time.perf_counter()

    def end_step(self) -> None:
        """Note that a step has ended."""
        now = time.perf_counter()
        self._steps += 1
        for place in self._places.values():
            place.share = min(place.share, place.seconds / (now - self._began))
            place.steps += place.operations > 0
            place.operations, place.seconds = 0, 0.0
        self._began = now

    def metrics(self) -> list[Computed]:
        """Return the places that compute something in each step, and train nothing."""
        return [
            place
            for place in self._places.values()
            if place.line and place.steps == self._steps and not place.trains
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "backward":
            self._loss_begun = False
            self._read.clear()
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        took = time.perf_counter() - began
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        origins = {place for one in given for place in self._made_by.get(one, ())}
        if name != "backward" and any(one.requires_grad for one in made):
            self._loss_begun = True
            for place in (*origins, *self._read):
                place.trains = True
            self._place(sys._getframe(1)).trains = True
        elif not self._in_model():
            self._unrecorded(name, given, made, origins, took)
        return result

    def _unrecorded(
        self,
        name: str,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        origins: set[Computed],
        took: float,
    ) -> None:
        parameters = any(one.is_leaf and one.requires_grad for one in given)
        outputs = any(one.grad_fn is not None and one.numel() > 1 for one in given)
        if not parameters and not outputs and not origins:
            return
        place = self._place(sys._getframe(2), wanted=True)
        if name in READS:
            if self._loss_begun:
                self._read |= {place, *origins}
        elif parameters:
            place.trains |= name != "__get__"
            for origin in origins:
                origin.trains = True
        if (
            name not in MOVES
            and name not in READS
            and (made or name == "__setitem__")
            and (outputs or any(one.numel() > 1 for one in given if one in self._made_by))
        ):
            place.operations += 1
        place.seconds += took
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            made = [*made, *given[:1], *(one._base for one in given[:1] if one._base is not None)]
        for one in made:
            self._made_by[one] = {place, *origins, *self._made_by.get(one, ())}

    def _place(self, frame: FrameType, *, wanted: bool = False) -> Computed:
        """Return the place in the loop that is being run, with its function where wanted."""
        frames = _frames(frame)
        depth = 0
        for frame, code in zip(frames, self._loop, strict=False):
            if frame.f_code is not code:
                break
            depth += 1
        inside = [frame for frame in frames[depth:] if frame.f_code.co_filename != __file__]
        line = user_line(frames[depth - 1]) if depth else ""
        key = line, inside[0].f_code if inside else None
        if key not in self._places:
            self._places[key] = Computed(line, _targets(inside[:4]) if wanted else [])
        return self._places[key]


def codes_of(frame: FrameType) -> list[CodeType]:
    """Return what a stack runs, outermost first."""
    return [one.f_code for one in _frames(frame)]


def _frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _targets(frames: Sequence[FrameType]) -> list[Target]:
    """Return where the function is found whose call these are the stack of."""
    codes = {frame.f_code for frame in frames}
    for frame in frames:
        name = frame.f_code.co_name
        this = _first_argument(frame)
        if name in ("_wrapped_call_impl", "_call_impl"):
            if isinstance(this, nn.Module):
                name = "forward"
                codes |= {vars(owner)[name].__code__ for owner in _owners(this, name)}
            else:
                continue
        if this is None:
            continue
        if isinstance(this, nn.Module) and name in vars(this):  # as torchmetrics' `update`
            return [(this, name)]
        for owner in _owners(this, name):
            if inspect.unwrap(vars(owner)[name]).__code__ in codes:
                return [(owner, name)]
    if not frames:
        return []
    return [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if type(value) is FunctionType  # some objects warn when they are asked for their class
        and value.__code__ is frames[0].f_code
        and inspect.unwrap(value).__code__ in codes
        and not _is_no_users(value)
    ]


def _owners(this: object, name: str) -> list[type]:
    """Return the class that has a method of an object, if any; none of torch's own."""
    owners = [c for c in type(this).__mro__ if isinstance(vars(c).get(name), FunctionType)]
    return [owner for owner in owners[:1] if not _is_no_users(vars(owner)[name])]


def _is_no_users(function: FunctionType) -> bool:
    return (function.__module__ or "").startswith(("torch.", "fastdata."))


def _first_argument(frame: FrameType) -> Any:
    """Return ``self`` of a method that is running."""
    code = frame.f_code
    is_method = code.co_argcount and code.co_varnames[0] == "self"
    return frame.f_locals.get("self") if is_method else None
