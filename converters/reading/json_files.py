"""Small JSON files that describe a dataset: what is in them is an object, or damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

__all__ = ["read_object"]


def read_object(path: Path, most_bytes: int = 64 << 20) -> dict[str, Any]:
    """Return the object that a file has."""
    size = path.stat().st_size
    if size > most_bytes:
        raise SourceError(f"{path}: {size:,} bytes of JSON; at most {most_bytes:,} are believed")
    try:
        found = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}). Mend or remove it.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path}: not a JSON object but a {type(found).__name__}")
    return found
