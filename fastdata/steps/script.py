"""What a user's own script has: a function that returns a loader or dataset, and a step."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from fastdata.errors import OptionError, did_you_mean, not_there

__all__ = ["Step", "is_script", "is_script_target", "run_script"]

Step: TypeAlias = Callable[[Any], Any]
"""What a training loop does with a batch.  Its result is not used."""

MODULE_NAME = "fastdata_user_script"


def is_script(target: str) -> bool:
    """Return whether `target` is ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``."""
    place, colon, name = target.rpartition(":")
    if not (colon and name.isidentifier()):
        return False
    return place.endswith(".py") or all(part.isidentifier() for part in place.split("."))


def is_script_target(target: Any) -> TypeGuard[str]:
    """Return whether `target` is ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``.

    What exists under this name, colon and all, is a path.  A script that does not exist, or has
    no function, is an `OptionError`.
    """
    if not isinstance(target, (str, os.PathLike)):
        return False
    text = os.fspath(target)
    if not isinstance(text, str):  # a path in bytes
        return False
    if text.endswith(".py") and not os.path.isdir(text):
        _check_file(text)
        raise OptionError(f"{text} is a script: name a function in it, as {text}:build. {_REMEDY}")
    if not isinstance(target, str) or not is_script(text) or os.path.exists(text):
        return False
    script = text.rpartition(":")[0]
    if script.endswith(".py"):
        _check_file(script)
    return True


def _check_file(path: str) -> None:
    if not os.path.isfile(path):
        raise OptionError(not_there(path))


def run_script(target: str) -> tuple[Any, Step | None]:
    """Call the function that `target` names, and return its loader or dataset, and step.

    The file is imported, under a name that is not ``__main__``, with its folder first on
    ``sys.path``, as Python runs a script.  It is the user's own code, and runs as such.  The step
    is None where the function returns no pair.

    Raises an `OptionError` if the file or function is missing, or returns something else.
    """
    place, _, name = target.rpartition(":")
    _check_name(place, name)
    function = getattr(_module(place), name, None)
    if not callable(function):
        raise OptionError(f"{place} has no function {name!r}. {_REMEDY}")
    returned = function()
    if not isinstance(returned, tuple) or all(map(_is_path, returned)):
        if not _can_be_read(returned):
            kind = type(returned).__name__
            raise OptionError(f"{target} returned {kind}, not a loader or a dataset. {_REMEDY}")
        return returned, None
    data, step, *others = (*returned, None)
    if len(others) != 1 or not _can_be_read(data) or not (step is None or callable(step)):
        kinds = ", ".join(type(one).__name__ for one in returned)
        raise OptionError(f"{target} returned ({kinds}), not a loader and a step. {_REMEDY}")
    return data, step


_REMEDY = (
    "Write a function that ends with `return loader, step`, where step(batch) does one training "
    "step; or with `return loader`"
)


def _is_path(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _can_be_read(data: Any) -> bool:
    methods = "__iter__", "__getitem__", "__next__"
    return _is_path(data) or any(hasattr(type(data), name) for name in methods)


def _check_name(place: str, name: str) -> None:
    """Raise `OptionError` if a file does not mention a function, before it is run."""
    if not place.endswith(".py") or not os.path.isfile(place):
        return
    source = Path(place).read_text(encoding="utf-8", errors="replace")
    if re.search(rf"\b{re.escape(name)}\b|import \*", source) is None:
        functions = re.findall(r"^(?:async )?def (\w+)", source, re.MULTILINE)
        near = did_you_mean(name, functions)
        raise OptionError(f"{place} has no function {name!r}.{near} {_REMEDY}")


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place == error.name or place.startswith(error.name)):
                raise
            raise OptionError(f"module {place!r} is neither in this folder nor installed") from None
    path = Path(place)
    if not path.is_file():
        raise OptionError(not_there(place))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path.resolve())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    # Worker processes that are started anew look for it there.
    sys.modules[MODULE_NAME] = module
    spec.loader.exec_module(module)
    return module
