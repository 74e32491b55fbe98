"""Batches for training, from each path that there is, without end.

All give what a training step wants: normalised bfloat16 images, channels-last, on the device,
and labels.  Each is a `fastdata.loader` as a user would make it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fastdata
from bench_parts import Datasets, find_or_make_images, say
from fastdata import transforms as T  # noqa: N812 - as users write it
from settings import Settings

__all__ = ["CPU_PATH", "PATHS", "Feed", "datasets_of"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

CPU_PATH = "fastdata, packed JPEG, CPU"
PATHS: dict[str, dict[str, Any]] = {
    CPU_PATH: {},
    "fastdata, DALI": {"backend": "dali"},
    "fastdata, packed bytes in memory": {"cache": "ram"},
    "fastdata, pixels on the device": {"cache": "device"},
}
"""Options of the loader, by what the path is called."""


def datasets_of(settings: Settings) -> Datasets:
    """Return the datasets, which are made when they are first asked for."""
    images = find_or_make_images(settings.images, settings.work, settings.pictures)
    return Datasets(images, settings.work / "data", settings.samples)


@dataclass
class Feed:
    """Endless batches of one path.

    Parameters
    ----------
    name : str
    path : Path
        A packed dataset.
    settings : Settings
    options : dict
        Of the loader.
    transform : list, optional
        By default random resized crops and flips, normalised, bfloat16.
    batch_size : int, optional
        By default that of the settings.
    check : bool
        Whether the first batch is looked at.

    Attributes
    ----------
    first_epoch_seconds : float
        From the making of the loader to the end of its first epoch, in which memory is filled.

    Raises
    ------
    ValueError
        If batches are not what a training step wants.
    """

    name: str
    path: Path
    settings: Settings
    options: dict[str, Any]
    transform: list[Any] | None = None
    batch_size: int | None = None
    first_epoch_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        say(f"  first epoch of {self.name}")
        started = time.perf_counter()
        side = self.settings.side
        self.size = self.batch_size or self.settings.batch_size
        self.loader = fastdata.loader(
            self.path,
            batch_size=self.size,
            shuffle=True,
            drop_last=True,
            device=self.settings.device,
            memory_format=torch.channels_last,
            transform=self.transform
            or [
                T.RandomResizedCrop(side),
                T.RandomHorizontalFlip(),
                T.Normalize(MEAN, STD),
                T.ToDtype(torch.bfloat16),
            ],
            **self.options,
        )
        self._batches = self._forever()
        try:
            batches = len(self.loader)
            if batches < 2:
                raise ValueError(
                    f"{batches} batches an epoch are too few to time: more --samples, or a "
                    "smaller --batch-size"
                )
            for _ in range(batches):
                batch = next(self)
            self._check(*batch)
            del batch
        except BaseException:
            self.close()
            raise
        if self.settings.device.type == "cuda":
            torch.cuda.synchronize(self.settings.device)
        self.first_epoch_seconds = time.perf_counter() - started

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def _check(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        side = self.settings.side
        wanted = (self.size, 3, side, side)
        found = tuple(images.shape), images.dtype, images.device.type, labels.device.type
        kind = self.settings.device.type
        if found != (wanted, torch.bfloat16, kind, kind):
            raise ValueError(
                f"batches of {self.name} are {found[0]}, {found[1]}, on {found[2]} and {found[3]}; "
                f"a step wants {wanted}, torch.bfloat16, on {kind}"
            )
        if not images.is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"batches of {self.name} are not channels-last: {images.stride()}")

    def __next__(self) -> Any:
        return next(self._batches)

    def skip(self, count: int) -> None:
        """Take some batches: those that were made ahead while the clock stood still."""
        for _ in range(count):
            next(self)

    def close(self) -> None:
        """End its workers.  Idempotent."""
        with suppress(AttributeError):
            self._batches.close()  # type: ignore[attr-defined]
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()
