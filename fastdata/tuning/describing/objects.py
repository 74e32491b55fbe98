"""Objects of any class: their class and attributes, or the digest that they give themselves."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch

from fastdata.tuning.describing.naming import Describing, UndescribableError, named

__all__ = ["any_object", "member"]

_UNSAID = object()


def any_object(by: Describing, value: Any, where: str) -> Any:
    """Describe an object by its class and its attributes."""
    kind = type(value)
    digest = _UNSAID if isinstance(value, torch.nn.Module) else _digest(value)
    described = {"object": by.of(kind, where)}
    if isinstance(digest, str):
        return described | {"digest": digest}
    names = _slots(kind)
    state = {name: getattr(value, name) for name in names if hasattr(value, name)}
    attributes = getattr(value, "__dict__", None)
    if attributes is None and not names and kind is not object:
        raise UndescribableError(
            f"{where} is a {named(kind)}, of which nothing can be seen from outside"
        )
    state |= attributes or {}
    return described | {
        "attributes": {
            name: by.of(content, f"{where}.{name}") for name, content in sorted(state.items())
        }
    }


def member(by: Describing, value: enum.Enum, where: str) -> Any:
    """Describe a member of an enumeration by its name."""
    return {"enum": named(type(value)), "name": value.name}


def _digest(value: Any) -> Any:
    """Return what an object says of itself: its class has a `digest` that is no method."""
    if isinstance(getattr(type(value), "digest", None), property) or "digest" in getattr(
        value, "__dict__", {}
    ):
        return value.digest
    return _UNSAID


def _slots(kind: type) -> list[str]:
    """Return the names of a class's slots, and of its dataclass fields."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    if dataclasses.is_dataclass(kind):
        names += [field.name for field in dataclasses.fields(kind)]
    return sorted({name for name in names if not name.startswith("__")})
