"""What the source text of a script says of code that its run may not reach without a GPU.

Files are parsed, so strings and comments match nothing.  Whether a line ever runs is not known.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator
from typing import Any

from fastdata.measuring.lines import tree_of, user_files

__all__ = ["assigns", "blocking_copies", "calls", "has_own_schedule", "kept_names", "mentions"]

_LOOPS = ast.For, ast.AsyncFor
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef

_DEVICE = re.compile("cuda|dev|gpu|rank", re.IGNORECASE)
"""What the text of a device has, and that of a type does not."""

_OWN_SCHEDULE = re.compile("sched|warm_?up", re.IGNORECASE)


def _nodes() -> Iterator[tuple[str, Any]]:
    """Yield every node of the script's source text, with its file."""
    for file in user_files():
        for node in ast.walk(tree_of(file) or ast.Module([], [])):
            yield file.removeprefix(os.getcwd() + os.sep), node


def _names_of(node: Any) -> tuple[Any, ...]:
    """Return the names in a node of a syntax tree."""
    found = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value"))
    return tuple(name for name in found if isinstance(name, str))


def mentions(*names: str) -> bool:
    """Return whether the script uses one of the names, in code or as a string."""
    return any(name in names for _, node in _nodes() for name in _names_of(node))


def assigns(path: str) -> bool:
    """Return whether the script sets the attribute at the end of this path, and not to False."""
    return any(
        isinstance(node, ast.Assign)
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
        and any(ast.unparse(target).endswith(path) for target in node.targets)
        for _, node in _nodes()
    )


def has_own_schedule() -> bool:
    """Return whether the script has a schedule of the learning rate, torch's or its own."""
    for _, node in _nodes():
        is_set = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        if is_set and ast.unparse(node.slice) == "'lr'":
            return True
        if not isinstance(node, ast.Constant) and any(map(_OWN_SCHEDULE.search, _names_of(node))):
            return True
    return False


def calls(name: str) -> Iterator[str]:
    """Yield the lines that call something of this name."""
    for file, node in _nodes():
        if isinstance(node, ast.Call) and name in _names_of(node.func):
            yield f"{file}:{node.lineno}"


def blocking_copies(steps: Collection[str], reached: Collection[str]) -> Iterator[str]:
    """Yield lines that copy a batch to a device, and wait, and that a run has not reached.

    `steps` are lines of training steps.  A batch is the target of the loop around
    such a line, or an argument of the function around it.
    """
    places = [line.partition(" ")[0].rpartition(":") for line in steps]
    for file, node in _nodes():
        numbers = [int(number) for name, _, number in places if name == file]
        names = _batches(node, numbers) if _is_around(node, numbers) else ()
        for call in ast.walk(node) if names else ():
            line = f"{file}:{getattr(call, 'lineno', 0)}"
            if isinstance(call, ast.Call) and line not in reached and _blocks(call, names):
                yield line


def _is_around(node: Any, numbers: list[int]) -> bool:
    """Return whether a node contains any of the lines."""
    last = getattr(node, "end_lineno", None) or 0
    return any(getattr(node, "lineno", last + 1) <= number <= last for number in numbers)


def _batches(node: Any, numbers: list[int]) -> set[str]:
    """Return the names of a batch in a loop or a function, and of its parts."""
    parts = list(ast.walk(node))
    if isinstance(node, _LOOPS):
        names = _names_in(node.target)
        for one in parts:
            if isinstance(one, ast.Assign) and _root(one.value) in names:
                names = names.union(*map(_names_in, one.targets))
        return names
    in_loop = any(isinstance(one, _LOOPS) and _is_around(one, numbers) for one in parts)
    if in_loop or not isinstance(node, _FUNCTIONS):
        return set()
    called = {
        one.func.id for one in parts if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
    }
    return {one.arg for one in node.args.args} - called - {"self"}


def _names_in(target: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}


def _root(value: ast.expr) -> str:
    """Return the name at the beginning of a chain of parts and methods; "" of anything else."""
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else ""


def _blocks(call: ast.Call, batches: Collection[str]) -> bool:
    """Return whether a call is ``.to(device)`` or ``.cuda()`` of a batch, and waits."""
    if not isinstance(call.func, ast.Attribute) or _root(call.func.value) not in batches:
        return False
    options = {one.arg: one.value for one in call.keywords}
    given = [ast.unparse(one) for one in (*call.args, *options.values())]
    waits = options.get("non_blocking") is None and "True" not in given
    device = call.func.attr == "to" and any(map(_DEVICE.search, given[:1]))
    return waits and (device or call.func.attr == "cuda")


def kept_names(file: str, line: int) -> set[str] | None:
    """Return names whose values the function around a line returns, or keeps elsewhere.

    None if the source text cannot be read.
    """
    if (tree := tree_of(file)) is None:
        return None
    scope: ast.AST = tree
    for node in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)) and _is_around(node, [line]):
            scope = node
    names: set[str] = set()
    for node in ast.walk(scope):
        elsewhere = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
        if elsewhere or isinstance(node, (ast.Return, ast.Yield)):
            names |= _bare(node.value)  # type: ignore[attr-defined]
    return names


def _bare(value: ast.AST | None) -> set[str]:
    """Return names that are values themselves, or items of one."""
    if isinstance(value, ast.Name):
        return {value.id}
    has_items = isinstance(value, (ast.Tuple, ast.List, ast.Dict, ast.IfExp))
    return set().union(*map(_bare, ast.iter_child_nodes(value))) if value and has_items else set()
