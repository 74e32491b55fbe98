"""Training loops whose advice is followed by hand: `tune_check.py --advice`.

Everything is made of module-level classes and functions, so that workers may be spawned.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset, default_collate

import fastdata
from bench_data import Datasets, list_images
from fastdata import transforms as T  # noqa: N812
from fastdata.processes.resources import available_cores

__all__ = ["CASES", "Case"]

SIDE = 224


# -- datasets, transforms, collate functions ------------------------------------------------


class Photos(Dataset[Any]):
    """JPEG files, decoded and resized by PIL, as most datasets do it."""

    def __init__(self, paths: list[str], transform: Callable[[Any], Any] | None) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file, Image.open(file) as image:
            picture = image.convert("RGB").resize((SIDE, SIDE))
        if self.transform is not None:
            picture = self.transform(picture)
        return torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())


class Arrays(Dataset[Any]):
    """Large samples that take little to make: 3 MB each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 512, 512), float(index))


class Waiting(Dataset[Any]):
    """Samples that wait, as for a disk, and take no core."""

    def __init__(self, seconds: float, count: int = 1 << 20) -> None:
        self.seconds, self.count = seconds, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.zeros(8), index


def heavy_transform(picture: Image.Image) -> Image.Image:
    """Blur: on one core, some milliseconds."""
    return picture.filter(ImageFilter.GaussianBlur(2)).filter(ImageFilter.GaussianBlur(3))


def heavy_collate(samples: list[Any]) -> Any:
    """Normalise sample by sample, in float64."""
    rows = [sample.numpy().astype(np.float64) for sample in samples]
    rows = [(row - row.mean()) / row.std() for row in rows]
    return torch.from_numpy(np.stack(rows).astype(np.float32))


def scaled(image: torch.Tensor) -> torch.Tensor:
    """A callable in Python, called once a sample."""
    return torch.from_numpy(np.sqrt(image.numpy().astype(np.float32)))


# -- steps -----------------------------------------------------------------------------------


class Computes:
    """Multiplies matrices on so many cores, about `seconds` long with nothing beside it."""

    def __init__(self, seconds: float, threads: int) -> None:
        torch.set_num_threads(threads)
        self._matrix = torch.rand(512, 512)
        self._count = 20
        self._count = max(1, round(self._count * seconds / self._once()))

    def _once(self) -> float:
        self(None)
        began = time.perf_counter()
        self(None)
        return time.perf_counter() - began

    def __call__(self, batch: Any) -> None:
        for _ in range(self._count):
            torch.mm(self._matrix, self._matrix)

    def __str__(self) -> str:
        return f"{self._count} products of matrices, {torch.get_num_threads()} threads"


class Waits:
    """Waits, as a loop does whose step a GPU computes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: Any) -> None:
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"a step that waits {1e3 * self.seconds:g} ms"


# -- loaders: options that a fix may change ---------------------------------------------------


def photos(data: Datasets, options: dict[str, Any]) -> Any:
    """Return a stock DataLoader of files."""
    paths = [str(path) for path in list_images(data.originals())]
    return stock(Photos(paths, options.pop("transform", None)), options)


def arrays(data: Datasets, options: dict[str, Any]) -> Any:
    """Return a stock DataLoader of large samples."""
    return stock(Arrays(10_000), options)


def waiting(data: Datasets, options: dict[str, Any], *, count: int = 1 << 20) -> Any:
    """Return a stock DataLoader of samples that wait."""
    return stock(Waiting(0.002, count), options)


def stock(dataset: Dataset[Any], options: dict[str, Any]) -> Any:
    """Return a stock DataLoader, of sixteen samples a batch by default."""
    if not options.get("collate_fn"):
        options["collate_fn"] = default_collate
    return DataLoader(dataset, shuffle=True, drop_last=True, **{"batch_size": 16, **options})


def packed(data: Datasets, options: dict[str, Any]) -> Any:
    """Return fastdata's loader."""
    transform: list[Any] = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
    extra = options.pop("transform", None)
    transform += [extra] if extra is not None else []
    given = {"batch_size": 64, "shuffle": True, "drop_last": True, **options}
    return fastdata.loader(str(data.packed(".lmdb")), transform=transform, **given)


@contextlib.contextmanager
def core_burnt() -> Iterator[None]:
    """Have another process compute on one core."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


@dataclass(frozen=True)
class Case:
    """A training loop.

    Attributes
    ----------
    name : str
    loader : callable
        Makes it of the datasets and options, which `options` begin with and a fix changes.
    step : callable
        Makes the step.
    beside : callable
        A context of what else the machine does.
    whole_epochs : bool
        Whether a rate is that of whole epochs, with their beginnings.
    """

    name: str
    loader: Callable[[Datasets, dict[str, Any]], Any]
    step: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    beside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    whole_epochs: bool = False

    def made(self, data: Datasets, changes: dict[str, Any]) -> Any:
        """Return the loader with some options changed."""
        return self.loader(data, {**self.options, **changes})


def waits(seconds: float) -> Callable[[], Any]:
    """Return what makes a step that waits."""
    return functools.partial(Waits, seconds)


def computes(seconds: float, threads: int) -> Callable[[], Any]:
    """Return what makes a step that computes."""
    return functools.partial(Computes, seconds, threads)


HEAVY = {"transform": heavy_transform}
COLLATE = {"collate_fn": heavy_collate}

CASES = [
    Case("pil, no workers", photos, waits(0.03), {"num_workers": 0}),
    Case("pil, 1 worker", photos, waits(0.02), {"num_workers": 1}),
    Case("pil, 2 workers", photos, waits(0.01), {"num_workers": 2}),
    Case("augmentation, no workers", photos, waits(0.05), {"num_workers": 0, **HEAVY}),
    Case("augmentation, 1 worker", photos, waits(0.05), {"num_workers": 1, **HEAVY}),
    Case("collate, no workers", photos, waits(0.04), {"num_workers": 0, **COLLATE}),
    Case("collate, 1 worker", photos, waits(0.03), {"num_workers": 1, **COLLATE}),
    Case("step on one core", photos, computes(0.04, 1), {"num_workers": 0}),
    Case("step on all cores", photos, computes(0.04, available_cores()), {"num_workers": 0}),
    Case("a core burnt beside", photos, waits(0.03), {"num_workers": 0}, core_burnt),
    Case("a core burnt, 1 worker", photos, waits(0.02), {"num_workers": 1}, core_burnt),
    Case("large batches", arrays, waits(0.04), {"num_workers": 0, "batch_size": 32}),
    Case("a slow disk", waiting, waits(0.01), {"num_workers": 0}),
    Case("a slow disk, 1 worker", waiting, waits(0.01), {"num_workers": 1}),
    Case("packed, no workers", packed, waits(0.02), {"num_workers": 0}),
    Case("packed, step on one core", packed, computes(0.02, 1), {"num_workers": 0}),
    Case("packed, callables", packed, waits(0.03), {"num_workers": 0, "transform": scaled}),
    Case(
        "short epochs",
        functools.partial(waiting, count=16 * 12),
        waits(0.03),
        {"num_workers": 2},
        whole_epochs=True,
    ),
]
