"""Data with a bottleneck in a known place, for tests of profiling."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData, MemoryImages
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Sampler

from fastdata.profiling import recorder

SLOW = 0.006
"""Seconds a sample: batches of four, beside a step of 4 ms."""


def wait(value: Any = None) -> Any:
    time.sleep(SLOW)
    return value


def compute() -> None:
    """Be on a core for as long."""
    until = time.thread_time() + SLOW
    while time.thread_time() < until:
        sum(range(100))


class Clock:
    """Takes the place of the clocks of this process, in which only what is planted takes time.

    Sleeping moves it on, as `compute` does; nothing else, so that what is measured is exact.  A
    worker process that is forked has a copy of its own: what it does takes no time here.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.computed = 0.0
        patch.setattr(time, "sleep", self._sleep)
        patch.setattr(time, "perf_counter", lambda: self.now)
        for name in ("thread_time", "process_time"):
            patch.setattr(time, name, lambda: self.computed)
        patch.setattr(sys.modules[__name__], "compute", self._compute)
        patch.setattr(recorder, "hook_seconds", lambda: 0.0)  # kept for the whole process, else
        patch.setattr(recorder, "_queued_seconds", lambda: 0.0)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _compute(self) -> None:
        self.now += SLOW
        self.computed += SLOW


def slow_collate(samples: list[Any]) -> torch.Tensor:
    time.sleep(4 * SLOW)
    return torch.stack(samples)


class Samples(Dataset[torch.Tensor]):
    """Small tensors, some of whose making takes long."""

    def __init__(self, slow: str = "", count: int = 400, transform: Any = None) -> None:
        self.slow, self.count, self.transform = slow, count, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow == "read":
            read_from_disk()
        elif self.slow == "decode":
            compute()
        sample = torch.full((3, 4, 4), index, dtype=torch.float32)
        return sample if self.transform is None else self.transform(sample)


def read_from_disk() -> None:
    wait()  # line of the slow disk


class SlowSampler(Sampler[int]):
    """In order, with a wait in the loop's process for each sample."""

    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[int]:
        return (wait(index) for index in range(400))


class Stream(IterableDataset[torch.Tensor]):
    """The same one after another."""

    def __init__(self, slow: str = "") -> None:
        self.samples = Samples(slow)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.samples[index] for index in range(len(self.samples)))


class Photos(Dataset[np.ndarray]):
    """JPEGs in files, read and decoded by PIL as most datasets do."""

    def __init__(self, path: Any) -> None:
        self.path = path
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG")
        path.write_bytes(buffer.getvalue())
        self.transform = np.array

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        with open(self.path, "rb") as file, Image.open(file) as picture:
            return self.transform(picture.convert("RGB"))


class SlowDisk(MemoryData):
    """Packed data whose images take long to be found."""

    def _images(self, name: str, indices: np.ndarray, decoder: Any = None) -> MemoryImages:
        # Of more than a batch no bytes are asked for, only how many there are.
        time.sleep(SLOW * len(indices) if len(indices) <= 4 else 0)
        return super()._images(name, indices, decoder)


class SlowDecoder(MemoryData):
    """Packed data whose images take long to decode."""

    def _images(self, name: str, indices: np.ndarray, decoder: Any = None) -> MemoryImages:
        return _SlowImages(self, name, indices)


class _SlowImages(MemoryImages):
    def read(self, place: int, out: np.ndarray | None = None) -> np.ndarray:
        compute()
        return super().read(place, out)
