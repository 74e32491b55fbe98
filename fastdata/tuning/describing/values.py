"""Containers, arrays and tensors: their contents, or the hash of these where they are many."""

from __future__ import annotations

import marshal
import os
import re
from typing import Any

import numpy as np
import torch
import xxhash

from fastdata.formats.layout import canonical_json
from fastdata.tuning.describing.naming import Describing, UndescribableError, named

__all__ = [
    "array",
    "as_text",
    "mapping",
    "pattern",
    "sequence",
    "tensor",
    "type_alone",
    "unordered",
]

LONG = 256
"""A list from this length on is described by a hash, if it holds plain values only."""


def sequence(by: Describing, value: Any, where: str) -> Any:
    """Describe a list, tuple or deque by its members; a long one by a hash."""
    if len(value) >= LONG and (hashed := _long(value)) is not None:
        return {named(type(value)): len(value), "hash": hashed}
    return {named(type(value)): [by.of(v, f"{where}[{i}]") for i, v in enumerate(value)]}


def _long(value: Any) -> str | None:
    """Return the hash of a long list of plain values; None where it holds others."""
    state = xxhash.xxh3_128()
    try:
        for first in range(0, len(value), 4096):
            # Version 2 knows no references, which depend on who else holds an object.
            state.update(marshal.dumps(list(value[first : first + 4096]), 2))
    except ValueError:
        return None
    return state.hexdigest()


def mapping(by: Describing, value: Any, where: str) -> Any:
    """Describe a mapping by its items, in their order, which is part of it."""
    items = [
        [by.of(key, f"{where}'s keys"), by.of(content, f"{where}[{key!r:.40}]")]
        for key, content in value.items()
    ]
    return {named(type(value)): items}


def unordered(by: Describing, value: Any, where: str) -> Any:
    """Describe a set by its members, in an order of their own."""
    items = [by.of(member, f"a member of {where}") for member in value]
    return {named(type(value)): sorted(items, key=canonical_json)}


def array(by: Describing, value: Any, where: str) -> Any:
    """Describe an array by its values; a memory-mapped one by its file."""
    if value.dtype.hasobject:
        return {"array": list(value.shape), "objects": by.of(value.tolist(), where)}
    described = {"array": list(value.shape), "dtype": value.dtype.str}
    mapped = value
    while isinstance(getattr(mapped, "base", None), np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, np.memmap) and mapped.filename is not None:
        # Hashing it would read the whole file.
        found = os.stat(mapped.filename)
        return {**described, "file": [str(mapped.filename), found.st_size, found.st_mtime_ns]}
    return {**described, "hash": by.hashed(np.ascontiguousarray(value), where)}


def tensor(by: Describing, value: torch.Tensor, where: str) -> Any:
    """Describe a tensor on the CPU by its values."""
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise UndescribableError(f"{where} is a tensor on {value.device}, or a sparse one")
    plain = value.detach().contiguous().view(-1)
    return {
        "tensor": list(value.shape),
        "dtype": str(value.dtype),
        "hash": by.hashed(plain.view(torch.uint8).numpy(), where),
    }


def as_text(by: Describing, value: Any, where: str) -> Any:
    """Describe by its text what says all by that."""
    return {named(type(value)): str(value)}


def pattern(by: Describing, value: re.Pattern[Any], where: str) -> Any:
    """Describe a regular expression by its source."""
    return {"pattern": [repr(value.pattern), value.flags]}


def type_alone(by: Describing, value: Any, where: str) -> Any:
    """Describe by its type what has no bearing on rates but by that."""
    return {"type": named(type(value))}
