"""The random generators that callables draw from, seeded for every sample.

A callable draws from generators that others share: Python's, NumPy's, torch's.  Processes that
are forked inherit their state, so that all workers would draw the same numbers.  Seeded by
(seed, epoch, sample) before a callable runs, they give the same numbers in any process, however
many there are.

They may be seeded only where nothing else draws from them:

- in a worker process (`allow_seeding_in_process`);
- in the thread that takes a batch and makes it itself (`seeding_allowed`): it draws nothing in the
  meantime, and afterwards the generators are as they were before.

``dataset[i]`` seeds those of albumentations alone (`albumentations_seeding_allowed`).

Worker threads never seed them, since other threads draw at the same time: callables there draw
from whatever state the generators have.

One sample costs 8 us: 1.3 for torch, 2 for NumPy and 4.5 for Python; 7 more where there are
albumentations transforms.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

__all__ = [
    "albumentations_in",
    "albumentations_seeding_allowed",
    "allow_seeding_in_process",
    "is_albumentations",
    "seeding",
    "seeding_allowed",
]

MASK = 0xFFFFFFFF
"""NumPy's and torch's generators, Mersenne Twisters, take seeds of 32 bits."""

ALBUMENTATIONS = "albumentations"
"""Value of `_thread.lent` where the generators of albumentations alone may be seeded."""

MAX_DEPTH = 8
"""How deep attributes, containers and closures are searched, one in another."""

_thread = threading.local()
_process = {"owned": False}


def allow_seeding_in_process() -> None:
    """Allow seeding in this process for good: in a worker process nothing else draws."""
    _process["owned"] = True


def seeding_allowed() -> contextlib.AbstractContextManager[None]:
    """Allow callables to be seeded in this thread meanwhile; generators are then as before."""
    # A thread of a `CUDAPrefetcher` takes batches beside the loop.
    return _lending(not threading.current_thread().name.startswith("fastdata"))


def albumentations_seeding_allowed() -> contextlib.AbstractContextManager[None]:
    """Allow the generators of albumentations transforms alone to be seeded in this thread.

    For ``dataset[i]``: a stock ``DataLoader`` seeds all others in its workers, but in workers that
    are forked these would draw the same, epoch after epoch.
    """
    main = threading.current_thread() is threading.main_thread()
    return _lending(getattr(_thread, "lent", False) or (ALBUMENTATIONS if main else False))


@contextlib.contextmanager
def _lending(what: bool | str) -> Iterator[None]:
    before = getattr(_thread, "lent", False)
    _thread.lent = what
    try:
        yield
    finally:
        _thread.lent = before


@contextlib.contextmanager
def seeding(objects: Iterable[Any]) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that seeds generators by 64 bits; None where they must not be seeded.

    `objects` are albumentations transforms with generators of their own (`albumentations_in`).
    Meanwhile they draw from one that they share, as in a `Compose`.
    """
    owned, lent = _process["owned"], getattr(_thread, "lent", False)
    if not (owned or lent):
        yield None
        return
    others = owned or lent != ALBUMENTATIONS
    own = [(one, one.random_generator, one.py_random) for one in objects]
    shared = (np.random.Generator(np.random.PCG64(0)), random.Random(0)) if own else None

    def seed(word: int) -> None:
        if others:
            torch.default_generator.manual_seed(word & MASK)
            np.random.seed(word >> 32)  # not torch's bits: of one seed both make the same numbers
            random.seed(word)
        if shared is not None:
            generator, python = shared
            # A seventh of the time that another generator takes to make.
            generator.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": word << 64 | word, "inc": 1},
                "has_uint32": 0,
                "uinteger": 0,
            }
            python.seed(word ^ MASK)

    states: Any = None
    if others and not owned:
        states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        if shared is not None:
            for one, _, _ in own:
                one.random_generator, one.py_random = shared
        yield seed
    finally:
        for one, generator, python in own:
            one.random_generator, one.py_random = generator, python
        if states is not None:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.default_generator.set_state(states[2])


def is_albumentations(value: object) -> bool:
    """Return whether an object is of a class of albumentations, or of one derived from such."""
    modules = (base.__module__ for base in type(value).__mro__)
    return any(module.partition(".")[0] == "albumentations" for module in modules)


def albumentations_in(*values: Any) -> list[Any]:
    """Return the albumentations transforms that callables hold and that have own generators.

    They are looked for in attributes, lists, tuples and dicts, closures, partial functions, and
    globals that a function's code names.  Before version 1.4.19 or so albumentations draws from
    the generators of Python and NumPy, and nothing is found.
    """
    transforms: dict[int, Any] = {}
    seen: set[int] = set()
    pending = [(value, 0) for value in values]
    while pending:
        value, depth = pending.pop()
        if id(value) in seen or depth > MAX_DEPTH:
            continue
        seen.add(id(value))
        if is_albumentations(value) and hasattr(value, "py_random"):
            if hasattr(value, "random_generator"):
                transforms[id(value)] = value
            pending += [(one, depth) for one in getattr(value, "transforms", ())]
        else:
            pending += [(one, depth + 1) for one in _callees(value)]
    return list(transforms.values())


_PLAIN = (str, bytes, int, float, type, types.ModuleType, np.ndarray, torch.Tensor, type(None))


def _callees(value: Any) -> list[Any]:
    """Return the objects that a callable may call."""
    if isinstance(value, _PLAIN):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_names
        globals_ = [value.__globals__[name] for name in names if name in value.__globals__]
        return globals_ + [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    methods = (getattr(type(value), name, None) for name in ("__call__", "forward"))
    called = [one for one in methods if isinstance(one, types.FunctionType)]
    return [*getattr(value, "__dict__", {}).values(), *called]


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not _PLAIN
    except ValueError:  # a name that is not bound yet
        return False
