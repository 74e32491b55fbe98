"""Tones of whole batches, against PIL and plain loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from samples import mask, photo

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.schema import ArrayField, ImageField

Pixels = np.ndarray[Any, Any]

IMAGES = [photo(40, 52, seed=seed) for seed in range(12)]


def by_pil(function: Callable[..., Image.Image], *arguments: Any) -> Callable[[Pixels], Pixels]:
    return lambda image: np.array(function(Image.fromarray(image), *arguments))


def sharpened(image: Pixels, factor: float) -> Pixels:
    """Blend with the mean of 3 x 3 pixels, the middle one five times; edges stay."""
    made = image.astype(np.float64)
    for y in range(1, image.shape[0] - 1):
        for x in range(1, image.shape[1] - 1):
            around = image[y - 1 : y + 2, x - 1 : x + 2].astype(np.float64)
            smooth = np.rint((around.sum((0, 1)) + 4 * around[1, 1]) / 13)
            made[y, x] = smooth + (around[1, 1] - smooth) * factor
    return np.clip(made, 0, 255).astype(np.uint8)


def stretched(image: Pixels) -> Pixels:
    low, high = image.min((0, 1)).astype(float), image.max((0, 1)).astype(float)
    return ((image - low) * 255 / (high - low)).astype(np.uint8)


CASES: dict[str, tuple[Callable[[float], Any], Callable[[Pixels], Pixels], int]] = {
    "invert": (T.RandomInvert, by_pil(ImageOps.invert), 0),
    "posterize": (lambda p: T.RandomPosterize(3, p), by_pil(ImageOps.posterize, 3), 0),
    "solarize": (lambda p: T.RandomSolarize(131, p), by_pil(ImageOps.solarize, 131), 0),
    "equalize": (T.RandomEqualize, by_pil(ImageOps.equalize), 0),
    "autocontrast": (T.RandomAutocontrast, stretched, 1),
    "sharper": (lambda p: T.RandomAdjustSharpness(2.5, p), lambda x: sharpened(x, 2.5), 1),
    "smoother": (lambda p: T.RandomAdjustSharpness(0, p), lambda x: sharpened(x, 0), 1),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images with their masks and boxes."""
    path = tmp_path_factory.mktemp("tones") / "tones.lmdb"
    fields = {
        "image": "image",
        "mask": ImageField(channels=1, mask=True),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
    }
    rows = [
        (image, mask(40, 52, n), np.float32([[n, 2, 30, 20]])) for n, image in enumerate(IMAGES)
    ]
    fastdata.pack(
        rows, path, resize="none", codec="png", fields=fields, num_workers=0, progress=False
    )
    return path


@pytest.mark.parametrize("name", CASES)
def test_tones_are_those_of_the_reference(pack: Path, name: str) -> None:
    make, reference, levels = CASES[name]
    (batch,) = fastdata.loader(pack, batch_size=12, transform=[make(1.0)], num_workers=0)
    for made, image in zip(batch.image.permute(0, 2, 3, 1).numpy(), IMAGES, strict=True):
        assert made.dtype == np.uint8
        assert np.abs(made.astype(int) - reference(image)).max() <= levels
        assert not np.array_equal(made, image)


@pytest.mark.parametrize("name", CASES)
def test_some_images_change_and_masks_and_boxes_stay(pack: Path, name: str) -> None:
    make, _, _ = CASES[name]
    options = {"batch_size": 12, "num_workers": 0}
    (plain,) = fastdata.loader(pack, **options)
    (some,) = fastdata.loader(pack, transform=[make(0.5)], **options)
    (every,) = fastdata.loader(pack, transform=[make(1.0)], **options)
    changed = [not torch.equal(a, b) for a, b in zip(some.image, plain.image, strict=True)]
    assert 0 < sum(changed) < 12
    for at, change in enumerate(changed):
        assert torch.equal(some.image[at], (every if change else plain).image[at])
    assert torch.equal(every.mask, plain.mask)
    assert all(torch.equal(a, b) for a, b in zip(every.boxes, plain.boxes, strict=True))


def test_each_threshold_and_number_of_bits_counts() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    all_of_it = {"applied": np.ones(1, bool)}
    for threshold in range(256):
        made = T.RandomSolarize(threshold).apply(values, all_of_it).flatten().tolist()
        assert made == [255 - v if v >= threshold else v for v in range(256)]
    for bits in range(9):
        made = T.RandomPosterize(bits).apply(values, all_of_it).flatten().tolist()
        assert made == [v >> (8 - bits) << (8 - bits) for v in range(256)]


@pytest.mark.parametrize("name", CASES)
def test_floating_images_are_refused(pack: Path, name: str) -> None:
    make, _, _ = CASES[name]
    steps = [T.ToDtype(torch.float32), make(1.0)]
    with pytest.raises(OptionError, match="takes uint8 images; put it before Normalize"):
        fastdata.loader(pack, batch_size=4, transform=steps)
    with pytest.raises(OptionError, match=r"takes uint8 images, not torch\.float32"):
        make(1.0).apply(torch.zeros(1, 3, 4, 4), {"applied": np.ones(1, bool)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomInvert(1.5), "p is a probability.*1.5"),
        (lambda: T.RandomPosterize(9), "bits is an int from 0 to 8, not 9"),
        (lambda: T.RandomPosterize(2.0), "bits is an int from 0 to 8, not 2.0"),  # type: ignore[arg-type]
        (lambda: T.RandomSolarize(256), "threshold is a number from 0 to 255"),
        (lambda: T.RandomAdjustSharpness(-1), "sharpness_factor is a number from 0 .*not -1"),
        (lambda: T.RandomAdjustSharpness(float("nan")), "sharpness_factor.*not nan"),
    ],
)
def test_options_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()
