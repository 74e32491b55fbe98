"""Objects that every worker has: given to it once, not with every sample.

A source registers what its samples are read from in `Source.worker_setup`, and its
`Deferred` values carry only the token.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

__all__ = ["new_token", "register", "shared", "unregister"]

_OBJECTS: dict[str, Any] = {}
_tokens = itertools.count()


def new_token() -> str:
    """Return a name for an object that no other has, in any process."""
    return f"{os.getpid()}.{next(_tokens)}"


def register(token: str, thing: Any) -> None:
    """Let this process know what a token stands for."""
    _OBJECTS[token] = thing


def unregister(token: str) -> None:
    """Forget it."""
    _OBJECTS.pop(token, None)


def shared(token: str) -> Any:
    """Return what a token stands for in this process."""
    return _OBJECTS[token]
