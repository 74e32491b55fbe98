"""The contract of an exporter: how samples of a dataset become files of some format."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from fastdata.codecs.encode import encode_png
from fastdata.codecs.image import orientation_of
from fastdata.dataset import Dataset
from fastdata.formats.reader import ShardReader
from fastdata.schema import ImageField, Schema

from ..packing.boxes import turn_boxes

__all__ = ["Exporter", "boxes_of_file", "file_of", "located"]


class Exporter(abc.ABC):
    """Writes samples below a folder.

    Attributes
    ----------
    name : str
        Of the format, as ``--format`` takes it.
    entry : str
        The name in the folder that `fastdata.pack` takes; empty for the folder itself.
    num_files, file_bytes : int
        Of the files that hold images, so far.

    Parameters
    ----------
    root : Path
        An empty folder, which gets its name when everything is written.
    schema : Schema
    """

    name: ClassVar[str]
    entry: ClassVar[str] = ""

    def __init__(self, root: Path, schema: Schema) -> None:
        self.root = root
        self.schema = schema
        self.num_files = 0
        self.file_bytes = 0

    @abc.abstractmethod
    def write(self, dataset: Dataset, bar: tqdm[Any]) -> None:
        """Write all samples, updating the bar by each."""


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
    return encode_png(np.frombuffer(data, np.uint8).reshape(height, width, field.channels))


def boxes_of_file(
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
