"""Edits of source that follow advice, made by LibCST, the extra ``doctor``.

`EDITS` says for each piece of advice what is to change at its line, in terms of a few edits: an
argument of a call, a context that goes, a statement that moves or is added, statements that come
into a context.  An edit changes what it was made for, or raises `CannotEditError`: it does not
guess.  All else of a file, its comments and its format, stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import libcst as cst
import torch
from libcst import metadata
from torch import nn
from torch.optim import Optimizer

from fastdata.processes.resources import available_cores

__all__ = ["EDITS", "CannotEditError", "Edit", "Source"]

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Item: TypeAlias = "tuple[Statement | None, list[Any]]"
"""A statement, and those that take its place; among these may be lines of comments."""
Change: TypeAlias = Callable[[list[Item]], list[Any]]
Edit: TypeAlias = Callable[["Source", int, str], None]
"""Changes a source, at a line; the name is that by which a model is called there, or ""."""


class CannotEditError(ValueError):
    """What an edit was made for is not in the line, or changing it is not safe; says why."""


class Source:
    """A file that is edited: finds code by its line, and collects what is to change."""

    def __init__(self, text: bytes) -> None:
        try:
            wrapper = metadata.MetadataWrapper(cst.parse_module(text))
        except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, LookupError) as error:
            reason = error.message if isinstance(error, cst.ParserSyntaxError) else error
            raise CannotEditError(f"it cannot be parsed: {reason}") from error
        self.module = wrapper.module
        providers = (
            metadata.PositionProvider,
            metadata.ParentNodeProvider,
            metadata.QualifiedNameProvider,
        )
        facts: Any = wrapper.resolve_many(providers)
        self._places, self._parents, self._names = (facts[provider] for provider in providers)
        self._calls: dict[cst.Call, Callable[[cst.Call], cst.Call]] = {}
        self._changes: list[tuple[Statement, Statement, Change]] = []
        self._imports: set[str] = set()

    # -- looking -------------------------------------------------------------------------------

    def calls(self, line: int, names: Sequence[str] = ()) -> list[cst.Call]:
        """Return the calls of a line; those of some functions, by the last part of their names."""
        found = []
        for node, place in self._places.items():
            # The line of a call is that of its beginning; of a method, that of its name.
            if not isinstance(node, cst.Call):
                continue
            lines = place.start.line, self._places[node.func].end.line
            if line in lines and (not names or self.last_name(node) in names):
                found.append(node)
        return found

    def call(self, line: int, names: Sequence[str], *, of_torch: bool = False) -> cst.Call:
        """Return the one call of some functions in a line."""
        found = [
            call
            for call in self.calls(line, names)
            if not of_torch or self.name(call).startswith("torch.")
        ]
        if len(found) != 1:
            what = " or ".join(names)
            raise CannotEditError(
                f"{what} is not called there by name" if not found else f"it calls {what} twice"
            )
        return found[0]

    def name(self, call: cst.Call) -> str:
        """Return the full name of what is called, ``torch.optim.SGD``, or as it is written."""
        known = self._names.get(call.func, ())
        names = sorted(one.name for one in (known() if callable(known) else known))
        return names[0] if names else self.text(call.func)

    def last_name(self, call: cst.Call) -> str:
        """Return the last part of the name of what is called."""
        return self.name(call).rpartition(".")[2]

    def text(self, node: cst.CSTNode) -> str:
        """Return the code of a node."""
        return self.module.code_for_node(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return what a node is a part of."""
        parent: cst.CSTNode = self._parents[node]
        return parent

    def around(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Iterator[Any]:
        """Yield what a node is in of some kinds, within its function, from the inside out."""
        while not isinstance(node, (cst.Module, cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            if isinstance(node, kinds):
                yield node
            node = self.parent(node)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine:
        """Return the simple statement that a node is in, which has a line of its own."""
        line = next(self.around(node, cst.SimpleStatementLine), None)
        if line is None or len(line.body) != 1:
            raise CannotEditError("it is no statement with a line of its own")
        return line  # type: ignore[no-any-return]

    def at(self, line: int) -> cst.SimpleStatementLine:
        """Return the simple statement that a line is in."""
        for node, place in self._places.items():
            inside = place.start.line <= line <= place.end.line
            if inside and isinstance(node, cst.SimpleStatementLine):
                return self.statement(node)
        raise CannotEditError("it is no statement with a line of its own")

    def later(self, statement: Statement) -> list[Statement]:
        """Return the statements after one in its block."""
        block: Any = self.parent(statement)
        place = next(n for n, one in enumerate(block.body) if one is statement)
        return list(block.body[place + 1 :])

    def calls_in(self, node: cst.CSTNode) -> list[cst.Call]:
        """Return all calls in a node."""
        found: list[cst.Call] = []

        class Calls(cst.CSTVisitor):
            def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
                found.append(node)

        node.visit(Calls())
        return found

    # -- changing ------------------------------------------------------------------------------

    def change(self, call: cst.Call, change: Callable[[cst.Call], cst.Call]) -> None:
        """Have a call changed, once."""
        self._calls.setdefault(call, change)

    def rewrite(self, first: Statement, last: Statement, change: Change) -> None:
        """Have statements changed, from one to another of the same block."""
        self._changes.append((first, last, change))

    def need(self, module: str) -> None:
        """Have a module imported."""
        self._imports.add(module)

    def result(self) -> bytes:
        """Return the text with all changes."""
        module = self.module.visit(_Rewriter(self._calls, self._changes))
        assert isinstance(module, cst.Module), "what was one"
        if self._imports:
            from libcst.codemod import CodemodContext
            from libcst.codemod.visitors import AddImportsVisitor

            context = CodemodContext()
            for name in sorted(self._imports):
                AddImportsVisitor.add_needed_import(context, name)
            module = AddImportsVisitor(context).transform_module(module)
        return module.bytes


class _Rewriter(cst.CSTTransformer):
    """Makes the changes of a source in one pass: nodes are told by their identity."""

    def __init__(
        self,
        calls: dict[cst.Call, Callable[[cst.Call], cst.Call]],
        changes: list[tuple[Statement, Statement, Change]],
    ) -> None:
        super().__init__()
        self._calls, self._changes = calls, changes

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        change = self._calls.get(original_node)
        return updated_node if change is None else change(updated_node)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        body, footer = self._body(original_node, updated_node)
        return updated_node.with_changes(body=body, footer=(*footer, *updated_node.footer))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body, footer = self._body(original_node, updated_node)
        body = body or [_parsed("pass")]
        return updated_node.with_changes(body=body, footer=(*footer, *updated_node.footer))

    def _body(self, original: Any, updated: Any) -> tuple[Sequence[Any], list[Any]]:
        items: list[Item] = [(a, [b]) for a, b in zip(original.body, updated.body, strict=True)]
        changed = False
        for first, last, change in self._changes:
            ends = [n for n, (one, _) in enumerate(items) if one is first or one is last]
            if ends:
                chosen = items[ends[0] : ends[-1] + 1]
                items[ends[0] : ends[-1] + 1] = [(chosen[0][0], change(chosen))]
                changed = True
        if not changed:
            return updated.body, []
        body, waiting = [], []
        for _, news in items:
            for new in news:
                if isinstance(new, cst.EmptyLine):
                    waiting.append(new)
                else:
                    lines = (*waiting, *new.leading_lines)
                    body.append(new.with_changes(leading_lines=lines) if waiting else new)
                    waiting = []
        return body, waiting


def _all(items: list[Item]) -> list[Any]:
    return [new for _, news in items for new in news]


def _parsed(code: str) -> Any:
    return cst.parse_statement(code)


def _before(new: Any, items: list[Item]) -> list[Any]:
    """Return statements with a new one before, which gets the blank lines and comments there."""
    first, *others = _all(items)
    new = new.with_changes(leading_lines=first.leading_lines)
    return [new, first.with_changes(leading_lines=()), *others]


# -- edits -----------------------------------------------------------------------------------


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

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Change the call."""
        call = source.call(line, self.functions, of_torch=inspect.ismodule(self.owner))
        if any(argument.star for argument in call.args):
            raise CannotEditError("its arguments are unpacked (* or **)")
        positions, default = self._parameters(source.last_name(call))
        given = {
            positions[place] if argument.keyword is None else argument.keyword.value: place
            for place, argument in enumerate(call.args)
            if argument.keyword is not None or place < len(positions)
        }
        place = given.get(self.name)
        if place is not None and not _is_constant(call.args[place].value):
            value = source.text(call.args[place].value)
            raise CannotEditError(f"{self.name} is not written out: it is {value}")
        excluded = [given[one] for one in self.excludes if one in given]
        source.change(call, lambda call: self._changed(call, place, excluded, default))

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

    def _changed(
        self, call: cst.Call, place: int | None, excluded: Sequence[int], default: str
    ) -> cst.Call:
        for one in sorted(excluded, reverse=True):
            call = _without(call, one)
            place = place - 1 if place is not None and one < place else place
        is_default = self.value == default
        if place is None:
            return call if is_default else _with(call, self.name, self.value)
        if is_default and (call.args[place].keyword or place == len(call.args) - 1):
            return _without(call, place)
        arguments = list(call.args)
        value = cst.parse_expression(self.value)
        arguments[place] = arguments[place].with_changes(value=value)
        return call.with_changes(args=arguments)


def _is_constant(node: cst.BaseExpression) -> bool:
    words = "True", "False", "None"
    return isinstance(node, cst.BaseNumber) or (isinstance(node, cst.Name) and node.value in words)


def _comma(whitespace: Any) -> cst.Comma:
    return cst.Comma(whitespace_after=whitespace)


def _without(call: cst.Call, place: int) -> cst.Call:
    """Return a call without one of its arguments; what is behind the last one stays there."""
    arguments = list(call.args)
    gone = arguments.pop(place)
    if arguments and place == len(arguments):
        last = arguments[-1].with_changes(
            comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
        )
        arguments[-1] = last
    return call.with_changes(args=arguments)


def _with(call: cst.Call, name: str, value: str) -> cst.Call:
    """Return a call with one more argument, written as the others are: in its line, or below."""
    new = cst.Arg(
        cst.parse_expression(value),
        cst.Name(name),
        cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    arguments = list(call.args)
    if not arguments:
        return call.with_changes(args=[new])
    last = arguments[-1]
    comma = last.comma if isinstance(last.comma, cst.Comma) else None
    tail: Any = last.whitespace_after_arg if comma is None else comma.whitespace_after
    between: Any = cst.SimpleWhitespace(" ")
    if len(arguments) > 1 and isinstance(arguments[-2].comma, cst.Comma):
        between = arguments[-2].comma.whitespace_after
    if isinstance(between, cst.ParenthesizedWhitespace):
        between = between.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    if isinstance(tail, cst.ParenthesizedWhitespace) and tail.first_line.comment is not None:
        # A comment stays behind its argument.
        below = between if isinstance(between, cst.ParenthesizedWhitespace) else tail
        between = tail.with_changes(last_line=below.last_line, indent=below.indent)
        tail = tail.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    if comma is not None:
        new = new.with_changes(comma=_comma(tail))
    else:
        new = new.with_changes(whitespace_after_arg=tail)
    before = last.with_changes(comma=_comma(between), whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*arguments[:-1], before, new])


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
        [block] = _all(items)
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
    source.rewrite(loop, loop, lambda items: _inside("torch.no_grad()", items))


def _training(source: Source, loop: cst.For) -> str:
    """Return the first call of a loop that is of training, or ""."""
    calls = [call for call in source.calls_in(loop) if source.last_name(call) in _TRAINS]
    return source.text(calls[0].func) if calls else ""


def _inside(context: str, items: list[Item]) -> list[Any]:
    """Return statements in a ``with``."""
    first, *others = _all(items)
    block = _parsed(f"with {context}:\n    pass\n")
    body = [first.with_changes(leading_lines=()), *others]
    return [
        block.with_changes(
            body=block.body.with_changes(body=body), leading_lines=first.leading_lines
        )
    ]


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
    source.rewrite(first, last, lambda items: _inside(_autocast(), items))


def validation_under_autocast(source: Source, line: int, name: str) -> None:
    """Put the loop of a validation under autocast; one that trains has its own."""
    loop = _loop(source, line)
    if not _training(source, loop):
        source.rewrite(loop, loop, lambda items: _inside(_autocast(), items))


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
        new = _parsed(self.statement.format(source.text(targets[0])))
        if "torch." in self.statement:
            source.need("torch")
        source.rewrite(made, made, lambda items: [*_all(items), new])


@dataclass(frozen=True, slots=True)
class BeforeLoop:
    """Adds a statement before the loop in which a model is called; {} is the model's name."""

    statement: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Add the statement."""
        if not name:
            raise CannotEditError("the model has no name there")
        loop = _loop(source, line)
        new = _parsed(self.statement.format(name))
        source.rewrite(loop, loop, lambda items: _before(new, items))


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
    changed = _with(cst.Call(method), "memory_format", "torch.channels_last")
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
    return [line for new in _all(items) for line in new.leading_lines]


def clear_after_step(source: Source, line: int, name: str) -> None:
    """Clear gradients after the step of an optimiser."""
    statement = source.at(line)
    owner, argument = _stepped(source, statement)
    if not owner:
        raise CannotEditError("it is no statement optimizer.step()")
    new = _parsed(f"{argument or owner}.zero_grad()")
    source.rewrite(statement, statement, lambda items: [*_all(items), new])


def unscale_before(source: Source, line: int, name: str) -> None:
    """Unscale gradients before they are clipped, by the scaler that makes the step."""
    statement = source.at(line)
    for later in source.later(statement):
        owner, argument = _stepped(source, later)
        if owner and argument:
            break
    else:
        raise CannotEditError("scaler.step(optimizer) does not follow in the same block")
    new = _parsed(f"{owner}.unscale_({argument})")
    source.rewrite(statement, statement, lambda items: _before(new, items))


@dataclass(frozen=True, slots=True)
class MoveAfter:
    """Moves a statement behind the first one after it that calls a method."""

    method: str

    def __call__(self, source: Source, line: int, name: str) -> None:
        """Move the statement."""
        statement = source.at(line)
        for later in source.later(statement):
            if isinstance(later, cst.SimpleStatementLine) and _calls(source, later, self.method):
                source.rewrite(statement, later, lambda items: _all([*items[1:], items[0]]))
                return
        raise CannotEditError(f"{self.method}() does not follow in the same block")


def anomaly_off(source: Source, line: int, name: str) -> None:
    """Switch anomaly detection off, or take its context away."""
    if source.calls(line, ("set_detect_anomaly",)):
        Argument(torch.autograd, ("set_detect_anomaly",), "mode", "False")(source, line, name)
    else:
        WithoutContext(("detect_anomaly",))(source, line, name)


def _module(name: str, value: str, *functions: str) -> Argument:
    return Argument(nn, functions, name, value)


_CONVOLUTIONS = "Conv1d", "Conv2d", "Conv3d", "Linear"
_ACTIVATIONS = "ReLU", "ReLU6", "LeakyReLU", "Hardtanh", "ELU"
_CLIPPING = "clip_grad_norm_", "clip_grad_value_"
_DDP = ("DistributedDataParallel",)

EDITS: dict[str, tuple[Edit, ...]] = {
    "D01": (under_autocast, validation_under_autocast),
    "D03": (AfterMaking("{}.to(memory_format=torch.channels_last)"), channels_last_input),
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
    "D26": (Argument(nn.parallel, _DDP, "find_unused_parameters", "False"),),
    "D27": (Argument(nn.parallel, _DDP, "gradient_as_bucket_view", "True"),),
    "D30": (WithoutContext(("profile",)),),
    "D34": (Argument(torch, ("use_deterministic_algorithms",), "mode", "False"),),
    "D41": (unscale_before,),
    "D42": (MoveAfter("backward"),),
    "D43": (remove_step,),
    "D44": (MoveAfter("step"),),
    "D45": (clear_after_step,),
    "D46": (BeforeLoop("{}.eval()"),),
    "D47": (BeforeLoop("{}.train()"),),
}
"""For each piece of advice: what changes at its line, and, where there is a second edit, what
changes in the lines in which its model is called."""
