"""Pieces of advice, and the findings of advice in a script.

A piece of advice is an `Advice` in a module of ``advice/``, with an ID that never changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from fastdata.doctor.seen import EventKind, Seen

__all__ = [
    "Advice",
    "Change",
    "Finding",
    "Kind",
    "Numerics",
    "Phase",
    "Undo",
    "advice",
    "at",
    "replaced",
    "switched",
]

Phase: TypeAlias = Literal["train", "evaluate"]

Undo: TypeAlias = Callable[[], object]
"""Reverts a change of the running script."""

Change: TypeAlias = Callable[[], Undo]
"""Follows advice in the running script."""

Kind: TypeAlias = Literal["speed", "bug", "note"]
"""What it is about: speed or memory, a mistake, or a choice for the script's author."""


class Numerics(IntEnum):
    """What following a piece of advice does to the numbers."""

    EQUAL = 0
    ROUNDING = 1
    PRECISION = 2
    TRAINING = 3

    def __str__(self) -> str:
        return ("identical", "rounding", "lower precision", "training changes")[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a script that a piece of advice can improve.

    `change` follows the advice in the running script; `environment` is set for a new process.
    Without both it is reported, and not measured; `why_not` says why.
    """

    where: str
    what: str = ""
    """What to write; the title of the advice by default."""
    change: Change | None = field(default=None, compare=False)
    environment: tuple[tuple[str, str], ...] = ()
    why_not: str = ""

    @property
    def is_tried(self) -> bool:
        """Whether the advice can be followed in a copy of the script."""
        return not self.why_not and (self.change is not None or bool(self.environment))


def at(lines: Iterable[str], what: str = "", change: Change | None = None) -> Iterator[Finding]:
    """Return a finding for each line."""
    return (Finding(line, what, change) for line in dict.fromkeys(lines))


def switched(setter: Callable[[Any], object], new: object, old: object) -> Undo:
    """Give a function the new value, and later the old one."""
    setter(new)
    return functools.partial(setter, old)


def replaced(owner: object, name: str, value: object) -> Undo:
    """Set an attribute of a module, a class or an object."""
    if name in vars(owner):
        return switched(functools.partial(setattr, owner, name), value, vars(owner)[name])
    setattr(owner, name, value)
    return functools.partial(delattr, owner, name)


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice.  ``advice.md`` explains it, in a section with its ID."""

    id: str
    title: str
    find: Callable[[Seen], Iterator[Finding]]
    """Yields the places of the running script that it can improve."""
    kind: Kind = "speed"
    numerics: Numerics = Numerics.EQUAL  # that it promises; the effect on a script is measured
    phase: Phase = "train"
    saves: Literal["time", "memory"] = "time"  # advice that saves memory may take time
    part: EventKind | None = None
    """The part of a step that it makes faster; it cannot save more than this part takes."""
    gpu_only: bool = False  # only scripts on a GPU gain by it
    why_not: str = ""  # why findings without a change are not tried


def advice(
    id: str, title: str, **facts: Any
) -> Callable[[Callable[[Seen], Iterator[Finding]]], Advice]:
    """Return a decorator that makes advice of a function that finds its places."""
    return lambda find: Advice(id, title, find, **facts)
