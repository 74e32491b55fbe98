"""Functions, classes and modules: what they do, down to code that has a version."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import numpy as np
import xxhash

from fastdata.tuning.describing.naming import Describing, named, version_of

__all__ = [
    "BUILTIN",
    "BY_NAME",
    "PLAIN",
    "builtin",
    "class_",
    "function",
    "method",
    "module",
    "partial",
]

BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_UNSAID = object()

PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, np.generic)
BY_NAME = (types.FunctionType, type, types.ModuleType)
"""Of which each process has one, as pickling sends their names alone."""

_NOT_CODE = {
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__firstlineno__", "__slots__"),
    "__slotnames__",  # which pickling adds
    *("__static_attributes__", "__dataclass_fields__", "__orig_bases__", "__parameters__"),
}


def function(by: Describing, value: types.FunctionType, where: str) -> Any:
    """Describe a function by its name and version, or by all that it does."""
    version = version_of(value.__module__)
    if version and value.__closure__ is None and "<" not in value.__qualname__:
        return {"function": named(value), "version": version}
    # Without its module, which is __main__ where a script runs, and its name elsewhere.
    return {
        "function": value.__qualname__,
        "version": version,
        "code": _code(by, value.__code__, value.__globals__, where),
        "defaults": by.of(value.__defaults__, f"{where}'s defaults"),
        "keywords": by.of(value.__kwdefaults__, f"{where}'s defaults"),
        "closure": [
            by.of(_contents(cell), f"{name!r} in {where}")
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        ],
    }


def _code(by: Describing, code: types.CodeType, names: dict[str, Any], where: str) -> Any:
    """Describe byte code and what it names; neither the file nor the line it stands in."""
    constants = [
        _code(by, constant, names, where)
        if isinstance(constant, types.CodeType)
        else by.of(constant, f"a constant of {where}")
        for constant in code.co_consts
    ]
    # Not all of `co_names`: self.transform names no global that happens to be there.
    loaded = {each.argval for each in dis.get_instructions(code) if each.opname in _LOADS}
    # Without __name__ and the like: a script's module has several.
    used = {n: names[n] for n in sorted(loaded) if n in names and not n.startswith("__")}
    for name, found in list(used.items()):
        if isinstance(found, types.ModuleType) and not version_of(found.__name__):
            inside = {other: vars(found).get(other, _UNSAID) for other in code.co_names}
            used |= {f"{name}.{k}": v for k, v in inside.items() if v is not _UNSAID}
    return {
        "bytes": xxhash.xxh3_128_hexdigest(code.co_code),
        "names": list(code.co_names),
        "constants": constants,
        "globals": {name: by.of_global(found, name) for name, found in sorted(used.items())},
    }


def method(by: Describing, value: Any, where: str) -> Any:
    """Describe a bound method by its name and what it is bound to."""
    return {"method": value.__name__, "of": by.of(value.__self__, where)}


def partial(by: Describing, value: functools.partial[Any], where: str) -> Any:
    """Describe a partial by its function and arguments."""
    parts = (value.func, value.args, value.keywords)
    return {"partial": [by.of(part, f"{where}, a partial") for part in parts]}


def builtin(by: Describing, value: Any, where: str) -> Any:
    """Describe what is made in C by its name, and what it is bound to."""
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, (types.ModuleType, type)):
        return {"builtin": named(value), "version": version_of(value.__module__)}
    return {"builtin": value.__name__, "of": by.of(owner, where)}


def module(by: Describing, value: types.ModuleType, where: str) -> Any:
    """Describe a module by its name and version."""
    return {"module": value.__name__, "version": version_of(value.__name__)}


def class_(by: Describing, value: type, where: str) -> Any:
    """Describe a class by its name and version, or by its bases, methods and values."""
    if version := version_of(value.__module__):
        return {"class": named(value), "version": version}
    code = {
        name: by.of(_unwrapped(content), f"{value.__qualname__}.{name}")
        for name, content in sorted(vars(value).items())
        if isinstance(_unwrapped(content), (types.FunctionType, *PLAIN)) and name not in _NOT_CODE
    }
    bases = [by.of(base, where) for base in value.__bases__]
    return {"class": value.__qualname__, "bases": bases, "code": code}


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
