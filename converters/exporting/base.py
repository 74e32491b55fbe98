"""What all exporters share: their contract, the samples they write, and the cutting into shards."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

from fastdata.codecs.blobs import decode_stored, encode_png
from fastdata.codecs.image_header import orientation_of
from fastdata.codecs.limits import MAX_PIXELS, check_pixels
from fastdata.dataset import Dataset
from fastdata.errors import ImageError, OptionError, ShardCorruptError
from fastdata.formats.reader import ShardReader
from fastdata.schema import ImageField, ScalarField, Schema

from ..packing.boxes import image_with_boxes, turn_boxes

__all__ = [
    "Cut",
    "Exporter",
    "PackedSample",
    "ShardFiles",
    "label_field",
    "main_image",
    "number_of_all",
    "packed_samples",
]

_LABELS = ("label", "class", "target")
_SIDES = ("height", "width")
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
        height, width = (self.shard.column(f"{name}.{side}")[self.row] for side in _SIDES)
        return int(height), int(width)

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

    def value(self, name: str) -> Any:
        """Return a value of a field without images; boxes are in pixels of the image file."""
        value = self.shard.value(name, self.row)
        return self._boxes_in_file(value) if name in self.schema.boxes else value

    def _boxes_in_file(self, boxes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        image = image_with_boxes(self.schema)
        if self.shard.codec(image, self.row) != "file":
            return boxes
        # A file that was kept as it is may have an Exif orientation.
        orientation = orientation_of(self.shard.blob(image, self.row))
        size = self.size(image)
        return turn_boxes(boxes, orientation, size[::-1] if orientation >= 5 else size, back=True)


def packed_samples(dataset: Dataset) -> Iterator[PackedSample]:
    """Yield the samples that a dataset shows, in its order."""
    schema = dataset.schema
    for index in range(len(dataset)):
        shard, row = dataset._locate(index)
        yield PackedSample(shard, row, schema)


class Exporter(abc.ABC):
    """Writes the samples of a dataset below a folder, which is empty at first.

    `shard_size` is what `parse_shard_size` returns.
    """

    name: ClassVar[str]
    """Name of the format for ``--format``."""
    entry: ClassVar[str] = ""
    """The name in the folder that `fastdata.pack` takes; empty for the folder itself."""
    reads_as: ClassVar[str] = ""
    """The format in which `fastdata.pack` reads it."""
    shard_bytes: ClassVar[int] = 0
    """Default size of a shard; 0 for formats without shards."""

    def __init__(self, root: Path, dataset: Dataset, shard_size: Mapping[str, int]) -> None:
        if shard_size and not self.shard_bytes:
            raise OptionError(f"format={self.name!r} has no shards: omit shard_size")
        self.root = root
        self.dataset = dataset
        self.schema = dataset.schema
        self.stored_as: dict[str, str] = {}
        """Where each field is, for ``fastdata.json``: complete once `write` is done, without the
        fields that were left out, and empty for formats that do without."""
        self.num_files = 0
        self.file_bytes = 0
        """Bytes of the image files so far."""
        self.notes: list[str] = []
        """What the user should know, e.g. fields left out."""
        most = shard_size or {"shard_bytes": self.shard_bytes}
        self.cut = Cut(most.get("shard_size"), most.get("shard_bytes"))

    @abc.abstractmethod
    def write(self, samples: Iterable[PackedSample]) -> None:
        """Write all samples of the dataset."""

    def count(self, paths: Iterable[Path]) -> None:
        """Count finished files."""
        for path in paths:
            self.num_files += 1
            self.file_bytes += path.stat().st_size


def label_field(schema: Schema) -> str | None:
    """Return the field that is the class: of class names, else of numbers called so."""
    whole = {
        name: field
        for name, field in schema.items()
        if isinstance(field, ScalarField) and np.dtype(field.dtype).kind in "biu"
    }
    named = [name for name, field in whole.items() if field.classes is not None]
    numbered = [name for name in _LABELS if name in whole and whole[name].dtype != "bool"]
    return next(iter(named + numbered), None)


def main_image(schema: Schema) -> str | None:
    """Return the image field for formats with one: ``image``, else the first except masks."""
    if not schema.images:
        return None
    return "image" if "image" in schema.images else image_with_boxes(schema)


# -- shards -----------------------------------------------------------------------------


class Cut:
    """Determines which samples begin a new shard.

    A shard has a maximum of samples or bytes; a larger sample gets its own shard.
    """

    def __init__(self, samples: int | None = None, num_bytes: int | None = None) -> None:
        self._most = samples, num_bytes
        self._samples = self._bytes = 0

    def begins_shard(self, num_bytes: int) -> bool:
        """Count a sample, by its bytes; return whether it needs a new shard."""
        samples, most = self._most
        full = self._samples > 0 and (
            self._samples == samples or (most is not None and self._bytes + num_bytes > most)
        )
        if full:
            self._samples = self._bytes = 0
        self._samples += 1
        self._bytes += num_bytes
        return full


class ShardFiles:
    """Files that samples are written to, one after the other.

    `pattern` has a place for the number of a file, and each file ends with `end`.  There is at
    least one file.  A context manager; leaving it by an exception leaves the last file as it is.
    """

    def __init__(self, root: Path, pattern: str, cut: Cut, end: bytes = b"") -> None:
        self.paths: list[Path] = []
        self._root, self._pattern, self._cut, self._end = root, pattern, cut, end
        self._file: IO[bytes]
        self._open()

    def _open(self) -> None:
        path = self._root / self._pattern.format(len(self.paths))
        self._file = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed by _finish)
        self.paths.append(path)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a sample."""
        if self._cut.begins_shard(sum(map(len, pieces))):
            self._finish()
            self._open()
        for piece in pieces:
            self._file.write(piece)

    def _finish(self) -> None:
        with self._file as file:
            file.write(self._end)

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
            return
        # Not through the buffer, which a full disk would not take either.
        try:
            self._file.close()
        except OSError:
            self._file.raw.close()  # type: ignore[attr-defined]


def number_of_all(paths: Sequence[Path], pattern: str) -> list[Path]:
    """Rename files so that each name has the number of all; return the new paths."""
    return [
        path.rename(path.with_name(pattern.format(number, len(paths))))
        for number, path in enumerate(paths)
    ]
