"""The edits of source that follow advice: `EDITS` has those of each piece.

They are a few: an argument of a call, a context that goes, a statement that moves or is added,
statements that come into a context.  Each changes what it was made for at a line, or raises
`CannotEditError`: it does not guess.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
import torch
from torch import nn
from torch.optim import Optimizer

from fastdata.doctor.editing import (
    CannotEditError,
    Edit,
    Item,
    Source,
    Statement,
    all_of,
    before,
    inside,
    parsed,
    place_of,
    with_argument,
    without_argument,
)
from fastdata.processes.resources import available_cores

__all__ = ["EDITS"]


@dataclass(frozen=True, slots=True)
class Argument:
    """Gives calls an argument, or leaves it out where that is the same.

    Only what is written as a constant is changed: ``fused=args.fused`` is an option of the script.
    """

    owner: Any
    """Which has the functions: a module, or a class."""
    functions: tuple[str, ...]
    name: str
    value: str
    excludes: tuple[str, ...] = ()
    """Arguments that may not be given along with it."""

    def __call__(self, source: Source, line: int, _: str) -> None:
        """Change the call."""
        call = source.call(line, self.functions, of_torch=inspect.ismodule(self.owner))
        if any(argument.star for argument in call.args):
            raise CannotEditError("its arguments are unpacked (* or **)")
        names, default = self._parameters(source.last_name(call))
        for name in (self.name, *self.excludes):
            place = place_of(call, name, names)
            if place is not None and not _is_constant(call.args[place].value):
                value = source.text(call.args[place].value)
                raise CannotEditError(f"{name} is not written out: it is {value}")
        source.change(call, lambda call: self._changed(call, names, default))

    def _parameters(self, function: str) -> tuple[list[str], str]:
        """Return the names of a function's parameters, and the default of the one that changes."""
        called = getattr(self.owner, function)
        try:
            parameters = dict(inspect.signature(called).parameters)
        except ValueError:  # a function of C
            return [self.name], ""
        if inspect.isclass(self.owner):
            del parameters["self"]
        names = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
        return names, repr(parameters[self.name].default)

    def _changed(self, call: cst.Call, names: Sequence[str], default: str) -> cst.Call:
        for excluded in self.excludes:
            if (place := place_of(call, excluded, ())) is not None:
                call = without_argument(call, place)
        place = place_of(call, self.name, names)
        is_default = self.value == default
        if place is None:
            return call if is_default else with_argument(call, self.name, self.value)
        if is_default and (call.args[place].keyword or place == len(call.args) - 1):
            return without_argument(call, place)
        arguments = list(call.args)
        value = cst.parse_expression(self.value)
        arguments[place] = arguments[place].with_changes(value=value)
        return call.with_changes(args=arguments)


def _is_constant(node: cst.BaseExpression) -> bool:
    words = "True", "False", "None"
    return isinstance(node, cst.BaseNumber) or (isinstance(node, cst.Name) and node.value in words)


@dataclass(frozen=True, slots=True)
class WithoutContext:
    """Takes a context away from the statements in it."""

    functions: tuple[str, ...]

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Change the ``with`` statement."""
        item = source.parent(source.call(line, self.functions, of_torch=True))
        if not isinstance(item, cst.WithItem):
            raise CannotEditError("it is not called in a with statement")
        if item.asname is not None:
            raise CannotEditError(f"it has a name, {source.text(item.asname.name)}, which is used")
        block = source.parent(item)
        assert isinstance(block, cst.With), "that has such items"
        place = next(n for n, one in enumerate(block.items) if one is item)
        source.rewrite(block, block, lambda items: self._changed(items, place))

    @staticmethod
    def _changed(items: list[Item], place: int) -> list[Any]:
        [block] = all_of(items)
        others = [one for n, one in enumerate(block.items) if n != place]
        if others:
            others[-1] = others[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return [block.with_changes(items=others)]
        if isinstance(block.body, cst.SimpleStatementSuite):
            body: list[Any] = [cst.SimpleStatementLine(block.body.body)]
        else:
            body = list(block.body.body)
        first = body[0]
        lines = (*block.leading_lines, *first.leading_lines)
        footer = getattr(block.body, "footer", ())
        return [first.with_changes(leading_lines=lines), *body[1:], *footer]


_TRAINS = "backward", "grad", "step", "zero_grad"


def _loop(source: Source, line: int) -> cst.For:
    """Return the smallest loop around the calls of a line."""
    for call in source.calls(line):
        if (loop := next(source.around(call, cst.For), None)) is not None:
            return loop  # type: ignore[no-any-return]
    raise CannotEditError("it is in no loop of its function")


def without_gradients(source: Source, line: int, name: str) -> None:
    """Put the loop of a validation under ``torch.no_grad()``."""
    loop = _loop(source, line)
    if trains := _training(source, loop):
        raise CannotEditError(f"its loop also trains: it calls {trains}")
    source.need("torch")
    source.rewrite(loop, loop, lambda items: inside("torch.no_grad()", items))


def _training(source: Source, loop: cst.For) -> str:
    """Return the first call of a loop that is of training, or ""."""
    calls = [call for call in source.calls_in(loop) if source.last_name(call) in _TRAINS]
    return source.text(calls[0].func) if calls else ""


def under_autocast(source: Source, line: int, name: str) -> None:
    """Put what is between a forward pass and its backward pass under autocast."""
    first = source.at(line)
    last: Statement = first
    if _calls(source, first, "backward"):
        raise CannotEditError("forward and backward pass are one statement: make them two")
    for statement in source.later(first):
        if _calls(source, statement, "backward"):
            break
        last = statement
    else:
        raise CannotEditError("the backward pass is not in the same block")
    source.need("torch")
    source.rewrite(first, last, lambda items: inside(_autocast(), items))


def validation_under_autocast(source: Source, line: int, name: str) -> None:
    """Put the loop of a validation under autocast; one that trains has its own."""
    loop = _loop(source, line)
    if not _training(source, loop):
        source.rewrite(loop, loop, lambda items: inside(_autocast(), items))


def validation_as_training(source: Source, line: int, name: str) -> None:
    """Put the loop of a validation under the autocast that the file has for training."""
    loop = _loop(source, line)
    if trains := _training(source, loop):
        raise CannotEditError(f"its loop also trains: it calls {trains}")
    calls = [c for c in source.calls_in(source.module) if source.last_name(c) == "autocast"]
    contexts = {source.text(call) for call in calls}
    if len(contexts) != 1:
        raise CannotEditError("the file has no autocast, or several, for training")
    for argument in calls[0].args:
        value, text = argument.value, source.text(argument.value)
        is_text = isinstance(value, cst.SimpleString)
        if argument.star or not (is_text or _is_constant(value) or text.startswith("torch.")):
            raise CannotEditError(f"what autocast is given is not written out: {text}")
    source.rewrite(loop, loop, functools.partial(inside, contexts.pop()))


def _autocast() -> str:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return f'torch.autocast("{device}", dtype=torch.bfloat16)'


def _calls(source: Source, statement: Statement, name: str) -> bool:
    return any(source.last_name(call) == name for call in source.calls_in(statement))


@dataclass(frozen=True, slots=True)
class AfterMaking:
    """Adds a statement after that which makes a model, ``model = ...``; {} is its name."""

    statement: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Add the statement."""
        made = source.at(line)
        [assigned] = made.body
        targets: list[cst.BaseExpression] = []
        if isinstance(assigned, cst.AnnAssign):
            targets = [assigned.target]
        elif isinstance(assigned, cst.Assign):
            targets = [one.target for one in assigned.targets]
        if len(targets) != 1 or not isinstance(targets[0], (cst.Name, cst.Attribute)):
            raise CannotEditError("the model gets no name there")
        new = parsed(self.statement.format(source.text(targets[0])))
        if "torch." in self.statement:
            source.need("torch")
        source.rewrite(made, made, lambda items: [*all_of(items), new])


@dataclass(frozen=True, slots=True)
class FlagBefore:
    """Sets a flag before a statement, or in it, where that sets it otherwise."""

    flag: str
    statement: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Add the statement, or replace what is there."""
        found = source.at(line)
        new = parsed(self.statement)
        source.need("torch")
        [there] = found.body
        targets = [source.text(one.target) for one in getattr(there, "targets", ())]
        if any(target.endswith(self.flag) for target in targets):
            change = functools.partial(_replaced, new)
        else:
            change = functools.partial(before, new)
        source.rewrite(found, found, change)


def _replaced(new: Any, items: list[Item]) -> list[Any]:
    [old] = all_of(items)
    return [old.with_changes(body=new.body)]


@dataclass(frozen=True, slots=True)
class BeforeLoop:
    """Adds a statement before the loop in which a model is called; {} is the model's name."""

    statement: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Add the statement."""
        if not name:
            raise CannotEditError("the model has no name there")
        loop = _loop(source, line)
        new = parsed(self.statement.format(name))
        source.rewrite(loop, loop, lambda items: before(new, items))


def channels_last_input(source: Source, line: int, name: str) -> None:
    """Have a model called with channels-last images."""
    calls = [call for call in source.calls(line) if name and source.text(call.func) == name]
    if len(calls) != 1 or not calls[0].args:
        raise CannotEditError(f"the model ({name or 'which has no name'}) is not called once there")
    argument = calls[0].args[0]
    if argument.star or argument.keyword is not None:
        raise CannotEditError("the model is called with keywords only")
    if "channels_last" in source.text(argument):
        return
    source.need("torch")
    source.change(calls[0], _with_channels_last)


def _with_channels_last(call: cst.Call) -> cst.Call:
    value: Any = call.args[0].value
    plain = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    if not plain and not value.lpar:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    method = cst.Attribute(value, cst.Name("to"))
    changed = with_argument(cst.Call(method), "memory_format", "torch.channels_last")
    return call.with_changes(args=[call.args[0].with_changes(value=changed), *call.args[1:]])


def _stepped(source: Source, statement: Statement) -> tuple[str, str]:
    """Return ``A`` and ``B`` of a statement ``A.step(B)``, and "" where it is none."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        expression = getattr(statement.body[0], "value", None)
        if isinstance(expression, cst.Call) and isinstance(expression.func, cst.Attribute):
            arguments = expression.args
            if expression.func.attr.value == "step" and len(arguments) < 2:
                argument = source.text(arguments[0].value) if arguments else ""
                return source.text(expression.func.value), argument
    return "", ""


def remove_step(source: Source, line: int, name: str) -> None:
    """Remove a step of an optimiser."""
    statement = source.at(line)
    owner, argument = _stepped(source, statement)
    if not owner or argument:
        raise CannotEditError("it is no statement optimizer.step()")
    source.rewrite(statement, statement, _removed)


def _removed(items: list[Item]) -> list[Any]:
    return [line for new in all_of(items) for line in new.leading_lines]


def clear_after_step(source: Source, line: int, name: str) -> None:
    """Clear gradients after the step of an optimiser."""
    statement = source.at(line)
    owner, argument = _stepped(source, statement)
    if not owner:
        raise CannotEditError("it is no statement optimizer.step()")
    new = parsed(f"{argument or owner}.zero_grad()")
    source.rewrite(statement, statement, lambda items: [*all_of(items), new])


def unscale_before(source: Source, line: int, name: str) -> None:
    """Unscale gradients before they are clipped, by the scaler that makes the step."""
    statement = source.at(line)
    for later in source.later(statement):
        owner, argument = _stepped(source, later)
        if owner and argument:
            break
    else:
        raise CannotEditError("scaler.step(optimizer) does not follow in the same block")
    new = parsed(f"{owner}.unscale_({argument})")
    source.rewrite(statement, statement, lambda items: before(new, items))


def clear_first(source: Source, line: int, name: str) -> None:
    """Clear gradients before all else in the block in which they are cleared."""
    statement = source.at(line)
    block: Any = source.parent(statement)
    place = next(n for n, one in enumerate(block.body) if one is statement)
    earlier = block.body[:place]
    if not earlier:
        raise CannotEditError("it comes first in its block already")
    for one in earlier:
        if _calls(source, one, "step") or _calls(source, one, "backward"):
            raise CannotEditError("there is a step, or a backward pass, before it in its block")
    source.rewrite(earlier[0], statement, lambda items: all_of([items[-1], *items[:-1]]))


def decoupled_decay(source: Source, line: int, name: str) -> None:
    """Make AdamW in place of Adam, where the decay is an argument: AdamW has another default."""
    call = source.call(line, ("Adam",), of_torch=True)
    if any(argument.star for argument in call.args):
        raise CannotEditError("its arguments are unpacked (* or **)")
    if place_of(call, "weight_decay", ()) is None:
        raise CannotEditError("weight_decay is no argument of it, and AdamW's default is not 0")
    source.need("torch")
    source.change(call, _as_adamw)


def _as_adamw(call: cst.Call) -> cst.Call:
    if isinstance(call.func, cst.Attribute):
        return call.with_deep_changes(call.func.attr, value="AdamW")
    return call.with_changes(func=cst.parse_expression("torch.optim.AdamW"))


@dataclass(frozen=True, slots=True)
class MoveAfter:
    """Moves a statement behind the first one after it that calls a method."""

    method: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Move the statement."""
        statement = source.at(line)
        for later in source.later(statement):
            if isinstance(later, cst.SimpleStatementLine) and _calls(source, later, self.method):
                source.rewrite(statement, later, lambda items: all_of([*items[1:], items[0]]))
                return
        raise CannotEditError(f"{self.method}() does not follow in the same block")


def anomaly_off(source: Source, line: int, name: str) -> None:
    """Switch anomaly detection off, or take its context away."""
    if source.calls(line, ("set_detect_anomaly",)):
        Argument(torch.autograd, ("set_detect_anomaly",), "mode", "False")(source, line, name)
    else:
        WithoutContext(("detect_anomaly",))(source, line, name)


def not_blocking(source: Source, line: int, name: str) -> None:
    """Have all copies of a line not block."""
    for call in source.calls(line, ("to", "cuda")):
        if any(argument.star for argument in call.args):
            raise CannotEditError("its arguments are unpacked (* or **)")
        if place_of(call, "non_blocking", ()) is None:
            source.change(call, lambda call: with_argument(call, "non_blocking", "True"))


def _module(name: str, value: str, *functions: str) -> Argument:
    return Argument(nn, functions, name, value)


_CONVOLUTIONS = "Conv1d", "Conv2d", "Conv3d", "Linear"
_ACTIVATIONS = "ReLU", "ReLU6", "LeakyReLU", "Hardtanh", "ELU"
_CLIPPING = "clip_grad_norm_", "clip_grad_value_"
_DDP = ("DistributedDataParallel",)

EDITS: dict[str, tuple[Edit, ...]] = {
    "D01": (under_autocast, validation_under_autocast),
    "D02": (FlagBefore("matmul_precision", 'torch.set_float32_matmul_precision("high")'),),
    "D03": (AfterMaking("{}.to(memory_format=torch.channels_last)"), channels_last_input),
    "D04": (FlagBefore("cudnn.benchmark", "torch.backends.cudnn.benchmark = True"),),
    "D05": (AfterMaking("{}.compile()"),),
    "D06": (
        Argument(
            torch.optim, ("SGD", "Adam", "AdamW", "Adagrad"), "fused", "True", excludes=("foreach",)
        ),
    ),
    "D07": (Argument(Optimizer, ("zero_grad",), "set_to_none", "True"),),
    "D08": (_module("bias", "False", *_CONVOLUTIONS),),
    "D09": (anomaly_off,),
    "D10": (without_gradients,),
    "D13": (Argument(nn.utils, _CLIPPING, "foreach", "None"),),
    "D15": (_module("inplace", "True", *_ACTIVATIONS),),
    "D17": (Argument(torch, ("set_num_threads",), "threads", str(available_cores())),),
    "D21": (not_blocking,),
    "D22": (Argument(torch.utils.data, ("DataLoader",), "pin_memory", "True"),),
    "D26": (Argument(nn.parallel, _DDP, "find_unused_parameters", "False"),),
    "D27": (Argument(nn.parallel, _DDP, "gradient_as_bucket_view", "True"),),
    "D30": (WithoutContext(("profile",)),),
    "D33": (decoupled_decay,),
    "D34": (Argument(torch, ("use_deterministic_algorithms",), "mode", "False"),),
    "D37": (clear_first,),
    "D41": (unscale_before,),
    "D42": (MoveAfter("backward"),),
    "D43": (remove_step,),
    "D44": (MoveAfter("step"),),
    "D45": (clear_after_step,),
    "D46": (BeforeLoop("{}.eval()"),),
    "D47": (BeforeLoop("{}.train()"),),
    "D49": (validation_as_training,),
}
"""For each piece of advice: what changes at its line, and, where there is a second edit, what
changes in the lines in which its model is called."""
