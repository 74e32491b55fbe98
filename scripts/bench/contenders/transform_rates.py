"""Rates of transforms, one library a process; run by `transforms.py`.

Each transform changes images of 224 x 224 that are in memory, or raw in a pack, on two workers.
The clock runs from the second batch on.  fastdata's transforms of whole batches run in the process
that takes the batch; torchvision's and albumentations' run in the workers of a stock `DataLoader`,
but `MixUp` and `CutMix`, which take a batch.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from epochs import options, print_report
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODULES = {
    "fastdata": "fastdata.transforms",
    "torchvision": "torchvision.transforms.v2",
    "albumentations": "albumentations",
}
BATCHES = 4
"""What a rate is taken over at least."""


class Images(Dataset[Any]):
    """Images in memory, put through a list of transforms one by one."""

    def __init__(self, library: str, images: np.ndarray[Any, Any], steps: list[Any]) -> None:
        self.images: Any = images
        self.of_arrays = library == "albumentations"
        if not self.of_arrays:
            self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        self.steps = steps

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        for step in self.steps:
            image = step(image=image)["image"] if self.of_arrays else step(image)
        if self.of_arrays:
            image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return image, index % 10


def one_thread(_: int) -> None:
    """Keep OpenCV to the worker's thread, as torch is."""
    import cv2

    cv2.setNumThreads(0)


def batches(given: dict[str, Any], steps: list[Any], mixes: bool) -> Iterable[Any]:
    """Return an iterable over many batches; with `mixes`, the last step takes a batch."""
    count, library = given["samples"], given["library"]
    order = np.random.default_rng(0).permutation(np.tile(np.arange(count), 100)).tolist()
    common = {"batch_size": given["batch_size"], "num_workers": given["workers"], "sampler": order}
    if library == "fastdata":
        import fastdata

        return fastdata.loader(given["pack"], transform=steps, **common)  # type: ignore[no-any-return]
    loader = DataLoader(
        Images(library, np.load(given["pixels"]), steps[:-1] if mixes else steps),
        worker_init_fn=one_thread if library == "albumentations" else None,
        **common,
    )
    return (steps[-1](*batch) for batch in loader) if mixes else loader


def rate(epoch: Iterable[Any], seconds: float) -> float:
    """Return images a second, from the second batch on."""
    images, start = 0, 0.0
    for number, batch in enumerate(epoch):
        now = time.perf_counter()
        if number == 1:
            start = now
        elif number > 1:
            images += len(batch[0])
            if number > BATCHES and now - start >= seconds:
                return images / (now - start)
    raise ValueError("too few batches to time")


def main() -> None:
    """Time each transform that the library has."""
    given = options()
    module = importlib.import_module(MODULES[given["library"]])
    names = {**vars(module), "float32": torch.float32, "MEAN": MEAN, "STD": STD}
    names["BILINEAR"] = "bilinear"
    rates = {}
    for name, text in given["transforms"].items():
        try:
            steps = eval(f"[{text}]", names)
        except NameError:
            continue  # this version of the library has no such transform
        rates[name] = round(
            rate(batches(given, steps, "MixUp" in text or "CutMix" in text), given["seconds"]), 1
        )
    report = {"value": sum(rates.values()), "unit": "images/s, added up", "rates": rates}
    print_report(report, "torch", "torchvision", "albumentations", "opencv-python-headless")


if __name__ == "__main__":
    main()
