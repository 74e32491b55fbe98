"""Names and versions of code; what a description asks of its describer; what is refused."""

from __future__ import annotations

import platform
import sys
from pathlib import PurePath
from typing import Any, Protocol

from fastdata import __version__
from fastdata.errors import FastdataError

__all__ = ["Describing", "UndescribableError", "named", "version_of"]


class UndescribableError(FastdataError, ValueError):
    """There is something of which two processes could not tell whether it is the same."""


class Describing(Protocol):
    """Who goes through an object: what the parts of a description ask for their own parts."""

    def of(self, value: Any, where: str) -> Any:
        """Return the description of `value`, which is found at `where`, for messages."""

    def of_global(self, value: Any, name: str) -> Any:
        """Return that of a global: by its type alone, where it has none and is no code."""

    def hashed(self, data: Any, where: str) -> str:
        """Return the hash of a buffer's bytes."""


def named(value: Any) -> str:
    """Return the name of a class or function, without a user's module: it runs as __main__ too."""
    name: str = value.__qualname__
    return f"{value.__module__}.{name}" if version_of(value.__module__) else name


def version_of(module: str | None) -> str:
    """Return the version of the installed package that a module is of.

    Empty for a user's own files, and for what is installed to be edited: its code changes
    and its version does not.
    """
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names:
        return platform.python_version()
    if top == "fastdata":
        return __version__
    package = sys.modules.get(top)
    version, file = getattr(package, "__version__", ""), getattr(package, "__file__", "")
    installed = {"site-packages", "dist-packages"} & set(PurePath(file or "").parts)
    return version if installed and isinstance(version, str) else ""
