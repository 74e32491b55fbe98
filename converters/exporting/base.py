"""What all exporters share: their contract, the samples they write, and the cutting into shards."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from fastdata.codecs.blobs import decode_stored, encode_png
from fastdata.codecs.image_header import claimed_by
from fastdata.codecs.limits import MAX_PIXELS, check_pixels
from fastdata.dataset import Dataset
from fastdata.errors import ImageError, ShardCorruptError
from fastdata.formats.reader import ShardReader
from fastdata.schema import Field, ImageField, ScalarField, Schema

from ..packing.boxes import image_with_boxes, turn_boxes

__all__ = [
    "Cut",
    "Exporter",
    "PackedSample",
    "Sized",
    "label_field",
    "main_image",
    "packed_samples",
    "sized",
    "write_pieces",
]

Sized: TypeAlias = "tuple[Any, int]"
"""A sample in the form of a format, and its size in bytes."""


_BUFFER_BYTES = 1 << 18


class PackedSample(NamedTuple):
    """A sample of a dataset that is exported: a row of a shard."""

    shard: ShardReader
    row: int
    schema: Schema

    def __str__(self) -> str:
        return f"sample {self.row} (key {self.key!r})"

    @property
    def key(self) -> str:
        """What the source of the dataset called the sample."""
        return self.shard.key(self.row)

    def size(self, name: str) -> tuple[int, int]:
        """Return the height and width of an image."""
        return self.shard.size(name, self.row)

    def image_file(self, name: str) -> bytes | memoryview:
        """Return an image as a file: the stored bytes, or raw pixels as PNG."""
        data = self.shard.blob(name, self.row)
        if self.shard.codec(name, self.row) != "raw":
            return data
        field = self.schema[name]
        assert isinstance(field, ImageField)
        height, width = self.size(name)
        try:
            check_pixels(height, width, self.shard.max_pixels or MAX_PIXELS)
            return encode_png(decode_stored(data, "raw", (height, width, field.channels)))
        except ImageError as error:
            raise ShardCorruptError(f"{self.shard.path}: {name!r} of {self}: {error}") from error

    def contents(self) -> Iterator[tuple[str, Field, Any]]:
        """Yield the name, the field and the value of each field: images as files."""
        for name, field in self.schema.items():
            is_image = isinstance(field, ImageField)
            yield name, field, self.image_file(name) if is_image else self.value(name)

    def value(self, name: str) -> Any:
        """Return a value of a field without images; boxes are in pixels of the image file."""
        value = self.shard.value(name, self.row)
        return self._boxes_in_file(value) if name in self.schema.boxes else value

    def _boxes_in_file(self, boxes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        image = image_with_boxes(self.schema)
        if self.shard.codec(image, self.row) != "file":
            return boxes
        # A file that was kept as it is may have an Exif orientation.
        orientation = claimed_by(self.shard.blob(image, self.row))[2]
        size = self.size(image)
        return turn_boxes(boxes, orientation, size[::-1] if orientation >= 5 else size, back=True)


def packed_samples(dataset: Dataset) -> Iterator[PackedSample]:
    """Yield the samples that a dataset shows, in its order."""
    schema = dataset.schema
    for index in range(len(dataset)):
        shard, row = dataset._locate(index)
        yield PackedSample(shard, row, schema)


class Cut:
    """A key for `itertools.groupby` that cuts samples into shards.

    A shard has a maximum of samples, of bytes or of both; a larger sample gets its own shard.
    """

    def __init__(self, samples: int | None = None, num_bytes: int | None = None) -> None:
        self._most_samples, self._most_bytes = samples, num_bytes
        self._shard = self._samples = self._bytes = 0

    def __call__(self, sample: Sized) -> int:
        """Return the number of the shard of the next sample."""
        size = sample[1]
        most = self._most_bytes
        if self._samples > 0 and (
            self._samples == self._most_samples or (most is not None and self._bytes + size > most)
        ):
            self._shard, self._samples, self._bytes = self._shard + 1, 0, 0
        self._samples += 1
        self._bytes += size
        return self._shard


class Exporter(abc.ABC):
    """Writes the samples of a dataset below a folder, which is empty at first."""

    name: ClassVar[str]
    """Name of the format for ``--format``."""
    entry: ClassVar[str] = ""
    """The name in the folder that `fastdata.pack` takes; empty for the folder itself."""
    shard_bytes: ClassVar[int] = 0
    """Default size of a shard; 0 for formats without shards."""

    def __init__(self, root: Path, dataset: Dataset, cut: Cut) -> None:
        self.root, self.dataset, self.schema, self.cut = root, dataset, dataset.schema, cut
        self.stored_as: dict[str, str] = {}
        """Where each field is, for ``fastdata.json``: complete once `write` is done, and empty for
        formats that do without."""
        self.files: list[str] = []
        """Names of the shards, for ``fastdata.json``."""
        self.num_files = 0
        self.file_bytes = 0
        """Bytes of the image files or shards so far."""

    @abc.abstractmethod
    def write(self, samples: Iterable[PackedSample]) -> None:
        """Write all samples of the dataset; it has at least one."""

    def count(self, num_bytes: int) -> None:
        """Count a finished file."""
        self.num_files += 1
        self.file_bytes += num_bytes

    def write_shards(
        self,
        samples: Iterable[Sized],
        pattern: str,
        write_file: Callable[[Path, Iterator[Sized]], None],
    ) -> None:
        """Write each shard with `write_file`; `pattern` has the shard's number and how many."""
        paths: list[Path] = []
        for number, shard in itertools.groupby(samples, self.cut):
            paths.append(self.root / f"{number}.part")
            write_file(paths[-1], shard)
        for number, path in enumerate(paths):
            path = path.rename(self.root / pattern.format(number, len(paths)))
            self.files.append(path.name)
            self.count(path.stat().st_size)


def sized(pieces: Sequence[bytes | memoryview]) -> Sized:
    """Return the pieces of a sample with their size."""
    return pieces, sum(map(len, pieces))


def write_pieces(path: Path, samples: Iterable[Sized], end: bytes = b"") -> None:
    """Write the pieces of samples to a new file, and `end` behind them."""
    with open(path, "xb", buffering=_BUFFER_BYTES) as file:
        for pieces, _ in samples:
            file.writelines(pieces)
        file.write(end)


def label_field(schema: Schema) -> str | None:
    """Return the field whose whole numbers are the class."""
    field = schema.get(schema.label or "")
    whole = isinstance(field, ScalarField) and np.dtype(field.dtype).kind in "biu"
    return schema.label if whole else None


def main_image(schema: Schema) -> str | None:
    """Return the image field for formats with one: ``image``, else the first except masks."""
    if not schema.images:
        return None
    return "image" if "image" in schema.images else image_with_boxes(schema)
