"""What code and data are, as plain JSON that is the same in every process: or nothing.

A tuned result holds for the transforms it was measured with.  To compare those of two
processes `describe` goes through an object down to plain values: for an object its class
and its attributes, for a function its byte code, constants, defaults, closure, and the
globals that it names.  No ``repr`` is asked, in which addresses stand.

What cannot be told for sure raises `UndescribableError`: nobody is to trust a guess.

================================  ==================================================
plain values, containers, dtypes  themselves
arrays and tensors on the CPU     dtype, shape, hash of the values
random generators                 their type: what is drawn does not change how fast
functions and classes             name, and code down to what has a version
modules, installed packages       name and version
================================  ==================================================
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import enum
import functools
import logging
import marshal
import os
import platform
import random
import re
import sys
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash

from fastdata import __version__
from fastdata.errors import FastdataError
from fastdata.formats.digest import canonical_json

__all__ = ["UndescribableError", "describe", "named"]

MAX_PARTS = 20_000
"""Objects in one description, so that none takes longer than some 100 ms."""

MAX_BYTES = 2**28
"""Bytes of arrays that are hashed, which takes some 30 ms."""

LONG = 256
"""A list from this length on is described by a hash, if it holds plain values only."""

_GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    np.random.SeedSequence,
    torch.Generator,
)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_UNSAID = object()
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


class UndescribableError(FastdataError, ValueError):
    """There is something of which two processes could not tell whether it is the same."""


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


def named(value: Any) -> str:
    """Return the name of a class or function, without a user's module: it runs as __main__ too."""
    name: str = value.__qualname__
    return f"{value.__module__}.{name}" if _version(value.__module__) else name


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
            return {"bytes": self._hashed(value, where)}
        if isinstance(value, _BY_NAME):
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
        return self._object(value, where)

    def _count(self, parts: int, where: str) -> None:
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise UndescribableError(f"{where}: more than {MAX_PARTS:,} objects hang together")

    # -- containers and arrays ------------------------------------------------------

    def _sequence(self, value: Any, where: str) -> Any:
        if len(value) >= LONG and (hashed := self._long(value, where)) is not None:
            return {self._name(type(value)): len(value), "hash": hashed}
        return {self._name(type(value)): [self.of(v, f"{where}[{i}]") for i, v in enumerate(value)]}

    def _long(self, value: Any, where: str) -> str | None:
        """Return the hash of a long list of plain values; None where it holds others."""
        state = xxhash.xxh3_128()
        try:
            for first in range(0, len(value), 4096):
                # Version 2 knows no references, which depend on who else holds an object.
                state.update(marshal.dumps(list(value[first : first + 4096]), 2))
        except ValueError:
            return None
        return state.hexdigest()

    def _mapping(self, value: Any, where: str) -> Any:
        items = [
            [self.of(key, f"{where}'s keys"), self.of(content, f"{where}[{key!r:.40}]")]
            for key, content in value.items()
        ]
        return {self._name(type(value)): items}

    def _set(self, value: Any, where: str) -> Any:
        items = [self.of(member, f"a member of {where}") for member in value]
        return {self._name(type(value)): sorted(items, key=canonical_json)}

    def _array(self, value: Any, where: str) -> Any:
        if value.dtype.hasobject:
            return {"array": list(value.shape), "objects": self.of(value.tolist(), where)}
        described = {"array": list(value.shape), "dtype": value.dtype.str}
        mapped = value
        while isinstance(getattr(mapped, "base", None), np.ndarray):
            mapped = mapped.base
        if isinstance(mapped, np.memmap) and mapped.filename is not None:
            # Hashing it would read the whole file.
            found = os.stat(mapped.filename)
            return {**described, "file": [str(mapped.filename), found.st_size, found.st_mtime_ns]}
        return {**described, "hash": self._hashed(np.ascontiguousarray(value), where)}

    def _tensor(self, value: torch.Tensor, where: str) -> Any:
        if value.device.type != "cpu" or value.layout != torch.strided:
            raise UndescribableError(f"{where} is a tensor on {value.device}, or a sparse one")
        plain = value.detach().contiguous().view(-1)
        return {
            "tensor": list(value.shape),
            "dtype": str(value.dtype),
            "hash": self._hashed(plain.view(torch.uint8).numpy(), where),
        }

    def _hashed(self, data: Any, where: str) -> str:
        view = memoryview(data)
        self._bytes += view.nbytes
        if self._bytes > MAX_BYTES:
            raise UndescribableError(
                f"{where}: more than {MAX_BYTES >> 20} MiB of values would have to be hashed"
            )
        return xxhash.xxh3_128_hexdigest(view.cast("B") if view.nbytes else b"")

    # -- code -----------------------------------------------------------------------

    def _function(self, value: types.FunctionType, where: str) -> Any:
        version = _version(value.__module__)
        if version and value.__closure__ is None and "<" not in value.__qualname__:
            return {"function": self._name(value), "version": version}
        # Without its module, which is __main__ where a script runs, and its name elsewhere.
        return {
            "function": value.__qualname__,
            "version": version,
            "code": self._code(value.__code__, value.__globals__, where),
            "defaults": self.of(value.__defaults__, f"{where}'s defaults"),
            "keywords": self.of(value.__kwdefaults__, f"{where}'s defaults"),
            "closure": [
                self.of(_contents(cell), f"{name!r} in {where}")
                for name, cell in zip(
                    value.__code__.co_freevars, value.__closure__ or (), strict=True
                )
            ],
        }

    def _code(self, code: types.CodeType, names: dict[str, Any], where: str) -> Any:
        """Describe byte code and what it names; neither the file nor the line it stands in."""
        constants = [
            self._code(constant, names, where)
            if isinstance(constant, types.CodeType)
            else self.of(constant, f"a constant of {where}")
            for constant in code.co_consts
        ]
        # Not all of `co_names`: self.transform names no global that happens to be there.
        loaded = {each.argval for each in dis.get_instructions(code) if each.opname in _LOADS}
        # Without __name__ and the like: a script's module has several.
        used = {n: names[n] for n in sorted(loaded) if n in names and not n.startswith("__")}
        for name, found in list(used.items()):
            if isinstance(found, types.ModuleType) and not _version(found.__name__):
                inside = {other: vars(found).get(other, _UNSAID) for other in code.co_names}
                used |= {f"{name}.{k}": v for k, v in inside.items() if v is not _UNSAID}
        return {
            "bytes": xxhash.xxh3_128_hexdigest(code.co_code),
            "names": list(code.co_names),
            "constants": constants,
            "globals": {name: self._global(found, name) for name, found in sorted(used.items())},
        }

    def _global(self, value: Any, name: str) -> Any:
        """Describe what a function names: loggers, locks and the like by their type alone."""
        if not isinstance(value, logging.Logger):
            opened = dict(self._open)
            try:
                return self.of(value, name)
            except UndescribableError:
                if isinstance(value, (*_BY_NAME, *_PLAIN)) or callable(value):
                    raise
                self._open = opened
        return {"global": self._name(type(value))}

    def _method(self, value: Any, where: str) -> Any:
        return {"method": value.__name__, "of": self.of(value.__self__, where)}

    def _partial(self, value: functools.partial[Any], where: str) -> Any:
        parts = (value.func, value.args, value.keywords)
        return {"partial": [self.of(part, f"{where}, a partial") for part in parts]}

    def _builtin(self, value: Any, where: str) -> Any:
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return {"builtin": self._name(value), "version": _version(value.__module__)}
        return {"builtin": value.__name__, "of": self.of(owner, where)}

    def _module(self, value: types.ModuleType, where: str) -> Any:
        return {"module": value.__name__, "version": _version(value.__name__)}

    def _class(self, value: type, where: str) -> Any:
        if version := _version(value.__module__):
            return {"class": self._name(value), "version": version}
        code = {
            name: self.of(_unwrapped(content), f"{value.__qualname__}.{name}")
            for name, content in sorted(vars(value).items())
            if isinstance(_unwrapped(content), (types.FunctionType, *_PLAIN))
            and name not in _NOT_CODE
        }
        bases = [self.of(base, where) for base in value.__bases__]
        return {"class": value.__qualname__, "bases": bases, "code": code}

    # -- objects --------------------------------------------------------------------

    def _object(self, value: Any, where: str) -> Any:
        """Describe an object by its class and its attributes."""
        kind = type(value)
        digest = _UNSAID if isinstance(value, torch.nn.Module) else _digest(value)
        described = {"object": self.of(kind, where)}
        if isinstance(digest, str):
            return described | {"digest": digest}
        names = _slots(kind)
        state = {name: getattr(value, name) for name in names if hasattr(value, name)}
        attributes = getattr(value, "__dict__", None)
        if attributes is None and not names and kind is not object:
            raise UndescribableError(
                f"{where} is a {self._name(kind)}, of which nothing can be seen from outside"
            )
        state |= attributes or {}
        return described | {
            "attributes": {
                name: self.of(content, f"{where}.{name}") for name, content in sorted(state.items())
            }
        }

    def _enum(self, value: enum.Enum, where: str) -> Any:
        return {"enum": self._name(type(value)), "name": value.name}

    def _as_text(self, value: Any, where: str) -> Any:
        return {self._name(type(value)): str(value)}

    def _pattern(self, value: re.Pattern[Any], where: str) -> Any:
        return {"pattern": [repr(value.pattern), value.flags]}

    def _type_alone(self, value: Any, where: str) -> Any:
        return {"type": self._name(type(value))}

    @staticmethod
    def _name(value: Any) -> str:
        return named(value)


_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, np.generic)
_BY_NAME = (types.FunctionType, type, types.ModuleType)
"""Of which each process has one, as pickling sends their names alone."""

_NOT_CODE = {
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__firstlineno__", "__slots__"),
    "__slotnames__",  # which pickling adds
    *("__static_attributes__", "__dataclass_fields__", "__orig_bases__", "__parameters__"),
}

_KNOWN: tuple[tuple[Any, Callable[[_Describer, Any, str], Any]], ...] = (
    (enum.Enum, _Describer._enum),
    ((list, tuple, collections.deque), _Describer._sequence),
    ((dict, types.MappingProxyType), _Describer._mapping),
    ((set, frozenset), _Describer._set),
    (np.ndarray, _Describer._array),
    (torch.Tensor, _Describer._tensor),
    (_GENERATORS, _Describer._type_alone),
    ((torch.dtype, torch.device, torch.Size, np.dtype, np.generic), _Describer._as_text),
    ((PurePath, range, slice, type(Ellipsis), str, int, float), _Describer._as_text),
    (re.Pattern, _Describer._pattern),
    (types.FunctionType, _Describer._function),
    (types.MethodType, _Describer._method),
    (functools.partial, _Describer._partial),
    (_BUILTIN, _Describer._builtin),
    (types.ModuleType, _Describer._module),
    (type, _Describer._class),
)


def _version(module: str | None) -> str:
    """Return the version of the installed package that a module is of.

    Empty for a user's own files, and for what is installed to be edited: its code changes
    and its version does not.
    """
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names:
        return platform.python_version()
    if top == "fastdata":
        return __version__
    package = sys.modules.get(top)
    version, file = getattr(package, "__version__", ""), getattr(package, "__file__", "")
    installed = {"site-packages", "dist-packages"} & set(PurePath(file or "").parts)
    return version if installed and isinstance(version, str) else ""


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


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return "<empty>"


def _unwrapped(content: Any) -> Any:
    """Return the function of a method, a property, or what a decorator has wrapped."""
    if isinstance(content, (staticmethod, classmethod)):
        return content.__func__
    if isinstance(content, property):
        return content.fget
    if isinstance(content, functools.cached_property):
        return content.func
    return content
