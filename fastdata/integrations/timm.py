"""What ``timm.data.create_loader`` would return, over packed data.

    loader = create_loader("train.lmdb", 224, 256, is_training=True, re_prob=0.25)

The arguments are timm's.  Its steps become transforms of fastdata where these mean the same: crop,
resize, flips, colour jitter, greyscale, blur, random erasing, normalisation.  Other steps
(`auto_augment`, ``interpolation="random"``, ``crop_mode="border"``) are called as they are, on PIL
images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.data import Mixup, create_transform
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.loader import adapt_to_chs
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision import transforms as tv

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError

__all__ = ["TimmLoader", "create_loader"]

_OFF: dict[str, Any] = dict.fromkeys(["fp16", "num_aug_repeats", "num_aug_splits", "re_split"])
_OFF |= dict.fromkeys(["tf_preprocessing", "input_size_choices", "batch_size_choices"])
_OFF |= dict.fromkeys(["batch_choice_weights", "batch_schedule_epochs", "num_batches"])
_OFF["batch_choice_schedule"] = "constant"
"""Unsupported arguments of timm, which may only be given as false or as these values."""
_MEANINGLESS = ["use_multi_epochs_loader", "worker_seeding", "batch_choice_seed"]
_MEANINGLESS += ["batch_schedule_spread", "batch_schedule_random_mix"]
"""Ignored: workers stay from epoch to epoch, and draws are functions of seed, epoch and sample;
timm uses the others only with `input_size_choices`."""
_FLIPS: dict[type, Any] = {
    tv.RandomHorizontalFlip: T.RandomHorizontalFlip,
    tv.RandomVerticalFlip: T.RandomVerticalFlip,
}
_ERASED: dict[str, Any] = {"const": 0.0, "pixel": "random"}


class TimmLoader:
    """Batches of (images, targets) of `loader`, mixed by `mixup`; all else is `loader`'s."""

    __slots__ = ("_mixup", "loader")

    def __init__(self, loader: Any, mixup: Mixup | None = None) -> None:
        self.loader, self._mixup = loader, mixup

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, targets in self.loader:
            if self._mixup is not None:  # FastCollateMixup's own __call__ takes a list of samples
                images, targets = Mixup.__call__(self._mixup, images, targets)
            yield images, targets

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # not yet there, while a copy is made
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def mixup_enabled(self) -> bool:
        """Whether batches are mixed; timm's script turns it off for the last epochs."""
        return self._mixup is not None and self._mixup.mixup_enabled

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if self._mixup is not None:
            self._mixup.mixup_enabled = enabled


def create_loader(
    dataset: Any,
    input_size: Any,
    batch_size: int,
    is_training: bool = False,
    no_aug: bool = False,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
    mean: Any = IMAGENET_DEFAULT_MEAN,
    std: Any = IMAGENET_DEFAULT_STD,
    distributed: bool = False,
    collate_fn: Mixup | None = None,
    img_dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    use_prefetcher: bool = True,
    seed: int | None = None,
    loader_options: dict[str, Any] | None = None,
    **augmentation: Any,
) -> TimmLoader:
    """Return a loader of packed images and labels, by the arguments of ``timm.data.create_loader``.

    Others than timm's are `seed` (by default drawn from torch's generator) and `loader_options` of
    `fastdata.loader`, such as ``{"even": False}`` for exact validation; `dataset` may be a path.
    `augmentation` is as in ``timm.data.create_transform``, with `num_workers`, `pin_memory` and
    `persistent_workers`.  A `collate_fn` is a ``timm.data.Mixup``, and mixes on `device`.  What is
    not supported, such as `num_aug_repeats`, raises `OptionError`.
    """
    shared = {"num_workers", "pin_memory", "persistent_workers"} & set(augmentation)
    options = {name: augmentation.pop(name) for name in shared}
    for name in _MEANINGLESS:
        augmentation.pop(name, None)
    for name, usual in _OFF.items():
        if (given := augmentation.pop(name, None)) and given != usual:
            raise OptionError(f"{name}={given!r} is for timm.data.create_loader only; leave it out")
    if not (collate_fn is None or (isinstance(collate_fn, Mixup) and use_prefetcher)):
        raise OptionError(f"collate_fn is a Mixup, and use_prefetcher True, not {collate_fn!r}")
    if re_prob and (re_mode not in _ERASED or re_count != 1):
        raise OptionError(f"re_mode is const or pixel, re_count 1, not {re_mode!r} and {re_count}")
    sized = input_size if isinstance(input_size, (tuple, list)) else ()
    channels = sized[0] if len(sized) == 3 else len(mean)
    mean, std = adapt_to_chs(mean, channels), adapt_to_chs(std, channels)
    timms = create_transform(
        input_size, is_training, no_aug, mean=mean, std=std, use_prefetcher=True, **augmentation
    )
    transform = [*_translated(timms.transforms[:-1]), T.Normalize(mean, std)]
    if re_prob and is_training and not no_aug:  # shares and ratios are timm's
        transform.append(T.RandomErasing(re_prob, (0.02, 1 / 3), (0.3, 1 / 0.3), _ERASED[re_mode]))
    options |= {"device": device if use_prefetcher else None, "dtype": img_dtype, "seed": seed}
    if not distributed:
        options |= {"rank": 0, "world_size": 1}
    options |= {"drop_last": is_training, "transform": transform, **(loader_options or {})}
    return TimmLoader(fastdata.loader(dataset, batch_size, is_training, **options), collate_fn)


def _translated(steps: list[Any]) -> list[Any]:
    """Return timm's steps as transforms of fastdata: its own, as long as there are such."""
    found: list[Any] = []
    while steps and (own := _geometric(steps[0])) is not None:
        found, steps = [*found, own], steps[1:]
    coloured = [_coloured(step) for step in steps]
    return found + (coloured if None not in coloured else [T.OnPIL(tv.Compose(steps))])


def _geometric(step: Any) -> Any:
    kind, filtered = type(step), getattr(step, "interpolation", None)
    if kind in _FLIPS:
        return _FLIPS[kind](step.p)
    if kind is tv.CenterCrop:
        return T.CenterCrop(step.size)
    if filtered not in (tv.InterpolationMode.BILINEAR, tv.InterpolationMode.BICUBIC):
        return None  # such as both of them, by chance
    if kind is RandomResizedCropAndInterpolation:
        how = {"interpolation": filtered.value, "antialias": True}
        return T.RandomResizedCrop(step.size, step.scale, step.ratio, **how)
    if kind is tv.Resize:
        return T.Resize(step.size, filtered.value, antialias=True)
    return None


def _coloured(step: Any) -> Any:
    kind = type(step)
    if kind is tv.RandomApply:
        members = [_coloured(one) for one in step.transforms]
        return None if None in members else T.RandomApply(members, step.p)
    if kind is tv.RandomGrayscale:
        return T.RandomGrayscale(step.p)
    if kind is tv.ColorJitter:
        return T.ColorJitter(step.brightness, step.contrast, step.saturation, step.hue)
    return T.GaussianBlur(step.kernel_size, step.sigma) if kind is tv.GaussianBlur else None
