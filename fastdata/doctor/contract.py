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
"""Makes a change of the running script as if it had not been."""

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
        return ("bit-equal", "rounding", "lower precision", "training changes")[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a script, and the change that a piece of advice makes there.

    `change` follows the advice in the running script, and `environment` in one that is started
    with these variables.  With neither it is found, and not measured; `why_not` says why.
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
    """Yields the places in the running script where it applies."""
    kind: Kind = "speed"
    numerics: Numerics = Numerics.EQUAL
    """The promised effect; the trial measures the effect on a script."""
    phase: Phase = "train"
    saves: Literal["time", "memory"] = "time"
    """What it is followed for: what saves memory may take time."""
    part: EventKind | None = None
    """The part of a step that it makes faster: the gain has that bound."""
    gpu_only: bool = False
    """Only scripts on a GPU gain by it."""
    why_not: str = ""
    """Why findings are not tried that have no change."""


def advice(
    id: str, title: str, **facts: Any
) -> Callable[[Callable[[Seen], Iterator[Finding]]], Advice]:
    """Return a decorator that makes advice of a function that finds its places."""
    return lambda find: Advice(id, title, find, **facts)
