"""The files of a few samples: read once, whole, and described by their headers.

All fields of a sample are looked at together: where one of its files is no image, or a mask is
not as large as its image, the sample is one that a pack would reject.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.codecs.decoders import JpegDecoder
from fastdata.codecs.encode import decode_stored
from fastdata.codecs.kept import Kept, read_kept, read_kept_of
from fastdata.codecs.window import decode_window
from fastdata.converters.base import reason_of
from fastdata.converters.reading.locations import stat_of
from fastdata.errors import FileCorruptError, ImageError
from fastdata.formats.layout import CODECS
from fastdata.native.crops import CROP, OTHER_CODEC
from fastdata.regular_files import open_regular, read_regular
from fastdata.schema import Schema
from fastdata.unpacked.listing import Listing

__all__ = ["FileBatch", "FileImages", "Headers"]

Indices: TypeAlias = NDArray[np.int64]
Window: TypeAlias = tuple[int, int, int, int]
_T = TypeVar("_T")

_NEIGHBOURS = 100
"""Samples behind one that cannot be read which are tried for a size to plan with in its stead."""


class _Files(NamedTuple):
    """The files of a sample that can be read, by image field."""

    data: dict[str, bytes]
    kept: dict[str, Kept]


class FileBatch:
    """Some samples, of which nothing is read before it is asked for, and then once.

    Parameters
    ----------
    listing : Listing
    positions : ndarray of int64, shape [n]
    held : fastdata.cache.files.CachedFiles, optional
        Where files are that were read before: those of the first image field, then others'.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(self, listing: Listing, positions: Indices, held: Any = None) -> None:
        self.listing = listing
        self.positions = positions
        self._held = held

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def values(self) -> list[dict[str, Any] | FileCorruptError]:
        """Of each sample its values, of images the paths; or why a pack would reject it."""
        return [self._values(position) for position in self.positions.tolist()]

    def _values(self, position: int) -> dict[str, Any] | FileCorruptError:
        try:
            return dict(zip(self.listing.schema, self.listing.values(position), strict=True))
        except FileCorruptError as error:
            return error

    @cached_property
    def files(self) -> list[_Files | FileCorruptError]:
        """Of each sample its files, or why a pack would reject it."""
        found = zip(self.positions.tolist(), self.values, strict=True)
        return [self._files(position, values) for position, values in found]

    def _files(
        self, position: int, values: dict[str, Any] | FileCorruptError
    ) -> _Files | FileCorruptError:
        if isinstance(values, FileCorruptError):
            return values
        data, kept = {}, {}
        name, path = "", Path()
        try:
            for name, field in self.listing.schema.images.items():
                path = values[name]
                data[name] = self._read(position, name, path)
                kept[name] = read_kept(
                    data[name], field.channels, mask=field.mask, max_pixels=self.listing.max_pixels
                )
            check_masks(self.listing.schema, kept)
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte, too
            return self.corrupt(position, name, path, reason_of(error))
        return _Files(data, kept)

    def _read(self, position: int, name: str, path: Path) -> bytes:
        if self._held is None:
            return read_regular(path)
        number = list(self.listing.schema.images).index(name) * len(self.listing) + position
        data: bytes | None = self._held.get(number)
        if data is None:
            data = read_regular(path)
            self._held.put(number, data)
        return data

    def corrupt(self, position: int, name: str, path: Path, reason: str) -> FileCorruptError:
        """Return the error of a file that cannot be read."""
        return FileCorruptError(f"{path}: {name!r} of sample {position}: {reason}")

    @cached_property
    def sizes(self) -> dict[str, NDArray[np.int64]]:
        """Of each image field, heights and widths, [2, n].

        A sample that cannot be read has the size of one behind it, so that others can be planned.
        """
        sizes = {name: np.ones((2, len(self)), np.int64) for name in self.listing.schema.images}
        for place, files in enumerate(self.files):
            if isinstance(files, FileCorruptError):
                found = self._neighbour(int(self.positions[place]))
            else:
                found = {name: (kept.height, kept.width) for name, kept in files.kept.items()}
            for name, size in found.items():
                sizes[name][:, place] = size
        return sizes

    def _neighbour(self, position: int) -> dict[str, tuple[int, int]]:
        """Return the sizes of the first of the next samples that can be read."""
        for step in range(1, _NEIGHBOURS + 1):
            other = (position + step) % len(self.listing)
            files = self._files(other, self._values(other))
            if not isinstance(files, FileCorruptError):
                # The same for all fields of a sample: nothing else may be wrong with it.
                first = next(iter(files.kept.values()))
                return dict.fromkeys(files.kept, (first.height, first.width))
        return {}

    def lengths(self, name: str) -> Indices:
        """Return the bytes of each file of a field; 0 of what cannot be read."""
        if "files" in self.__dict__:
            found = [
                0 if isinstance(f, FileCorruptError) else len(f.data[name]) for f in self.files
            ]
        else:
            found = [stat_of(path)[0] for path in self.paths(name)]
        return np.array(found, np.int64)

    def paths(self, name: str) -> list[Path]:
        """Return the files of a field, of samples that have one."""
        return [values[name] for values in self.values if isinstance(values, dict)]


class Headers:
    """What the headers of samples' files tell, each read once, for who wants no more.

    Parameters
    ----------
    listing : Listing

    Notes
    -----
    For any number of threads: two may read the same header.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._found: dict[str, NDArray[np.int32]] = {}
        """Of each image field height, width and orientation, [n, 3]; zeros where not yet read."""

    def sizes(self, name: str, positions: Indices) -> NDArray[np.int64]:
        """Return height, width and orientation of a field's images, upright, [n, 3].

        A sample that cannot be read has the size that `FileBatch` gives it.
        """
        if not self._found:
            names = self._listing.schema.images
            self._found = {name: np.zeros((len(self._listing), 3), np.int32) for name in names}
        found = self._found[name]
        for position in positions[found[positions, 0] == 0].tolist():
            self._look(position)
        return found[positions].astype(np.int64)

    def _look(self, position: int) -> None:
        kept: dict[str, tuple[int, int, int]] = {}
        try:
            most = self._listing.max_pixels
            values = dict(zip(self._listing.schema, self._listing.values(position), strict=True))
            headers = {
                name: read_kept_of(values[name], field.channels, mask=field.mask, max_pixels=most)
                for name, field in self._listing.schema.images.items()
            }
            check_masks(self._listing.schema, headers)
            kept = {name: one[1:] for name, one in headers.items()}
        except (OSError, ValueError):
            sizes = FileBatch(self._listing, np.array([position])).sizes
            kept = {name: (*size[:, 0].tolist(), 1) for name, size in sizes.items()}
        for name, numbers in kept.items():
            self._found[name][position] = numbers


def check_masks(schema: Schema, kept: Mapping[str, Kept]) -> None:
    """Refuse a mask of another size than its image, the first that is no mask."""
    fields = schema.images
    image = next((kept[name] for name, field in fields.items() if not field.mask), None)
    for name, field in fields.items():
        mask = kept[name]
        if image and field.mask and (mask.height, mask.width) != (image.height, image.width):
            raise ImageError(
                f"the mask {name!r} has {mask.width} x {mask.height} pixels and its image "
                f"{image.width} x {image.height}: both must have the same size"
            )


class FileImages:
    """Images of one field, of the samples of a batch; a `fastdata.engine.tasks.Images`.

    Parameters
    ----------
    name : str
    batch : FileBatch
    decoder : JpegDecoder
    """

    all_raw = False

    def __init__(self, name: str, batch: FileBatch, decoder: JpegDecoder) -> None:
        self.name = name
        self.field = batch.listing.schema.images[name]
        self._batch = batch
        self._decoder = decoder

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def heights(self) -> Indices:
        """Of upright images, in pixels, int64 [n]."""
        heights: Indices = self._batch.sizes[self.name][0]
        return heights

    @property
    def widths(self) -> Indices:
        """Of upright images, in pixels, int64 [n]."""
        widths: Indices = self._batch.sizes[self.name][1]
        return widths

    @property
    def lengths(self) -> Indices:
        """Bytes of the files, int64 [n]."""
        return self._batch.lengths(self.name)

    @property
    def refused(self) -> NDArray[np.bool_]:
        """Which have no size of their own, bool [n]: none, as all have one of another."""
        return np.zeros(len(self), np.bool_)

    def doubt(self) -> bool:
        """Return whether any is refused: headers were looked at, so sizes are what they say."""
        return False

    def read(self, place: int, out: Pixels | None = None) -> Pixels:
        """Return one image, uint8 [H, W, C], decoded into `out` where given.

        Raises
        ------
        FileCorruptError
            If a pack would reject the sample; names the file.
        """

        def decode(data: memoryview, kept: Kept) -> Pixels:
            return decode_stored(
                data,
                kept.codec,
                (kept.height, kept.width, self.field.channels),
                mask=self.field.mask,
                out=out,
                decoder=self._decoder,
            )

        return self._decoded(place, decode)

    def window(self, place: int, window: Window, factor: int = 1) -> tuple[Pixels, int]:
        """Return the pixels of a rectangle of one image, as `StoredImages.window` does."""

        def decode(data: memoryview, kept: Kept) -> tuple[Pixels, int]:
            return decode_window(
                data,
                kept.codec,
                (kept.height, kept.width, self.field.channels),
                window,
                mask=self.field.mask,
                decoder=self._decoder,
                factor=factor,
            )

        return self._decoded(place, decode)

    def _decoded(self, place: int, decode: Callable[[memoryview, Kept], _T]) -> _T:
        files = self._batch.files[place]
        if isinstance(files, FileCorruptError):
            raise files
        try:
            return decode(memoryview(files.data[self.name]), files.kept[self.name])
        except ImageError as error:
            values = self._batch.values[place]
            assert isinstance(values, dict), "it could be read"
            position = int(self._batch.positions[place])
            path = values[self.name]
            raise self._batch.corrupt(position, self.name, path, str(error)) from error

    def gather(self, out: Pixels) -> Sequence[int]:
        raise AssertionError("files are never raw")

    def crops(self) -> NDArray[Any]:
        """Return where the files' bytes are in memory, as the compiled library takes it.

        As `StoredImages.crops`: those that cannot be read have the codec `OTHER_CODEC`.
        """
        crops = np.zeros(len(self), CROP)
        codecs, addresses = [OTHER_CODEC] * len(self), [0] * len(self)
        for place, files in enumerate(self._batch.files):
            if not isinstance(files, FileCorruptError):
                codecs[place] = CODECS.index(files.kept[self.name].codec)
                data = np.frombuffer(files.data[self.name], np.uint8)
                addresses[place] = data.__array_interface__["data"][0]
        crops["codec"], crops["data"] = codecs, addresses
        crops["size"] = self.lengths
        crops["height"] = crops["rows"] = self.heights
        crops["width"] = crops["columns"] = self.widths
        return crops

    def read_ahead(self) -> None:
        """Ask the system to read all files soon; returns when they have been looked up."""
        for path in self._batch.paths(self.name):
            try:
                opened = open_regular(path)
            except (OSError, ValueError):
                continue  # said when it is read
            try:
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_WILLNEED)
            except (OSError, AttributeError):
                pass
            finally:
                os.close(opened)

    def touch(self) -> int:
        """Have all files read."""
        return sum(not isinstance(files, FileCorruptError) for files in self._batch.files)
