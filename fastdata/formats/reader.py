"""Read a sealed shard: a memory map, a header, and columns over the map.

`ShardReader` needs neither LMDB nor HDF5: the header has the file offset of
every array and the columns have that of every blob.  Nothing in the file is
trusted: every offset is checked against the file before it is followed.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import FastdataError, ShardCorruptError
from fastdata.formats.layout import (
    CODECS,
    FOOTER_BYTES,
    Header,
    checksum,
    column_specs,
    content_digest,
    unpack_footer,
)
from fastdata.formats.mapped import MappedFile
from fastdata.printable import printable
from fastdata.schema import ArrayField, BytesField, Field, ImageField, StringField

__all__ = [
    "CachedFile",
    "Damage",
    "ImageSupply",
    "ShardReader",
    "find_damage",
    "mean_image_bytes",
    "spread_samples",
]

_TEXT_BLOCK_BYTES = 1 << 24


class CachedFile(Protocol):
    """A copy of a file in memory, which may not be filled yet."""

    @property
    def complete(self) -> bool:
        """Whether all that will be read is there."""

    @property
    def memory(self) -> memoryview:
        """The copy, of the file's length; what will not be read may be missing."""


class ImageSupply(Protocol):
    """What has the images of a shard come into its file, where they are not all there."""

    place: str
    """What the shard is called in messages."""

    def hold(
        self, rows: NDArray[np.int64], tell_new: Callable[[NDArray[np.int64]], object]
    ) -> None:
        """Wait until the images of some rows are there.

        `tell_new` is told those that have come since they were held before.
        """

    def unchanged(self, row: int, read: Callable[[], bytes]) -> bytes:
        """Return what `read` does of the images of a row, which stayed there meanwhile."""

    def ask(self, rows: NDArray[np.int64]) -> None:
        """Have the images of some rows come soon, where they are not there."""

    def replace(self, row: int) -> bool:
        """Have the images of a row come anew, which are damaged; False if that was done before."""

    @property
    def watched(self) -> bool:
        """Whether somebody looks, afterwards, that what this thread reads has stayed there."""


class ShardReader:
    """One sealed shard, mapped into memory, read-only; raises what `fastdata.open` does.

    With `check`, checksums are compared: of a column when it is first used, of an image each time
    `blob` reads it (3 µs for a JPEG of 30 kB), and when a loader first does.  Without, only bounds
    are checked; `verify` still finds all damage.  `cached` is a copy of the file, read instead of
    it as soon as it is complete; `max_pixels` the limit for decoding images, by default that of
    packing. `header_range` are the first byte of the header in the file, and the one behind its
    last.  Where not all images are in the file, a `supply` has them come.

    Safe for any number of threads.  No file stays open.  The map survives fork; to send a shard to
    another process by pickle, send its path.  As with any memory map, the file must not be cut
    short while it is open: the process then ends by SIGBUS, after naming the file
    (`fastdata.formats.mapped`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        check: bool = True,
        cached: CachedFile | None = None,
        max_pixels: int | None = None,
        supply: ImageSupply | None = None,
    ) -> None:
        self.path = Path(path)
        self.place = str(self.path) if supply is None else supply.place
        """What it is called in messages."""
        self._supply = supply
        self.max_pixels = max_pixels
        self._check = check
        self._columns: dict[str, NDArray[Any]] = {}
        self._shapes: dict[str, NDArray[Any]] = {}
        self._unverified: dict[str, NDArray[np.bool_]] = {}
        self._unreadable: NDArray[np.bool_] | None = None
        self._file: MappedFile | None = None
        self._cached = cached
        self._header_checksum = 0
        self.header_range = 0, 0
        memory = cached.memory if cached is not None and cached.complete else self._mapped()
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
        self._read_from(memory)
        for name, column in self.header.columns.items():
            if column.offset + column.nbytes > self._data_end:
                raise self._corrupt(f"column {name!r} ends beyond the end of the file")

    # -- where the bytes are ------------------------------------------------------

    def _mapped(self) -> memoryview:
        if self._file is None:
            self._file = MappedFile(self.path)
        return self._file.array.data

    def _read_from(self, memory: memoryview) -> None:
        """Read from here from now on; views of where it was before stay valid."""
        self._memory = memory
        self._data = memory[: self._data_end]
        self._address = int(np.frombuffer(self._data, np.uint8).ctypes.data)
        self._columns = {}
        self._shapes = {}

    @property
    def in_memory(self) -> bool:
        """Whether reading is from a copy in memory."""
        cached = self._cached
        if cached is not None and cached.complete and self._memory is not cached.memory:
            self._read_from(cached.memory)
        return cached is not None and self._memory is cached.memory

    def release_cached(self) -> None:
        """Read from the file again, not from a copy of it; no thread may be reading."""
        if self._cached is not None:
            self._cached = None
            self._read_from(self._mapped())

    def check_unchanged(self) -> None:
        """Check that the file is still as it was when it was opened.

        Where it has been written to, its header is compared (`ShardCorruptError` if it differs),
        and whatever is read from now on is compared with its checksum again.
        """
        if (
            self._supply is None  # which writes to it all the time
            and self._file is not None
            and not self.in_memory
            and self._file.was_written_to(slice(*self.header_range), self._header_checksum)
        ):
            self._columns, self._unverified = {}, {}

    def _corrupt(self, what: str) -> ShardCorruptError:
        self.check_unchanged()  # which says it better where the file has just been written over
        return ShardCorruptError(
            f"{self.place}: {what}. The file is damaged; restore it from a copy or pack it again "
            f"(`fastdata verify {self.place}` lists all damage)."
        )

    @property
    def data(self) -> memoryview:
        """The file without its footer."""
        _ = self.in_memory
        return self._data

    @property
    def address(self) -> int:
        """Where `data` begins in memory, for libraries other than Python's.

        Asked for after `data`, that is where that began, or its copy does.
        """
        return self._address

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self._data_end + FOOTER_BYTES

    @property
    def has_all(self) -> bool:
        """Whether all images are in the file, and stay there."""
        return self._supply is None

    @property
    def only_copies(self) -> bool:
        """Whether nobody would notice that an image was removed while it is read from the file."""
        return self._supply is not None and not self._supply.watched

    def hold(self, rows: NDArray[np.int64]) -> None:
        """Wait until the images of some rows are in the file."""
        if self._supply is not None:
            self._supply.hold(rows, self._doubt)

    def _doubt(self, rows: NDArray[np.int64]) -> None:
        """Have the images of some rows compared with their checksums again."""
        for name in self.header.schema.images:
            self.unverified(name)[rows] = True

    def ask(self, rows: NDArray[np.int64]) -> None:
        """Have the images of some rows come into the file soon, where they are not there."""
        if self._supply is not None:
            self._supply.ask(rows)

    def will_need(self, starts: NDArray[Any], ends: NDArray[Any]) -> None:
        """Ask the system to read these ranges of the file, int64 [n] each, soon."""
        if not self.in_memory and self._file is not None:
            self._file.read_soon(starts, ends)

    # -- columns ------------------------------------------------------------------

    def __len__(self) -> int:
        return self.header.num_samples

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as a read-only array over the map; nothing is copied.

        Its checksum is compared once a process; `ShardCorruptError` if it does not match.
        """
        values = self._columns.get(name)
        if values is None:
            values = self.raw_column(name)
            if self._check and not self.column_is_intact(name):
                raise self._corrupt(f"the checksum of column {name!r} does not match")
            self._columns[name] = values
        return values

    def raw_column(self, name: str) -> NDArray[Any]:
        """Return a column without comparing its checksum."""
        stored = self.header.columns[name]
        flat = np.frombuffer(self._column_bytes(name), np.dtype(stored.dtype))
        return flat.reshape(stored.shape)

    def column_is_intact(self, name: str) -> bool:
        """Tell whether a column's bytes have the checksum in the header."""
        return f"{checksum(self._column_bytes(name)):016x}" == self.header.columns[name].checksum

    def _column_bytes(self, name: str) -> memoryview:
        stored = self.header.columns[name]
        return self._memory[stored.offset : stored.offset + stored.nbytes]

    # -- images -------------------------------------------------------------------

    def blob(self, field: str, index: int) -> memoryview:
        """Return the stored bytes of one image, a view of the map.

        `ShardCorruptError` if they lie outside the file or do not match their checksum.
        """
        data = self.raw_blob(field, index)
        expected = self.column(f"{field}.checksum")[index]
        if self._supply is not None and checksum(data) != expected and self._supply.replace(index):
            return self.blob(field, index)
        if (self._check or self._supply is not None) and checksum(data) != expected:
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
        if self._supply is not None:  # a copy: what it is of may be removed
            return memoryview(self._supply.unchanged(index, self._memory[start:end].tobytes))
        return self._memory[start:end]

    def codec(self, field: str, index: int) -> str:
        """Return the name of the codec of one image."""
        number = int(self.column(f"{field}.codec")[index])
        if number >= len(CODECS):
            raise self._corrupt(f"{field!r} of sample {index} has unknown codec {number}")
        return CODECS[number]

    def size(self, field: str, index: int) -> tuple[int, int]:
        """Return height and width of one image."""
        height, width = (int(self.column(f"{field}.{side}")[index]) for side in ("height", "width"))
        if not height or not width:
            raise self._corrupt(f"{field!r} of sample {index} has {width} x {height} pixels")
        return height, width

    def unverified(self, field: str) -> NDArray[np.bool_]:
        """Return which images of a field are still to be compared with their checksums.

        bool [num_samples]; the caller sets to False what it has compared: each is
        compared once a process, as columns are.  All False where nothing is compared.
        """
        unverified = self._unverified.get(field)
        if unverified is None:
            # What has come by a network is always compared.
            unverified = np.full(len(self), self._check or self._supply is not None)
            unverified = self._unverified.setdefault(field, unverified)
        return unverified

    # -- other values -------------------------------------------------------------

    def key(self, index: int) -> str:
        """Return the key of a sample: what its source called it."""
        return bytes(self._entry("key", index)).decode("utf-8", "replace")

    def value(self, name: str, index: int) -> Any:
        """Return one entry of a field that is no image; arrays are read-only views of the map."""
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
            shape = tuple(int(n) for n in self._shapes_of(name, field)[index])
            entry = self._entry(name, index)
            try:
                return np.frombuffer(entry, self._specs[f"{name}.data"].dtype).reshape(shape)
            except ValueError as error:
                raise self._corrupt(
                    f"{name!r} of sample {index} has {len(entry)} bytes, "
                    f"which do not make the shape {shape}"
                ) from error
        return self.column(name)[index]

    def _entry(self, name: str, index: int) -> memoryview:
        """Return one sample's bytes in a flat column."""
        bounds = self.column(f"{name}.bounds")
        start, end = int(bounds[index]), int(bounds[index + 1])
        stored = self.header.columns[f"{name}.data"]
        if not start <= end <= stored.nbytes:
            raise self._corrupt(f"{name!r} of sample {index} lies outside its column")
        self.column(f"{name}.data")
        return self._memory[stored.offset + start : stored.offset + end]

    def _shapes_of(self, name: str, field: ArrayField) -> NDArray[Any]:
        """Return the shapes of a field's arrays; absurd ones where they are not of the schema."""
        shapes = self._shapes.get(name)
        if shapes is None:
            shapes = self.column(f"{name}.shape")
            fixed = [at for at, length in enumerate(field.shape) if length is not None]
            wrong = (shapes[:, fixed] != [field.shape[at] for at in fixed]).any(axis=1)
            if wrong.any():
                shapes = np.where(wrong[:, None], np.iinfo(shapes.dtype).max, shapes)
            self._shapes[name] = shapes
        return shapes

    def unreadable(self) -> NDArray[np.bool_]:
        """Return which samples have a value, other than an image, that `value` cannot read.

        bool [num_samples].  Computed at the first call, for all samples at once.
        """
        if self._unreadable is None:
            unreadable = np.zeros(len(self), np.bool_)
            for name, field in self.header.schema.items():
                if f"{name}.bounds" in self._specs:
                    unreadable |= self._unreadable_entries(name, field)
            self._unreadable = unreadable
        return self._unreadable

    def _unreadable_entries(self, name: str, field: Field) -> Any:
        bounds, data = self.column(f"{name}.bounds"), self.column(f"{name}.data")
        starts, ends = bounds[:-1], bounds[1:]
        wrong = (starts > ends) | (ends > data.nbytes)
        if isinstance(field, ArrayField):
            # Products in floats: they are exact where a file can be so long, and do not overflow.
            shapes = self._shapes_of(name, field).astype(np.float64)
            absurd = np.maximum(shapes, 1).prod(axis=1) * data.itemsize >= 2.0**62
            wrong |= absurd | (shapes.prod(axis=1) * data.itemsize != (ends - starts))
        elif isinstance(field, StringField):
            wrong |= _not_utf8(data, starts, np.where(wrong, starts, ends))
        return wrong


def _not_utf8(data: NDArray[np.uint8], starts: NDArray[Any], ends: NDArray[Any]) -> Any:
    """Return which texts are no UTF-8: looked for one by one only where there is any."""
    inside = ends[ends < len(data)]
    cut = bool((data[inside.astype(np.int64)] & 0xC0 == 0x80).any())
    if not cut and _is_utf8(data):
        return np.zeros(len(starts), np.bool_)
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([not _is_utf8(data[start:end]) for start, end in bounds], np.bool_)


def _is_utf8(data: NDArray[np.uint8]) -> bool:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(data), _TEXT_BLOCK_BYTES):
            decode(data[start : start + _TEXT_BLOCK_BYTES].tobytes())
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


_SOME_SAMPLES = 32


def spread_samples(count: int) -> NDArray[np.int64]:
    """Return some of so many samples, from all over, by which the mean size of all is told."""
    return np.linspace(0, count - 1, min(count, _SOME_SAMPLES)).astype(np.int64)


def mean_image_bytes(located: Iterable[tuple[ShardReader, NDArray[np.int64]]]) -> float:
    """Return the stored bytes that the images of a sample have on average.

    Of the samples of these rows of these shards; 0 without any.
    """
    total, count = 0, 0
    for shard, rows in located:
        count += len(rows)
        for name in shard.header.schema.images:
            total += int(shard.column(f"{name}.length")[rows].sum())
    return total / max(1, count)


class Damage(NamedTuple):
    """One thing that is wrong with a file.

    `place` is a column, or a field of a sample; empty where it is the file as a whole.
    """

    path: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(printable(part) for part in self if part)


def find_damage(
    shard: ShardReader, count_sample: Callable[[], object] = lambda: None
) -> Iterator[Damage]:
    """Compare every checksum of a shard, and the content digest.

    Damaged columns come first; images are then looked at as far as the columns that locate
    them are sound.  `count_sample` is called for each image of the first field.
    """
    header, path = shard.header, shard.path
    broken = set()
    for name in header.columns:
        if not shard.column_is_intact(name):
            broken.add(name)
            yield Damage(path, f"column {name!r}", "the checksum does not match")
    for number, field in enumerate(header.schema.images):
        parts = {f"{field}.{part}" for part in ("offset", "length", "checksum", "codec")}
        if parts & broken:
            yield Damage(
                path, f"field {field!r}", "its images cannot be checked: a column is damaged"
            )
            continue
        checksums = shard.column(f"{field}.checksum")
        codec_numbers = shard.column(f"{field}.codec")
        for index in range(len(shard)):
            if number == 0:
                count_sample()
            place = f"{field!r} of sample {index}"
            try:
                if "key.data" not in broken and "key.bounds" not in broken:
                    place += f" (key {shard.key(index)!r})"
                if checksum(shard.raw_blob(field, index)) != checksums[index]:
                    yield Damage(path, place, "the checksum does not match")
                elif codec_numbers[index] >= len(CODECS):
                    yield Damage(path, place, f"unknown codec number {codec_numbers[index]}")
            except FastdataError as error:
                yield Damage(path, place, str(error))
    if not broken and content_digest(header.schema, [shard.raw_column]) != header.digest:
        yield Damage(path, "header", "the content digest is not that of the columns")
