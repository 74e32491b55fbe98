"""Read a sealed shard: a memory map, a header, and columns over the map.

`ShardReader` needs neither LMDB nor HDF5: the header has the file offset of
every array and the columns have that of every blob.  Nothing in the file is
trusted: every offset is checked against the file before it is followed.
"""

from __future__ import annotations

import codecs
import errno
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fastdata.errors import (
    DatasetNotFoundError,
    FormatError,
    NotRegularFileError,
    ResourceLimitError,
    ShardCorruptError,
)
from fastdata.formats.layout import (
    CODECS,
    FOOTER_BYTES,
    Header,
    checksum,
    column_specs,
    unpack_footer,
)
from fastdata.formats.mapped import advise, map_read_only
from fastdata.native.faults import watch
from fastdata.regular_files import open_regular
from fastdata.schema import ArrayField, BytesField, Field, ImageField, StringField

__all__ = ["HeldBytes", "ShardReader"]


class HeldBytes(Protocol):
    """A copy of a file in memory, which may still be in the making."""

    @property
    def complete(self) -> bool:
        """Whether all that will be read is there."""

    @property
    def memory(self) -> memoryview:
        """The copy, of the file's length; what nobody will read may be missing."""


_STEP_BYTES = 1 << 24


def _is_utf8(data: Any) -> bool:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(data), _STEP_BYTES):
            decode(data[start : start + _STEP_BYTES].tobytes())
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class ShardReader:
    """One sealed shard, mapped into memory, read-only.

    Parameters
    ----------
    path : path-like
    check : bool
        Whether to compare checksums: of a column when it is first used, of an
        image each time `blob` reads it (3 µs for a JPEG of 30 kB), and when a
        loader first does.  Without, only bounds are checked; `verify` still
        finds all damage.
    held : HeldBytes, optional
        A copy of the file, read instead of it as soon as it is complete.
    max_pixels : int, optional
        For who decodes images of it: what has more is refused.  Default: what packing has.

    Attributes
    ----------
    header_range : (int, int)
        First byte of the header in the file, and the one behind its last.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FormatError
        If it is not a fastdata shard, or one of a newer version.
    ShardCorruptError
        If the footer or header is damaged.
    ResourceLimitError
        If the system allows no more open files or memory maps.

    Notes
    -----
    Safe for any number of threads.  No file stays open.  The map survives fork; to send a shard
    to another process by pickle, send its path.  As with any memory map, the
    file must not be cut short while it is open: the process then ends by SIGBUS,
    after naming the file (`fastdata.native.faults`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        check: bool = True,
        held: HeldBytes | None = None,
        max_pixels: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.max_pixels = max_pixels
        self._check = check
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        self._shapes_read: dict[str, np.ndarray[Any, Any]] = {}
        self._unread: dict[str, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._unreadable: np.ndarray[Any, np.dtype[np.bool_]] | None = None
        self._map: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._identity: tuple[int, ...] = ()
        """Of the file that is mapped; see `_identity_of`."""
        self._held = held
        self._header_checksum = 0
        self.header_range = 0, 0
        memory = held.memory if held is not None and held.complete else self._mapped()
        size = len(memory)
        self._data_end = size - FOOTER_BYTES
        offset, length, expected = unpack_footer(bytes(memory[self._data_end :]), size, self.path)
        header = bytes(memory[offset : offset + length])
        if checksum(header) != expected:
            raise self._corrupt("the header's checksum does not match")
        self.header = Header.from_bytes(header, self.path)
        self._header_checksum = expected
        self.header_range = offset, offset + length
        self._specs = column_specs(self.header.schema)
        self._look_at(memory)
        for name, column in self.header.columns.items():
            if column.offset + column.nbytes > self._data_end:
                raise self._corrupt(f"column {name!r} ends beyond the end of the file")

    def _mapped(self) -> memoryview:
        """Return the file, mapped into memory."""
        if self._map is not None:
            return self._map.data
        try:
            descriptor = open_regular(self.path)
        except FileNotFoundError:
            raise DatasetNotFoundError(
                f"{self.path}: no such file. Make it with: fastdata pack IMAGES {self.path}"
            ) from None
        except ResourceLimitError:
            raise
        except NotRegularFileError as error:
            raise FormatError(f"{self.path}: not a fastdata shard: {error.strerror}") from error
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            size, self._identity = status.st_size, _identity_of(status)
            if size < FOOTER_BYTES:
                raise FormatError(
                    f"{self.path}: not a fastdata shard: {size} bytes are too few for one"
                )
            try:
                self._map = map_read_only(descriptor, size)
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    raise ResourceLimitError(
                        f"{self.path}: cannot be mapped: {error.strerror}. Nothing is wrong with "
                        "the file: this process has as much mapped as it may. Raise the limit "
                        "(ulimit -v unlimited; sysctl vm.max_map_count), or pack into fewer shards"
                    ) from error
                raise FormatError(f"{self.path}: cannot be mapped: {error.strerror}") from error
        finally:
            os.close(descriptor)
        watch(self._map, self.path)
        return self._map.data

    def look_again(self) -> None:
        """See whether the file is still as it was when it was opened.

        Where it has been written to, its header is compared, and whatever is read from now on
        is compared with its checksum again.  A file that was replaced by renaming, or removed,
        can be read as before.

        Raises
        ------
        ShardCorruptError
            If something else was written over it, or it was cut short.
        """
        if self._map is None or self.in_memory:
            return
        try:
            now = _identity_of(os.stat(self.path))
        except OSError:
            return
        if now == self._identity or now[:2] != self._identity[:2]:
            return
        first, behind = self.header_range
        same = now[2] == self._identity[2]
        if not same or checksum(self._map[first:behind]) != self._header_checksum:
            raise ShardCorruptError(
                f"{self.path}: something else was written over this shard while it was in use: it "
                f"had {self._identity[2]} bytes when it was opened, and has {now[2]} now. "
                "Restore it and start again; put a new file in the place of one by renaming "
                "(mv), never by writing over it (cp)."
            )
        self._identity = now
        self._columns, self._unread = {}, {}

    def _corrupt(self, what: str) -> ShardCorruptError:
        self.look_again()  # which says it better where somebody has just written over it
        return ShardCorruptError(
            f"{self.path}: {what}. The file is damaged; restore it from a copy or pack it again "
            f"(`fastdata verify {self.path}` lists all damage)."
        )

    def unread(self, field: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which images of a field are still to be compared with their checksums.

        bool [num_samples], to be set to False by who compared one: each is
        compared once a process, as columns are.  All False where nothing is
        compared.
        """
        unread = self._unread.get(field)
        if unread is None:
            unread = np.full(len(self), self._check)
            unread = self._unread.setdefault(field, unread)
        return unread

    def let_go(self) -> None:
        """Read from the file again, not from a copy of it; nobody may be reading."""
        if self._held is not None:
            self._held = None
            self._look_at(self._mapped())

    def _look_at(self, memory: memoryview) -> None:
        """Read from here from now on; views of where it was before stay valid."""
        self._memory = memory
        self._data = memory[: self._data_end]
        self._address = int(np.frombuffer(self._data, np.uint8).ctypes.data)
        self._columns = {}
        self._shapes_read = {}

    @property
    def in_memory(self) -> bool:
        """Whether reading is from a copy in memory."""
        held = self._held
        if held is not None and held.complete and self._memory is not held.memory:
            self._look_at(held.memory)
        return held is not None and self._memory is held.memory

    @property
    def data(self) -> memoryview:
        """The file without its footer."""
        _ = self.in_memory
        return self._data

    @property
    def address(self) -> int:
        """Where `data` begins in memory, for who hands it to other libraries than Python's.

        Asked for after `data`, that is where that began, or its copy does.
        """
        return self._address

    def will_need(self, starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        """Ask the system to read these ranges of the file, int64 [n] each, soon.

        Returns before they are read.  Does nothing where the system has no such call.
        """
        advice = getattr(mmap, "MADV_WILLNEED", None)
        if advice is None or self.in_memory or self._map is None:
            return
        first = self._map.ctypes.data
        starts = np.clip(starts, 0, self._data_end) // mmap.PAGESIZE * mmap.PAGESIZE
        lengths = np.clip(ends, 0, self._data_end) - starts
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            if length > 0:
                advise(first + start, length, advice)

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self._data_end + FOOTER_BYTES

    def __len__(self) -> int:
        return self.header.num_samples

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column as a read-only array over the map; nothing is copied.

        Raises
        ------
        ShardCorruptError
            If the bytes do not match the column's checksum (once a process).
        """
        values = self._columns.get(name)
        if values is None:
            values = self.raw_column(name)
            if self._check and not self.column_is_intact(name):
                raise self._corrupt(f"the checksum of column {name!r} does not match")
            self._columns[name] = values
        return values

    def raw_column(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column without comparing its checksum."""
        stored = self.header.columns[name]
        flat = np.frombuffer(
            self._memory[stored.offset : stored.offset + stored.nbytes], np.dtype(stored.dtype)
        )
        return flat.reshape(stored.shape)

    def column_is_intact(self, name: str) -> bool:
        """Tell whether a column's bytes have the checksum in the header."""
        stored = self.header.columns[name]
        data = self._memory[stored.offset : stored.offset + stored.nbytes]
        return f"{checksum(data):016x}" == stored.checksum

    def unreadable(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which samples have a value, other than an image, that `value` cannot read.

        bool [num_samples].  Found out when first asked for, for all samples at once.
        """
        if self._unreadable is None:
            found = np.zeros(len(self), np.bool_)
            for name, field in self.header.schema.items():
                if f"{name}.bounds" in self._specs:
                    found |= self._unreadable_entries(name, field)
            self._unreadable = found
        return self._unreadable

    def _unreadable_entries(self, name: str, field: Field) -> Any:
        bounds, data = self.column(f"{name}.bounds"), self.column(f"{name}.data")
        starts, ends = bounds[:-1], bounds[1:]
        wrong = (starts > ends) | (ends > data.nbytes)
        if isinstance(field, ArrayField):
            # Products in floats: they are exact where a file can be so long, and do not overflow.
            shapes = self._shapes(name, field).astype(np.float64)
            absurd = np.maximum(shapes, 1).prod(axis=1) * data.itemsize >= 2.0**62
            wrong |= absurd | (shapes.prod(axis=1) * data.itemsize != (ends - starts))
        elif isinstance(field, StringField):
            wrong |= self._not_utf8(name, starts, np.where(wrong, starts, ends))
        return wrong

    def _not_utf8(self, name: str, starts: Any, ends: Any) -> Any:
        """Return which texts are no UTF-8: looked for one by one only where there is any."""
        data = self.column(f"{name}.data")
        inside = ends[ends < len(data)]
        cut = bool((data[inside.astype(np.int64)] & 0xC0 == 0x80).any())
        if not cut and _is_utf8(data):
            return np.zeros(len(starts), np.bool_)
        return np.array(
            [not _is_utf8(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)],
            np.bool_,
        )

    def key(self, index: int) -> str:
        """Return the key of a sample: what its source called it."""
        return bytes(self._entry("key", index)).decode("utf-8", "replace")

    def blob(self, field: str, index: int) -> memoryview:
        """Return the stored bytes of one image, a view of the map.

        Raises
        ------
        ShardCorruptError
            If they lie outside the file or do not match their checksum.
        """
        data = self.raw_blob(field, index)
        if self._check and checksum(data) != self.column(f"{field}.checksum")[index]:
            raise self._corrupt(
                f"the checksum of {field!r} of sample {index} (key {self.key(index)!r}) "
                "does not match"
            )
        return data

    def raw_blob(self, field: str, index: int) -> memoryview:
        """Return one image's bytes, with bounds checked but not the checksum."""
        start = int(self.column(f"{field}.offset")[index])
        end = start + int(self.column(f"{field}.length")[index])
        if end > self._data_end:
            raise self._corrupt(
                f"{field!r} of sample {index} (key {self.key(index)!r}) ends at byte {end}, "
                f"beyond the data's end at {self._data_end}"
            )
        return self._memory[start:end]

    def codec(self, field: str, index: int) -> str:
        """Return the name of the codec of one image."""
        number = int(self.column(f"{field}.codec")[index])
        if number >= len(CODECS):
            raise self._corrupt(f"{field!r} of sample {index} has unknown codec {number}")
        return CODECS[number]

    def value(self, name: str, index: int) -> Any:
        """Return one entry of a field that is no image.

        Returns
        -------
        numpy scalar, str, bytes or numpy.ndarray
            Arrays are read-only views of the map.
        """
        field = self.header.schema[name]
        if isinstance(field, ImageField):
            raise TypeError(f"{name!r} is an image field; use blob()")
        if isinstance(field, StringField):
            try:
                return bytes(self._entry(name, index)).decode()
            except UnicodeDecodeError as error:
                raise self._corrupt(f"{name!r} of sample {index} is not UTF-8") from error
        if isinstance(field, BytesField):
            return bytes(self._entry(name, index))
        if isinstance(field, ArrayField) and not field.fixed:
            shape = tuple(int(n) for n in self._shapes(name, field)[index])
            entry = self._entry(name, index)
            try:
                return np.frombuffer(entry, self._specs[f"{name}.data"].dtype).reshape(shape)
            except ValueError as error:
                raise self._corrupt(
                    f"{name!r} of sample {index} has {len(entry)} bytes, "
                    f"which do not make the shape {shape}"
                ) from error
        return self.column(name)[index]

    def _shapes(self, name: str, field: ArrayField) -> np.ndarray[Any, Any]:
        """Return the shapes of a field's arrays; absurd ones where they are not of the schema."""
        shapes = self._shapes_read.get(name)
        if shapes is None:
            shapes = self.column(f"{name}.shape")
            fixed = [at for at, length in enumerate(field.shape) if length is not None]
            wrong = (shapes[:, fixed] != [field.shape[at] for at in fixed]).any(axis=1)
            if wrong.any():
                shapes = np.where(wrong[:, None], np.iinfo(shapes.dtype).max, shapes)
            self._shapes_read[name] = shapes
        return shapes

    def _entry(self, name: str, index: int) -> memoryview:
        """Return one sample's bytes in a flat column."""
        bounds = self.column(f"{name}.bounds")
        start, end = int(bounds[index]), int(bounds[index + 1])
        stored = self.header.columns[f"{name}.data"]
        if not start <= end <= stored.nbytes:
            raise self._corrupt(f"{name!r} of sample {index} lies outside its column")
        self.column(f"{name}.data")
        return self._memory[stored.offset + start : stored.offset + end]


def _identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return which file it is, and what changes when it is written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
