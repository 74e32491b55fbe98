"""The map-style view over files that are not packed: what ``fastdata.open("./images")`` returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.converters.packing.boxes import Placement, image_with_boxes, place_boxes
from fastdata.dataset import Dataset, Indices
from fastdata.errors import FileCorruptError
from fastdata.records import RecordFormat
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.shards import ShardSet
from fastdata.unpacked.listing import Listing, suggest_packing
from fastdata.unpacked.reading import FileBatch, FileImages, SizeTable

__all__ = ["UnpackedDataset"]

_MAX_REMEMBERED = 4096
"""Samples of a batch that is remembered for the next call about the same samples."""


class UnpackedDataset(Dataset):
    """A dataset of image files, or a part of one; made by `fastdata.open`.

    All that `Dataset` says holds, but for what is about shards: that is refused with the command
    that packs the files.  The files were listed when it was opened; what is in them is looked at
    when they are read.
    """

    _samples_per_task = 16
    """Files that a worker holds in memory at once, beside those of other fields."""

    def __init__(
        self,
        listing: Listing,
        indices: Indices,
        transform: Any = None,
        record_format: RecordFormat | None = None,
        schema: Schema | None = None,
    ) -> None:
        # A listing has all that Dataset uses of a ShardSet, but for what is overridden here.
        super().__init__(cast(ShardSet, listing), indices, transform, record_format, schema)
        self._listing = listing
        self._latest = threading.local()
        self._names = tuple(self._schema.images)
        # Boxes are turned upright with their image, which may be hidden.
        of_boxes = (image_with_boxes(listing.schema),) if self._schema.boxes else ()
        self._sizes = SizeTable(listing, (*self._names, *of_boxes))

    @property
    def shards(self) -> NoReturn:
        """Refused: there are none."""
        self._listing.refuse_unpacked()

    @property
    def _mean_sample_bytes(self) -> float:
        """Those of a photograph: what the files have is not known before they are read."""
        return float(1 << 16)

    def _suggest_packing(self) -> None:
        """Log once how much faster a pack is loaded, and how it is made."""
        suggest_packing(self._listing.location, self._listing.command)

    def _describe(self, name: str, field: Any) -> str:
        if not isinstance(field, ImageField):
            return super()._describe(name, field)
        kind = "mask" if field.mask else "RGB image" if field.channels == 3 else "grey image"
        return f"{kind}, a file each"

    def _unreadable(self, indices: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which samples have a damaged value that is no image, bool [n]: none is stored."""
        return np.zeros(len(indices), np.bool_)

    # -- what a loader reads, by the batch --------------------------------------------

    def _batch(self, positions: NDArray[np.int64]) -> FileBatch:
        """Return the files of some samples: those that this thread had last, if they are."""
        latest: FileBatch | None = getattr(self._latest, "batch", None)
        if latest is not None and np.array_equal(latest.positions, positions):
            return latest
        batch = FileBatch(self._listing, positions, self._names)
        if len(positions) <= _MAX_REMEMBERED:
            self._latest.batch = batch
        return batch

    def _images(  # type: ignore[override]
        self,
        name: str,
        indices: Sequence[int] | NDArray[Any],
        decoder: JpegDecoder | None = None,
    ) -> FileImages:
        """Return the images of a field of several samples, of which nothing is read yet."""
        _ = self.schema.images[name]
        return FileImages(name, self._batch(self._positions(indices)), decoder or jpeg_decoder())

    def _image_sizes(self, name: str, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return heights and widths of a field's images, [2, n], of which headers are read."""
        sizes: NDArray[np.int64] = self._sizes.sizes(name, self._positions(indices))[:, :2].T
        return sizes

    def _some_sizes(self, name: str, most: int = 256) -> NDArray[np.int64]:
        """Return heights and widths of some images, evenly spread over the dataset, [2, n]."""
        places = np.linspace(0, len(self) - 1, min(most, len(self))).astype(np.int64)
        return self._image_sizes(name, places)

    def _gather(self, name: str, indices: Sequence[int] | NDArray[Any]) -> Any:
        """Return as `Dataset._gather`; `FileCorruptError` if a pack would reject a sample."""
        field = self.schema[name]
        positions = self._positions(indices)
        values = [sample[name] for sample in self._values(positions)]
        if name in self.schema.boxes:
            values = self._upright_boxes(name, positions, values)
        if isinstance(field, ScalarField):
            return np.array(values, field.dtype)
        if isinstance(field, ArrayField) and field.fixed:
            shape = (len(values), *(length or 0 for length in field.shape))
            return np.stack(values) if values else np.empty(shape, field.dtype)
        return values

    def _values(self, positions: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(positions), _MAX_REMEMBERED):
            for values in self._batch(positions[start : start + _MAX_REMEMBERED]).values:
                if isinstance(values, FileCorruptError):
                    raise values
                yield values

    def _upright_boxes(
        self, name: str, positions: NDArray[np.int64], boxes: list[Any]
    ) -> list[Any]:
        """Return boxes where they are once decoding has turned their images upright."""
        sizes = self._sizes.sizes(image_with_boxes(self._listing.schema), positions).tolist()
        placements = [Placement((h, w), turned, (h, w)) for h, w, turned in sizes]
        form = self._listing.sources[0].box_forms.get(name)
        return [place_boxes(some, how, form) for some, how in zip(boxes, placements, strict=True)]

    def _read_sample(self, position: int) -> Any:
        batch = FileBatch(self._listing, np.array([position]), self._names)
        files, values = batch.files[0], batch.values[0]
        if isinstance(files, FileCorruptError):
            raise files
        assert isinstance(values, dict), "its files could be read"
        sample: list[Any] = []
        for name, field in self.schema.items():
            value = values[name]
            if isinstance(field, ImageField):
                pixels = FileImages(name, batch, jpeg_decoder()).read(0)
                value = torch.from_numpy(pixels).permute(2, 0, 1)
            elif isinstance(field, ScalarField):
                value = value.item()
            elif isinstance(field, ArrayField):
                if field.boxes:
                    (value,) = self._upright_boxes(name, batch.positions, [value])
                value = torch.from_numpy(value)
            sample.append(value)
        return self.schema.sample_type._make(sample)
