"""Resizing, held against PIL, and the sizes that images get."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import photo, psnr

from fastdata.codecs.resize import centre_of, resize_pixels, target_size

CHANNELS = st.sampled_from([1, 3])
SEEDS = st.integers(0, 5)
PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


def pil_resize(
    pixels: np.ndarray[Any, Any],
    size: tuple[int, int],
    filter: str,
    extent: tuple[float, float] | None = None,
) -> np.ndarray[Any, Any]:
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    box = None if extent is None else (0.0, 0.0, extent[1], extent[0])
    resized = image.resize(size[::-1], PIL_FILTERS[filter], box=box)
    return np.array(resized).reshape(*size, pixels.shape[2])


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.integers(8, 300), st.integers(8, 300)),
    st.tuples(st.integers(4, 200), st.integers(4, 200)),
    CHANNELS,
    st.sampled_from(sorted(PIL_FILTERS)),
    SEEDS,
    st.booleans(),
)
def test_resizing_is_pils(
    size: tuple[int, int],
    target: tuple[int, int],
    channels: int,
    filter: str,
    seed: int,
    partly: bool,
) -> None:
    pixels = photo(*size, channels, seed)
    # PyTorch's kernels know no partly covered pixels; how well that is made up for, the
    # tests of decoding at reduced scale see.
    partly = partly and filter in ("lanczos", "nearest")
    extent = (size[0] - 0.375, size[1] - 0.625) if partly else None
    before = pixels.copy()
    resized = resize_pixels(pixels, target, filter, extent)
    out = np.zeros_like(resized)
    assert resize_pixels(pixels, target, filter, extent, out=out) is out
    np.testing.assert_array_equal(out, resized)
    expected = pil_resize(pixels, target, filter, extent)
    assert resized.shape == (*target, channels)
    assert resized.flags.c_contiguous
    if filter in ("bilinear", "bicubic"):
        assert psnr(resized, expected) >= 45, "torchvision's promise; usual are 65 and more"
    else:
        np.testing.assert_array_equal(resized, expected)
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize("filter", sorted(PIL_FILTERS))
def test_tiny_images_are_resized(filter: str) -> None:
    for size, target in itertools.product([(1, 1), (1, 50), (50, 1)], [(1, 1), (7, 3)]):
        pixels = photo(*size)
        expected = pil_resize(pixels, target, filter)
        assert np.abs(resize_pixels(pixels, target, filter).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("filter", sorted(PIL_FILTERS))
def test_read_only_pixels_are_resized_and_same_sizes_left_alone(filter: str) -> None:
    pixels = photo(40, 50)
    expected = resize_pixels(pixels, (20, 20), filter)
    pixels.flags.writeable = False
    np.testing.assert_array_equal(resize_pixels(pixels, (20, 20), filter), expected)
    assert resize_pixels(pixels, (40, 50), filter) is pixels


# -- target sizes -------------------------------------------------------------------------------


def torchvision_size(height: int, width: int, side: int, *, longest: bool) -> tuple[int, int]:
    """``torchvision.transforms.functional._compute_resized_output_size``, as documented.

    "If the smaller edge of the image will be matched to this number, i.e. if
    height > width, then image will be rescaled to (size * height / width, size)."
    """
    short, long = min(height, width), max(height, width)
    if longest:
        new_short, new_long = int(side * short / long), side
    else:
        new_short, new_long = side, int(side * long / short)
    return (new_long, new_short) if width <= height else (new_short, new_long)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600), st.booleans())
def test_target_sizes_are_torchvisions(height: int, width: int, side: int, longest: bool) -> None:
    resize: Any = "long" if longest else "short"
    expected = torchvision_size(height, width, side, longest=longest)
    expected = max(1, expected[0]), max(1, expected[1])
    assert target_size(height, width, (side, side), resize, enlarge=True) == expected
    smaller = (max if longest else min)(height, width) < side
    kept = (height, width) if smaller else expected
    assert target_size(height, width, (side, side), resize) == kept


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 400), st.integers(1, 400))
def test_before_a_crop_the_image_just_covers_it(h: int, w: int, th: int, tw: int) -> None:
    height, width = target_size(h, w, (th, tw), "crop")
    assert height >= th
    assert width >= tw
    assert height == th or width == tw
    # The same aspect, but for rounding down.
    scale = max(th / h, tw / w)
    assert height in (th, math.floor(h * scale + 1e-9))
    assert width in (tw, math.floor(w * scale + 1e-9))
    if th == tw:
        assert (height, width) == torchvision_size(h, w, th, longest=False)


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_centre_crops_lie_where_torchvisions_do(height: int, width: int, data: Any) -> None:
    size = data.draw(st.tuples(st.integers(1, height), st.integers(1, width)))
    expected = round((height - size[0]) / 2.0), round((width - size[1]) / 2.0)
    assert centre_of((height, width), size) == expected
