"""Whose error it is, where a command runs a user's script."""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from fastdata.errors import FastdataError

__all__ = ["users_code"]

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


@contextlib.contextmanager
def users_code(target: str) -> Iterator[None]:
    """Say of an error that it is the script's: nobody should report it to fastdata.

    What fastdata and the system say of themselves stays as it is.
    """
    try:
        yield
    except (FastdataError, OSError, click.ClickException):
        raise
    except (Exception, SystemExit) as error:
        # An error of a worker process comes with its traceback as text; its last line says it.
        said = (str(error).strip().splitlines() or [""])[-1]
        name = type(error).__name__
        text = said if said.startswith(f"{name}:") else f"{name}: {said}" if said else name
        raise click.ClickException(
            f"{target} raised {text}{_place(error)}. --traceback shows all of it."
        ) from error


def _place(error: BaseException) -> str:
    """Return the innermost line that is the user's, empty where there is none."""
    # A worker process's frames come as text, and are the inner ones.
    told = re.findall(r'File "(.+)", line (\d+), in (.+)', str(error))
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    for file, line, name in reversed([*frames, *told]):
        if _is_users(file):
            return f" at {file}:{line}, in {name}"
    return ""


def _is_users(file: str) -> bool:
    """Return whether a file is neither fastdata's, nor installed, nor of Python itself."""
    parents = Path(file).parents
    paths = sysconfig.get_paths()
    installed = {Path(__file__).parents[1], *(Path(paths[name]) for name in _INSTALLED)}
    return Path(file).is_file() and not installed.intersection(parents)
