"""Facts about stored images, and crops that suit them in a dataset without transforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engine.contracts import is_packed
from fastdata.formats.layout import CODECS
from fastdata.transforms import RandomHorizontalFlip, RandomResizedCrop
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = ["ChosenCrops", "ImageInfo"]

CROP = 224


@dataclass(frozen=True, slots=True)
class ChosenCrops:
    """Stands for transforms that are chosen once the dataset is opened.

    `size` is the user's choice; None chooses what suits the images, and "none" leaves them as they
    are.
    """

    size: int | tuple[int, int] | Literal["none"] | None = None

    def transforms_for(self, data: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Return the transforms for a dataset, and notes about them."""
        images = [sizes for name in data.schema.images if (sizes := _stored_sizes(data, name)).size]
        if self.size == "none" or not images:
            return (), ()
        size: Any = self.size
        notes: tuple[str, ...] = ()
        if size is None:
            of_all = np.concatenate(images, axis=1)
            height, width = of_all.max(axis=1).tolist()
            size = CROP
            if max(height, width) <= CROP:
                if all((sizes == sizes[:, :1]).all() for sizes in images):
                    return (), ()
                size = int(of_all.min())
            notes = (
                f"images are up to {height}x{width}: batches are random resized crops of {size}, "
                "and flips; --crop takes another size, or none",
            )
        return (RandomResizedCrop(size), RandomHorizontalFlip()), notes


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Facts about the first image field of packed data."""

    codecs: tuple[str, ...] = ()  # "file" if they are not packed
    sides: tuple[int, ...] = ()  # the median short side, and that in batches if it is fixed
    decoded_bytes: int = 0  # of all images in memory

    @classmethod
    def of(cls, data: Any, batch: Any) -> ImageInfo:
        """Return the facts about the images in `data` and in one batch."""
        unpacked, packed = isinstance(data, UnpackedDataset), is_packed(data)
        if not (packed and data.schema.images and (unpacked or hasattr(data, "shards"))):
            return cls()
        name, field = next(iter(data.schema.images.items()))
        sizes = _stored_sizes(data, name)
        codecs, pixels = {"file"}, sizes.prod(axis=0)
        count = int(pixels.mean() * len(data)) if sizes.size else 0  # sizes are those of some files
        if not unpacked:
            columns = [np.asarray(shard.column(f"{name}.codec")) for shard in data.shards]
            codecs = {CODECS[code] for code in np.unique(np.concatenate(columns)).tolist()}
            count = int(pixels.sum())
        sides = [int(np.median(sizes.min(axis=0))) if sizes.size else 0]
        made = getattr(batch, name, None)
        if isinstance(made, torch.Tensor) and made.ndim == 4:
            sides.append(min(made.shape[2:]))
        return cls(tuple(sorted(codecs)), tuple(sides), count * field.channels)


def _stored_sizes(data: Any, name: str) -> NDArray[np.int64]:
    """Return heights and widths of an image field, [2, n]; of unpacked files those of some."""
    if isinstance(data, UnpackedDataset):
        return data._some_sizes(name)
    sides = [
        [shard.column(f"{name}.{side}") for shard in data.shards] for side in ("height", "width")
    ]
    return np.array([np.concatenate(side) for side in sides], np.int64)
