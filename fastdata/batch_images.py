"""The stored images of a batch: sizes, bytes and pixels.

`BatchImages` is the common part of images in shards, `ShardImages`, and images in
single files (`fastdata.unpacked`).

Columns are read once per batch, for all samples together.  Each sample takes only a
slice of a memory map, a checksum and the decoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import check_header, decode_stored, decode_window
from fastdata.codecs.decoders import JpegDecoder
from fastdata.codecs.limits import MAX_PIXELS, check_pixels
from fastdata.errors import ImageError, ShardCorruptError
from fastdata.formats.gather import gather_rows
from fastdata.formats.layout import CODECS, checksum
from fastdata.formats.reader import ShardReader
from fastdata.native.library import CROP, OTHER_CODEC
from fastdata.schema import ImageField
from fastdata.shards import ShardRows, collect

__all__ = ["BatchImages", "ShardImages", "Window", "read_image"]

Indices: TypeAlias = NDArray[np.int64]
Window: TypeAlias = tuple[int, int, int, int]
"""Top, left, height and width, in pixels."""

_GAP_BYTES = 1 << 16
"""Ranges with smaller gaps are one request: reading the gap is cheaper than another request."""

_REFUSED = 256
"""Stands for the codec of a refused image; codecs have 8 bits."""

_LONGEST_SIDE = 2**31 - 1
"""The compiled library has 31 bits for it."""

_PAGE_BYTES = 1 << 12
"""Bytes of the smallest pages of memory."""


class BatchImages(ABC):
    """Images of one field, of some samples, not yet decoded; a `fastdata.engine.contracts.Images`.

    Subclasses have `heights`, `widths` and `lengths` (stored bytes), int64 [n] each, and `refused`,
    bool [n]: images with an invalid size, for which no memory may be allocated; reading one raises
    the error.
    """

    heights: Indices
    widths: Indices
    lengths: Indices
    refused: NDArray[np.bool_]

    def __init__(self, name: str, field: ImageField, decoder: JpegDecoder) -> None:
        self.name = name
        self.field = field
        self._decoder = decoder

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def max_pixels(self) -> int:
        """The limit of pixels, which also limits a JPEG's scans."""

    @abstractmethod
    def _stored(self, place: int) -> tuple[memoryview, str, int, int]:
        """Return one image's bytes, codec, height and width; `ShardCorruptError` if damaged."""

    @abstractmethod
    def _corrupt(self, place: int, error: ImageError) -> ShardCorruptError:
        """Return what to raise where an image cannot be decoded."""

    def read(self, place: int, out: Pixels | None = None) -> Pixels:
        """Return one image, uint8 [H, W, C], decoded into `out` where given.

        Without `out` it may be a read-only view of the file.  `ShardCorruptError`, with file,
        field, sample and key, if its bytes are damaged.
        """
        data, codec, height, width = self._stored(place)
        shape = height, width, self.field.channels
        try:
            return decode_stored(
                data,
                codec,
                shape,
                mask=self.field.mask,
                out=out,
                decoder=self._decoder,
                max_pixels=self.max_pixels,
            )
        except ImageError as error:
            raise self._corrupt(place, error) from error

    def window(self, place: int, window: Window, factor: int = 1) -> tuple[Pixels, int]:
        """Return the pixels of a window of one image, not empty and inside it.

        Parameters
        ----------
        factor : {1, 2, 4, 8}
            By how much a JPEG may be reduced while it is decoded.

        Returns
        -------
        pixels : ndarray of uint8, shape [h, w, C]
            Perhaps a strided or read-only view.  Reduced, they are those that
            the window touches.
        factor : int
            By how much they are reduced: `factor`, or 1.
        """
        data, codec, height, width = self._stored(place)
        if window[0] + window[2] > height or window[1] + window[3] > width:
            raise self._corrupt(place, ImageError(f"the columns say {height} x {width} pixels"))
        shape = height, width, self.field.channels
        try:
            return decode_window(
                data,
                codec,
                shape,
                window,
                mask=self.field.mask,
                decoder=self._decoder,
                factor=factor,
                max_pixels=self.max_pixels,
            )
        except ImageError as error:
            raise self._corrupt(place, error) from error

    def crops(self) -> NDArray[Any]:
        """Return the addresses of all images, with the whole images as windows.

        An array of `fastdata.native.library.CROP`, shape [n].  Images with invalid places have the
        codec `OTHER_CODEC`; `read` raises the error of each.  Addresses
        are valid while this object is alive.
        """
        crops = np.zeros(len(self), CROP)
        self._locate(crops)
        crops["size"] = self.lengths
        crops["factor"] = 1
        crops["height"] = crops["rows"] = self.heights
        crops["width"] = crops["columns"] = self.widths
        return crops

    @abstractmethod
    def _locate(self, crops: NDArray[Any]) -> None:
        """Fill in the addresses and codecs of `crops`."""

    @abstractmethod
    def verify(self, crops: NDArray[Any], first: int = 0) -> None:
        """Give damaged images the codec `OTHER_CODEC`.

        `crops` are those of the images from number `first` on.  It reads their bytes, if they have
        checksums that are still to be compared.
        """


class _Item(NamedTuple):
    """One image where it lies; `checksum` is 0 where it is not to be compared."""

    reader: ShardReader
    row: int
    start: int
    end: int
    height: int
    width: int
    codec: int
    checksum: int


class ShardImages(BatchImages):
    """Images in shards.

    `refused` are images whose columns have no size, more pixels than `ShardReader.max_pixels`, or,
    after `doubt`, another size than the image file.  They have a height and a width of 1.

    `located` is of `ShardSet.split`.  Thread-safe.
    """

    def __init__(
        self,
        name: str,
        field: ImageField,
        located: Sequence[ShardRows],
        decoder: JpegDecoder,
    ) -> None:
        super().__init__(name, field, decoder)
        self._located = located
        self._claimed = self._column("height"), self._column("width")
        self.lengths = self._column("length")
        self._offsets = self._column("offset")
        self._codecs = self._column("codec")
        heights, widths = self.heights, self.widths = self._claimed
        # No product, which might overflow.
        limit = np.minimum(self.max_pixels // np.maximum(widths, 1), _LONGEST_SIDE)
        self.refused = (heights > limit) | (heights < 1) | (widths < 1) | (widths > _LONGEST_SIDE)
        self._hide_refused()

    @property
    def max_pixels(self) -> int:
        given = self._located[0].reader.max_pixels
        return min(given or MAX_PIXELS, 2**62)  # a number that NumPy's columns can be compared with

    def _hide_refused(self) -> None:
        """Give refused images no size and no codec."""
        if self.refused.any():
            self.heights, self.widths = (np.where(self.refused, 1, n) for n in self._claimed)
            self._codecs = np.where(self.refused, _REFUSED, self._codecs)

    def doubt(self) -> bool:
        """Compare the sizes in all columns with those in the files; return whether any is refused.

        To be called before anything else of this object, where memory is taken by these sizes,
        and where they do not fit together.
        """
        for place, item in enumerate(self._items):
            if self.refused[place]:
                continue
            try:
                check_header(self._bytes(item), self._codec(place), self._shape(item))
            except (ImageError, ShardCorruptError):
                self.refused[place] = True
        self._hide_refused()
        self.__dict__.pop("_items", None)
        return bool(self.refused.any())

    def __len__(self) -> int:
        return len(self.heights)

    def _column(self, part: str, dtype: Any = np.int64) -> NDArray[Any]:
        """Return a column's entries for all samples, as a copy."""
        column = f"{self.name}.{part}"
        entries = collect(self._located, lambda reader, rows: reader.column(column)[rows])
        return entries.astype(dtype, copy=False)

    @property
    def all_raw(self) -> bool:
        """Whether all images are stored as pixels, not compressed."""
        return not self._codecs.any()

    @cached_property
    def _items(self) -> list[_Item]:
        """What reading takes of each sample, in Python's own numbers."""
        readers: list[Any] = [None] * len(self)
        rows = [0] * len(self)
        for reader, places, shard_rows in self._located:
            for place, row in zip(places.tolist(), shard_rows.tolist(), strict=True):
                readers[place], rows[place] = reader, row
        ends = self._offsets + self.lengths
        columns = (self._offsets, ends, *self._claimed, self._codecs, self._checksums)
        return list(map(_Item, readers, rows, *(column.tolist() for column in columns)))

    @cached_property
    def _checksums(self) -> NDArray[np.uint64]:
        """The checksum that each image should have; 0 where it is not to be compared."""
        unverified = collect(self._located, lambda reader, rows: reader.unverified(self.name)[rows])
        if not unverified.any():
            return np.zeros(len(self), np.uint64)
        checksums: NDArray[np.uint64] = np.where(
            unverified, self._column("checksum", np.uint64), np.uint64(0)
        )
        return checksums

    def _bytes(self, item: _Item) -> memoryview:
        """Return an image's stored bytes, a view of the map, checked as its shard asks."""
        reader, row, start, end = item[:4]
        expected = item.checksum
        if not reader.has_all:
            if reader.only_copies:
                return reader.blob(self.name, row)
            reader.hold(np.array([row]))
            due = reader.unverified(self.name)[row]
            expected = int(reader.column(f"{self.name}.checksum")[row]) if due else 0
        data = reader.data[start:end]
        intact = not expected or checksum(data) == expected
        if start < 0 or len(data) != end - start or not intact:
            return reader.blob(self.name, row)  # raises the error
        if expected:
            reader.unverified(self.name)[row] = False
        return data

    def _shape(self, item: _Item) -> tuple[int, int, int]:
        return item.height, item.width, self.field.channels

    def _stored(self, place: int) -> tuple[memoryview, str, int, int]:
        item = self._items[place]
        known = item.codec < len(CODECS)
        codec = CODECS[item.codec] if known else self._codec(place)
        return self._bytes(item), codec, item.height, item.width

    def _codec(self, place: int) -> str:
        item = self._items[place]
        if item.codec == _REFUSED:
            shape = self._shape(item)
            try:
                check_header(self._bytes(item), item.reader.codec(self.name, item.row), shape)
                check_pixels(*shape[:2], self.max_pixels)
            except ImageError as error:
                raise self._corrupt(place, error) from error
            raise self._corrupt(place, ImageError(f"the columns say {shape}"))
        if item.codec >= len(CODECS):
            return item.reader.codec(self.name, item.row)  # raises the error
        return CODECS[item.codec]

    def _corrupt(self, place: int, error: ImageError) -> ShardCorruptError:
        reader, row = self._items[place][:2]
        return _corrupt(reader, self.name, row, error)

    def _locate(self, crops: NDArray[Any]) -> None:
        for reader, places, _ in self._located:
            starts, lengths = self._offsets[places], self.lengths[places]
            # The library trusts addresses.  Sums of values from a file might overflow.
            outside = (starts < 0) | (lengths < 0) | (starts > len(reader.data) - lengths)
            crops["data"][places] = reader.address + np.where(outside, 0, starts)
            crops["codec"][places] = np.where(outside, OTHER_CODEC, self._codecs[places])

    def _due(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which images from number `first` on have unchecked checksums, bool [count].

        Waits until the images are in their files.
        """
        some = slice(first, first + count)
        if all(reader.has_all for reader, _, _ in self._located):
            due: NDArray[np.bool_] = self._checksums[some] != 0
            return due
        parts = []
        for reader, places, rows in self._located:
            low, high = places.searchsorted((some.start, some.stop))
            parts.append((reader, places[low:high] - first, rows[low:high]))
            reader.ask(rows[low:high])
        due = np.zeros(count, np.bool_)
        for reader, places, rows in parts:
            reader.hold(rows)
            due[places] = reader.unverified(self.name)[rows]
        return due

    def verify(self, crops: NDArray[Any], first: int = 0) -> None:
        for at in np.flatnonzero(self._due(first, len(crops))).tolist():
            try:
                self._bytes(self._items[first + at])
            except ShardCorruptError:
                crops["codec"][at] = OTHER_CODEC

    def gather(self, out: Pixels, first: int = 0) -> list[int]:
        """Copy raw images of one size, from number `first` on, to `out`, uint8 [m, H, W, C].

        Returns the places of damaged images, whose part of `out` is undefined; `read` raises the
        error of each.
        """
        length = out.shape[1] * out.shape[2] * out.shape[3]
        some = slice(first, first + len(out))
        bad = np.flatnonzero((self.lengths[some] != length) | self.refused[some])
        rows = out.reshape(len(out), length)
        # If one must be compared, all are: rows are hashed in one call.
        compared = self._due(first, len(out)).any()
        checksums = self._column("checksum", np.uint64) if compared else None
        whole = len(self._located) == 1
        for reader, all_places, all_rows in self._located:
            low, high = all_places.searchsorted((some.start, some.stop))
            places, shard_rows = all_places[low:high], all_rows[low:high]
            if not len(places):
                continue
            target = rows if whole else np.empty((len(places), length), np.uint8)
            damaged = gather_rows(
                np.frombuffer(reader.data, np.uint8),
                self._offsets[places],
                length,
                target,
                None if checksums is None else checksums[places],
            )
            if not whole:
                rows[places - first] = target
            if checksums is not None:
                reader.unverified(self.name)[np.delete(shard_rows, damaged)] = False
            bad = np.concatenate([bad, places[damaged] - first])
        return sorted(set(bad.tolist()))

    def read_ahead(self) -> None:
        """Ask the system to read the stored bytes of all images soon; returns at once.

        Without, each page of a cold file is read when it is first touched, 4 kB
        at a time, one after the other: 77 MB/s on a disk that gives 1,260 MB/s so.
        """
        for reader, places, rows in self._located:
            reader.ask(rows)
            starts = self._offsets[places]
            order = starts.argsort()
            starts, ends = starts[order], (starts + self.lengths[places])[order]
            # A range begins where no range before it comes near.
            begins = np.flatnonzero(
                np.concatenate(([True], starts[1:] > np.maximum.accumulate(ends)[:-1] + _GAP_BYTES))
            )
            firsts = starts[begins]
            lasts = np.maximum.reduceat(ends, begins)
            reader.will_need(firsts, lasts)

    def touch(self) -> int:
        """Wait until the stored bytes of all images are in memory.

        Returns the sum of one byte of each page, so that they are read indeed.
        """
        total = 0
        for reader, places, rows in self._located:
            reader.hold(rows)
            data = np.frombuffer(reader.data, np.uint8)
            starts, lengths = self._offsets[places].tolist(), self.lengths[places].tolist()
            for start, length in zip(starts, lengths, strict=True):
                total += int(data[max(start, 0) : max(start + length, 0) : _PAGE_BYTES].sum())
        return total


def read_image(reader: ShardReader, name: str, field: ImageField, row: int) -> Pixels:
    """Return one image of a shard, uint8 [H, W, C], perhaps a read-only view of the file.

    For a single image, faster than `ShardImages`; its checksum is compared each time.
    """
    height, width = reader.size(name, row)
    shape = height, width, field.channels
    try:
        data = reader.blob(name, row)
        codec = reader.codec(name, row)
        limit = reader.max_pixels or MAX_PIXELS
        if height * width > limit:
            check_header(data, codec, shape)
            check_pixels(height, width, limit)
        return decode_stored(data, codec, shape, mask=field.mask, max_pixels=limit)
    except ImageError as error:
        raise _corrupt(reader, name, row, error) from error


def _corrupt(reader: ShardReader, name: str, row: int, error: ImageError) -> ShardCorruptError:
    return ShardCorruptError(
        f"{reader.place}: {name!r} of sample {row} (key {reader.key(row)!r}): {error}"
    )
