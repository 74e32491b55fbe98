"""What the source text of a script says of code that its run may not reach without a GPU.

Files are parsed, so strings and comments match nothing.  Whether a line ever runs is not known.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from fastdata.measuring.lines import tree_of, user_files

__all__ = ["assigns", "blocking_copies", "calls", "has_own_schedule", "mentions"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_DEVICE = re.compile("cuda|dev|gpu|rank", re.IGNORECASE)
"""What the text of a device has, and that of a type does not."""

_OWN_SCHEDULE = re.compile("sched|warm_?up", re.IGNORECASE)


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for file in user_files():
        if (tree := tree_of(file)) is not None:
            yield file.removeprefix(os.getcwd() + os.sep), tree


def _nodes() -> Iterator[ast.AST]:
    for _, tree in _trees():
        yield from ast.walk(tree)


def _names_of(node: Any) -> tuple[Any, ...]:
    """Return the names in a node of a syntax tree."""
    found = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value"))
    return tuple(name for name in found if isinstance(name, str))


def mentions(*names: str) -> bool:
    """Return whether the script has such a name or string."""
    return any(name in names for node in _nodes() for name in _names_of(node))


def assigns(path: str) -> bool:
    """Return whether the script sets the attribute at the end of this path, and not to False."""
    return any(
        isinstance(node, ast.Assign)
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
        and any(ast.unparse(target).endswith(path) for target in node.targets)
        for node in _nodes()
    )


def has_own_schedule() -> bool:
    """Return whether the script has a schedule of the learning rate, torch's or its own."""
    return any(
        (
            (isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'lr'")
            and isinstance(node.ctx, ast.Store)
        )
        or any(
            _OWN_SCHEDULE.search(name)
            for name in _names_of(node)
            if not isinstance(node, ast.Constant)
        )
        for node in _nodes()
    )


def calls(name: str) -> Iterator[str]:
    """Yield the lines that call something of this name."""
    for file, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name in _names_of(node.func):
                yield f"{file}:{node.lineno}"


def blocking_copies(steps: Collection[str], reached: Collection[str]) -> Iterator[str]:
    """Yield lines that copy a batch to a device, and wait, and that a run has not reached.

    `steps` are lines of training steps.  A batch is the target of the loop around
    such a line, or an argument of the function around it.
    """
    for file, tree in _trees():
        places = (line.partition(" ")[0].rpartition(":") for line in steps)
        numbers = [int(number) for name, _, number in places if name == file]
        for node in ast.walk(tree):
            if not any(_is_inside(number, node) for number in numbers):
                continue
            names = _batches(node, numbers)
            for call in ast.walk(node) if names else ():
                line = f"{file}:{getattr(call, 'lineno', 0)}"
                if isinstance(call, ast.Call) and line not in reached and _blocks(call, names):
                    yield line


def _is_inside(number: int, node: Any) -> bool:
    return getattr(node, "lineno", number + 1) <= number <= (getattr(node, "end_lineno", 0) or 0)


def _batches(node: ast.AST, numbers: list[int]) -> set[str]:
    """Return the names of a batch in a loop or a function, and of its parts."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        names = _targets(node.target)
        for one in ast.walk(node):
            if isinstance(one, ast.Assign) and _root(one.value) in names:
                names |= set().union(*map(_targets, one.targets))
        return names
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        loops = [one for one in ast.walk(node) if isinstance(one, (ast.For, ast.AsyncFor))]
        called = {
            _root(one.func)
            for one in ast.walk(node)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
        }
        if not any(_is_inside(number, loop) for loop in loops for number in numbers):
            return {one.arg for one in node.args.args} - called - {"self"}
    return set()


def _targets(target: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}


def _root(value: ast.expr) -> str:
    """Return the name at the beginning of a chain of parts and methods; "" of anything else."""
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else ""


def _blocks(call: ast.Call, batches: set[str]) -> bool:
    """Return whether a call is ``.to(device)`` or ``.cuda()`` of a batch, and waits."""
    if not isinstance(call.func, ast.Attribute) or _root(call.func.value) not in batches:
        return False
    options = {one.arg: one.value for one in call.keywords}
    given = [ast.unparse(one) for one in (*call.args, *options.values())]
    waits = options.get("non_blocking") is None and "True" not in given
    device = call.func.attr == "to" and any(_DEVICE.search(text) for text in given[:1])
    return waits and (device or call.func.attr == "cuda")
