"""Packed data without a file, and fingerprints of batches: what tests of the loader share."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from fastdata.errors import ShardCorruptError
from fastdata.native.library import CROP, OTHER_CODEC
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)


class MemoryImages:
    """Images of `MemoryData`, of some samples."""

    all_raw = False

    def __init__(self, data: MemoryData, name: str, indices: np.ndarray) -> None:
        self.data, self.name, self.indices = data, name, indices
        self.heights, self.widths = data.size_of(indices)
        self.lengths = np.full(len(indices), 10)
        self.refused = np.zeros(len(indices), np.bool_)

    def doubt(self) -> bool:
        return False

    def read(self, place: int, out: np.ndarray | None = None) -> np.ndarray:
        index = int(self.indices[place])
        self.data.reads.append(index)
        if index in self.data.corrupt:
            raise ShardCorruptError(f"memory: sample {index} of {self.name!r} is corrupt")
        channels = self.data.schema.images[self.name].channels
        pixels = image_of(index, int(self.heights[place]), int(self.widths[place]), channels)
        if out is None:
            pixels.flags.writeable = False  # as a view of a raw image in a file is
            return pixels
        assert out.shape == pixels.shape
        assert out.flags.c_contiguous
        out[:] = pixels
        return out

    def window(
        self, place: int, window: tuple[int, int, int, int], factor: int = 1
    ) -> tuple[np.ndarray, int]:
        top, left, height, width = window
        assert min(window) >= 0, window
        assert height, window
        assert width, window
        assert top + height <= self.heights[place], window
        assert left + width <= self.widths[place], window
        return self.read(place)[top : top + height, left : left + width], 1

    def crops(self) -> Any:
        crops = np.zeros(len(self.heights), CROP)
        crops["codec"] = OTHER_CODEC  # they lie in no file
        return crops

    def verify(self, crops: Any, first: int = 0) -> None:
        pass  # nothing was read, and reading says what is corrupt

    def read_ahead(self) -> None:
        self.data.read_ahead += self.indices.tolist()


class MemoryData:
    """Packed data without a file: every value is a function of the index."""

    digest = "feed"

    def __init__(
        self,
        count: int = 50,
        *,
        size: tuple[int, int] | None = None,
        fields: dict[str, Field] | None = None,
        corrupt: frozenset[int] = frozenset(),
    ) -> None:
        self.schema = Schema(fields or {"image": ImageField(), "label": ScalarField()})
        self.count = count
        self.size = size
        self.corrupt = corrupt
        self.reads: list[int] = []
        self.read_ahead: list[int] = []

    def __len__(self) -> int:
        return self.count

    def _unreadable(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices), np.bool_)

    def size_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.size is not None:
            return tuple(np.full(len(indices), side) for side in self.size)  # type: ignore[return-value]
        return 20 + indices % 7, 20 + indices % 5

    def _images(self, name: str, indices: np.ndarray, decoder: Any = None) -> MemoryImages:
        return MemoryImages(self, name, indices)

    def _describe_sample(self, index: int) -> str:
        return f"sample {index} (memory, key 'key {index}')"

    def _gather(self, name: str, indices: np.ndarray) -> Any:
        field = self.schema[name]
        if isinstance(field, ScalarField):
            return (indices * 3).astype(field.dtype)
        if isinstance(field, StringField):
            return [f"caption {i}" for i in indices]
        if isinstance(field, BytesField):
            return [bytes([i % 256]) for i in indices]
        assert isinstance(field, ArrayField)
        if field.fixed:
            return np.stack([np.full(field.shape, i, field.dtype) for i in indices])
        return [np.arange(i % 4, dtype=field.dtype) for i in indices]

    def __repr__(self) -> str:
        return f"MemoryData({self.count})"


def image_of(index: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (height, width, channels), np.uint8)


ALL_FIELDS: dict[str, Field] = {
    "image": ImageField(),
    "mask": ImageField(channels=1, mask=True),
    "label": ScalarField("int64"),
    "weight": ScalarField("float32"),
    "caption": StringField(),
    "blob": BytesField(),
    "boxes": ArrayField("float32", (None,)),
    "points": ArrayField("int16", (2, 3)),
}


def digest(batches: Any) -> str:
    """A fingerprint of every value of every batch, shapes and dtypes included."""
    state = hashlib.blake2b()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            state.update(f"{value.shape}{value.dtype}".encode())
            values = value.double() if value.is_floating_point() else value
            state.update(values.contiguous().numpy().tobytes())
        elif isinstance(value, (list, tuple)):
            state.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value:
                add(item)
        else:
            state.update(repr(value).encode())

    add(list(batches))
    return state.hexdigest()
