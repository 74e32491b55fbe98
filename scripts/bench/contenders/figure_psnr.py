"""How near crops are to PIL's; run by `figures.py`.

Batches of fastdata's loader with `RandomResizedCrop(224)` and a flip, against PIL: the stored
JPEG decoded whole, the same windows cut out, resized by its (antialiased)
bilinear filter, flipped alike.  Each photograph once an epoch, in several epochs.
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
from PIL import Image

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


def pil_crop(data: Any, window: tuple[int, ...], flip: bool) -> Any:
    """Return the crop that PIL makes, uint8 [224, 224, 3]."""
    top, left, height, width = window
    image = Image.open(io.BytesIO(data)).convert("RGB")
    crop = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(crop.resize((224, 224), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if flip else pixels


def main() -> None:
    """Compare all photographs."""
    given = options()
    dataset = open_dataset(given["data"])
    reader = next(dataset.shards)
    # Links to one file are numbered; the first of each is enough.
    once = [i for i, key in enumerate(dataset.keys) if Path(key).stem.endswith("_0000")]
    dataset = dataset[once]
    transforms = TRANSFORMS["crop 224"]
    planner = Pipeline(transforms, dataset.schema).geometry
    assert planner is not None
    every = np.arange(len(dataset))
    found = []
    opened: Any = new_loader(
        dataset, batch_size=50, seed=SEED, transform=transforms, num_workers=given["workers"]
    )
    with opened as loader:
        for epoch in range(given["epochs"]):
            images = dataset.images("image", every)
            sizes = Geometry.of(images.heights, images.widths)
            geometry = planner.plan(sizes, SEED, SampleKeys(epoch, every))
            windows = list(zip(*(side.tolist() for side in geometry.region), strict=True))
            crops = (crop for batch in loader for crop in batch[0].permute(0, 2, 3, 1).numpy())
            for number, crop in enumerate(crops):
                data = reader.blob("image", once[number])
                found.append(psnr(crop, pil_crop(data, windows[number], geometry.flip[number])))
    report = {
        "value": statistics.fmean(found),
        "unit": "dB",
        "lowest": min(found),
        "median": statistics.median(found),
        "crops": len(found),
        "photographs": len(once),
    }
    print_report(report, *PACKAGES, "pillow")


if __name__ == "__main__":
    main()
