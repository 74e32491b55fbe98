"""Resizes to random sizes: sizes by torchvision's formulas, pixels those of `Resize`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import mask, photo

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.schema import ArrayField, ImageField
from fastdata.transforms.geometry import Geometry

SIZES = [(40, 52), (61, 33), (50, 50), (30, 90), (49, 35), (77, 42), (48, 96), (45, 70)]


def by_factor(height: int, width: int, factor: float) -> tuple[int, int]:
    return int(height * factor), int(width * factor)


def of_short_side(height: int, width: int, size: int) -> tuple[int, int]:
    """What torchvision's `Resize(size)` makes: the long side is cut off to a whole number."""
    long = int(size * max(height, width) / min(height, width))
    return (size, long) if height <= width else (long, size)


def of_shortest(height: int, width: int, size: int) -> tuple[int, int]:
    factor = min(size / min(height, width), 60 / max(height, width))
    return by_factor(height, width, factor)


CASES: dict[str, tuple[Any, Callable[[int, int], set[tuple[int, int]]]]] = {
    "resize": (
        T.RandomResize(20, 26),
        lambda h, w: {of_short_side(h, w, size) for size in range(20, 26)},
    ),
    "shortest": (
        T.RandomShortestSize([20, 35, 44], max_size=60),
        lambda h, w: {of_shortest(h, w, size) for size in (20, 35, 44)},
    ),
    "jitter": (
        T.ScaleJitter((64, 48), (0.5, 1.5)),
        lambda h, w: {
            by_factor(h, w, min(48 / h, 64 / w) * scale) for scale in np.linspace(0.5, 1.5, 4001)
        },
    ),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes with masks and boxes."""
    path = tmp_path_factory.mktemp("sizes") / "sizes.lmdb"
    fields = {
        "image": "image",
        "mask": ImageField(channels=1, mask=True),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
    }
    rows = [
        (photo(h, w, seed=n), mask(h, w, n), np.float32([[3, 5, w - 2, h - 1]]))
        for n, (h, w) in enumerate(SIZES)
    ]
    fastdata.pack(
        rows, path, resize="none", codec="png", fields=fields, num_workers=0, progress=False
    )
    return path


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_torchvisions_and_pixels_masks_and_boxes_those_of_resize(
    pack: Path, name: str
) -> None:
    transform, allowed = CASES[name]
    options = {"batch_size": 4, "image_lists": True, "num_workers": 0}
    loader = fastdata.loader(pack, transform=transform, **options)
    plain = fastdata.open(pack)
    seen = set()
    for _ in range(5):
        batches = list(loader)
        images, masks, boxes = (
            [one for batch in batches for one in getattr(batch, name)]
            for name in ("image", "mask", "boxes")
        )
        for at, (height, width) in enumerate(SIZES):
            made = tuple(images[at].shape[1:])
            assert made in allowed(height, width)
            seen.add((at, made))
            expected = fastdata.open(pack, transform=T.Resize(made))[at]
            assert torch.equal(images[at], expected.image)
            assert torch.equal(masks[at], expected.mask)
            torch.testing.assert_close(boxes[at], expected.boxes)
            scale = torch.tensor([made[1] / width, made[0] / height] * 2)
            torch.testing.assert_close(boxes[at], plain[at].boxes * scale)
    assert len(seen) > 2 * len(SIZES)


def test_each_size_is_drawn(pack: Path) -> None:
    loader = fastdata.loader(
        pack, transform=[T.RandomResize(20, 23)], image_lists=True, batch_size=8, num_workers=0
    )
    short = {min(image.shape[1:]) for _ in range(6) for batch in loader for image in batch.image}
    assert short == {20, 21, 22}


def test_a_crop_makes_batches_of_one_size(pack: Path) -> None:
    jitter = [T.ScaleJitter((64, 64)), T.CenterCrop(48)]
    (batch,) = fastdata.loader(pack, batch_size=8, transform=jitter, num_workers=0)
    assert batch.image.shape == (8, 3, 48, 48)
    with pytest.raises(OptionError, match="image_lists=True"):
        fastdata.loader(pack, batch_size=8, transform=jitter[:1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomResize(20, 20), "max_size must be greater than min_size 20, not 20"),
        (lambda: T.RandomShortestSize([]), r"min_size is an int or a list of int, not \[\]"),
        (lambda: T.RandomShortestSize([4, 0]), "min_size=0 is not an integer from 1"),
        (lambda: T.RandomShortestSize(4, max_size=-1), "max_size=-1 is not an integer from 1"),
        (lambda: T.ScaleJitter((4, 4), (2, 1)), "scale_range is a pair with 0 < low <= high"),
        (lambda: T.ScaleJitter(8, interpolation="x"), "interpolation"),  # type: ignore[arg-type]
    ],
)
def test_options_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_no_side_is_less_than_a_pixel() -> None:
    for transform in (T.ScaleJitter((20, 20), (0.1, 0.1)), T.RandomShortestSize(9, max_size=20)):
        geometry = transform.plan(Geometry.of([1, 900], [900, 1]), Draws(0, 0, 1, np.arange(2)))
        assert min(geometry.height.min(), geometry.width.min()) == 1
