"""Lines of the user's code: which one a stack is in.

A line is written ``FILE:LINE function``.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

__all__ = [
    "boundary",
    "direct_line",
    "is_users",
    "short_line",
    "source_of",
    "tree_of",
    "user_files",
    "user_frame",
    "user_line",
]

LIBRARIES = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        Path(__file__).resolve().parents[1],
        Path(__file__).resolve().parents[2] / "converters",
        Path(torch.__file__).parent,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    )
)

INTERACTIVE = "<stdin>", "<ipython-input", "<python-input"
"""Beginnings of the file names of code that is typed into Python and IPython."""

_BOUNDARIES: set[CodeType] = set()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def boundary(function: _Function) -> _Function:
    """Mark a function of ours that calls the user's: `user_line` looks no further out."""
    _BOUNDARIES.add(function.__code__)
    return function


def user_line(frame: FrameType | None) -> str:
    """Return the line of the innermost frame of the user's code; "" without one.

    The user's code is what lies neither in torch, fastdata, Python's own library nor any
    ``site-packages``.  Files below the current folder are named relative to it.
    """
    if (frame := user_frame(frame)) is None:
        return ""
    code = frame.f_code
    # `co_qualname` exists from Python 3.11 on.
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return f"{code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno} {name}"


def direct_line(frame: FrameType | None) -> str:
    """Return the line in which the user's code itself calls torch; "" where a library does."""
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return user_line(frame) if frame is not None and is_users(frame.f_code.co_filename) else ""


@cache
def _is_between(file: str) -> bool:
    """Return whether a file is fastdata's, or one of torch's by which tensors call functions."""
    path = Path(file).resolve()
    return str(path).startswith(LIBRARIES[0]) or path.parent == Path(torch.__file__).parent


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code, from this one on."""
    while frame is not None and frame.f_code not in _BOUNDARIES:
        if is_users(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


@cache
def is_users(file: str) -> bool:
    """Return whether a file is the user's, and no library's."""
    if file.startswith("<"):  # "<frozen importlib>", "<string>" are not, but typed code is
        return file.startswith(INTERACTIVE)
    path = Path(file).resolve()
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not is_installed and not str(path).startswith(LIBRARIES)


def user_files() -> Iterator[str]:
    """Yield the files of the user's code that is imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    for file in dict.fromkeys(files):
        if isinstance(file, str) and file.endswith(".py") and is_users(file):
            yield file


@cache
def tree_of(file: str) -> ast.Module | None:
    """Return the parsed source text of a file; None if Python cannot read it."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def short_line(line: str) -> str:
    """Return ``FILE:LINE function`` as ``function, FILE:LINE``, without folders."""
    place, _, name = line.partition(" ")
    place = os.path.basename(place)
    return f"{name}, {place}" if name and name != "<module>" else place


def source_of(line: str) -> str:
    """Return the source text of a ``FILE:LINE function``; "" where it cannot be read."""
    file, _, number = line.partition(" ")[0].rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""
