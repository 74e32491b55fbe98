"""The files of a few samples, read once and described by their headers.

All fields of a sample are checked together: if one of its files is not an image, or a mask has
another size than its image, a pack would reject the sample.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.batch_images import BatchImages
from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder
from fastdata.codecs.image_header import ImageHeader, read_image_header, read_image_header_of
from fastdata.codecs.lossy_masks import without_loss
from fastdata.converters.base import reason_of
from fastdata.converters.packing.boxes import check_masks
from fastdata.errors import FileCorruptError, ImageError, is_of_machine
from fastdata.formats.layout import CODECS
from fastdata.native.library import OTHER_CODEC
from fastdata.regular_files import open_regular, read_regular
from fastdata.unpacked.listing import Listing, bytes_of

__all__ = ["FileBatch", "FileImages", "SizeTable"]

Indices: TypeAlias = NDArray[np.int64]

_NEIGHBOURS = 100
"""Samples behind one that cannot be read which are tried for a size to plan with in its stead."""


class _Files(NamedTuple):
    """The files of a sample that can be read, by image field."""

    data: dict[str, bytes]
    headers: dict[str, ImageHeader]


class FileBatch:
    """Some samples of a listing, read lazily; `names` are the image fields to read.

    For one thread at a time.
    """

    def __init__(self, listing: Listing, positions: Indices, names: Collection[str]) -> None:
        self.listing = listing
        self.positions = positions
        self.names = names

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def values(self) -> list[dict[str, Any] | FileCorruptError]:
        """The values of each sample, with files of images; or the reason of its reject."""
        return [self._values(position) for position in self.positions.tolist()]

    def _values(self, position: int) -> dict[str, Any] | FileCorruptError:
        try:
            return dict(zip(self.listing.schema, self.listing.values(position), strict=True))
        except FileCorruptError as error:
            return error

    @cached_property
    def files(self) -> list[_Files | FileCorruptError]:
        """The files of each sample, or the reason of its reject."""
        pairs = zip(self.positions.tolist(), self.values, strict=True)
        return [self._files(position, values) for position, values in pairs]

    def _files(
        self, position: int, values: dict[str, Any] | FileCorruptError
    ) -> _Files | FileCorruptError:
        if isinstance(values, FileCorruptError):
            return values
        data, headers = {}, {}
        name, path = "", Path()
        try:
            for number, (name, field) in enumerate(self.listing.schema.images.items()):
                if name not in self.names:
                    continue
                path = values[name]
                data[name] = self._read(number * len(self.listing) + position, path)
                if field.mask:
                    data[name] = without_loss(data[name], self.listing.max_pixels)
                headers[name] = read_image_header(
                    data[name], field.channels, mask=field.mask, max_pixels=self.listing.max_pixels
                )
            check_masks(self.listing.schema.items(), headers)
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte, too
            if is_of_machine(error):
                raise
            return _corrupt(position, name, path, reason_of(error))
        return _Files(data, headers)

    def _read(self, number: int, path: Path | bytes) -> bytes:
        if isinstance(path, bytes):
            return path
        cached = self.listing.cached
        if cached is None:
            return read_regular(path)
        data = cached.get(number)
        if data is None:
            data = read_regular(path)
            cached.put(number, data)
        return data

    @cached_property
    def sizes(self) -> dict[str, NDArray[np.int64]]:
        """Heights and widths of each image field, [2, n].

        An unreadable sample has the size of a later one, so that the others can be planned.
        """
        sizes = {name: np.ones((2, len(self)), np.int64) for name in self.names}
        for place, files in enumerate(self.files):
            if isinstance(files, FileCorruptError):
                size = self._size_behind(int(self.positions[place]))
                for of_field in sizes.values():
                    of_field[:, place] = size
            else:
                for name, header in files.headers.items():
                    sizes[name][:, place] = header.height, header.width
        return sizes

    def _size_behind(self, position: int) -> tuple[int, int]:
        """Return the image size of the first of the next samples that can be read."""
        for step in range(1, _NEIGHBOURS + 1):
            other = (position + step) % len(self.listing)
            files = self._files(other, self._values(other))
            if not isinstance(files, FileCorruptError):
                first = next(iter(files.headers.values()))
                return first.height, first.width
        return 1, 1


class SizeTable:
    """Sizes of images by the headers of their files; each header is read once.

    `names` are the image fields to read.  Thread-safe: two threads may read the same header.
    """

    def __init__(self, listing: Listing, names: Collection[str]) -> None:
        self._listing = listing
        self._fields = {n: field for n, field in listing.schema.images.items() if n in names}
        self._tables: dict[str, NDArray[np.int32]] = {}
        """Height, width and orientation of each image field, [n, 3]; zeros before reading."""

    def sizes(self, name: str, positions: Indices) -> NDArray[np.int64]:
        """Return height, width and orientation of a field's images, upright, [n, 3].

        A sample that cannot be read has the size that `FileBatch` gives it.
        """
        if not self._tables:
            count = len(self._listing)
            self._tables = {name: np.zeros((count, 3), np.int32) for name in self._fields}
        table = self._tables[name]
        for position in positions[table[positions, 0] == 0].tolist():
            self._fill(position)
        return table[positions].astype(np.int64)

    def _fill(self, position: int) -> None:
        listing = self._listing
        rows: dict[str, tuple[int, ...]]
        try:
            values = dict(zip(listing.schema, listing.values(position), strict=True))
            headers = {
                name: (read_image_header if type(values[name]) is bytes else read_image_header_of)(
                    values[name], field.channels, mask=field.mask, max_pixels=listing.max_pixels
                )
                for name, field in self._fields.items()
            }
            check_masks(listing.schema.items(), headers)
            rows = {name: header[1:] for name, header in headers.items()}
        except (OSError, ValueError):
            sizes = FileBatch(listing, np.array([position]), self._fields).sizes
            rows = {name: (*size[:, 0].tolist(), 1) for name, size in sizes.items()}
        for name, row in rows.items():
            self._tables[name][position] = row


def _corrupt(position: int, name: str, path: Path | bytes, reason: str) -> FileCorruptError:
    place = f"{len(path):,} bytes in memory" if isinstance(path, bytes) else path
    return FileCorruptError(f"{place}: {name!r} of sample {position}: {reason}")


class FileImages(BatchImages):
    """Images in files of their own, of the samples of a batch.

    None is `refused`: one that has no size of its own has that of another.
    """

    all_raw = False

    def __init__(self, name: str, batch: FileBatch, decoder: JpegDecoder) -> None:
        super().__init__(name, batch.listing.schema.images[name], decoder)
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def max_pixels(self) -> int:
        """The limit of the listing."""
        return self._batch.listing.max_pixels

    @property
    def heights(self) -> Indices:  # type: ignore[override]
        """Pixels of the upright images, int64 [n]."""
        heights: Indices = self._batch.sizes[self.name][0]
        return heights

    @property
    def widths(self) -> Indices:  # type: ignore[override]
        """Pixels of the upright images, int64 [n]."""
        widths: Indices = self._batch.sizes[self.name][1]
        return widths

    @property
    def lengths(self) -> Indices:  # type: ignore[override]
        """Bytes of the files, int64 [n]; 0 for unreadable ones."""
        if "files" not in self._batch.__dict__:  # not read yet
            return np.array([bytes_of(file) for file in self._paths()], np.int64)
        lengths = [
            0 if isinstance(files, FileCorruptError) else len(files.data[self.name])
            for files in self._batch.files
        ]
        return np.array(lengths, np.int64)

    @property
    def refused(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """All False, bool [n]."""
        return np.zeros(len(self), np.bool_)

    def doubt(self) -> bool:
        """Return whether any is refused; sizes are those of the headers already."""
        return False

    def _paths(self) -> list[Path | bytes]:
        """Return the files of samples that have one."""
        return [values[self.name] for values in self._batch.values if isinstance(values, dict)]

    def _stored(self, place: int) -> tuple[memoryview, str, int, int]:
        files = self._batch.files[place]
        if isinstance(files, FileCorruptError):
            raise files
        header = files.headers[self.name]
        return memoryview(files.data[self.name]), header.codec, header.height, header.width

    def _corrupt(self, place: int, error: ImageError) -> FileCorruptError:
        values = self._batch.values[place]
        assert isinstance(values, dict), "it could be read"
        position = int(self._batch.positions[place])
        return _corrupt(position, self.name, values[self.name], str(error))

    def gather(self, out: Pixels, first: int = 0) -> list[int]:
        raise AssertionError("files are never raw")

    def _locate(self, crops: NDArray[Any]) -> None:
        codecs, addresses = [OTHER_CODEC] * len(self), [0] * len(self)
        for place, files in enumerate(self._batch.files):
            if not isinstance(files, FileCorruptError):
                codecs[place] = CODECS.index(files.headers[self.name].codec)
                data = np.frombuffer(files.data[self.name], np.uint8)
                addresses[place] = data.__array_interface__["data"][0]
        crops["codec"], crops["data"] = codecs, addresses

    def verify(self, crops: NDArray[Any], first: int = 0) -> None:
        """Do nothing: files have no checksums."""

    def read_ahead(self) -> None:
        """Ask the system to read all files soon; returns when they have been looked up."""
        for path in self._paths():
            if isinstance(path, bytes):
                continue
            try:
                opened = open_regular(path)
            except (OSError, ValueError):
                continue  # raised when it is read
            with contextlib.suppress(OSError, AttributeError):
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_WILLNEED)
            os.close(opened)

    def touch(self) -> int:
        """Read all files; return how many could be."""
        return sum(not isinstance(files, FileCorruptError) for files in self._batch.files)
