"""Which folders are zarr or N5 arrays, by their metadata: small JSON files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..json_files import read_object
from .roles import Known

__all__ = ["Node", "arrays_in", "is_group", "known_of", "node_of"]

_METADATA_BYTES = 16 << 20
_DEPTH = 16


class Node(NamedTuple):
    """An array's metadata, as far as it is needed to choose one.

    Attributes
    ----------
    driver : {"zarr", "zarr3", "n5"}
    shape, blocks : tuple of int
        Samples first.
    dtype : str
    separator : str
        Between the numbers in a block's name.
    prefix : str
        Before them.
    """

    driver: str
    shape: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: str
    separator: str
    prefix: str


def is_group(folder: Path) -> bool:
    return (folder / ".zgroup").is_file() or "zarr_format" in _json(folder / "zarr.json")


def _json(path: Path) -> Mapping[str, Any]:
    """Return what a small JSON file has; empty if there is none."""
    try:
        return read_object(path, _METADATA_BYTES)
    except (OSError, SourceError):
        return {}


def node_of(folder: Path) -> Node | None:
    """Return what array a folder is; None if it is none."""
    try:
        if found := _json(folder / ".zarray"):
            shape, blocks, dtype = found["shape"], found["chunks"], found["dtype"]
            driver, separator, prefix = "zarr", found.get("dimension_separator") or ".", ""
        elif (found := _json(folder / "zarr.json")).get("node_type") == "array":
            shape, dtype = found["shape"], found["data_type"]
            blocks = found["chunk_grid"]["configuration"]["chunk_shape"]
            coding = found["chunk_key_encoding"]
            old = coding["name"] == "v2"
            separator = coding.get("configuration", {}).get("separator", "." if old else "/")
            driver, prefix = "zarr3", "" if old else f"c{separator}"
        elif {"dimensions", "blockSize", "dataType"} <= (
            found := _json(folder / "attributes.json")
        ).keys():
            shape, blocks = found["dimensions"][::-1], found["blockSize"][::-1]
            driver, dtype, separator, prefix = "n5", found["dataType"], "/", ""
        else:
            return None
        node = Node(driver, tuple(shape), tuple(blocks), str(dtype), separator, prefix)
    except (KeyError, TypeError, AttributeError):
        return None
    numbers: list[Any] = [*node.shape, *node.blocks]  # whatever the JSON has
    whole = all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers) and all(node.blocks)
    return node if whole and len(node.shape) == len(node.blocks) else None


def arrays_in(root: Path, depth: int = _DEPTH) -> Iterator[tuple[str, Node]]:
    """Yield the arrays of a folder by their paths in it; links are not followed."""
    folders = [("", root, 0)]
    while folders:
        path, folder, level = folders.pop()
        node = node_of(folder) if path or depth == _DEPTH else None
        if node is not None:
            yield path, node
        elif level < depth:
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True):
                if entry.is_dir(follow_symlinks=False):
                    below = f"{path}/{entry.name}" if path else entry.name
                    folders.append((below, Path(entry.path), level + 1))


def known_of(node: Node) -> Known:
    try:
        dtype = np.dtype(node.dtype)
    except TypeError:  # structures, text, types of extensions
        dtype = np.dtype("O")
    if dtype.kind not in "biuf":
        return Known(node.shape, None, "unknown", f"its type {node.dtype} is no number")
    return Known(node.shape, dtype)
