"""What can be done to the images of a batch on their way to training.

    transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(mean, std)]

      base.py       the three kinds of transform
      geometry.py   where pixels go: planned for a whole batch, before decoding
      crop.py  resize.py  flip.py   geometric transforms
      render.py     carries the geometry of one image out
      stack.py      carries out windows and flips of many small raw images at once
      pixel.py      Normalize, ToDtype, and their table of 256 values
      lookup.py     the same for whole batches on any device
      some.py       one operation on some images of a batch
      color.py  blur.py  erasing.py   transforms of whole batches
      automatic.py  tones.py  warp.py   those that choose from many operations
      mixing.py  beta.py              those that mix images and labels
      ondevice.py   carries the geometry of a whole batch out, where it is
      boxes.py      boxes follow geometry
      drop.py       boxes of which nothing is left go
      batch_stage.py  what a batch goes through as a whole
      callables.py  any other callable, one sample at a time
      adapting.py   what is meant by a callable
      generators.py the random generators that callables draw from
      on_pil.py  with_torchvision.py  with_albumentations.py   how they are given a sample
      views.py      several views of one image
      pipeline.py   a list of transforms, checked and cut into stages

Names and semantics are those of `torchvision.transforms.v2`.  Random numbers
depend on (seed, epoch, sample index, transform) only; see `fastdata.random`.
"""

from __future__ import annotations

from fastdata.transforms.adapting import ImageOnly
from fastdata.transforms.automatic import RandAugment, TrivialAugmentWide
from fastdata.transforms.base import (
    BatchTransform,
    GeometricTransform,
    Parameters,
    PixelTransform,
)
from fastdata.transforms.blur import GaussianBlur
from fastdata.transforms.boxes import Boxes, move_boxes, transform_boxes
from fastdata.transforms.callables import PerSample
from fastdata.transforms.color import ColorJitter, RandomGrayscale
from fastdata.transforms.crop import CenterCrop, RandomCrop, RandomResizedCrop
from fastdata.transforms.drop import DropEmptyBoxes
from fastdata.transforms.erasing import RandomErasing
from fastdata.transforms.flip import RandomHorizontalFlip
from fastdata.transforms.mixing import CutMix, MixUp
from fastdata.transforms.on_pil import OnPIL
from fastdata.transforms.ondevice import render_on_device
from fastdata.transforms.pipeline import Transform
from fastdata.transforms.pixel import Normalize, ToDtype
from fastdata.transforms.resize import Resize
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
