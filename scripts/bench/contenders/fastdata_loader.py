"""The loader that fastdata's contenders use: as a user would make it."""

from __future__ import annotations

from typing import Any

import fastdata
from fastdata import transforms as T  # noqa: N812 - as users write it
from fastdata.installing import DISTRIBUTION

# Names of fastdata are imported when first used: here, not while a clock runs.
open_dataset, new_loader = fastdata.open, fastdata.loader

PACKAGES = (DISTRIBUTION, "torch", "opencv-python-headless", "simplejpeg", "lmdb", "h5py")

SIZES = (64, 96, 112, 160, 224)

TRANSFORMS: dict[str, list[Any]] = {
    **{f"crop {s}": [T.RandomResizedCrop(s), T.RandomHorizontalFlip()] for s in SIZES},
    # As for evaluation: 256 and 224, 128 and 112.
    **{f"centre {s}": [T.Resize(round(s * 8 / 7)), T.CenterCrop(s)] for s in SIZES},
    "crop 32": [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()],
    "none": [],
}


def make_loader(options: dict[str, Any]) -> Any:
    """Return a loader of the dataset at ``options["data"]``, with what else `options` say."""
    data = open_dataset(options["data"], check=options.get("check", True))
    if "samples" in options:
        data = data[: options["samples"]]
    return new_loader(
        data,
        batch_size=options.get("batch_size", 256),
        shuffle=options.get("shuffle", True),
        drop_last=options.get("drop_last", True),
        transform=TRANSFORMS[options.get("transform", "crop 224")],
        num_workers=options.get("workers", 2),
        worker_method=options.get("worker_method", "auto"),
    )
