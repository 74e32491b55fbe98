"""zarr folders, v2 and v3, through tensorstore.

An array is a folder with ``.zarray`` (v2) or ``zarr.json`` (v3), and one file a block.  Samples are
along the first dimension.  Source: zarr-specs.readthedocs.io, "Zarr storage specification version
2" and "Zarr core specification 3.0".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.waits import result_of

from .base import hash_fields, reason_of
from .reading.arrays.array_source import ArrayFile, ArraySource
from .reading.arrays.columns import ArrayColumn, missing_blocks
from .reading.json_files import read_object
from .reading.locations import printable, stat_of
from .reading.refusals import require
from .reading.spans import MAX_RECORD

__all__ = ["ZarrSource"]

_CACHE_BYTES = 1 << 20
"""For tensorstore's metadata of cached blocks."""

_DEPTH = 16
_N5 = {"dimensions", "blockSize", "dataType"}
"""What ``attributes.json`` of an array of N5 has."""


class ZarrSource(ArraySource):
    """Arrays of a zarr folder, or one such array and its neighbours."""

    name = "zarr"
    summary = "zarr folders, v2 and v3 (tensorstore)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = Path(location)
        is_group = (root / ".zgroup").is_file() or "zarr_format" in _json(root / "zarr.json")
        return is_group or bool(_driver_of(root)) or any(_arrays_in(root, 1))

    def files(self, location: Any) -> list[ArrayFile]:
        _tensorstore()
        root = Path(location)
        if not root.is_dir():
            raise SourceError(f"{location}: not a folder")
        only = _driver_of(root)
        if only:  # a neighbour of the array may have its labels
            root = root.absolute().parent
        columns = {
            path: _ZarrColumn(root / path, path, driver)
            for path, driver in _arrays_in(root, 1 if only else _DEPTH)
        }
        if only:
            name = Path(location).absolute().name
            columns = {k: v for k, v in columns.items() if k == name or len(v.shape) == 1}
        self._columns = columns
        return [ArrayFile(str(location), printable(root.name), columns)]

    @property
    def files_read(self) -> list[Path]:
        return [column.folder for column in self._columns.values() if column.prepared]

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        hashes = []
        for path in self.files_read:
            total = 0
            for name in _files(path):
                total ^= hash_fields(name, *stat_of(path / name))  # in whatever order
            hashes.append(total)
        return np.array(hashes, np.uint64)


def _tensorstore() -> Any:
    """Return tensorstore, which ends a process that is forked after its use: workers have none."""
    return require("tensorstore", "tensorstore", "reading zarr")


def _json(path: Path) -> Mapping[str, Any]:
    """Return the content of a small JSON file; empty without a file."""
    try:
        return read_object(path)
    except (OSError, SourceError):
        return {}


def _driver_of(folder: Path) -> str:
    """Return tensorstore's name for the format of the array that a folder is; empty if none."""
    if (folder / ".zarray").is_file():
        return "zarr"
    if _json(folder / "zarr.json").get("node_type") == "array":
        return "zarr3"
    return "n5" if _json(folder / "attributes.json").keys() >= _N5 else ""


def _arrays_in(root: Path, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the arrays in a folder, by their paths, with their formats; links are not followed."""
    folders = [("", 1)]
    while folders:
        path, level = folders.pop()
        for entry in sorted(os.scandir(root / path), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                below = f"{path}/{entry.name}".lstrip("/")
                if driver := _driver_of(root / below):
                    yield below, driver
                elif level < depth:
                    folders.append((below, level + 1))


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
    """The rows of an array of tensorstore's."""

    prepared = False
    dtype: np.dtype[Any]

    def __init__(self, folder: Path, path: str, driver: str) -> None:
        self.folder, self._driver, self.label = folder, driver, printable(path)
        self._damaged: dict[int, str] = {}  # by the number of the block's rows
        if driver == "n5":
            raise SourceError(
                f"{folder}: an array of N5, which is not read. Copy it to zarr, in Python by "
                "tensorstore: zarr[...] = n5[...].T, as N5 has its dimensions in reversed order"
            )
        try:
            store = self._opened(_CACHE_BYTES)
        except Exception as error:  # tensorstore does not document its errors
            self.kind = "unknown"
            self.refused = (
                f"tensorstore cannot open this array: {_message(error)}. If it lacks a "
                "compression, copy the array with another one"
            )
            return
        self.shape, self.dtype = tuple(store.shape), np.dtype(store.dtype.numpy_dtype)
        if self.dtype.kind not in "biuf":
            self.kind, self.refused = "unknown", f"its type {store.dtype.name} is not a number"

    def _opened(self, cached_bytes: int) -> Any:
        opening = _tensorstore().open(
            {
                "driver": self._driver,
                "kvstore": {"driver": "file", "path": f"{self.folder.absolute()}/"},
                "context": {"cache_pool": {"total_bytes_limit": cached_bytes}},
            },
            read=True,
            open=True,
        )
        return result_of(opening, f"{self.folder} to be opened")

    def prepare(self) -> list[str]:
        self.prepared = True
        store = self._opened(_CACHE_BYTES)
        block, stored = store.chunk_layout.read_chunk.shape, store.chunk_layout.write_chunk.shape
        self.block, self._tall = block[0], stored[0]
        claimed = math.prod(block) * self.dtype.itemsize
        if claimed > MAX_RECORD:
            raise SourceError(
                f"{self.folder}: blocks of shape {block} claim {claimed:,} bytes each; at most "
                f"{MAX_RECORD:,} are believed. Copy the array with smaller blocks"
            )
        grid = [-(-n // c) for n, c in zip(self.shape, stored, strict=True)]
        # Cache the blocks of the last rows: else a large one is read for each group of rows.
        size = math.prod(stored) * self.dtype.itemsize
        self._store = self._opened(min(size * math.prod(grid[1:]), MAX_RECORD) + _CACHE_BYTES)
        whole, there = math.prod(grid), 0
        is_blosc = _is_blosc(store.spec().to_json()["metadata"])
        for name in _files(self.folder):
            numbers = re.findall("[0-9]+", name)[-len(grid) :]
            if len(numbers) == len(grid):
                there += 1
                if is_blosc and (claimed := _claimed_by_blosc(self.folder / name)) > size:
                    self._damaged[int(numbers[0])] = (
                        f"the block {name} claims {claimed:,} bytes, more than the {size:,} of a "
                        "block"
                    )
        fill = 0 if store.fill_value is None else store.fill_value.item()
        return missing_blocks(str(self.folder), self.shape, there, whole, fill)

    def read(self, start: int, stop: int) -> Any:
        for block in range(start // self._tall, (stop - 1) // self._tall + 1):
            if block in self._damaged:
                raise ValueError(f"{self.folder}: {self._damaged[block]}")
        try:
            rows = self._store[start:stop].read(order="C")
            return result_of(rows, f"rows {start:,} to {stop - 1:,} of {self.folder}")
        except Exception as error:
            raise ValueError(
                f"{self.folder}: rows {start:,} to {stop - 1:,} cannot be read: {_message(error)}"
            ) from (_of_system(error) or error)


def _is_blosc(metadata: Mapping[str, Any]) -> bool:
    """Tell whether Blosc compresses the blocks."""
    codecs = [codec["name"] for codec in metadata.get("codecs", ()) if codec["name"] != "crc32c"]
    return "blosc" in (*codecs[-1:], (metadata.get("compressor") or {}).get("id"))


def _claimed_by_blosc(path: Path) -> int:
    """Return the bytes that a block becomes, by its header.

    tensorstore takes as much memory at once, and ends the process if there is less.
    """
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8)[4:], "little")


def _message(error: Exception) -> str:
    """Return tensorstore's message without the places in its own code."""
    return re.split(r" \[(?:source locations|tensorstore_spec)=", reason_of(error))[0][:400]


def _of_system(error: Exception) -> OSError | None:
    """Return the system's error that tensorstore met, which it raises as a ValueError."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None
