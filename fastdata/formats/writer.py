"""Write a shard: append records, commit, and seal it under its own name.

`ShardWriter` is the common part of LMDB and HDF5.  Columns go to spools; the
container stores the images and lays out the finished file.  Only `seal` gives
the file the name of a shard.

Sealing works the same for every container: it *allocates* each array inside
the container, asks for its offset in the file, writes the blob offsets and the
header straight to their places, appends the footer, and reads everything back
before the rename.
"""

from __future__ import annotations

import abc
import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import xxhash

from fastdata.errors import FastdataError, drive_explained
from fastdata.formats.layout import (
    ColumnSpec,
    Header,
    StoredColumn,
    checksum,
    column_specs,
    content_digest,
    pack_footer,
)
from fastdata.formats.mapped import map_read_only
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.own_files import (
    create_own,
    make_own_folder,
    open_own,
    sync_directory,
    sync_file,
)
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema, StringField

__all__ = [
    "EncodedImage",
    "Record",
    "ShardDamagedError",
    "ShardWriter",
    "Spool",
    "SpoolState",
    "replace_file",
    "write_file",
]

_BUFFER_BYTES = 1 << 18


class EncodedImage(NamedTuple):
    """An image as it will lie in the shard."""

    data: bytes
    codec: int
    height: int
    width: int
    checksum: int


class Record(NamedTuple):
    """An encoded sample.

    `values` are in the schema's order: `EncodedImage` for an image, else the
    number, string, bytes or array.  `notes` are remarks for the report, and not stored.
    """

    key: str
    values: tuple[Any, ...]
    notes: tuple[str, ...] = ()


class ShardDamagedError(FastdataError, RuntimeError):
    """The files of an unfinished shard have changed since they were written."""


SpoolState: TypeAlias = "tuple[int, str]"
"""Length of a spool in bytes, and its checksum (16 hex digits); a list in JSON."""


class Spool:
    """An append-only file, of a column or of images, while a shard is written.

    It keeps the bytes of `state`, and drops later ones, which a crash may have left.  Memory does
    not grow with the shard.  `ShardDamagedError` if the bytes of `state` are missing or do not
    match their checksum; with ``checked=False`` there is none, and the caller checks the data.
    """

    def __init__(
        self, path: Path, state: SpoolState | None = None, *, checked: bool = True
    ) -> None:
        self.path = path
        self.length, expected = state or (0, "")
        self._hash = xxhash.xxh3_64() if checked else None
        try:
            flags = os.O_RDWR | os.O_APPEND
            descriptor = open_own(path, flags) if self.length else create_own(path)
        except FileNotFoundError:
            raise ShardDamagedError(f"{path} is missing") from None
        raw = io.FileIO(descriptor, "r+b")
        try:
            if self._hash_start(descriptor) != expected and self.length:
                raise ShardDamagedError(f"{path} is damaged: its checksum does not match")
            raw.truncate(self.length)
            raw.seek(self.length)
        except BaseException:
            raw.close()
            raise
        self._file = io.BufferedWriter(raw, _BUFFER_BYTES)

    def _hash_start(self, descriptor: int) -> str:
        """Compute the checksum of the existing bytes."""
        if os.fstat(descriptor).st_size < self.length:
            raise ShardDamagedError(
                f"{self.path} is shorter than the {self.length} bytes that were written"
            )
        done = 0
        while self._hash is not None and done < self.length:
            block = os.pread(descriptor, min(self.length - done, 1 << 22), done)
            self._hash.update(block)
            done += len(block)
        return self.state[1]

    @property
    def state(self) -> SpoolState:
        """Length, and checksum, which is "" without checks."""
        return self.length, "" if self._hash is None else self._hash.hexdigest()

    def append(self, data: Any) -> None:
        """Write a bytes-like object at the end."""
        self._file.write(data)
        if self._hash is not None:
            self._hash.update(data)
        self.length += data.nbytes if hasattr(data, "nbytes") else len(data)

    def sync(self) -> None:
        """Wait until all appended data are on the disk."""
        self._file.flush()
        sync_file(self._file.fileno(), self.path, data_only=True)

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError:
            # Unflushed data (on a full disk) are beyond the last committed
            # length, and are dropped on resuming.
            self._file.raw.close()


class ShardWriter(abc.ABC):
    """Appends records to an unfinished shard; for one thread of one process.

    `directory`, of the unfinished shard, is made if it is missing.  `state` is the last result of
    `commit`, from which the writer resumes.  `ShardDamagedError` if the files have changed since.
    """

    container: ClassVar[str]
    suffix: ClassVar[str]

    def __init__(
        self, directory: Path, schema: Schema, state: Mapping[str, Any] | None = None
    ) -> None:
        state = state or {}
        make_own_folder(directory)
        self.directory = directory
        self.schema = schema
        self.specs: dict[str, ColumnSpec] = column_specs(schema)
        self.num_samples = state.get("num_samples", 0)
        self.blob_bytes = state.get("blob_bytes", 0)
        self._resumed = state.get("spools", {})
        self.spools: dict[str, Spool] = {}
        for name, spec in self.specs.items():
            if not spec.computed:
                self._open_spool(name, directory / f"column.{name}")
            if spec.bounds and self.spools[name].length == 0:
                self.spools[name].append(np.zeros(1, spec.dtype))

    def _open_spool(self, name: str, path: Path, *, checked: bool = True) -> None:
        try:
            self.spools[name] = Spool(path, self._resumed.get(path.name), checked=checked)
        except BaseException:
            for spool in self.spools.values():
                spool.close()
            raise

    # -- for the container ------------------------------------------------

    @abc.abstractmethod
    def _append_blobs(self, field: str, images: Sequence[EncodedImage]) -> None:
        """Append the images of the next samples, from number `num_samples` on."""

    @abc.abstractmethod
    def _commit_blobs(self) -> None:
        """Wait until all appended images are on the disk."""

    @abc.abstractmethod
    def _build(self, arrays: Mapping[str, Array], header_bytes: int) -> Layout:
        """Finish the container's file, and return its layout.

        Spooled arrays are copied; space is allocated for the others and the
        header.  May run again after a crash.
        """

    # -- common to all -----------------------------------------------------------

    def close(self) -> None:
        """Close the files; committed data stay."""
        for spool in self.spools.values():
            spool.close()

    def append(self, records: Sequence[Record]) -> None:
        """Add samples at the end; they are durable after the next `commit`."""
        if not records:
            return
        self._append_strings("key", [record.key.encode() for record in records])
        columns = list(zip(*(record.values for record in records), strict=True))
        for (name, field), values in zip(self.schema.items(), columns, strict=True):
            if isinstance(field, ImageField):
                self._append_images(name, values)
            elif isinstance(field, ScalarField):
                self._append_array(name, values)
            elif isinstance(field, ArrayField) and field.fixed:
                self._append_array(name, np.stack(values))
            elif isinstance(field, ArrayField):
                dtype = self.specs[f"{name}.data"].dtype
                arrays = [np.ascontiguousarray(value, dtype) for value in values]
                self._append_array(f"{name}.shape", [array.shape for array in arrays])
                self._append_strings(name, [array.tobytes() for array in arrays])
            elif isinstance(field, StringField):
                self._append_strings(name, [value.encode() for value in values])
            else:
                self._append_strings(name, values)
        self.num_samples += len(records)

    def _append_images(self, name: str, images: Sequence[EncodedImage]) -> None:
        self._append_blobs(name, images)
        data, codecs, heights, widths, checksums = zip(*images, strict=True)
        lengths = [len(blob) for blob in data]
        self.blob_bytes += sum(lengths)
        self._append_array(f"{name}.length", lengths)
        self._append_array(f"{name}.checksum", checksums)
        self._append_array(f"{name}.height", heights)
        self._append_array(f"{name}.width", widths)
        self._append_array(f"{name}.codec", codecs)

    def _append_array(self, column: str, values: Any) -> None:
        self.spools[column].append(np.ascontiguousarray(values, self.specs[column].dtype))

    def _append_strings(self, name: str, values: Sequence[bytes]) -> None:
        data = self.spools[f"{name}.data"]
        ends = np.cumsum([len(value) for value in values], dtype=np.uint64) + np.uint64(data.length)
        data.append(b"".join(values))
        self._append_array(f"{name}.bounds", ends)

    def commit(self) -> dict[str, Any]:
        """Make all appended samples durable; return the state to resume from."""
        self._commit_blobs()
        for spool in self.spools.values():
            spool.sync()
        spools = {spool.path.name: spool.state for spool in self.spools.values()}
        return {
            "num_samples": self.num_samples,
            "blob_bytes": self.blob_bytes,
            "spools": spools,
        }

    def seal(self, path: Path, options: Mapping[str, Any]) -> None:
        """Turn the appended samples into a finished shard at `path`.

        The spools stay until the caller removes `directory`: after a crash, either sealing can run
        again, or the shard is finished.  `ShardDamagedError` if it does not read back as written.
        """
        self.commit()
        arrays = {name: self._array(name) for name in self.specs}
        header = Header(
            container=self.container,
            num_samples=self.num_samples,
            schema=self.schema,
            digest=content_digest(self.schema, [lambda name: arrays[name].values()]),
            blob_bytes=self.blob_bytes,
            options=options,
            columns={
                name: StoredColumn(array.dtype.str, array.shape, 2**63, "0" * 16)
                for name, array in arrays.items()
            },
        )
        header_bytes = len(header.to_bytes())
        layout = self._build(arrays, header_bytes)
        columns = {}
        descriptor = open_own(layout.path, os.O_RDWR)
        try:
            os.ftruncate(descriptor, layout.file_bytes)
            for name, array in arrays.items():
                offset = layout.columns[name]
                if array.spool is None:
                    values = layout.blobs[name.removesuffix(".offset")].astype(array.dtype)
                    _write_at(descriptor, values.tobytes(), offset)
                else:
                    values = array.values()
                digits = f"{checksum(np.ascontiguousarray(values)):016x}"
                columns[name] = StoredColumn(array.dtype.str, array.shape, offset, digits)
            sealed = dataclasses.replace(header, columns=columns).to_bytes(header_bytes)
            _write_at(descriptor, sealed, layout.header)
            footer_size = len(pack_footer(0, b"", 0))
            size = layout.file_bytes + footer_size
            _write_at(descriptor, pack_footer(layout.header, sealed, size), layout.file_bytes)
            sync_file(descriptor, layout.path)
        finally:
            os.close(descriptor)
        damage = next(find_damage(ShardReader(layout.path)), None)
        if damage is not None:
            raise ShardDamagedError(f"the shard does not read back as written: {damage}")
        os.replace(layout.path, path)
        sync_directory(path.parent)

    def _array(self, name: str) -> Array:
        spec = self.specs[name]
        spool = self.spools.get(name)
        shape = spec.shape(self.num_samples, spool.length if spool else 0)
        return Array(spec.dtype, shape, spool.path if spool else None)


class Array(NamedTuple):
    """A column to be put into the container; `spool` has its values, if they are known."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    spool: Path | None

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def values(self) -> np.ndarray[Any, Any]:
        """Return the spooled values, memory-mapped."""
        if self.nbytes == 0:
            return np.zeros(self.shape, self.dtype)
        assert self.spool is not None
        descriptor = open_own(self.spool, os.O_RDONLY)
        try:
            with drive_explained(self.spool.parent, "memory maps"):
                data = map_read_only(descriptor, self.nbytes)
        finally:
            os.close(descriptor)
        return data.view(self.dtype).reshape(self.shape)


class Layout(NamedTuple):
    """Offsets of the arrays in a container's file, in bytes; the footer goes to `file_bytes`."""

    path: Path
    file_bytes: int
    header: int
    columns: dict[str, int]
    blobs: dict[str, np.ndarray[Any, Any]]


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def write_file(path: Path, data: bytes) -> None:
    """Replace an own file, and sync it."""
    with open(create_own(path), "wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno(), path)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    scratch = path.with_name(f"{path.name}.new")
    write_file(scratch, data)
    os.replace(scratch, path)
