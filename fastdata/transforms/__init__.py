"""What can be done to the images of a batch on their way to training.

    transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(mean, std)]

      from a list of transforms to a plan
        base.py              the three kinds of transform; checks of parameters
        pipeline.py          a list of transforms, checked and cut into stages
        stages.py            what each stage does to samples, or to a whole batch
        views.py             several views of one image

      geometry, planned for a whole batch before decoding
        geometry.py          where pixels go
        geometric.py         crops, resizes and flips
        render.py            carries geometry out on the CPU
        ondevice.py          carries the geometry of a whole batch out, where the batch is
        boxes.py             boxes follow geometry, and go where nothing of them is left

      pixels
        pixel.py             Normalize, ToDtype, and their table of 256 values
        image_tensors.py     what the transforms of whole batches share
        color.py  blur_erasing.py  automatic.py  mixing.py   transforms of whole batches

      callables, one sample at a time
        callables.py         what a callable is given, and what it returns
        image_callables.py   callables that are given the image alone
        with_albumentations.py  with_torchvision.py   image, masks and boxes together
        generators.py        the random generators that callables draw from

Names and semantics are those of `torchvision.transforms.v2`.  Random numbers
depend on (seed, epoch, sample index, transform) only; see `fastdata.random`.
"""

from __future__ import annotations

from fastdata.transforms.automatic import RandAugment, TrivialAugmentWide
from fastdata.transforms.base import (
    BatchTransform,
    GeometricTransform,
    Parameters,
    PixelTransform,
)
from fastdata.transforms.blur_erasing import GaussianBlur, RandomErasing
from fastdata.transforms.boxes import Boxes, DropEmptyBoxes, move_boxes, transform_boxes
from fastdata.transforms.callables import PerSample
from fastdata.transforms.color import ColorJitter, RandomGrayscale
from fastdata.transforms.geometric import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from fastdata.transforms.image_callables import ImageOnly, OnPIL
from fastdata.transforms.mixing import CutMix, MixUp
from fastdata.transforms.ondevice import render_on_device
from fastdata.transforms.pipeline import Transform
from fastdata.transforms.pixel import Normalize, ToDtype
from fastdata.transforms.views import Views
from fastdata.transforms.with_albumentations import Albumentations
from fastdata.transforms.with_torchvision import V2

__all__ = [
    "V2",
    "Albumentations",
    "BatchTransform",
    "Boxes",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "DropEmptyBoxes",
    "GaussianBlur",
    "GeometricTransform",
    "ImageOnly",
    "MixUp",
    "Normalize",
    "OnPIL",
    "Parameters",
    "PerSample",
    "PixelTransform",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "move_boxes",
    "render_on_device",
    "transform_boxes",
]
