"""Which line is the user's: of a stack, the innermost that is no library's."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

__all__ = ["boundary", "line_of", "short", "user_line"]

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

TYPED = "<stdin>", "<ipython-input", "<python-input"
"""Beginnings of the file names of what is typed into Python and IPython."""


_BOUNDARIES: set[CodeType] = set()
"""Functions of ours that call the user's: what is outside of them is somebody else's doing."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def boundary(function: _Function) -> _Function:
    """Mark a function that calls the user's: `user_line` looks no further out."""
    _BOUNDARIES.add(function.__code__)
    return function


def user_line(frame: FrameType | None) -> str:
    """Return ``FILE:LINE function`` of the innermost frame that is the user's; "" without one.

    The user's is what lies neither in torch, fastdata, Python's own library nor any
    ``site-packages``.  Files below the current folder are named relative to it.
    """
    while frame is not None:
        code = frame.f_code
        if code in _BOUNDARIES:
            break
        if _is_users(code.co_filename):
            # `co_qualname` is there from Python 3.11 on.
            name = getattr(code, "co_qualname", code.co_name)
            return line_of(code.co_filename, frame.f_lineno, name.replace("<locals>.", ""))
        frame = frame.f_back
    return ""


def line_of(file: str, line: int, name: str) -> str:
    """Return ``FILE:LINE function``."""
    here = os.getcwd() + os.sep
    return f"{file.removeprefix(here)}:{line} {name}"


def short(where: str) -> str:
    """Return ``FILE:LINE function`` as ``function, FILE:LINE``, without folders."""
    place, _, name = where.partition(" ")
    place = os.path.basename(place)
    return f"{name}, {place}" if name and name != "<module>" else place


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    if file.startswith("<"):  # "<frozen importlib>", "<string>": but what is typed is the user's
        return file.startswith(TYPED)
    path = str(Path(file).resolve())
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    return not path.startswith(LIBRARIES)
