"""Transforms for a dataset that comes without any: random crops that suit its images, and flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastdata.transforms import RandomHorizontalFlip, RandomResizedCrop
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = ["ChosenCrops", "stored_sizes"]

CROP = 224


@dataclass(frozen=True, slots=True)
class ChosenCrops:
    """Stands for transforms that are chosen once the dataset is opened.

    `size` is the user's choice; None chooses what suits the images, and "none" leaves them as they
    are.
    """

    size: int | tuple[int, int] | Literal["none"] | None = None

    def transforms_for(self, data: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Return the transforms for a dataset, and what to say of them."""
        images = [sizes for name in data.schema.images if (sizes := stored_sizes(data, name)).size]
        if self.size == "none" or not images:
            return (), ()
        size, notes = self.size, ()
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


def stored_sizes(data: Any, name: str) -> NDArray[np.int64]:
    """Return heights and widths of an image field, [2, n]; of unpacked files those of some."""
    if isinstance(data, UnpackedDataset):
        return data._some_sizes(name)
    sides = [
        [shard.column(f"{name}.{side}") for shard in data.shards] for side in ("height", "width")
    ]
    return np.array([np.concatenate(side) for side in sides], np.int64)
