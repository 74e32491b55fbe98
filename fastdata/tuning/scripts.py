"""Whether a target is a function of a script: ``train.py:build``."""

from __future__ import annotations

import os
from typing import Any, TypeGuard

from fastdata.errors import OptionError
from fastdata.steps import is_script

__all__ = ["names_function"]


def names_function(target: Any) -> TypeGuard[str]:
    """Return whether `target` is ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``.

    What exists under this name, colon and all, is a path.

    Parameters
    ----------
    target : Any
        What a user gives as the data.

    Raises
    ------
    OptionError
        If it is a script that is not there, or a script without a function.
    """
    if not isinstance(target, (str, os.PathLike)):
        return False
    text = os.fspath(target)
    if not isinstance(text, str):  # a path in bytes
        return False
    if text.endswith(".py") and not os.path.isdir(text):
        _check_there(text)
        raise OptionError(
            f"{text} is a script: name the function that returns its loader or dataset, as "
            f"{text}:build"
        )
    if not isinstance(target, str) or not is_script(text) or os.path.exists(text):
        return False
    place = text.rpartition(":")[0]
    if place.endswith(".py"):
        _check_there(place)
    return True


def _check_there(path: str) -> None:
    if not os.path.isfile(path):
        raise OptionError(f"{path}: there is no such file")
