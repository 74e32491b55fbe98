"""How near crops are to PIL's; run by `figures.py`.

Batches of fastdata's loader against PIL: the stored JPEG decoded whole, and the same done by its
(antialiased) bilinear filter, as torchvision does it on PIL's images:

crop SIZE    `RandomResizedCrop` and a flip: the same windows cut out, resized, flipped alike
centre SIZE  `Resize` of the short side to 8/7 of the size, and `CenterCrop`

Each photograph once an epoch, in several epochs; with "centre", in one.  Reported are the mean and
the lowest.
"""

from __future__ import annotations

import io
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from epochs import options, print_report
from fastdata_loader import PACKAGES, TRANSFORMS, new_loader, open_dataset
from PIL import Image, ImageOps

from fastdata.random import SampleKeys
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.pipeline import Pipeline

SEED = 0
IDENTICAL_DB = 100.0
"""What identical crops count, whose ratio is infinite."""


def psnr(left: Any, right: Any) -> float:
    """Return the peak signal-to-noise ratio of two images of 8 bits, in dB."""
    error = float(np.mean((left.astype(np.float64) - right) ** 2))
    return 10 * math.log10(255**2 / error) if error else IDENTICAL_DB


def decode(data: Any) -> Image.Image:
    """Return what PIL makes of a file, upright."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def pil_crop(image: Image.Image, window: tuple[int, ...], flip: bool, size: int) -> Any:
    """Return the crop that PIL makes, uint8 [size, size, 3]."""
    top, left, height, width = window
    crop = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if flip else pixels


def pil_centre(image: Image.Image, size: int) -> Any:
    """Return what torchvision's Resize(round(size * 8 / 7)) and CenterCrop(size) make."""
    short = round(size * 8 / 7)
    scale = min(image.size)
    width, height = (short * side // scale for side in image.size)
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def distances(dataset: Any, pictures: list[Image.Image], name: str, given: dict[str, Any]) -> Any:
    """Yield the PSNR of every crop of a transform, in dB."""
    transforms, size = TRANSFORMS[name], int(name.split()[1])
    planner = Pipeline(transforms, dataset.schema).geometry
    assert planner is not None
    every = np.arange(len(dataset))
    opened: Any = new_loader(
        dataset, batch_size=50, seed=SEED, transform=transforms, num_workers=given["workers"]
    )
    centred = name.startswith("centre")
    with opened as loader:
        for epoch in range(1 if centred else given["epochs"]):
            images = dataset._images("image", every)
            sizes = Geometry.of(images.heights, images.widths)
            geometry = planner.plan(sizes, SEED, SampleKeys(epoch, every))
            windows = list(zip(*(side.tolist() for side in geometry.region), strict=True))
            crops = (crop for batch in loader for crop in batch[0].permute(0, 2, 3, 1).numpy())
            for number, crop in enumerate(crops):
                picture = pictures[number]
                if centred:
                    yield psnr(crop, pil_centre(picture, size))
                else:
                    flip = bool(geometry.flip[number])
                    yield psnr(crop, pil_crop(picture, windows[number], flip, size))


def main() -> None:
    """Compare all photographs."""
    given = options()
    path = Path(given["data"])
    dataset = open_dataset(path)
    # Links to one file are numbered; the first of each is enough.
    once = [i for i, key in enumerate(dataset.keys) if Path(key).stem.endswith("_0000")]
    if path.is_dir():
        files = [(path / dataset.keys[i]).read_bytes() for i in once]
    else:
        reader = next(dataset.shards)
        files = [reader.blob("image", i) for i in once]
    dataset, pictures = dataset[once], [decode(data) for data in files]
    report: dict[str, Any] = {"unit": "dB", "photographs": len(once), "crops": 0}
    means = []
    for name in given.get("transforms", ["crop 224"]):
        found = list(distances(dataset, pictures, name, given))
        means.append(statistics.fmean(found))
        report |= {f"{name}, mean": means[-1], f"{name}, lowest": min(found)}
        report["crops"] += len(found)
    print_report({"value": min(means), **report}, *PACKAGES, "pillow")


if __name__ == "__main__":
    main()
