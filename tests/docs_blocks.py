"""The fenced blocks of the documentation, and how each is run as a reader would run it.

A comment before a block, ``<!-- test: ... -->``, says what a test must know of it:

    needs cuda            run only where there is CUDA
    skip because REASON   not run; commands and Python are still parsed
    save as NAME          Python: written to that file, which a later command runs
    raises NAME           Python: must end with that exception
    add OPTIONS           commands: those of `fastdata` that have these options are given them,
                          e.g. a shorter time
    setup                 not about a block: the comment's other lines are Python, run there

Blocks of one page share a folder and a namespace, and run in order.  Nothing else is changed
in them: what cannot run as it stands is marked, and a test counts the marks.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from cli_helpers import run
from warm_python import WarmPython

from fastdata.cli import main
from fastdata.processes.pool import ProcessPool
from fastdata.tuning import runner

__all__ = ["CLIENTS", "REPOSITORY", "Block", "PageRun", "blocks_of", "measure_quickly", "pages"]

REPOSITORY = Path(__file__).parents[1]
CLIENTS = {
    "accelerate", "albumentations", "datasets", "kornia", "lightning", "nvidia.dali", "scipy",
    "timm", "torchdata", "torchvision", "transformers",
}  # fmt: skip
"""Modules that a block may need and that need not be installed."""

SYSTEM = {"apt", "cd", "gcc", "git", "pip", "export", "mdb_stat", "LD_PRELOAD"}
"""Commands of other programs, which are not run."""

MARK = re.compile(
    r"needs cuda|skip because \S.*|save as [\w.]+|raises \w+|add --\S.*|setup\n.*", re.DOTALL
)

_PIECE = re.compile(
    r"^<!-- test: (?P<mark>[^>]*?)\s*-->$"
    r"|^(?P<fence>`{3,}) *(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or Python that a comment has (`language` "setup")."""

    path: Path
    line: int
    language: str
    text: str
    marks: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{os.path.relpath(self.path, REPOSITORY)}:{self.line}"

    def mark(self, name: str) -> str | None:
        """Return what is behind `name` in a mark of this block, "" if nothing is."""
        for mark in self.marks:
            if mark == name or mark.startswith(f"{name} "):
                return mark[len(name) + 1 :]
        return None

    def modules(self) -> set[str]:
        """Return which modules of clients the block imports."""
        found = set()
        for node in ast.walk(self.tree()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
        # An integration imports its client.
        found |= {n.removeprefix("fastdata.integrations.") for n in found}
        return {name for name in CLIENTS if any(f"{f}.".startswith(f"{name}.") for f in found)}

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names that the block uses, and those that it binds."""
        loads, stores = set(), set()
        for node in ast.walk(self.tree()):
            if isinstance(node, ast.Name):
                (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                stores.add(node.name)
            elif isinstance(node, ast.alias):
                stores.add((node.asname or node.name).partition(".")[0])
        return loads, stores

    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))


def pages() -> list[Path]:
    """Return every page whose blocks are held to run."""
    names = "README.md", "converters/README.md", "fastdata/doctor/advice.md"
    found = [REPOSITORY / name for name in names]
    for folder, pattern in (("docs", "*.md"), ("scripts", "README.md"), ("fastdata", "README.md")):
        found += sorted((REPOSITORY / folder).rglob(pattern))
    return found


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page, with the comments before each."""
    text = path.read_text(encoding="utf-8")
    found: list[Block] = []
    marks: list[str] = []
    end = 0
    for piece in _PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        between = text[end : piece.start()]
        end = piece.end()
        assert not (marks and between.strip()), f"{path}:{line}: a mark is right before its block"
        mark = piece["mark"]
        if mark is None:
            found.append(Block(path, line, piece["language"], piece["text"], tuple(marks)))
            marks = []
        elif mark.startswith("setup\n"):
            found.append(Block(path, line, "setup", mark.removeprefix("setup\n")))
        else:
            marks.append(mark)
    assert not marks, f"{path}: a mark without a block"
    return found


def measure_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the process that measures start from the session's fork server."""

    def pool(*given: Any, context: str) -> ProcessPool:
        return ProcessPool(*given, context="forkserver")

    monkeypatch.setattr(runner, "ProcessPool", pool)


@dataclass
class PageRun:
    """Runs the blocks of one page in the current folder.

    Scripts are run by `python`; without one it is an error if a page has any.
    """

    blocks: list[Block]
    python: WarmPython | None = None

    def __post_init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.missing: set[str] = set()
        self.lost: set[str | None] = set()
        """Names and files that blocks which were left out would have made."""
        self.left_out: list[Block] = []

    def run(self) -> None:
        for block in self.blocks:
            if block.language in {"python", "setup"}:
                self._python(block)
            elif block.language == "bash":
                for words in _commands(block.text):
                    self._command(block, words)
            elif block.language == "json":
                json.loads(block.text)
            elif block.language not in {"text", "toml", "c"}:
                pytest.fail(f"{block.place}: a block of language {block.language!r}")

    def close(self) -> None:
        """Drop what the blocks have made."""
        self.names.clear()

    def _left_out(self, block: Block) -> bool:
        out = block.mark("skip") is not None or (
            block.mark("needs cuda") is not None and not torch.cuda.is_available()
        )
        if block.language in {"python", "setup"}:
            loads, stores = block.names()
            missing = {name for name in block.modules() if not _installed(name)}
            self.missing |= missing
            # What comes after a block that was not run may need its names.
            lost = self.lost - self.names.keys()
            out = out or bool(missing or (loads - stores) & lost)
            if out:
                self.lost |= stores | {block.mark("save as")}
        if out:
            self.left_out.append(block)
        return out

    def _python(self, block: Block) -> None:
        tree = block.tree()
        ast.increment_lineno(tree, block.line)
        if self._left_out(block):
            return
        if (name := block.mark("save as")) is not None:
            Path(name).write_text(block.text, encoding="utf-8")
            return
        code = compile(tree, str(block.path), "exec")
        with warnings.catch_warnings():
            if CLIENTS & (sys.modules.keys() | block.modules()):
                warnings.simplefilter("ignore")  # theirs
                warnings.filterwarnings("error", module="fastdata")
            if (error := block.mark("raises")) is None:
                exec(code, self.names)
            else:
                found = None
                try:
                    exec(code, self.names)
                except Exception as raised:
                    found = type(raised).__name__
                assert found == error, f"{block.place}: {found}"

    def _command(self, block: Block, words: list[str]) -> None:
        environment = dict(word.split("=", 1) for word in _assignments(words))
        words = words[len(environment) :]
        name, place = words[0], f"{block.place}: {shlex.join(words)}"
        if name == "fastdata":
            words = words[1:]
            added = shlex.split(block.mark("add") or "")
            if added and added[0] in _options(words[0]):
                words += added
            if self._left_out(block):
                _parse(words, place)
                return
            if not {"--part", "--commit"} & set(words):  # these go on with what is there
                _make_room(words)
            result = run(*words)
            if lacks := re.search(r"needs (\S+), which cannot be imported", result.output):
                self.missing.add(lacks[1])  # an extra, in the environment of the clients
                self.left_out.append(block)
                return
            # 3 of `tune-workers` is a verdict: no settings keep the step busy on this machine.
            expected = {0, 3} if words[0] == "tune-workers" else {0}
            assert result.exit_code in expected, f"{place}\n{result.output}{result.exception!r}"
        elif (program := REPOSITORY / name).is_file() and "/" in name:
            assert os.access(program, os.X_OK), f"{place}: {name} is not a program"
        elif name in {"python", ".venv/bin/python", "torchrun", "accelerate"}:
            self._interpreter(block, words, environment, place)
        else:
            assert name in SYSTEM, f"{place}: unknown"

    def _interpreter(
        self, block: Block, words: list[str], environment: dict[str, str], place: str
    ) -> None:
        (script, *_) = [word for word in words if word.endswith(".py")] or [None]
        if script is None or (REPOSITORY / script).is_file():
            return  # `python -m ...`, or a script of the repository: it is there
        if self._left_out(block) or script in self.lost:
            return
        assert Path(script).is_file(), f"{place}: no block is saved as {script}"
        launcher = {
            "torchrun": ["-m", "torch.distributed.run"],
            "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
        }.get(words[0])
        environment = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        if launcher is not None:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", *launcher, *words[1:]],
                env=environment,
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"
            return
        assert self.python is not None
        program = self.python.start(
            Path(script),
            *words[words.index(script) + 1 :],
            env=environment,
            warn="ignore",
            seconds=100,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, error = program.communicate()
        assert program.returncode == 0, f"{place}\n{out}{error}"


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; of a pipe, those of its first."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words[: words.index("|")] if "|" in words else words


def _assignments(words: list[str]) -> Iterator[str]:
    for word in words:
        if not re.match(r"[A-Z_]+=", word):
            return
        yield word


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of its package
        return False


def _command_of(name: str) -> click.Command:
    assert isinstance(main, click.Group)
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    return command


def _options(name: str) -> set[str]:
    return {option for parameter in _command_of(name).params for option in parameter.opts}


def _parse(words: list[str], place: str) -> None:
    """Hold a command against the options that there are, without running it."""
    try:
        _command_of(words[0]).make_context(words[0], words[1:])
    except click.UsageError as error:
        pytest.fail(f"{place}: {error.format_message()}")


def _make_room(words: list[str]) -> None:
    """Remove what an earlier command has left where this one writes: each is an example alone."""
    if words[0] not in {"pack", "export", "subset", "merge"}:
        return
    names = [word for word in words[1:] if not word.startswith("-")]
    path = Path(names[-1] if words[0] == "merge" else names[1])
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
