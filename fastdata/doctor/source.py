"""What can be read from a script without running it.

The file of the script is read, and those of its folder that it imports.  Only what is written out
is found: a call with its arguments, in a loop or not.  What no text shows (whether convolutions
are channels last, say) needs a run.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fastdata.doctor.advice import advice_by_id
from fastdata.doctor.report import Row
from fastdata.doctor.script import Script
from fastdata.errors import OptionError

__all__ = ["read_script", "static_text"]

MOST_FILES = 200

NOT_RUN = "the script was not run"

OPTIMIZERS = "SGD", "Adam", "AdamW", "Adagrad"

READS = "item", "tolist", "numpy"
FACTORIES = "rand", "randn", "randint", "randperm", "zeros", "ones", "empty", "full", "arange"

Found: TypeAlias = tuple[str, str, str]
"""An ID, a line ``FILE:LINE``, and what was found."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call as it is written: its dotted name, arguments, and whether it is in a loop."""

    name: str
    node: ast.Call
    in_loop: bool

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def has(self, keyword: str) -> bool:
        """Whether a keyword is given."""
        return any(one.arg in (keyword, None) for one in self.node.keywords)

    def value(self, keyword: str, position: int | None = None) -> object:
        """Return a constant argument; None where there is none."""
        given = [one.value for one in self.node.keywords if one.arg == keyword]
        if not given and position is not None:
            given = self.node.args[position : position + 1]
        return given[0].value if given and isinstance(given[0], ast.Constant) else None


_RULES: tuple[tuple[str, Callable[[_Call], bool]], ...] = (
    ("D06", lambda c: c.last in OPTIMIZERS and "optim" in c.name and not c.has("fused")),
    ("D07", lambda c: c.last == "zero_grad" and c.value("set_to_none", 0) is False),
    ("D09", lambda c: c.last == "detect_anomaly"),
    ("D09", lambda c: c.last == "set_detect_anomaly" and c.value("mode", 0) is True),
    ("D11", lambda c: c.in_loop and c.last in READS and "." in c.name and not c.node.args),
    ("D11", lambda c: c.in_loop and c.name.endswith("cuda.synchronize")),
    ("D12", lambda c: c.in_loop and c.last in ("to", "cuda") and _is_factory(c.node.func)),
    ("D13", lambda c: c.last.startswith("clip_grad_") and c.value("foreach") is False),
    ("D25", lambda c: c.last == "DataParallel"),
    ("D26", lambda c: c.last == _DDP and c.value("find_unused_parameters") is True),
    ("D27", lambda c: c.last == _DDP and not c.has("gradient_as_bucket_view")),
    ("D30", lambda c: c.name.endswith("profiler.profile") and c.value("enabled", 0) is not False),
    ("D31", lambda c: c.last == "gradcheck"),
    ("D33", lambda c: c.last == "Adam" and "optim" in c.name and bool(c.value("weight_decay"))),
    ("D34", lambda c: c.last == "use_deterministic_algorithms" and c.value("mode", 0) is True),
)
"""Which calls are which advice."""

_DDP = "DistributedDataParallel"


def read_script(script: Script) -> tuple[Row, ...]:
    """Return what is found in the source of a script, as rows that were not tried.

    Raises `OptionError` where there is no file, or it is no Python.
    """
    found: dict[str, list[Found]] = {}
    for path in _files(_file_of(script)):
        for one in _findings(path):
            found.setdefault(one[0], []).append(one)
    return tuple(
        Row(
            id,
            advice.kind,
            advice.title,
            tuple(dict.fromkeys(where for _, where, _ in found[id])),
            tuple(dict.fromkeys(what for _, _, what in found[id])),
            None,
            advice.numerics,
            NOT_RUN,
            advice.phase,
        )
        for id in sorted(found)
        for advice in [advice_by_id(id)]
    )


def static_text(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield a line for each place that was found."""
    for row in rows:
        for line in row.where:
            yield f"{row.id}  {line}  {row.title}"
    if not rows:
        yield "nothing was found in the source; a run sees more"


def _file_of(script: Script) -> Path:
    """Return the file with a script's source."""
    place = script.name.rpartition(":")[0] if script.kind == "function" else script.name
    if place.endswith(".py") or script.kind == "file":
        return Path(place)
    for name in (f"{place}.__main__", place):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
    raise OptionError(f"there is no module {place!r} whose source could be read")


def _files(first: Path) -> Iterator[Path]:
    """Yield a file, and those of its folder that it imports, directly or not."""
    seen, waiting = {first}, [first]
    while waiting and len(seen) <= MOST_FILES:
        path = waiting.pop()
        yield path
        for name in _imported(_tree(path)):
            place = first.parent.joinpath(*name.split("."))
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file not in seen and file.is_file():
                    seen.add(file)
                    waiting.append(file)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise OptionError(f"{path} is no Python: {error}") from error


def _findings(path: Path) -> Iterator[Found]:
    tree = _tree(path)
    names = _names(tree)
    place = os.path.relpath(path)
    # Reproducible runs switch the autotuner off, and mean it.
    is_reproducible = any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _dotted(node, names).endswith("cudnn.deterministic")
        for node in ast.walk(tree)
    )
    for node, in_loop in _walk(tree, in_loop=False):
        line = f"{place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            call = _Call(_dotted(node.func, names), node, in_loop)
            for id, applies in _RULES:
                if applies(call):
                    yield id, line, f"{call.last}(...)"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                name, value = _dotted(target, names), node.value.value
                if name.endswith("cudnn.benchmark") and value is False and not is_reproducible:
                    yield "D04", line, "cudnn.benchmark = False"
                if name == "os.environ.CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
                    yield "D32", line, "CUDA_LAUNCH_BLOCKING"


def _walk(node: ast.AST, *, in_loop: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield nodes, and whether they are in the body of a loop, and run each time."""
    for child in ast.iter_child_nodes(node):
        inside = in_loop or isinstance(node, (ast.For, ast.While, ast.AsyncFor))
        if isinstance(node, ast.If) and child is not node.test:
            inside = False  # what is logged every so many steps, or on some machines
        yield child, inside
        yield from _walk(child, in_loop=inside)


def _names(tree: ast.Module) -> dict[str, str]:
    """Return what imported names stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return the dotted name of what is called or assigned; what has none begins with a dot."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return f"{_dotted(node.value, names)}.{node.slice.value!s}"
    return ""


def _is_factory(function: ast.AST) -> bool:
    """Return whether it is a method of what a function of torch has just made."""
    made = function.value if isinstance(function, ast.Attribute) else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
        return False
    owner = made.func.value
    return made.func.attr in FACTORIES and isinstance(owner, ast.Name) and owner.id == "torch"
