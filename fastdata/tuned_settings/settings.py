"""Settings of a loader that change how fast batches come, and not which; and plain JSON.

`plain_json` makes plain JSON types of a result, and `from_plain` a dataclass of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastdata.bounds import check_int

__all__ = ["Settings", "from_plain", "plain_json"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """Workers of a loader, and what is made ahead.

    `backend` is given by the user and never chosen: "torch" is a stock `DataLoader`, of a dataset
    that is not packed; it has processes only.
    """

    num_workers: int
    worker_method: Literal["thread", "process"] = "thread"
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = True
    backend: Literal["cpu", "dali", "torch"] = "cpu"

    def __post_init__(self) -> None:
        for name in ("num_workers", "prefetch_factor"):
            check_int(name, getattr(self, name))

    @property
    def batches_ahead(self) -> int:
        """Batches that workers make behind the one that is waited for."""
        if not self.num_workers:
            return 0
        # A stock DataLoader counts for each worker.
        return self.prefetch_factor * (self.num_workers if self.backend == "torch" else 1)

    @property
    def batches_at_once(self) -> int:
        """Batches that arrive together: the workers of a stock DataLoader deliver in waves."""
        return max(1, self.num_workers) if self.backend == "torch" else 1

    def __str__(self) -> str:
        many = "" if self.num_workers == 1 else "es" if self.worker_method == "process" else "s"
        workers = f"{self.num_workers} {self.worker_method}{many}"
        parts = [
            "no workers" if not self.num_workers else workers,
            f"prefetch {self.prefetch_factor}" if self.num_workers else "",
            "pinned" if self.pin_memory else "",
            "DALI" if self.backend == "dali" else "",
            "" if self.persistent_workers or not self.num_workers else "not persistent",
        ]
        return ", ".join(filter(None, parts))


def plain_json(value: Any) -> Any:
    """Return a value as plain JSON types: tuples as lists, nan and infinite numbers as None.

    What JSON does not have is its text.
    """
    if isinstance(value, dict):
        return {str(name): plain_json(content) for name, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(content) for content in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):  # NumPy's too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)


def from_plain(kind: type[T], entry: Any) -> T:
    """Return a dataclass made of the plain JSON types of exactly its fields, also nested ones.

    Anything else is a `ValueError`.
    """
    hints = get_type_hints(kind)
    if not isinstance(entry, dict) or set(entry) != set(hints):
        raise ValueError(f"these are not the fields of {kind.__name__}: {entry!r:.200}")
    return kind(**{name: _value(hint, entry[name], name) for name, hint in hints.items()})


def _value(hint: Any, plain: Any, name: str) -> Any:
    """Return a field's value, which its type hint describes."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):  # of one type and None
        return None if plain is None else _value(arguments[0], plain, name)
    if origin is tuple and isinstance(plain, list):  # of any length
        return tuple(_value(arguments[0], each, name) for each in plain)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, plain)
    if hint is float and type(plain) in (int, float):
        return float(plain)
    valid = plain in arguments if origin is Literal else type(plain) is (origin or hint)
    if not valid:
        raise ValueError(f"{name} is {plain!r:.100}")
    return plain
