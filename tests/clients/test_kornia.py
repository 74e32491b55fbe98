"""kornia: its augmentations take whole batches, as loaders give them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from ranks import COUNT, run_ranks

import fastdata
from fastdata import transforms as T  # noqa: N812

pytestmark = pytest.mark.skipif(find_spec("kornia") is None, reason="needs kornia")


def augment(path: str, how: str) -> Any:
    """Return flipped batches and the batches themselves."""
    import kornia.augmentation as K  # noqa: N812

    flip = K.AugmentationSequential(K.RandomHorizontalFlip(p=1.0), data_keys=["input"])
    options: Any = {"batch_size": 10, "dtype": torch.float32}
    with fastdata.loader(path, **options) as plain:
        wanted = [(images.clone(), labels) for images, labels in plain]
    if how == "on batches":
        with fastdata.loader(path, **options) as loader:
            found = [(flip(images), labels) for images, labels in loader]
    else:
        function = T.ImageOnly(lambda image: flip(image.float() / 255)[0])
        with fastdata.loader(path, batch_size=10, transform=[function], num_workers=0) as loader:
            found = [(images.clone(), labels) for images, labels in loader]
    return all(
        torch.allclose(images, plain.flip(3)) and labels.tolist() == classes.tolist()
        for (images, labels), (plain, classes) in zip(found, wanted, strict=True)
    ), sum(len(images) for images, _ in found)


@pytest.mark.parametrize("how", ["on batches", "by sample"])
def test_augmentations_of_kornia(packed: str, how: str) -> None:
    assert run_ranks(augment, 1, packed, how) == [(True, COUNT)]
