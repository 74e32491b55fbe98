"""What can be done to the images of a batch on their way to training.

    transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(mean, std)]

      from a list of transforms to a plan
        base.py              the kinds of transform; checks of parameters
        choosing.py          RandomApply, RandomChoice, RandomOrder: their members, with gates
        fill.py              values beyond an image, for images and masks
        pipeline.py          a list of transforms, checked and cut into stages; views of an image
        stages.py            what each stage does to samples, or to a whole batch
        torchvision_names.py  remedies for names of torchvision that fastdata lacks

      geometry, planned for a whole batch before decoding
        geometry.py          where pixels go
        geometric.py         crops, resizes and flips
        detection.py         RandomIoUCrop and RandomZoomOut
        sizes.py             resizes to random sizes
        distortions.py       rotations, affine, perspective and elastic distortions
        warps.py             places that these look up; displacement.py: those of elastic ones
        render.py            carries geometry out on the CPU; render_warp.py: its warps
        render_device.py     carries the geometry of a whole batch out, on its device; warping.py
        boxes.py             boxes follow geometry; empty ones are dropped

      pixels
        pixel.py             Normalize, ToDtype, and their table of 256 values
        image_tensors.py     images as tensors and arrays
        color.py  tones.py  blur_erasing.py  mixing.py   transforms of whole batches
        automatic.py  policies.py                        automatic augmentations, of whole batches
        distributions.py     random numbers of the beta and Dirichlet distributions

      callables, one sample at a time
        callables.py         what a callable is given, and what it returns
        libraries.py         torchvision's v2 and albumentations: image, masks and boxes together
        generators.py        the random generators that callables draw from

Names and semantics are those of `torchvision.transforms.v2`.  Random numbers
depend on (seed, epoch, sample index, transform) only; see `fastdata.random`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fastdata.transforms.automatic import RandAugment, TrivialAugmentWide
from fastdata.transforms.base import (
    BatchTransform,
    GeometricTransform,
    Parameters,
    PixelTransform,
)
from fastdata.transforms.blur_erasing import GaussianBlur, RandomErasing
from fastdata.transforms.boxes import Boxes, DropEmptyBoxes, move_boxes, transform_boxes
from fastdata.transforms.callables import ImageOnly, OnPIL, PerSample
from fastdata.transforms.choosing import RandomApply, RandomChoice, RandomOrder
from fastdata.transforms.color import ColorJitter, Grayscale, RandomGrayscale
from fastdata.transforms.detection import RandomIoUCrop, RandomZoomOut
from fastdata.transforms.distortions import (
    ElasticTransform,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
)
from fastdata.transforms.geometric import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastdata.transforms.libraries import V2, Albumentations
from fastdata.transforms.mixing import CutMix, MixUp
from fastdata.transforms.pipeline import Transform, Views
from fastdata.transforms.pixel import Normalize, ToDtype
from fastdata.transforms.policies import AugMix, AutoAugment
from fastdata.transforms.render_device import render_on_device
from fastdata.transforms.sizes import RandomResize, RandomShortestSize, ScaleJitter
from fastdata.transforms.tones import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastdata.transforms.torchvision_names import no_attribute

__all__ = [
    "V2",
    "Albumentations",
    "AugMix",
    "AutoAugment",
    "BatchTransform",
    "Boxes",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "DropEmptyBoxes",
    "ElasticTransform",
    "GaussianBlur",
    "GeometricTransform",
    "Grayscale",
    "ImageOnly",
    "MixUp",
    "Normalize",
    "OnPIL",
    "Pad",
    "Parameters",
    "PerSample",
    "PixelTransform",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ScaleJitter",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "move_boxes",
    "render_on_device",
    "transform_boxes",
]

if not TYPE_CHECKING:  # type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        raise no_attribute(sys.modules[__name__], name)
