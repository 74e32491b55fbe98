"""Source that is edited by LibCST, the extra ``doctor``: what is not changed stays as it is.

`Source` finds code by its line, and collects what is to change; nodes are told by their identity,
so that lines that move are no matter.  The functions make the code that takes another's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import libcst as cst
from libcst import metadata

__all__ = [
    "CannotEditError",
    "Edit",
    "Item",
    "Source",
    "Statement",
    "all_of",
    "before",
    "inside",
    "parsed",
    "place_of",
    "with_argument",
    "without_argument",
]

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Item: TypeAlias = "tuple[Statement | None, list[Any]]"
"""A statement, and those that take its place; among these may be lines of comments."""
Change: TypeAlias = Callable[[list[Item]], list[Any]]
Edit: TypeAlias = Callable[["Source", int, str], None]
"""Changes a source, at a line; the name is that by which a model is called there, or ""."""


class CannotEditError(ValueError):
    """What an edit was made for is not in the line, or changing it is not safe; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class _Edited:
    """A call that changes, statements that do, or a module to be imported."""

    call: cst.Call | None = None
    change_call: Callable[[cst.Call], cst.Call] | None = None
    first: Statement | None = None
    last: Statement | None = None
    change: Change | None = None
    imported: str = ""


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
        self._kept: list[_Edited] = []
        self._new: list[_Edited] = []

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
        """Have a call changed."""
        self._new.append(_Edited(call=call, change_call=change))

    def rewrite(self, first: Statement, last: Statement, change: Change) -> None:
        """Have statements changed, from one to another of the same block."""
        self._new.append(_Edited(first=first, last=last, change=change))

    def need(self, module: str) -> None:
        """Have a module imported."""
        self._new.append(_Edited(imported=module))

    def settle(self, *, keep: bool) -> None:
        """Keep the changes since the last call, or drop them."""
        self._kept += self._new if keep else []
        self._new = []

    def result(self) -> bytes:
        """Return the text with all changes that were kept."""
        rewriter = _Rewriter(self._kept)
        module = self.module.visit(rewriter)
        assert isinstance(module, cst.Module), "what was one"
        if len(rewriter.done) < sum(not one.imported for one in self._kept):
            raise CannotEditError("two edits are of the same statements: apply them one by one")
        if imports := {one.imported for one in self._kept if one.imported}:
            from libcst.codemod import CodemodContext
            from libcst.codemod.visitors import AddImportsVisitor

            context = CodemodContext()
            for name in sorted(imports):
                AddImportsVisitor.add_needed_import(context, name)
            module = AddImportsVisitor(context).transform_module(module)
        return module.bytes


class _Rewriter(cst.CSTTransformer):
    """Makes the changes of a source in one pass: nodes are told by their identity."""

    def __init__(self, edited: Sequence[_Edited]) -> None:
        super().__init__()
        self._edited = edited
        self.done: set[_Edited] = set()
        """Those whose code was there: it may be gone by another."""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        for one in self._edited:
            if one.call is original_node and one.change_call is not None:
                updated_node = one.change_call(updated_node)
                self.done.add(one)
        return updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        body, footer = self._body(original_node, updated_node)
        return updated_node.with_changes(body=body, footer=(*footer, *updated_node.footer))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body, footer = self._body(original_node, updated_node)
        body = body or [parsed("pass")]
        return updated_node.with_changes(body=body, footer=(*footer, *updated_node.footer))

    def _body(self, original: Any, updated: Any) -> tuple[Sequence[Any], list[Any]]:
        items: list[Item] = [(a, [b]) for a, b in zip(original.body, updated.body, strict=True)]
        changed = False
        for one in self._edited:
            ends = [n for n, (old, _) in enumerate(items) if old in (one.first, one.last)]
            if one.change is not None and len(ends) == 1 + (one.first is not one.last):
                chosen = items[ends[0] : ends[-1] + 1]
                items[ends[0] : ends[-1] + 1] = [(chosen[0][0], one.change(chosen))]
                changed = True
                self.done.add(one)
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


def all_of(items: list[Item]) -> list[Any]:
    return [new for _, news in items for new in news]


def parsed(code: str) -> Any:
    return cst.parse_statement(code)


def before(new: Any, items: list[Item]) -> list[Any]:
    """Return statements with a new one before, which gets the blank lines and comments there."""
    first, *others = all_of(items)
    new = new.with_changes(leading_lines=first.leading_lines)
    return [new, first.with_changes(leading_lines=()), *others]


def place_of(call: cst.Call, name: str, names: Sequence[str]) -> int | None:
    """Return which argument of a call is a parameter; `names` are those by position."""
    for place, argument in enumerate(call.args):
        by_position = names[place] if place < len(names) else ""
        if name == (by_position if argument.keyword is None else argument.keyword.value):
            return place
    return None


def _comma(whitespace: Any) -> cst.Comma:
    return cst.Comma(whitespace_after=whitespace)


def without_argument(call: cst.Call, place: int) -> cst.Call:
    """Return a call without one of its arguments; what is behind the last one stays there."""
    arguments = list(call.args)
    gone = arguments.pop(place)
    if arguments and place == len(arguments):
        last = arguments[-1].with_changes(
            comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
        )
        arguments[-1] = last
    return call.with_changes(args=arguments)


def with_argument(call: cst.Call, name: str, value: str) -> cst.Call:
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


def inside(context: str, items: list[Item]) -> list[Any]:
    """Return statements in a ``with``."""
    first, *others = all_of(items)
    block = parsed(f"with {context}:\n    pass\n")
    body = [first.with_changes(leading_lines=()), *others]
    return [
        block.with_changes(
            body=block.body.with_changes(body=body), leading_lines=first.leading_lines
        )
    ]
