"""Epochs of FFCV's loader; run by `load.py`.

The first epoch compiles (numba).  `os_cache=True`: the file is mapped, and
stays in the page cache.
"""

from __future__ import annotations

from epochs import options, print_report, time_epochs
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage


def main() -> None:
    """Time epochs."""
    given = options()
    image = [
        RandomResizedCropRGBImageDecoder((224, 224)),
        RandomHorizontalFlip(),
        ToTensor(),
        ToTorchImage(),
    ]
    loader = Loader(
        given["data"],
        batch_size=256,
        num_workers=given["workers"],
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "ffcv", "torch", "numba", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
