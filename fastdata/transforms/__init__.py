"""What can be done to the images of a batch on their way to training.

    transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(mean, std)]

      base.py       the two kinds of transform
      geometry.py   where pixels go: planned for a whole batch, before decoding
      crop.py  resize.py  flip.py   geometric transforms
      render.py     carries the geometry of one image out
      stack.py      carries out windows and flips of many small raw images at once
      pixel.py      Normalize, ToDtype, and their table of 256 values
      callables.py  any other callable, one sample at a time
      pipeline.py   a list of transforms, checked and cut into stages

Names and semantics are those of `torchvision.transforms.v2`.  Random numbers
depend on (seed, epoch, sample index, transform) only; see `fastdata.random`.
"""

from __future__ import annotations

from fastdata.transforms.base import GeometricTransform, PixelTransform
from fastdata.transforms.callables import PerSample
from fastdata.transforms.crop import CenterCrop, RandomCrop, RandomResizedCrop
from fastdata.transforms.flip import RandomHorizontalFlip
from fastdata.transforms.pipeline import Transform
from fastdata.transforms.pixel import Normalize, ToDtype
from fastdata.transforms.resize import Resize

__all__ = [
    "CenterCrop",
    "GeometricTransform",
    "Normalize",
    "PerSample",
    "PixelTransform",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ToDtype",
    "Transform",
]
