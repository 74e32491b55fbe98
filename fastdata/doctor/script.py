"""A training script as its user starts it, and running it so in this process."""

from __future__ import annotations
import __future__

import ast
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

from torch.utils.data import IterableDataset

from fastdata.errors import OptionError, not_there
from fastdata.loading import is_dataset
from fastdata.steps import is_script_target, run_script

__all__ = ["ONE_RANK", "Script", "error_line", "script_of", "users_traceback"]

ONE_RANK = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0"
"""Variables of ``torchrun`` for a single rank.  Port 0 is any free port: processes run together."""

_OWN = tuple(str(Path(__file__).parents[1] / folder) + os.sep for folder in ("doctor", "steps"))


@dataclass(frozen=True, slots=True)
class Script:
    """A file, a module (``python -m``), or ``train.py:build``, with its arguments."""

    kind: Literal["file", "module", "function"]
    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([*(["-m"] if self.kind == "module" else []), self.name, *self.arguments])

    def run(self) -> None:
        """Run it as ``python`` does.

        The step of a function is called with one batch after another, without end.
        """
        if self.kind == "function":
            self._run_function()
        elif self.kind == "module":
            self._set_arguments(os.getcwd())
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            text = Path(self.name).read_bytes()
            code = compile(text, os.path.abspath(self.name), "exec", dont_inherit=True)
            sys.modules["__main__"] = main = ModuleType("__main__")
            self.become_main()
            exec(code, vars(main))

    def become_main(self) -> None:
        """Have the module that runs look like the script's, and have the script's arguments."""
        main, path = sys.modules["__main__"], os.path.abspath(self.name)
        kept = {name for name in vars(main) if name.startswith("__")}
        for name in vars(main).keys() - kept - set(__future__.all_feature_names):
            delattr(main, name)  # of the program that begins
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        self._set_arguments(os.path.dirname(os.path.realpath(path)))

    def _set_arguments(self, folder: str) -> None:
        sys.argv = [self.name, *self.arguments]
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, folder)

    def within(self, program: str) -> CodeType | None:
        """Return a program that has the script's own code in place of `run`, which is its end.

        None if it is no file, or Python cannot read it.  So no frame lies below those of
        the script: whatever looks at the stack, as anomaly detection does at each operation, takes
        as long as it does without doctor.
        """
        if self.kind != "file":
            return None
        path = os.path.abspath(self.name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the script's process has its own
                text = Path(path).read_bytes()
                program = program.replace("script.run()", "script.become_main()")
                script, outer = ast.parse(text, path), ast.parse(program)
                end = outer.body[-1]
                assert isinstance(end, ast.With), "a program ends with it"
                first = 1 if ast.get_docstring(script) is not None else 0
                first += sum(getattr(one, "module", "") == "__future__" for one in script.body)
                end.body += script.body[first:]
                script.body = [*script.body[:first], *outer.body]
                return compile(ast.fix_missing_locations(script), path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return None

    def _run_function(self) -> None:
        loader, step = run_script(self.name)
        batched = not is_dataset(loader) or isinstance(loader, IterableDataset)
        if step is None or not batched or not hasattr(loader, "__iter__"):
            kinds = f"({type(loader).__name__}, {'None' if step is None else 'a step'})"
            raise OptionError(
                f"{self.name} returned {kinds}: doctor needs `return loader, step`, a loader of "
                "batches, as DataLoader is, and a step, which is called with each batch"
            )
        while True:
            empty = True
            for batch in loader:
                empty = False
                step(batch)
            if empty:
                raise OptionError(f"the loader of {self.name} has no batches")


def script_of(words: Sequence[str]) -> Script:
    """Return the script that a command line starts.

    ``main.py ARGS``, ``-m package.module ARGS``, either after ``python``, or ``train.py:build``.
    Anything else is an `OptionError`, also a file that does not exist.
    """
    given = list(words)
    if given and os.path.basename(given[0]).startswith("python"):
        given.pop(0)
        while given[:1] == ["-u"]:  # output goes to a file
            given.pop(0)
        if given and given[0].startswith("-") and given[0] != "-m":
            raise OptionError(
                f"doctor starts scripts without python's option {given[0]}: leave it out, or set "
                "PYTHONOPTIMIZE, PYTHONWARNINGS or PYTHONDEVMODE, which mean the same"
            )
    if given and given[0] == "torchrun":
        raise OptionError(
            "torchrun starts several processes: give the script itself (fastdata doctor main.py "
            "ARGS), which runs with one rank. If it reads the variables of torchrun, set them: "
            f"{ONE_RANK} fastdata doctor main.py ARGS"
        )
    if given and given[0] == "-m":
        if len(given) < 2:
            raise OptionError("-m needs the name of a module, as python -m has")
        return Script("module", given[1], tuple(given[2:]))
    if not given or given[0].startswith("-"):
        raise OptionError(
            "there is no script: name it first, as in fastdata doctor main.py --epochs 1"
        )
    name, *arguments = given
    if not name.endswith(".py") and not os.path.isfile(name) and is_script_target(name):
        if arguments:
            raise OptionError(f"{name} is a function, which takes no arguments")
        return Script("function", name)
    if not os.path.isfile(name):
        raise OptionError(not_there(name))
    return Script("file", name, tuple(arguments))


def users_traceback(error: BaseException) -> str:
    """Return a traceback from the script's first line on, without doctor's own functions."""
    frames = traceback.TracebackException.from_exception(error)
    stack = [one for one in frames.stack if not one.filename.startswith(_OWN)]
    while stack and (stack[0].filename.startswith("<") or "runpy" in stack[0].filename):
        del stack[0]  # these frames start the script
    if not stack and isinstance(error, OptionError):
        return str(error)
    frames.stack = traceback.StackSummary.from_list(stack)
    return "".join(frames.format()).rstrip()


def error_line(text: str) -> str:
    """Return the line of a traceback that has the error, else the last line, without a full stop.

    The message of an error may have several lines.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): .", line)]
    return (errors or lines or [""])[-1].rstrip(".")
