"""Load epochs of the same images three ways and print images a second; run by `quickstart`.

The yardstick is what most training scripts have: an `ImageFolder`-style
dataset that opens each file with PIL, in a stock `DataLoader` with as many
workers as there are cores.  All three decode, cut a random resized crop of
224 x 224, flip at random, and give batches of 64 `uint8` images.

`first epoch` counts from an idle start, workers included.  `later epochs` are
timed in one go, several of them, so that batches prepared ahead of one epoch
are paid for by the one before it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata import transforms as T  # noqa: N812 (as everyone writes it)

CROP = 224
BATCH_SIZE = 64
SECONDS_ENOUGH = 6.0
"""How long the later epochs are repeated; a long epoch runs once."""
MOST_IMAGES = 50_000
"""A large folder is read with PIL up to this many images, the rate not changing after that."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class PilFolder(Dataset[tuple[torch.Tensor, int]]):
    """Images of class folders, as torchvision's `ImageFolder` with the usual transforms."""

    def __init__(self, root: Path) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples: list[tuple[str, int]] = []
        for label, name in enumerate(classes):
            for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
                self.samples += [
                    (os.path.join(folder, file), label)
                    for file in sorted(files)
                    if file.lower().endswith(SUFFIXES)
                ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        image = image.crop(random_box(*image.size)).resize((CROP, CROP), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), label


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw a box as torchvision does: 8-100% of the area, ratio 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


@dataclass(frozen=True, slots=True)
class Timing:
    """Images a second of one loader, and how many it loads in an epoch."""

    name: str
    images: int
    first: float
    later: float


def batches(loader: Iterable[Any], limit: float) -> Iterator[Any]:
    """Yield batches until `limit` images have passed, or the epoch ends."""
    seen = 0
    for batch in loader:
        yield batch
        seen += len(batch[0])
        if seen >= limit:
            return


def count_images(loader: Iterable[Any], limit: float) -> int:
    """Load an epoch, check that its batches are what all three should give, and count."""
    images = 0
    for pixels, labels in batches(loader, limit):
        size = len(labels)
        if tuple(pixels.shape) != (size, 3, CROP, CROP) or pixels.dtype != torch.uint8:
            raise SystemExit(f"unexpected batch: {tuple(pixels.shape)} of {pixels.dtype}")
        images += size
    return images


def measure(name: str, loader: Iterable[Any], limit: float = math.inf) -> Timing:
    """Load the first epoch, then more of them for `SECONDS_ENOUGH`."""
    started = time.perf_counter()
    images = count_images(loader, limit)
    first = images / (time.perf_counter() - started)
    later, started = 0, time.perf_counter()
    while later == 0 or time.perf_counter() - started < SECONDS_ENOUGH:
        later += count_images(loader, limit)
    return Timing(name, images, first, later / (time.perf_counter() - started))


def available_cores() -> int:
    """Return the cores that this process may use, which a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_pil(folder: Path) -> Timing:
    """Time the yardstick."""
    workers = available_cores()
    loader = DataLoader(
        PilFolder(folder),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
    )
    return measure(f"PIL and a stock DataLoader, {workers} workers", loader, MOST_IMAGES)


def measure_fastdata(path: Path) -> Timing:
    """Time a packed dataset."""
    loader = fastdata.loader(
        path,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=0,
        transform=[T.RandomResizedCrop(CROP), T.RandomHorizontalFlip()],
    )
    return measure(f"fastdata, {path.suffix[1:]}", loader)


def print_table(timings: list[Timing]) -> None:
    """Print a line a loader, with its gain over the first one."""
    base = timings[0].later
    print(f"\n{'images/s':36} {'images':>8} {'first epoch':>12} {'later epochs':>13}")
    for timing in timings:
        print(
            f"{timing.name:36} {timing.images:8,} {timing.first:12,.0f} {timing.later:13,.0f}"
            f"   {timing.later / base:.1f}x"
        )


def main() -> int:
    """Read the command line, time the three loaders, print the table."""
    summary = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("images", type=Path, help="folder with one folder a class")
    parser.add_argument("packed", type=Path, nargs="+", help="packed datasets of the same images")
    options = parser.parse_args()
    print(
        f"Loading epochs: random resized crop to 224, flip, batches of {BATCH_SIZE}",
        file=sys.stderr,
    )
    # PIL first: its workers are forked, and should not inherit another loader's threads.
    timings = [measure_pil(options.images)]
    timings += [measure_fastdata(path) for path in options.packed]
    print_table(timings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
