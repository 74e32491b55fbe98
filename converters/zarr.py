"""zarr (v2, v3) and N5 folders, through tensorstore.

An array is a folder with ``.zarray`` (zarr v2), ``zarr.json`` (v3) or ``attributes.json`` (N5),
and one file a block.  Samples are along the first dimension; N5 writes dimensions in
reversed order, so there along what its file lists last.

Sources: zarr-specs.readthedocs.io, "Zarr storage specification version 2" and "Zarr core
specification 3.0"; github.com/saalfeldlab/n5, "N5 specification".
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.waits import result_of

from .base import FieldSpec, hash_fields, reason_of
from .reading.arrays.array_source import ArrayFile, ArrayOptions, ArraySource
from .reading.arrays.columns import ArrayColumn
from .reading.box_forms import BoxesOption, parse_boxes
from .reading.json_files import read_object
from .reading.locations import printable, stat_of
from .reading.options import ArraysOption, ClassFile, LayoutOption, ScaleOption
from .reading.refusals import require
from .reading.spans import MAX_RECORD

__all__ = ["ZarrSource"]

_LOOKED_AT = 200
_CACHE_BYTES = 1 << 20
"""For tensorstore's metadata of cached blocks."""
_MOST_EMPTY = 1000
"""Limit of missing blocks per existing one."""

_used_by = 0
"""The process that uses tensorstore, which ends a process forked from such a one."""
_METADATA_BYTES = 16 << 20
_MOST_DIMENSIONS = 32
"""As tensorstore has it."""
_DEPTH = 16


class ZarrSource(ArraySource):
    """Arrays of a zarr or N5 folder, or one such array and its neighbours."""

    name = "zarr"
    summary = "zarr v2, zarr v3 and N5 folders (tensorstore)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = Path(location)
        is_group = (root / ".zgroup").is_file() or "zarr_format" in _json(root / "zarr.json")
        if is_group or _node_of(root) is not None:
            return True
        with os.scandir(root) as entries:
            below = [entry.path for entry in itertools.islice(entries, _LOOKED_AT)]
        return any(_node_of(Path(path)) is not None for path in below)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: ArraysOption = (),
        layout: LayoutOption = None,
        scale: ScaleOption = None,
        classes: ClassFile = None,
        boxes: BoxesOption = (),
    ) -> None:
        _tensorstore()
        self.notes = []
        self._root = Path(location)
        if not self._root.is_dir():
            raise SourceError(f"{location}: not a folder")
        nodes = dict(_arrays_in(self._root))
        where = str(location)
        if "" in nodes:  # an array: a neighbour may have its labels
            self._root, only = self._root.absolute().parent, self._root.absolute().name
            beside = dict(_arrays_in(self._root, depth=1))
            nodes = {k: v for k, v in beside.items() if k == only or len(v.shape) == 1}
        columns = {path: _ZarrColumn(self._root / path, path, node) for path, node in nodes.items()}
        form = parse_boxes(boxes, whole=True)
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes, form)
        self.read_arrays([ArrayFile(where, printable(self._root.name), columns)], options)
        self.paths = [self._root / path for path, column in columns.items() if column.prepared]

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        hashes = []
        for path in self.paths:
            total = 0
            for name in _files(path):
                total ^= hash_fields(name, *stat_of(path / name))  # in whatever order
            hashes.append(total)
        return np.array(hashes, np.uint64)


def _tensorstore() -> Any:
    """Return tensorstore.

    Raises SourceError in a process forked after its use, as its threads do not survive a fork.
    """
    global _used_by
    module = require("tensorstore", "tensorstore", "reading zarr and N5")
    if _used_by not in (0, os.getpid()):
        raise SourceError(
            "reading zarr and N5: tensorstore was used before this process was forked, and "
            "cannot be used after. Pack in a process of its own that is spawned, not forked: "
            "multiprocessing.get_context('spawn'), or the command `fastdata pack`"
        )
    _used_by = os.getpid()
    return module


def _files(array: Path) -> Iterator[str]:
    """Yield the files of an array, by their paths in its folder.

    Raises SourceError if something else lies among them: a pipe, which would be waited for.
    """
    for folder, _, names in os.walk(array):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                raise SourceError(f"{path}: not a regular file; tensorstore would wait for it")
            yield os.path.relpath(path, array)


class _ZarrColumn(ArrayColumn):
    """The rows of an array of tensorstore's, which `prepare` opens."""

    prepared = False

    def __init__(self, folder: Path, path: str, node: _Node) -> None:
        self._folder, self._node = folder, node
        self.label, self.shape = printable(path), node.shape
        try:
            self.dtype = np.dtype(node.dtype)
        except TypeError:  # structures, text, types of extensions
            self.dtype = np.dtype("O")
        if self.dtype.kind not in "biuf":
            self.dtype, self.kind = None, "unknown"
            self.refused = f"its type {node.dtype} is not a number"

    def prepare(self) -> list[str]:
        tensorstore, folder, node = _tensorstore(), self._folder, self._node
        self.prepared = True
        grid = [-(-n // c) for n, c in zip(node.shape, node.blocks, strict=True)]
        # Cache the blocks of the last rows: else a large one is read for each group of rows.
        size = math.prod((*node.blocks, *grid[1:])) * (self.dtype.itemsize if self.dtype else 1)
        kept = min(size, MAX_RECORD)
        try:
            opening = tensorstore.open(
                {
                    "driver": node.driver,
                    "kvstore": {"driver": "file", "path": f"{folder.absolute()}/"},
                    "context": {"cache_pool": {"total_bytes_limit": kept + _CACHE_BYTES}},
                },
                read=True,
                open=True,
            )
            store = result_of(opening, f"{folder} to be opened")
        except Exception as error:  # tensorstore does not document its errors
            raise SourceError(
                f"{folder}: tensorstore cannot open this array: {_message(error)}. If it lacks "
                "a compression, copy the array with another one"
            ) from error
        self._store = store.T if node.driver == "n5" else store
        self.dtype = np.dtype(store.dtype.numpy_dtype)
        block = self._store.chunk_layout.read_chunk.shape
        if tuple(self._store.shape) != node.shape or not all(block):
            raise SourceError(f"{folder}: has the shape {self._store.shape}, not {node.shape}")
        self.block = block[0]
        claimed = math.prod(block) * self.dtype.itemsize
        if claimed > MAX_RECORD:
            raise SourceError(
                f"{folder}: blocks of shape {block} claim {claimed:,} bytes each; at most "
                f"{MAX_RECORD:,} are believed. Copy the array with smaller blocks"
            )
        self._grid = grid
        self._checked: set[int] = set()
        whole = math.prod(grid)
        stored = sum(1 for name in _files(folder) if self._is_block(name))
        absent = max(0, whole - stored)
        if whole > _MOST_EMPTY * stored:
            raise SourceError(
                f"{folder}: claims the shape {node.shape}, but {stored:,} of its {whole:,} blocks "
                "are there: the metadata is damaged, or the blocks were not copied"
            )
        if not absent:
            return []
        fill = self._store.fill_value
        value = 0 if fill is None else fill.item()
        return [
            f"{self.label}: {absent:,} blocks are missing, which means that they are all {value}"
        ]

    def _is_block(self, name: str) -> bool:
        node = self._node
        name = name.replace(os.sep, "/")
        if not name.startswith(node.prefix):
            return False
        numbers = name[len(node.prefix) :].split(node.separator)
        return len(numbers) == len(node.shape) and all(map(str.isdecimal, numbers))

    def _check_blocks(self, start: int, stop: int) -> None:
        """Check the files of the blocks of some rows that are not checked yet.

        tensorstore takes the memory that a block of Blosc claims, and ends the process without it.
        """
        node = self._node
        rows = set(range(start // node.blocks[0], (stop - 1) // node.blocks[0] + 1)) - self._checked
        most = math.prod(node.blocks) * np.dtype(self.dtype).itemsize
        for row, *rest in itertools.product(sorted(rows), *map(range, self._grid[1:])):
            numbers = (row, *rest) if node.driver != "n5" else (*rest[::-1], row)
            name = node.prefix + node.separator.join(map(str, numbers))
            try:
                with open(self._folder / name, "rb") as file:
                    claimed = _claimed_by_blosc(file.read(node.blosc_at + 8), node.blosc_at)
            except FileNotFoundError:
                continue
            if claimed > most:
                raise ValueError(
                    f"{self._folder}: the block {name} claims {claimed:,} bytes, more than the "
                    f"{most:,} of a block"
                )
        self._checked |= rows

    def read(self, start: int, stop: int) -> Any:
        if self._node.is_blosc:
            self._check_blocks(start, stop)
        _tensorstore()
        try:
            rows = self._store[start:stop].read(order="C")
            return result_of(rows, f"rows {start:,} to {stop - 1:,} of {self._folder}")
        except Exception as error:
            raise ValueError(
                f"{self._folder}: rows {start:,} to {stop - 1:,} cannot be read: {_message(error)}"
            ) from (_of_system(error) or error)


def _claimed_by_blosc(head: bytes, at: int) -> int:
    """Return the bytes that a block becomes, of its 16 bytes of header; 0 if they are cut off."""
    return int.from_bytes(head[at + 4 : at + 8], "little")


def _message(error: Exception) -> str:
    """Return tensorstore's message without the places in its own code."""
    return reason_of(error).split(" [source locations=")[0][:400]


def _of_system(error: Exception) -> OSError | None:
    """Return the system's error that tensorstore met, which it raises as a ValueError."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


class _Node(NamedTuple):
    """An array's metadata, as far as it is needed to choose one."""

    driver: str
    shape: tuple[int, ...]  # Samples first
    blocks: tuple[int, ...]
    dtype: str
    separator: str  # Between the numbers in a block's name
    prefix: str  # Before them
    is_blosc: bool  # Whether Blosc compresses the blocks
    blosc_at: int  # Where its header begins in the file of a block


def _json(path: Path) -> Mapping[str, Any]:
    """Return the content of a small JSON file; empty without a file."""
    try:
        return read_object(path, _METADATA_BYTES)
    except (OSError, SourceError):
        return {}


def _node_of(folder: Path) -> _Node | None:
    """Return what array a folder is; None if it is none."""
    try:
        if found := _json(folder / ".zarray"):
            shape, blocks, dtype = found["shape"], found["chunks"], found["dtype"]
            driver, separator, prefix = "zarr", found.get("dimension_separator") or ".", ""
            coders = [found.get("compressor") or {}]
        elif (found := _json(folder / "zarr.json")).get("node_type") == "array":
            shape, dtype = found["shape"], found["data_type"]
            blocks = found["chunk_grid"]["configuration"]["chunk_shape"]
            coding = found["chunk_key_encoding"]
            old = coding["name"] == "v2"
            separator = coding.get("configuration", {}).get("separator", "." if old else "/")
            driver, prefix = "zarr3", "" if old else f"c{separator}"
            coders = found.get("codecs", [])
        elif {"dimensions", "blockSize", "dataType"} <= (
            found := _json(folder / "attributes.json")
        ).keys():
            shape, blocks = found["dimensions"][::-1], found["blockSize"][::-1]
            driver, dtype, separator, prefix = "n5", found["dataType"], "/", ""
            coders = [found.get("compression") or {}]
        else:
            return None
        names = [coder.get("id") or coder.get("name") or coder.get("type") for coder in coders]
        at = 4 + 4 * len(shape) if driver == "n5" else 0
        whole = tuple(shape), tuple(blocks), str(dtype), separator, prefix
        is_blosc = [name for name in names if name != "crc32c"][-1:] == ["blosc"]
        node = _Node(driver, *whole, is_blosc, at)
    except (KeyError, TypeError, AttributeError):
        return None
    numbers: list[Any] = [*node.shape, *node.blocks]  # whatever the JSON has
    sound = all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers) and all(node.blocks)
    return node if sound and len(node.shape) == len(node.blocks) <= _MOST_DIMENSIONS else None


def _arrays_in(root: Path, depth: int = _DEPTH) -> Iterator[tuple[str, _Node]]:
    """Yield the arrays of a folder by their paths in it; links are not followed."""
    folders = [("", root, 0)]
    while folders:
        path, folder, level = folders.pop()
        node = _node_of(folder) if path or depth == _DEPTH else None
        if node is not None:
            yield path, node
        elif level < depth:
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True):
                if entry.is_dir(follow_symlinks=False):
                    below = f"{path}/{entry.name}" if path else entry.name
                    folders.append((below, Path(entry.path), level + 1))
