"""The map-style view over shards: what ``fastdata.open`` returns.

A `Dataset` is a list of shards and the indices into them that are shown.  It
is a ``torch.utils.data.Dataset``, which a stock ``DataLoader`` takes as it is, and can be
split, subset, added and pickled; whatever happens to it, no image data and no file
handle is copied.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from fastdata.batch_images import ShardImages, read_image
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.errors import FormatError, OptionError, did_you_mean
from fastdata.formats.reader import ShardReader, mean_image_bytes, spread_samples
from fastdata.random import NO_EPOCH, SampleKeys
from fastdata.records import RecordFormat
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.shards import ShardSet, Supplied, collect

if TYPE_CHECKING:
    from fastdata.transforms.pipeline import Pipeline, Transform

__all__ = ["Dataset", "Indices", "join_datasets", "part_of"]

Item = TypeVar("Item")
Indices: TypeAlias = "range | np.ndarray[Any, np.dtype[np.int64]]"


class Dataset(TorchDataset[Any]):
    """A packed dataset, or a part of one; made by `fastdata.open`.

    ``dataset[i]`` is a named tuple of the schema's fields: images as
    ``torch.Tensor`` (uint8, C x H x W, RGB), numbers as Python numbers, text
    as str, arrays as ``torch.Tensor``.  ``dataset[a:b]``, ``dataset[[3, 1]]`` and
    ``dataset[mask]`` are datasets that show these samples.

    `transform` is applied to each sample, and a loader applies it as its own.  It is the only
    attribute that can be set.  Views and pickles have the transform and the record format that
    the dataset had when they were made.

    Notes
    -----
    Random transforms draw from torch's default generator: ``torch.manual_seed`` governs them,
    and the worker processes of a stock ``DataLoader`` draw differently.  Callables draw as in
    any torch `Dataset`; but those of albumentations are seeded for each sample, from torch's too.

    Safe for any number of threads, across fork, and under pickle, which
    carries paths and indices only.  On arrival (of many shards, when each is
    first read) it is checked that the files are still the same dataset.
    """

    def __init__(
        self,
        shards: ShardSet,
        indices: Indices,
        transform: Transform | tuple[Transform, ...] | None = None,
        record_format: RecordFormat | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._shards = shards
        self._indices = indices
        self._schema: Schema = shards.schema if schema is None else schema
        self._transform = transform
        self._record_format = record_format or RecordFormat()
        self._pipeline: Pipeline | None = None
        self._targets: _Targets | None = None
        self._joined: tuple[Dataset, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        kind = getattr(type(self), name, None)
        if not name.startswith("_") and getattr(kind, "fset", None) is None:
            readable = sorted(k for k in dir(Dataset) if not k.startswith("_"))
            raise AttributeError(
                f"{name!r} of a fastdata dataset cannot be set; `transform` can. Attributes to be "
                f"read are {', '.join(readable)}. A transform of the whole sample changes labels: "
                "T.PerSample(lambda sample: sample._replace(label=...))"
            )
        super().__setattr__(name, value)

    # -- attributes ---------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Fields of a sample."""
        return self._schema

    @property
    def classes(self) -> list[str] | None:
        """Class names, in the order of their numbers; None where there are none."""
        return None if self.schema.classes is None else list(self.schema.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name, as in torchvision's ``ImageFolder``.

        Without a label, the `classes` of boxes or masks.

        Raises
        ------
        AttributeError
            If there are no class names, or if the label has none.
        """
        names = self.schema.classes
        if self.schema.label is not None or names is None:
            field = self.schema[self._label("class_to_idx")]
            names = field.classes if isinstance(field, ScalarField) else None
        if names is None:
            raise AttributeError(
                "class_to_idx: the labels of this dataset have no class names; pack it with "
                "names, e.g. classes= of the source"
            )
        return {name: number for number, name in enumerate(names)}

    @property
    def targets(self) -> Sequence[Any]:
        """The label of every sample, as a read-only list; read lazily.

        Raises
        ------
        AttributeError
            Without a label: a number called ``label`` or with class names.
        """
        if self._targets is None:
            name = self._label("targets")
            self._targets = _Targets(self._gather(name, np.arange(len(self))).tolist())
        return self._targets

    @property
    def samples(self) -> Samples:
        """Key and label of each sample, as a sequence of pairs.

        Raises
        ------
        AttributeError
            Without a label.
        """
        self._label("samples")
        return Samples(self)

    def _label(self, wanted: str) -> str:
        if self.schema.label is None:
            raise AttributeError(
                f"{wanted}: this dataset has no label, which is a number called 'label' or one "
                f"with class names; its fields are {', '.join(self.schema)}"
            )
        return self.schema.label

    @property
    def transform(self) -> Transform | tuple[Transform, ...] | None:
        """What is done to each sample: a transform, several, or None; settable.

        As ``transform=`` of `fastdata.loader` takes it.  A list becomes a tuple.

        Raises
        ------
        OptionError
            When it is set, if it cannot be applied to the fields of this dataset.
        """
        return self._transform

    @transform.setter
    def transform(self, transform: Transform | Sequence[Transform] | None) -> None:
        from fastdata.transforms.pipeline import Pipeline, as_tuple

        parts = as_tuple(transform)
        self._pipeline = Pipeline(parts, self.schema) if parts else None
        is_one = len(parts) == 1 and parts[0] is transform
        self._transform = None if transform is None else parts[0] if is_one else parts

    @property
    def _source_datasets(self) -> tuple[Dataset, ...]:
        """The datasets that a `packed_view` shows, whose transform it has; else this one."""
        return self._joined or (self,)

    @property
    def record_format(self) -> RecordFormat:
        """Whether samples and batches are named tuples or dicts, and the names of their fields."""
        return self._record_format

    @property
    def paths(self) -> list[Path]:
        """Files of the shards, in order."""
        return list(self._shards.paths)

    @property
    def shards(self) -> Iterator[ShardReader]:
        """Readers of all shards, in order, also for a subset."""
        return self._shards.readers()

    @property
    def keys(self) -> Keys:
        """What the source called each sample, as a sequence of str."""
        return Keys(self)

    @property
    def is_subset(self) -> bool:
        """Whether this shows other than all samples in their order."""
        return (
            self._indices != range(len(self._shards)) if isinstance(self._indices, range) else True
        )

    @property
    def digest(self) -> str:
        """Fingerprint of the content, 32 hex digits.

        It does not depend on the container or on the number of shards.  For
        several datasets opened as one, it is computed at the first call; for
        a subset, derived from the digest of the whole and the indices.  Hidden fields, as with
        ``split=`` and with ``fields=`` of a loader, do not change it.
        """
        if not self.is_subset:
            return self._shards.digest
        shown = _as_array(self._indices).tobytes()
        return hashlib.blake2b(self._shards.digest.encode() + shown, digest_size=16).hexdigest()

    @property
    def _mean_sample_bytes(self) -> float:
        """Bytes that the images of a sample have on average, by some from all over the dataset.

        The same for LMDB and HDF5 and however the samples are cut into shards.
        """
        located = self._shards.split(self._positions(spread_samples(len(self))))
        return mean_image_bytes((reader, rows) for reader, _, rows in located)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        names = ", ".join(path.name for path in self._shards.paths[:3])
        if len(self._shards.paths) > 3:
            names += f", ... ({len(self._shards.paths)} shards)"
        lines = [f"fastdata.Dataset({names}): {len(self):,} samples"]
        if self.is_subset:
            lines[0] += f" of {len(self._shards):,}"
        for name, field in self.schema.items():
            lines.append(f"  {name}: {self._describe(name, field)}")
        return "\n".join(lines)

    def _describe(self, name: str, field: Any) -> str:
        if isinstance(field, ImageField):
            kind = "mask" if field.mask else "RGB image" if field.channels == 3 else "grey image"
            kind += f", {len(field.classes)} classes" if field.classes else ""
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
            return self._with(indices=self._indices[index])
        if hasattr(index, "__index__") and not getattr(index, "shape", ()):
            place = operator.index(index)
            return self._samples([place], [self._position(place)])[0]
        chosen = np.asarray(index)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise IndexError(f"a mask of shape {chosen.shape} for {len(self)} samples")
            chosen = np.flatnonzero(chosen)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise TypeError(f"an index, slice, list of indices or mask is expected, not {index!r}")
        return self._with(indices=self._positions(chosen))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; ``torch.utils.data`` calls this once a batch."""
        return self._samples(indices, self._positions(indices))

    def __iter__(self) -> Iterator[Any]:
        return (
            self._samples([place], [position])[0] for place, position in enumerate(self._indices)
        )

    def _with(
        self,
        *,
        shards: ShardSet | None = None,
        indices: Indices | None = None,
        source_datasets: tuple[Dataset, ...] = (),
        schema: Schema | None = None,
    ) -> Dataset:
        """Return a dataset like this one, of other shards or indices, or with other fields."""
        dataset = type(self)(
            self._shards if shards is None else shards,
            self._indices if indices is None else indices,
            self._transform,
            self._record_format,
            self.schema if schema is None else schema,
        )
        dataset._joined = source_datasets
        return dataset

    def _locate(self, index: int) -> tuple[ShardReader, int]:
        """Return the shard that has a sample, and the sample's row in it."""
        return self._shards.locate(self._position(index))

    def _position(self, index: int) -> int:
        try:
            return int(self._indices[index])
        except IndexError:
            raise IndexError(f"index {index} for a dataset of {len(self)} samples") from None

    def _positions(self, indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the positions in the shards of indices into this view."""
        chosen: np.ndarray[Any, np.dtype[np.int64]] = np.asarray(indices)
        # Compared before they become int64, in which 2**64 - 1 would be -1.
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(self)):
            wrong = (chosen < -len(self)) | (chosen >= len(self))
            if wrong.any():
                raise IndexError(f"index {chosen[wrong][0]} for a dataset of {len(self)} samples")
            chosen = np.where(chosen < 0, chosen.astype(np.int64) + len(self), chosen)
        positions: np.ndarray[Any, np.dtype[np.int64]] = chosen.astype(np.int64, copy=False)
        if not isinstance(self._indices, range):
            positions = self._indices[positions]
        elif self._indices.start or self._indices.step != 1:
            positions = self._indices.start + self._indices.step * positions
        return positions

    def _samples(self, places: Sequence[int], positions: Iterable[int]) -> list[Any]:
        """Return samples, transformed and formatted; `places` are their indices in this view."""
        samples = [self._read_sample(int(position)) for position in positions]
        if self._transform is not None and samples:
            samples = self._transformed(samples, places)
        return [self._record_format.format(sample) for sample in samples]

    def _transformed(self, samples: list[Any], places: Sequence[int]) -> list[Any]:
        from fastdata.transforms.base import BatchTransform
        from fastdata.transforms.generators import albumentations_seeding_allowed
        from fastdata.transforms.pipeline import Pipeline

        if self._pipeline is None:  # of a view, or after a pickle
            self._pipeline = Pipeline(self._transform, self.schema)
        pipeline = self._pipeline
        for part in (pipeline, *pipeline.views):
            if part.batch is None:
                continue
            whole = [one for one in part.members if isinstance(one, BatchTransform)][-1]
            raise OptionError(
                f"{type(whole).__name__} takes whole batches, so it cannot be applied to a sample "
                "of a dataset. Read it with fastdata.loader(dataset, ...), or take the transform "
                "out of dataset.transform and apply it to the batches"
            )
        # The seed is new each time, and samples draw by their places here: the same sample
        # twice in a batch draws twice.
        seed = int(torch.empty((), dtype=torch.int64).random_())
        keys = SampleKeys(NO_EPOCH, np.arange(len(samples)))
        with albumentations_seeding_allowed():
            return pipeline.run(samples, seed, keys, lambda at: self._describe_sample(places[at]))

    def _read_sample(self, position: int) -> Any:
        reader, index = self._shards.locate(position)
        values: list[Any] = []
        for name, field in self.schema.items():
            if isinstance(field, ImageField):
                pixels = read_image(reader, name, field, index)
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
        return self.schema.sample_type._make(values)

    # -- the contract of loaders: reading by batch --------------------------------------------

    def _images(
        self,
        name: str,
        indices: Sequence[int] | np.ndarray[Any, Any],
        decoder: JpegDecoder | None = None,
    ) -> ShardImages:
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
        return ShardImages(name, self.schema.images[name], located, decoder or jpeg_decoder())

    def _gather(self, name: str, indices: Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """Return a field without images, for several samples.

        Returns
        -------
        numpy.ndarray or list
            An array [n, ...] for scalars and fixed-shape arrays, a list of str,
            bytes or arrays otherwise.  All copies.
        """
        field = self.schema[name]
        positions = self._positions(indices)
        if isinstance(field, ScalarField) or (isinstance(field, ArrayField) and field.fixed):
            return collect(
                self._shards.split(positions), lambda reader, rows: reader.column(name)[rows]
            )
        located = (self._shards.locate(int(position)) for position in positions)
        values = [reader.value(name, index) for reader, index in located]
        return [v.copy() for v in values] if isinstance(field, ArrayField) else values

    def _checksums(self, name: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the checksums of a field's stored images, uint64 [n]; reads no image."""
        located = self._shards.split(self._positions(np.arange(len(self))))
        return collect(located, lambda reader, rows: reader.column(f"{name}.checksum")[rows])

    def _unreadable(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which samples have a damaged value in a field without images, bool [n]."""
        located = self._shards.split(self._positions(indices))
        return collect(located, lambda reader, rows: reader.unreadable()[rows])

    def _describe_sample(self, index: int) -> str:
        """Return the place and the key of a sample, for messages."""
        return f"sample {index} ({self._shards.describe(self._position(index))})"

    def _rows_by_shard(
        self, indices: Sequence[int] | np.ndarray[Any, Any] | None = None
    ) -> Iterator[tuple[ShardReader, np.ndarray[Any, np.dtype[np.int64]]]]:
        """Yield each shard in order, with the rows of some samples (by default all)."""
        shards = self.shards  # refused where nothing is packed
        wanted = np.arange(len(self)) if indices is None else indices
        split = self._shards.split(self._positions(wanted))
        rows = {id(reader): rows for reader, _, rows in split}
        for reader in shards:
            yield reader, rows.get(id(reader), np.empty(0, np.int64))

    @property
    def _supplied(self) -> tuple[Supplied, ...]:
        """Which of the samples in the shards come out of stores; none where all are files."""
        return self._shards.supplied

    def _limited_to(self, max_pixels: int) -> Dataset:
        """Return the same dataset with another limit of pixels; see `open`."""
        return self._with(
            shards=self._shards.limited_to(max_pixels), source_datasets=self._source_datasets
        )

    def _with_fields(self, names: Sequence[str]) -> Dataset:
        """Return the same dataset with these fields only, in this order."""
        for name in names:
            if name not in self.schema:
                raise OptionError(
                    f"fields: there is no field {name!r}; the fields are "
                    f"{', '.join(self.schema)}.{did_you_mean(name, self.schema)}"
                )
        fields = {name: self.schema[name] for name in names}
        boxes = [name for name in names if name in self.schema.boxes]
        if boxes and not any(name in self.schema.images for name in names):
            raise OptionError(
                f"fields has the boxes {boxes[0]!r} without their images: add "
                f"{next(iter(self.schema.images))!r}"
            )
        schema = Schema(fields, stored=True)
        return self._with(schema=schema, source_datasets=self._source_datasets)

    def _with_cached(self, held: Any) -> Dataset:
        """Return the same dataset, read from memory; None: from the files.

        Parameters
        ----------
        held : sequence of CachedFile or None
            One for each of `paths`, picklable.
        """
        return self._with(shards=self._shards.with_cached(held))

    def _suggest_packing(self) -> None:
        """Log nothing: it is packed."""

    def _release_cached(self) -> None:
        """Read from the files again, from now on; no thread may be reading."""
        self._shards.release_cached()

    def __reduce__(self) -> tuple[Any, ...]:
        schema = None if self.schema == self._shards.schema else self.schema
        parts = (self._shards, self._indices, self._transform, self._record_format, schema)
        return type(self), parts


class _PerSample(Sequence[Item]):
    """Something of each sample of a dataset, read from the file one by one."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"{type(self).__name__}({shown}{', ...' if len(self) > 3 else ''})"


class Keys(_PerSample[str]):
    """The keys of a dataset's samples, str."""

    def __getitem__(self, index: Any) -> Any:
        dataset = self._dataset
        if isinstance(index, slice):
            return list(Keys(dataset[index]))
        return dataset._shards.key(dataset._position(index))


class Samples(_PerSample[tuple[str, Any]]):
    """Key and label of each sample of a dataset, as pairs."""

    def __getitem__(self, index: Any) -> Any:
        keys, targets = self._dataset.keys[index], self._dataset.targets[index]
        if isinstance(index, slice):
            return list(zip(keys, targets, strict=True))
        return keys, targets


class _Targets(list[Any]):
    """Labels as a read-only list, which can index arrays.

    A change would not affect samples, and would go unnoticed.
    """

    def _refuse(self, *values: Any, **options: Any) -> NoReturn:
        raise TypeError(
            "the targets of a packed dataset cannot be changed; copy them with list(...), or "
            "change the labels of samples by dataset.transform"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _Targets, (list(self),)


def part_of(whole: Dataset, indices: np.ndarray[Any, Any], schema: Schema | None = None) -> Dataset:
    """Return ``whole[indices]`` as a part of the datasets that `whole` is made of.

    It shows the fields of `schema`, if one is given.
    """
    positions: Indices = whole._positions(indices)
    first = int(positions[0]) if len(positions) else 0
    if np.array_equal(positions, np.arange(first, first + len(positions))):
        positions = range(first, first + len(positions))
    return whole._with(indices=positions, source_datasets=whole._source_datasets, schema=schema)


def join_datasets(parts: Sequence[Dataset]) -> Dataset:
    """Return packed datasets as one, in their order.

    `FormatError` if their schemas differ; `OptionError` if their transforms or record formats
    differ, or some are not packed.
    """
    first = parts[0]
    for part in parts:
        for attribute in ("transform", "record_format"):
            one, other = getattr(first, attribute), getattr(part, attribute)
            if one is not other and one != other:
                raise OptionError(
                    f"datasets that are added have one {attribute}, but that of "
                    f"{first.paths[0]} is {one!r} and that of {part.paths[0]} is {other!r}. "
                    f"Set the same {attribute} on both, or load them apart"
                )
    if not all(type(part) is type(first) for part in parts):
        raise OptionError(
            "packed datasets and files that are not packed are not loaded as one: pack the "
            "files too, and open both with fastdata.open([...])"
        )
    sets = list({id(part._shards): part._shards for part in parts}.values())
    shards = type(first._shards).join(sets)
    for part in parts:
        if part.schema != first.schema:
            raise FormatError(
                f"a part of {part.paths[0]} shows the fields {', '.join(part.schema)}, and one of "
                f"{first.paths[0]} {', '.join(first.schema)}: parts that are loaded as one show "
                "the same. Give split= for all, or for none"
            )
    starts = itertools.accumulate(map(len, sets[:-1]), initial=0)
    begins = dict(zip(map(id, sets), starts, strict=True))
    moved = [begins[id(part._shards)] + _as_array(part._indices) for part in parts]
    indices: Indices = np.concatenate(moved)
    if np.array_equal(indices, np.arange(len(shards))):
        indices = range(len(shards))
    source_datasets = tuple(one for part in parts for one in part._source_datasets)
    return first._with(shards=shards, indices=indices, source_datasets=source_datasets)


def _as_array(indices: Indices) -> np.ndarray[Any, np.dtype[np.int64]]:
    if isinstance(indices, range):
        return indices.start + indices.step * np.arange(len(indices), dtype=np.int64)
    return indices
