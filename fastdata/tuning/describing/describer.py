"""`describe`: goes through an object down to plain values, and remembers what it met."""

from __future__ import annotations

import collections
import enum
import functools
import logging
import random
import re
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash

from fastdata.tuning.describing import code, objects, values
from fastdata.tuning.describing.naming import Describing, UndescribableError, named

__all__ = ["describe"]

MAX_PARTS = 20_000
"""Objects in one description, so that none takes longer than some 100 ms."""

MAX_BYTES = 2**28
"""Bytes of arrays that are hashed, which takes some 30 ms."""

_GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    np.random.SeedSequence,
    torch.Generator,
)


def describe(value: Any) -> Any:
    """Return plain JSON types that are the same for the same thing, in every process.

    Parameters
    ----------
    value : object
        A transform, a callable, a dataset.  It is not changed.  An object with an attribute or
        property ``digest`` that is a str is described by that, in place of its attributes:
        so a class of a user's can say what its objects hold.

    Raises
    ------
    UndescribableError
        If a part of it cannot be described; the message says which, and what to do.
    """
    try:
        describer = _Describer()
        return {"is": describer.of(value, type(value).__name__), "code": describer.code}
    except RecursionError:
        raise UndescribableError(
            f"{type(value).__name__} is nested too deep to be described"
        ) from None


class _Describer:
    """One description.

    Functions, classes and modules are numbers, and stand in `code`: pickling sends their names,
    so that which of them are one is the same everywhere.  Which other objects are one is not, a
    module's list and a dataset's attribute say: they are described in full wherever they are met.
    """

    def __init__(self) -> None:
        # Objects are held: the id of one that is gone might come again.
        self.code: list[Any] = []
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._open: dict[int, int] = {}
        self._done: dict[int, tuple[Any, int, Any]] = {}
        self._parts = 0
        self._bytes = 0

    def of(self, value: Any, where: str) -> Any:
        """Return the description of `value`, which is found at `where`, for messages."""
        self._count(1, where)
        kind = type(value)
        if value is None or kind in (bool, int):
            return value
        if kind is str:
            # A path may hold bytes that are no text.
            return value if value.isascii() else {"str": ascii(value)}
        if kind in (float, complex):
            return {kind.__name__: repr(value)}
        if kind in (bytes, bytearray):
            return {"bytes": self.hashed(value, where)}
        if isinstance(value, code.BY_NAME):
            if id(value) not in self._numbers:
                number = len(self.code)
                self._numbers[id(value)] = number, value
                self.code.append(None)
                self.code[number] = self._described(value, where)
            return {"code": self._numbers[id(value)][0]}
        if id(value) in self._open:
            return {"again": self._open[id(value)]}
        if id(value) in self._done:
            _, parts, described = self._done[id(value)]
            self._count(parts, where)
            return described
        before = self._parts
        self._open[id(value)] = len(self._open)
        described = self._described(value, where)
        del self._open[id(value)]
        self._done[id(value)] = value, self._parts - before, described
        return described

    def _described(self, value: Any, where: str) -> Any:
        for known, describing in _KNOWN:
            if isinstance(value, known):
                return describing(self, value, where)
        return objects.any_object(self, value, where)

    def _count(self, parts: int, where: str) -> None:
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise UndescribableError(f"{where}: more than {MAX_PARTS:,} objects hang together")

    def hashed(self, data: Any, where: str) -> str:
        """Return the hash of a buffer's bytes."""
        view = memoryview(data)
        self._bytes += view.nbytes
        if self._bytes > MAX_BYTES:
            raise UndescribableError(
                f"{where}: more than {MAX_BYTES >> 20} MiB of values would have to be hashed"
            )
        return xxhash.xxh3_128_hexdigest(view.cast("B") if view.nbytes else b"")

    def of_global(self, value: Any, name: str) -> Any:
        """Describe what a function names: loggers, locks and the like by their type alone."""
        if not isinstance(value, logging.Logger):
            opened = dict(self._open)
            try:
                return self.of(value, name)
            except UndescribableError:
                if isinstance(value, (*code.BY_NAME, *code.PLAIN)) or callable(value):
                    raise
                self._open = opened
        return {"global": named(type(value))}


_KNOWN: tuple[tuple[Any, Callable[[Describing, Any, str], Any]], ...] = (
    (enum.Enum, objects.member),
    ((list, tuple, collections.deque), values.sequence),
    ((dict, types.MappingProxyType), values.mapping),
    ((set, frozenset), values.unordered),
    (np.ndarray, values.array),
    (torch.Tensor, values.tensor),
    (_GENERATORS, values.type_alone),
    ((torch.dtype, torch.device, torch.Size, np.dtype, np.generic), values.as_text),
    ((PurePath, range, slice, type(Ellipsis), str, int, float), values.as_text),
    (re.Pattern, values.pattern),
    (types.FunctionType, code.function),
    (types.MethodType, code.method),
    (functools.partial, code.partial),
    (code.BUILTIN, code.builtin),
    (types.ModuleType, code.module),
    (type, code.class_),
)
