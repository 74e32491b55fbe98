"""Bounds of the numbers that come from outside, and strict JSON.

`BOUNDS` is the one table of them.  Options, JSON files, headers of shards, messages between
processes and environment variables are compared with it where they are parsed, so that no later
code meets a number that it cannot work with.  The bounds are far above what is useful.  They keep
sums and products within 64 bits, and threads and memory within what a machine has.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from fastdata.errors import OptionError
from fastdata.printable import safe_repr

__all__ = ["BOUNDS", "check_float", "check_int", "environment_int", "strict_json"]

_COUNT: Final = 0, 2**62
_SOME: Final = 1, 2**62
_WORKERS: Final = 1024
_SIDE: Final = 65_500  # the longest side of a JPEG that libjpeg writes
_SECONDS: Final = 1e-3, 1e6

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    # Batches and their order
    "batch_size": (1, 2**31 - 1),
    "count": _COUNT,
    "block_size": _SOME,
    "window_blocks": _SOME,
    "lanes": _SOME,
    "global_batch_size": _SOME,
    "epoch": (0, 2**31 - 1),
    "batch": _COUNT,
    "batches": _COUNT,
    "seed": (0, 2**64),
    # Ranks, workers, requests and the memory that they take
    "rank": (0, 2**31 - 2),
    "world_size": (1, 2**31 - 1),
    "num_workers": (0, _WORKERS),
    "max_workers": (1, _WORKERS),
    "prefetch_factor": (1, 1024),
    "depth": (1, 1024),
    "streams": (1, 256),
    "cache_bytes": _SOME,
    "max_pixels": _SOME,
    # Packing and exporting
    "quality": (1, 100),
    "shards": (1, 99_999),
    "shard_size": _SOME,
    "shard_bytes": _SOME,
    "limit": _SOME,
    "pack.seed": (0, 2**63 - 1),  # it is stored in JSON
    # Transforms; the first is packing's, too
    "size": (1, _SIDE),
    "min_size": (1, _SIDE),
    "max_size": (1, _SIDE),
    "target_size": (1, _SIDE),
    "padding": (0, _SIDE),
    "kernel_size": (1, 1023),
    "views": (1, 1024),
    "mixture_width": (1, 1024),
    "num_ops": (1, 1024),
    "num_magnitude_bins": (1, 1_000_000),
    "num_output_channels": (1, 3),
    "trials": (1, 10_000),
    "num_classes": (1, 2**31 - 1),
    # Measuring and viewing
    "seconds": _SECONDS,
    "tune.seconds": (1.0, 1e6),
    "ranks": (2, 1024),
    "threshold": (1.0, 1e6),
    "trial_seconds": _SECONDS,
    "step_ms": (1e-3, 3.5e6),
    "steps": (1, 2**31 - 1),
    "supply": (0.0, 1e12),
    "demand": (0.0, 1e12),
    "per_class": (1, 1000),
    "max_samples": (1, 10_000),
    "thumbnail": (1, 1024),
    # Shards, manifests and the state of a pack
    "num_samples": _COUNT,
    "blob_bytes": _COUNT,
    "file_bytes": _COUNT,
    "column_bytes": _COUNT,
    "offset": (0, 2**63 - 1),
    "length": _COUNT,
    "position": _COUNT,
    "num_rejected": _COUNT,
    "shard": _COUNT,
    "part": _COUNT,
}
"""Least and greatest value by name.  What stands before a dot is not part of the name."""


def check_int(
    name: str, value: Any, *, also: str = "", error: type[Exception] = OptionError
) -> int:
    """Return `value` as an int within its bounds, also NumPy's; `also` is what it may be besides.

    A bool is no number.
    """
    low, high = BOUNDS[name]
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise error(
            f"{name.rpartition('.')[2]}={safe_repr(value):.100} is not {also}an integer from "
            f"{low:,} to {high:,}"
        )
    return number


def check_float(
    name: str, value: Any, *, also: str = "", error: type[Exception] = OptionError
) -> float:
    """Return `value` as a finite float within its bounds; `also` is what it may be besides."""
    low, high = BOUNDS[name]
    try:
        number = None if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not low <= number <= high:
        raise error(
            f"{name}={safe_repr(value):.100} is not {also}a number from {low:g} to {high:,.0f}"
        )
    return number


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
    """Parse JSON in UTF-8 that was written by a program; anything odd is a `ValueError`.

    Refused are NaN and infinities, integers beyond 64 bits, a member that stands twice, and lone
    surrogates.  What is nested too deeply is a `RecursionError`.
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
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text:.30} is not a finite number")
    return number


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member of an object stands twice")
    return found


_STRICT = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_number,
)
