"""Packages that only some formats need, imported when one of these is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from fastdata.errors import MissingExtraError
from fastdata.installing import install_line

__all__ = ["require"]


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency, which an `extra` brings.

    Raises MissingExtraError, with the install line, if it is not there; `purpose` says what needs
    it: ``"reading Parquet"``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}): "
            f"{install_line(extra)}"
        ) from error
