"""Epochs of FFCV's loader; run by `load.py`.

The first epoch compiles (numba).  `os_cache=True`: the file is mapped, and
stays in the page cache.
"""

from __future__ import annotations

from epochs import options, print_report, time_epochs
from ffcv.fields.decoders import (
    CenterCropRGBImageDecoder,
    IntDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    RandomHorizontalFlip,
    RandomTranslate,
    Squeeze,
    ToTensor,
    ToTorchImage,
)

CROPS = {
    "crop 224": [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()],
    "centre 224": [CenterCropRGBImageDecoder((224, 224), ratio=224 / 256)],
    # As in FFCV's own CIFAR example, without Cutout.
    "crop 32": [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4)],
}


def main() -> None:
    """Time epochs."""
    given = options()
    image = [*CROPS[given["transform"]], ToTensor(), ToTorchImage()]
    loader = Loader(
        given["data"],
        batch_size=given["batch_size"],
        num_workers=given["workers"],
        order=OrderOption.RANDOM if given["shuffle"] else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    report = time_epochs(lambda: loader, lambda batch: batch[0].numpy(), epochs=given["epochs"])
    print_report(report, "ffcv", "torch", "numba", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
