"""The contract of an exporter: how samples of a dataset become files of some format."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from fastdata.codecs.blobs import decode_stored, encode_png
from fastdata.codecs.image import MAX_PIXELS, check_pixels
from fastdata.codecs.image_header import orientation_of
from fastdata.dataset import Dataset
from fastdata.errors import ImageError, OptionError, ShardCorruptError
from fastdata.formats.reader import ShardReader
from fastdata.schema import ImageField, ScalarField, Schema

from ..packing.boxes import picture_of, turn_boxes
from .shards import Cut

__all__ = ["Exporter", "file_of", "label_field", "located", "main_image"]

_LABELS = ("label", "class", "target")


class Exporter(abc.ABC):
    """Writes samples below a folder.

    Attributes
    ----------
    name : str
        Of the format, as ``--format`` takes it.
    entry : str
        The name in the folder that `fastdata.pack` takes; empty for the folder itself.
    reads_as : str
        The format that `fastdata.pack` reads it in.
    shard_bytes : int
        Of a shard, where the user does not say; 0 for formats that have no shards.
    stored_as : dict
        Where each field is, for ``fastdata.json``; empty for formats without that.  Fields
        that are not in it were left out.  Complete once `write` is done.
    num_files, file_bytes : int
        Of the files that hold images, so far.
    notes : list of str
        What the user should know, e.g. fields left out.

    Parameters
    ----------
    root : Path
        An empty folder, which gets its name when everything is written.
    schema : Schema
    shard_size : mapping
        ``shard_size`` or ``shard_bytes``, as `parse_shard_size` has them; or empty.

    Raises
    ------
    OptionError
        If the format has no shards and is to be cut into some.
    """

    name: ClassVar[str]
    entry: ClassVar[str] = ""
    reads_as: ClassVar[str] = ""
    shard_bytes: ClassVar[int] = 0

    def __init__(self, root: Path, schema: Schema, shard_size: Mapping[str, int]) -> None:
        if shard_size and not self.shard_bytes:
            raise OptionError(f"format={self.name!r} is not cut into shards: leave shard_size out")
        self.root = root
        self.schema = schema
        self.stored_as: dict[str, str] = {}
        self.num_files = 0
        self.file_bytes = 0
        self.notes: list[str] = []
        most = shard_size or {"shard_bytes": self.shard_bytes}
        self.cut = Cut(most.get("shard_size"), most.get("shard_bytes"))
        self._picture = picture_of(schema) if schema.boxes else ""

    @abc.abstractmethod
    def write(self, dataset: Dataset, bar: tqdm[Any]) -> None:
        """Write all samples, updating the bar by each."""

    def value(self, shard: ShardReader, index: int, name: str) -> Any:
        """Return a value that is no image; boxes are of the file of the image."""
        value = shard.value(name, index)
        if name in self.schema.boxes:
            return _boxes_of_file(shard, index, value, self._picture)
        return value

    def count(self, paths: Iterable[Path]) -> None:
        """Count finished files."""
        for path in paths:
            self.num_files += 1
            self.file_bytes += path.stat().st_size


def located(dataset: Dataset, index: int) -> tuple[ShardReader, int]:
    """Return the shard of a sample and the sample's row in it."""
    return dataset._shards.locate(dataset._position(index))


def file_of(shard: ShardReader, index: int, name: str, field: ImageField) -> bytes | memoryview:
    """Return an image as a file: the stored bytes, or raw pixels as PNG."""
    data = shard.blob(name, index)
    if shard.codec(name, index) != "raw":
        return data
    height = int(shard.column(f"{name}.height")[index])
    width = int(shard.column(f"{name}.width")[index])
    shape = height, width, field.channels
    try:
        check_pixels(height, width, shard.max_pixels or MAX_PIXELS)
        return encode_png(decode_stored(data, "raw", shape))
    except ImageError as error:
        raise ShardCorruptError(
            f"{shard.path}: {name!r} of sample {index} (key {shard.key(index)!r}): {error}"
        ) from error


def _boxes_of_file(
    shard: ShardReader, index: int, boxes: np.ndarray[Any, Any], image: str
) -> np.ndarray[Any, Any]:
    """Return boxes as a source has them: of the file of the image, which may be to be turned."""
    if shard.codec(image, index) != "file":
        return boxes
    orientation = orientation_of(shard.blob(image, index))
    size = int(shard.column(f"{image}.height")[index]), int(shard.column(f"{image}.width")[index])
    if orientation >= 5:
        size = size[::-1]
    return turn_boxes(boxes, orientation, size, back=True)


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
    """Return the image where a format has one: ``image``, else the first that is no mask."""
    if not schema.images:
        return None
    return "image" if "image" in schema.images else picture_of(schema)
