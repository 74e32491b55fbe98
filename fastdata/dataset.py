"""The map-style view over shards: what ``fastdata.open`` returns.

A `Dataset` is a list of shards and the indices into them that are shown.  It
can be handed to ``torch.utils.data.DataLoader`` as it is, split, subset and
pickled; whatever happens to it, no image data and no file handle is copied.
"""

from __future__ import annotations

import glob
import hashlib
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np

from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.codecs.encode import decode_stored
from fastdata.errors import (
    DatasetNotFoundError,
    FormatError,
    ImageError,
    OptionError,
    ShardCorruptError,
)
from fastdata.formats.digest import content_digest
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import HeldBytes, ShardReader
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.stored import StoredImages

__all__ = ["Dataset", "open"]

Location: TypeAlias = "str | os.PathLike[str]"
Indices: TypeAlias = "range | np.ndarray[Any, np.dtype[np.int64]]"


class ShardSet:
    """Shards in order, each opened when it is first read.

    Opening is idempotent, so threads need no lock: at worst two map a shard
    at once and one map is dropped.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        entries: Sequence[ShardEntry | None],
        check: bool,
        schema: Schema | None = None,
        held: Sequence[HeldBytes] | None = None,
    ) -> None:
        self.paths = paths
        self.held = held
        self.check = check
        self.schema = schema
        self.entries = list(entries)
        self._readers: list[ShardReader | None] = [None] * len(paths)
        for number, entry in enumerate(entries):
            if entry is None:
                # Whoever opens this file again, e.g. after a pickle, must find the same.
                reader = self.reader(number)
                self.entries[number] = ShardEntry(
                    reader.path.name, len(reader), reader.file_bytes, reader.header.digest
                )
        counts = [entry.num_samples for entry in self.entries if entry is not None]
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def reader(self, number: int) -> ShardReader:
        """Return one shard's reader."""
        reader = self._readers[number]
        if reader is None:
            held = None if self.held is None else self.held[number]
            reader = ShardReader(self.paths[number], check=self.check, held=held)
            entry = self.entries[number]
            found = reader.header.digest, len(reader)
            if entry is not None and (entry.digest, entry.num_samples) != found:
                raise ShardCorruptError(
                    f"{reader.path}: this is not the shard that the manifest lists or that was "
                    f"pickled: it has {found[1]} samples and the digest {found[0]}, not "
                    f"{entry.num_samples} and {entry.digest}. "
                    "Restore the shard, or pack the dataset again."
                )
            if self.schema is not None and reader.header.schema != self.schema:
                raise FormatError(
                    f"{reader.path} has other fields than the dataset that it is opened as a part "
                    f"of: {reader.header.schema!r}, not {self.schema!r}. "
                    "Restore the shard, or pack the dataset again."
                )
            self._readers[number] = reader
        return reader

    def readers(self) -> Iterator[ShardReader]:
        """Open every shard in turn."""
        return (self.reader(number) for number in range(len(self.paths)))

    def let_go(self) -> None:
        """Read from the files, not from copies of them."""
        self.held = None
        for reader in self._readers:
            if reader is not None:
                reader.let_go()

    def locate(self, index: int) -> tuple[ShardReader, int]:
        """Return the shard of a sample and the sample's index in it."""
        if len(self.paths) == 1:
            return self.reader(0), index
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.reader(number), index - int(self.starts[number])

    def split(
        self, indices: np.ndarray[Any, np.dtype[np.int64]]
    ) -> list[
        tuple[ShardReader, np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]
    ]:
        """Return for each shard of these samples: reader, their places, their rows in it."""
        if len(self.paths) == 1:
            return [(self.reader(0), np.arange(len(indices)), indices)]
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        located = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            located.append((self.reader(number), places, indices[places] - self.starts[number]))
        return located

    def rows(self, name: str, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a column's entries at these samples, as a copy."""
        result: np.ndarray[Any, Any] | None = None
        for reader, places, rows in self.split(indices):
            values: np.ndarray[Any, Any] = reader.column(name)[rows]
            if len(places) == len(indices):
                return values
            if result is None:
                result = np.empty((len(indices), *values.shape[1:]), values.dtype)
            result[places] = values
        return self.reader(0).column(name)[:0] if result is None else result


class Dataset:
    """A packed dataset, or a part of one; made by `open`.

    ``dataset[i]`` is a named tuple of the schema's fields: images as
    ``torch.Tensor`` (uint8, C x H x W, RGB), numbers as Python numbers, text
    as str, arrays as ``torch.Tensor``.  ``dataset[a:b]``, ``dataset[[3, 1]]`` and
    ``dataset[mask]`` are datasets that show these samples.

    Notes
    -----
    Safe for any number of threads, across fork, and under pickle, which
    carries paths and indices only.  On arrival (of many shards, when each is
    first read) it is checked that the files are still the same dataset.
    """

    def __init__(self, shards: ShardSet, schema: Schema, digest: str, indices: Indices) -> None:
        self._shards = shards
        self._schema = schema
        self._digest = digest
        self._indices = indices

    # -- what it is ---------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Fields of a sample."""
        return self._schema

    @property
    def classes(self) -> list[str] | None:
        """Class names, in the order of their numbers; None where there are none."""
        return None if self._schema.classes is None else list(self._schema.classes)

    @property
    def paths(self) -> list[Path]:
        """Files of the shards, in order."""
        return list(self._shards.paths)

    @property
    def shards(self) -> Iterator[ShardReader]:
        """Readers of the shards, in order, whatever part of them is shown."""
        return self._shards.readers()

    @property
    def keys(self) -> Keys:
        """What the source called each sample, as a sequence of str."""
        return Keys(self)

    @property
    def is_subset(self) -> bool:
        """Whether this shows other than all samples in their order."""
        return (
            self._indices != range(int(self._shards.starts[-1]))
            if isinstance(self._indices, range)
            else True
        )

    @property
    def digest(self) -> str:
        """Fingerprint of the content, 32 hex digits.

        The same for LMDB and HDF5 and however the samples are cut into
        shards.  Of several datasets opened as one, computed when first asked
        for; of a subset, derived from the whole's and the indices.
        """
        if not self._digest:
            self._digest = content_digest(self._schema, [s.column for s in self.shards])
        if not self.is_subset:
            return self._digest
        shown = np.asarray(self._indices, np.int64).tobytes()
        return hashlib.blake2b(self._digest.encode() + shown, digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        names = ", ".join(path.name for path in self._shards.paths[:3])
        if len(self._shards.paths) > 3:
            names += f", ... ({len(self._shards.paths)} shards)"
        lines = [f"fastdata.Dataset({names}): {len(self):,} samples"]
        if self.is_subset:
            lines[0] += f" of {int(self._shards.starts[-1]):,}"
        for name, field in self._schema.items():
            lines.append(f"  {name}: {self._describe(name, field)}")
        return "\n".join(lines)

    def _describe(self, name: str, field: Any) -> str:
        if isinstance(field, ImageField):
            kind = "mask" if field.mask else "RGB image" if field.channels == 3 else "grey image"
            if len(self) == 0:
                return kind
            reader, index = self._shards.locate(int(self._indices[0]))
            height = reader.column(f"{name}.height")[index]
            width = reader.column(f"{name}.width")[index]
            return f"{kind}, {reader.codec(name, index)}, the first one {height} x {width}"
        if isinstance(field, ScalarField):
            return field.dtype + (f", {len(field.classes)} classes" if field.classes else "")
        if isinstance(field, ArrayField):
            lengths = " x ".join("?" if n is None else str(n) for n in field.shape)
            classes = f", {len(field.classes)} classes" if field.classes else ""
            return f"array, {field.dtype}, {lengths}{classes}"
        return str(field.kind)

    # -- samples ------------------------------------------------------------------

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray[Any, Any]) -> Dataset: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._view(self._indices[index])
        if hasattr(index, "__index__") and not getattr(index, "shape", ()):
            return self._sample(self._position(operator.index(index)))
        chosen = np.asarray(index)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise IndexError(f"a mask of shape {chosen.shape} for {len(self)} samples")
            chosen = np.flatnonzero(chosen)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise TypeError(f"an index, slice, list of indices or mask is expected, not {index!r}")
        return self._view(self._positions(chosen))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; ``torch.utils.data`` calls this once a batch."""
        return [self._sample(int(position)) for position in self._positions(indices)]

    def __iter__(self) -> Iterator[Any]:
        return (self._sample(int(position)) for position in self._indices)

    def _view(self, indices: Indices) -> Dataset:
        return Dataset(self._shards, self._schema, self._digest, indices)

    def _position(self, index: int) -> int:
        try:
            return int(self._indices[index])
        except IndexError:
            raise IndexError(f"index {index} for a dataset of {len(self)} samples") from None

    def _positions(self, indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Translate indices into this view to positions in the shards."""
        chosen: np.ndarray[Any, np.dtype[np.int64]] = np.asarray(indices)
        # Before the conversion, in which 2**64 - 1 would become -1.
        wrong = (chosen < -len(self)) | (chosen >= len(self))
        if wrong.any():
            raise IndexError(f"index {chosen[wrong][0]} for a dataset of {len(self)} samples")
        chosen = chosen.astype(np.int64, copy=False)
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        if isinstance(self._indices, range):
            return self._indices.start + self._indices.step * chosen
        return self._indices[chosen]

    def _sample(self, position: int) -> Any:
        import torch

        reader, index = self._shards.locate(position)
        values: list[Any] = []
        for name, field in self._schema.items():
            if isinstance(field, ImageField):
                pixels = self._decode(reader, index, name, field)
                if not pixels.flags.writeable:
                    pixels = pixels.copy()
                values.append(torch.from_numpy(pixels).permute(2, 0, 1))
                continue
            value = reader.value(name, index)
            if isinstance(field, ScalarField):
                value = value.item()
            elif isinstance(field, ArrayField):
                value = torch.from_numpy(value.copy())
            values.append(value)
        return self._schema.sample_type(*values)

    def _decode(
        self,
        reader: ShardReader,
        index: int,
        name: str,
        field: ImageField,
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        shape = (
            int(reader.column(f"{name}.height")[index]),
            int(reader.column(f"{name}.width")[index]),
            field.channels,
        )
        try:
            blob = reader.blob(name, index)
            codec = reader.codec(name, index)
            return decode_stored(blob, codec, shape, mask=field.mask)
        except ImageError as error:
            raise ShardCorruptError(
                f"{reader.path}: {name!r} of sample {index} (key {reader.key(index)!r}): {error}"
            ) from error

    # -- what a loader reads, by the batch --------------------------------------------

    def images(
        self,
        name: str,
        indices: Sequence[int] | np.ndarray[Any, Any],
        decoder: JpegDecoder | None = None,
    ) -> StoredImages:
        """Return the images of a field of several samples, not yet decoded.

        Parameters
        ----------
        name : str
            An image field.
        indices : sequence of int
        decoder : JpegDecoder, optional
            By default the fastest that is installed.
        """
        located = self._shards.split(self._positions(indices))
        return StoredImages(name, self._schema.images[name], located, decoder or jpeg_decoder())

    def gather(self, name: str, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """Return a field that is no image, of several samples.

        Returns
        -------
        numpy.ndarray or list
            An array [n, ...] for scalars and fixed-shape arrays, a list of str,
            bytes or arrays otherwise.  All copies.
        """
        field = self._schema[name]
        positions = self._positions(indices)
        if isinstance(field, ScalarField) or (isinstance(field, ArrayField) and field.fixed):
            return self._shards.rows(name, positions)
        located = (self._shards.locate(int(position)) for position in positions)
        values = [reader.value(name, index) for reader, index in located]
        return [v.copy() for v in values] if isinstance(field, ArrayField) else values

    def describe_sample(self, index: int) -> str:
        """Return where a sample is and what it is called, for messages."""
        reader, local = self._shards.locate(self._position(index))
        return f"sample {index} ({reader.path}, key {reader.key(local)!r})"

    def rows_by_shard(
        self, indices: Sequence[int] | np.ndarray[Any, Any] | None = None
    ) -> Iterator[tuple[ShardReader, np.ndarray[Any, np.dtype[np.int64]]]]:
        """Yield every shard in order, and which rows of it these samples are (by default all)."""
        wanted = np.arange(len(self)) if indices is None else indices
        split = self._shards.split(self._positions(wanted))
        rows = {id(reader): found for reader, _, found in split}
        for reader in self.shards:
            yield reader, rows.get(id(reader), np.empty(0, np.int64))

    def held_in(self, held: Sequence[HeldBytes] | None) -> Dataset:
        """Return the same dataset, read from copies of its files; None: from the files.

        Parameters
        ----------
        held : sequence of HeldBytes or None
            One for each of `paths`, picklable.
        """
        shards = self._shards
        copy = ShardSet(shards.paths, shards.entries, shards.check, shards.schema, held)
        return Dataset(copy, self._schema, self._digest, self._indices)

    def let_go(self) -> None:
        """Read from the files again, from now on; nobody may be reading."""
        self._shards.let_go()

    def __reduce__(self) -> tuple[Any, ...]:
        shards = self._shards
        return (
            _reopen,
            (
                [str(path) for path in shards.paths],
                list(shards.entries),
                shards.check,
                self._schema,
                self._digest,
                self._indices,
                shards.held,
            ),
        )


class Keys(Sequence[str]):
    """The keys of a dataset's samples, read from the file one by one."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(Keys(self._dataset[index]))
        reader, local = self._dataset._shards.locate(self._dataset._position(index))
        return reader.key(local)

    def __repr__(self) -> str:
        shown = ", ".join(repr(key) for key in self[:3])
        return f"Keys({shown}{', ...' if len(self) > 3 else ''})"


def _reopen(
    paths: list[str],
    entries: list[ShardEntry | None],
    check: bool,
    schema: Schema,
    digest: str,
    indices: Indices,
    held: Sequence[HeldBytes] | None,
) -> Dataset:
    shards = ShardSet([Path(path) for path in paths], entries, check, schema, held)
    if len(paths) == 1:
        shards.reader(0)
    return Dataset(shards, schema, digest, indices)


def open(path: Location | Iterable[Location], *, check: bool = True) -> Dataset:
    """Open a packed dataset.

    Parameters
    ----------
    path : path-like, or iterable of path-like
        A shard, a directory of shards, a glob pattern, or several of these,
        which are shown as one dataset, in the order given.
    check : bool
        Whether checksums are compared as data is read (about 2% of the time
        of decoding JPEGs).

    Returns
    -------
    Dataset

    Raises
    ------
    DatasetNotFoundError
        If nothing is there, or a shard is missing.
    FormatError, ShardCorruptError
        If it is no fastdata dataset, of a newer version, or damaged.

    Examples
    --------
    >>> dataset = fastdata.open("train.lmdb")        # doctest: +SKIP
    >>> image, label = dataset[0]                    # doctest: +SKIP
    """
    locations = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not locations:
        raise OptionError("fastdata.open needs at least one path; the list is empty")
    parts = [part for location in locations for part in _expand(location)]
    shards: list[tuple[Path, ShardEntry | None]] = []
    found: list[tuple[Path, Schema, str]] = []
    for part in map(Path.absolute, parts):  # shards are opened later, wherever we are then
        if part.is_dir():
            manifest = Manifest.read(part)
            shards += [(_present(part, entry), entry) for entry in manifest.shards]
            found.append((part, manifest.schema, manifest.digest))
        else:
            shards.append((part, None))
    shard_set = ShardSet([p for p, _ in shards], [entry for _, entry in shards], check)
    for number, (place, entry) in enumerate(shards):
        if entry is None:
            header = shard_set.reader(number).header
            found.append((place, header.schema, header.digest))
    for place, schema, _ in found:
        if schema != found[0][1]:
            raise FormatError(
                f"{place} has other fields than {found[0][0]}: {schema!r}, not {found[0][1]!r}. "
                "Datasets opened as one must have the same schema."
            )
    shard_set.schema = found[0][1]  # what a manifest says, shards read later must have too
    digest = found[0][2] if len(found) == 1 else ""
    return Dataset(shard_set, found[0][1], digest, range(int(shard_set.starts[-1])))


def _expand(location: Location) -> list[Path]:
    path = Path(location)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))
        if matches:
            return [Path(match) for match in matches]
        raise DatasetNotFoundError(f"{path}: nothing matches this pattern")
    if path.with_name(path.name + ".partial").exists():
        raise DatasetNotFoundError(
            f"{path}: not there yet: its pack was not finished. "
            "Run the same `fastdata pack` command again; it goes on where it stopped."
        )
    raise DatasetNotFoundError(
        f"{path}: no such file or directory. Make it with: fastdata pack IMAGES {path}"
    )


def _present(directory: Path, entry: ShardEntry) -> Path:
    path = directory / entry.file
    try:
        size = path.stat().st_size
    except OSError:
        raise DatasetNotFoundError(
            f"{path}: this shard of the dataset is missing. "
            "Restore it from a copy, or pack the dataset again."
        ) from None
    if size != entry.file_bytes:
        raise ShardCorruptError(
            f"{path}: {entry.file_bytes} bytes were written but the file has {size}. "
            "Restore it from a copy, or pack the dataset again."
        )
    return path
