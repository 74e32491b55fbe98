"""Bounds of numbers from outside, and strict JSON.

`BOUNDS` is the only table.  Code that parses options, JSON files, headers of shards, messages or
environment variables compares numbers with it, so later code meets no number that it cannot handle.
The bounds lie far above useful values.  They keep sums and products within 64 bits, and limit
threads, processes and memory.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from fastdata.errors import OptionError
from fastdata.printable import safe_repr

__all__ = ["BOUNDS", "check_float", "check_int", "environment_int", "strict_json"]

_GROUPS: Final[dict[str, tuple[float, float]]] = {
    # Batches and their order
    "batch_size world_size steps": (1, 2**31 - 1),
    "epoch rank": (0, 2**31 - 2),
    "seed": (0, 2**64),
    "count batch batches": (0, 2**62),
    "block_size window_blocks lanes global_batch_size": (1, 2**62),
    # What takes threads, processes, requests or memory
    "num_workers": (0, 1024),
    "max_workers prefetch_factor depth views": (1, 1024),
    "streams": (1, 256),
    "cache_bytes max_pixels": (1, 2**62),
    # Packing and transforms; 65,500 is the longest side that libjpeg writes
    "size min_size max_size target_size": (1, 65_500),
    "padding": (0, 65_500),
    "quality": (1, 100),
    "shards": (1, 99_999),
    "shard_size shard_bytes limit": (1, 2**62),
    "pack.seed": (0, 2**63 - 1),  # JSON holds it
    "kernel_size": (1, 1023),
    "mixture_width num_ops": (1, 64),
    "chain_depth": (-1, 64),
    "num_output_channels": (1, 3),
    "trials": (1, 10_000),
    "num_magnitude_bins num_classes": (1, 2**20),
    # Measuring and viewing
    "seconds trial_seconds": (1e-3, 1e6),
    "tune.seconds threshold": (1.0, 1e6),
    "step_ms": (1e-3, 3.5e6),
    "supply demand": (0.0, 1e12),
    "per_class": (1, 1000),
    "max_samples": (1, 10_000),
    "thumbnail": (1, 1024),
    # Files: shards, manifests, and what a cache has
    "num_samples blob_bytes file_bytes column_bytes length": (0, 2**62),
    "offset": (0, 2**63 - 1),
}
"""Names, and their least and greatest value."""

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    name: bounds for names, bounds in _GROUPS.items() for name in names.split()
}
"""Least and greatest value by name.  Text before a dot only tells two names apart."""


def check_int(
    name: str, value: Any, *, also: str = "", error: type[Exception] = OptionError
) -> int:
    """Return `value` as an int within its bounds, also one of NumPy; a bool is refused.

    The message says what else, `also`, the caller accepts.
    """
    low, high = BOUNDS[name]
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(value)
            if low <= number <= high:
                return number
    raise error(f"{_named(name, value, also)} an integer from {low:,} to {high:,}")


def check_float(name: str, value: Any) -> float:
    """Return `value` as a finite float within its bounds; `OptionError` for another one."""
    low, high = BOUNDS[name]
    if not isinstance(value, (bool, str, bytes)):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if low <= number <= high:
                return number
    raise OptionError(f"{_named(name, value)} a number from {low:g} to {high:,.0f}")


def _named(name: str, value: object, also: str = "") -> str:
    return f"{name.rpartition('.')[2]}={safe_repr(value):.100} is not {also}".rstrip()


def environment_int(variable: str, name: str) -> int | None:
    """Return the number in an environment variable, within the bounds of `name`; None without it.

    `OptionError` if it is no such number.
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    low, high = BOUNDS[name]
    if not re.fullmatch(r"\d{1,20}", text, re.ASCII) or not low <= int(text) <= high:
        raise OptionError(
            f"the environment has {variable}={text[:100]}, which is not a number from {low:,} to "
            f"{high:,}"
        )
    return int(text)


def strict_json(data: bytes) -> Any:
    """Parse JSON in UTF-8 of a program; odd JSON is a `ValueError`, deep JSON a `RecursionError`.

    Odd are NaN, infinities, integers of more than 64 bits, a member that stands twice, and lone
    surrogates.
    """
    text = data.decode()
    found = _STRICT.decode(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has a lone surrogate") from None
    return found


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"the integer {text:.30} has more than 64 bits")
    return int(text)


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.30} is not a finite number")
    return number


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a member of an object stands twice")
    return found


_STRICT = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_number, parse_constant=_number
)
