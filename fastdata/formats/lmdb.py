"""Shards in an LMDB file.

Every encoded image is the value of one key, ``<field>/<10 digits>``: a
complete JPEG or PNG file.  Raw images are often smaller than LMDB's 4 kB
pages, so runs of images share values of about 1 MB, ``<field>.raw/<first>``.
Columns are values too, ``column/<name>``, as is the ``header``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from fastdata.errors import OptionError, SourceError, drive_explained
from fastdata.formats.layout import CODECS
from fastdata.formats.lmdb_pages import Entry, LmdbFile
from fastdata.formats.writer import (
    Array,
    EncodedImage,
    Layout,
    Record,
    ShardDamagedError,
    ShardWriter,
)
from fastdata.own_files import create_own, open_own
from fastdata.schema import Schema

__all__ = ["LmdbShardWriter", "disk_errors"]

_RAW = CODECS.index("raw")
_GROUP_BYTES = 1 << 20
_PENDING_BYTES = 64 << 20
_FIRST_MAP_BYTES = 256 << 20
_MOST_GROWTH = 16
"""Upper bound of map size / file size; a full map is doubled."""

_MAX_VALUE_BYTES = 0xFFFFFFFF - (1 << 16)
"""LMDB's limit (MAXDATASIZE), with room for the last chunk."""


class LmdbShardWriter(ShardWriter):
    """Writes one LMDB 0.9 file, without ``writemap``, growing its map as needed.

    Puts are collected and written in transactions of 64 MB.  If the map is full, it is doubled and
    the transaction runs again.
    """

    container = "lmdb"
    suffix = ".lmdb"

    def __init__(
        self, directory: Path, schema: Schema, state: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(directory, schema, state)
        self.path = directory / "shard.lmdb"
        self._pending: list[tuple[bytes, Any]] = []
        self._pending_bytes = 0
        self._groups: dict[str, tuple[int, list[bytes]]] = {}
        try:
            size = self._checked_size() if state else 0
            if not size:
                os.close(create_own(self.path))
            with disk_errors(self.path, "shared memory maps"):
                self._environment = lmdb.open(
                    str(self.path),
                    map_size=max(_FIRST_MAP_BYTES, 2 * size),
                    subdir=False,
                    lock=False,  # the destination's own lock already keeps others out
                    metasync=False,
                    writemap=False,
                    lib_version=0,  # LMDB 0.9's file format, which every release reads
                )
        except BaseException:
            super().close()
            raise
        if size:
            self._drop_from(self.num_samples)

    def _checked_size(self) -> int:
        """Return the size of the file, after checking that it has all committed images.

        Their bytes are not read: sealing compares their checksums.
        """
        try:
            descriptor = open_own(self.path, os.O_RDWR)
            size = os.fstat(descriptor).st_size
            os.close(descriptor)
            file = LmdbFile(self.path)
            most = _MOST_GROWTH * max(_FIRST_MAP_BYTES, size)
            damage = file.damage(most, lambda key: not self._is_committed(key))
            if damage is None:
                self._located(file, {name: self._array(name) for name in self.specs})
        except FileNotFoundError:
            damage = "it is missing"
        except SourceError as error:
            damage = str(error)
        if damage is not None:
            raise self._damaged(damage)
        return size

    def _is_committed(self, key: bytes) -> bool:
        """Return whether a key belongs to a committed image."""
        kind, _, rest = key.decode(errors="replace").partition("/")
        known = kind.removesuffix(".raw") in self.schema.images
        return known and rest.isdecimal() and int(rest) < self.num_samples

    def _drop_from(self, index: int) -> None:
        """Delete the uncommitted samples of a crashed run."""

        def delete(transaction: Any) -> None:
            with transaction.cursor() as cursor:
                for field in self.schema.images:
                    for prefix in (f"{field}/", f"{field}.raw/"):
                        found = cursor.set_range(f"{prefix}{index:010}".encode())
                        while found and cursor.key().startswith(prefix.encode()):
                            found = cursor.delete()

        self._write(delete)

    def _write(self, action: Any) -> None:
        """Run `action` in a transaction, again in a larger map where it is full."""
        while True:
            try:
                with (
                    disk_errors(self.path),
                    self._environment.begin(write=True) as transaction,
                ):
                    action(transaction)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def _put(self, key: str, value: Any) -> None:
        self._pending.append((key.encode(), value))
        self._pending_bytes += len(value)
        if self._pending_bytes >= _PENDING_BYTES:
            self._flush()

    def _flush(self) -> None:
        def put(transaction: Any) -> None:
            with transaction.cursor() as cursor:
                cursor.putmulti(self._pending)

        if self._pending:
            self._write(put)
        self._pending, self._pending_bytes = [], 0

    def append(self, records: Sequence[Record]) -> None:
        super().append(records)
        for spool in self.spools.values():
            if spool.length > _MAX_VALUE_BYTES:
                raise OptionError(
                    f"{spool.path.name} has outgrown 4 GB, the most that a value in LMDB can have. "
                    "Pack into several shards (shard_size=, --shard-size), or into HDF5 (.h5)."
                )

    def _append_blobs(self, field: str, images: Sequence[EncodedImage]) -> None:
        for index, image in enumerate(images, self.num_samples):
            if image.codec != _RAW:
                self._close_group(field)
                self._put(f"{field}/{index:010}", image.data)
                continue
            _, group = self._groups.setdefault(field, (index, []))
            group.append(image.data)
            if len(image.data) * len(group) >= _GROUP_BYTES:
                self._close_group(field)

    def _close_group(self, field: str) -> None:
        if field in self._groups:
            first, group = self._groups.pop(field)
            self._put(f"{field}.raw/{first:010}", b"".join(group))

    def _commit_blobs(self) -> None:
        for field in list(self._groups):
            self._close_group(field)
        self._flush()
        with disk_errors(self.path):
            self._environment.sync(True)

    def _build(self, arrays: Mapping[str, Array], header_bytes: int) -> Layout:
        for name, array in arrays.items():
            # Blob offsets are known only afterwards: zeros hold their place.
            known = array.spool is not None and array.nbytes > 0
            values = array.values().reshape(-1).view(np.uint8) if known else bytes(array.nbytes)
            self._put(f"column/{name}", values)
        self._put("header", bytes(header_bytes))
        self._flush()
        self._environment.close()
        return self._located(LmdbFile(self.path), arrays)

    def _located(self, file: LmdbFile, arrays: Mapping[str, Array]) -> Layout:
        """Return the layout of the file; `ShardDamagedError` if an image is missing."""
        columns: dict[str, int] = {}
        header = 0
        blobs = {field: np.zeros(self.num_samples, np.uint64) for field in self.schema.images}
        missing = {field: self.num_samples for field in blobs}
        ends = {
            field: np.cumsum(arrays[f"{field}.length"].values(), dtype=np.uint64)
            for field in self.schema.images
        }
        for entry in file.entries():
            if not isinstance(entry, Entry):
                raise self._damaged(entry)
            offset = entry.offset
            kind, _, rest = entry.key.decode(errors="replace").partition("/")
            if kind == "header":
                header = offset
            elif kind == "column":
                columns[rest] = offset
            elif self._is_committed(entry.key):
                field, first = kind.removesuffix(".raw"), int(rest)
                before = ends[field][first - 1] if first else np.uint64(0)
                last = first + 1
                if kind != field:
                    last += int(
                        np.searchsorted(ends[field][first:], before + np.uint64(entry.length))
                    )
                if last > self.num_samples or ends[field][last - 1] - before != entry.length:
                    raise self._damaged(f"the value of key {kind}/{rest} has another length")
                blobs[field][first] = offset
                blobs[field][first + 1 : last] = (
                    ends[field][first : last - 1] - before + np.uint64(offset)
                )
                missing[field] -= last - first
        if any(missing.values()):
            raise self._damaged("images are missing")
        return Layout(self.path, file.data_end, header, columns, blobs)

    def _damaged(self, what: str) -> ShardDamagedError:
        return ShardDamagedError(f"{self.path} is damaged: {what}")

    def close(self) -> None:
        self._environment.close()
        super().close()


@contextlib.contextmanager
def disk_errors(path: Path, call: str = "fsync") -> Iterator[None]:
    """Turn LMDB's errors of the system into `OSError`; `path` is the file that is written.

    `DriveError` if the drive does not support the `call`.
    """
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        number = next((n for n in errno.errorcode if str(error).endswith(os.strerror(n))), 0)
        if number == errno.EIO:
            number = _why_cut(path) or number
        if not number:
            raise
        with drive_explained(path.parent, call):
            raise OSError(number, os.strerror(number), str(path.parent)) from error


def _why_cut(path: Path) -> int | None:
    """Return the error of writing more behind a file; None without one.

    The first write beyond a limit is cut short, which LMDB reports as EIO.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            os.posix_fallocate(probe.fileno(), path.stat().st_size, _PENDING_BYTES)
    except OSError as error:
        return error.errno
    return None
