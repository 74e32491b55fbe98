"""Resizing a rectangle whose edges fall between pixels, against the filter's definition."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastdata.codecs.resize import resize_box

Box = tuple[float, float, float, float]


def noise(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    image.flags.writeable = False
    return image


def weights(start: float, length: float, pixels: int, size: int) -> np.ndarray:
    """Shares of the source pixels in each target pixel, [size, pixels], by a triangle."""
    shrink = max(1.0, length / size)
    centres = start + (np.arange(size) + 0.5) * length / size
    distance = (np.arange(pixels) + 0.5)[None] - centres[:, None]
    triangle = np.maximum(0, 1 - abs(distance / shrink))
    triangle[:, : int(np.floor(start))] = 0  # nothing from outside the rectangle
    triangle[:, int(np.ceil(start + length)) :] = 0
    return triangle / triangle.sum(1, keepdims=True)


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    top, left = draw(st.floats(0, height - 2)), draw(st.floats(0, width - 2))
    rows, columns = draw(st.floats(1, height - top)), draw(st.floats(1, width - left))
    return top, left, rows, columns


@given(
    data=st.data(),
    height=st.integers(3, 40),
    width=st.integers(3, 40),
    channels=st.sampled_from([1, 3]),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_pixels_are_those_of_a_triangle_filter(
    data: st.DataObject, height: int, width: int, channels: int, size: tuple[int, int]
) -> None:
    image = noise(height, width, channels)
    box = data.draw(boxes(height, width))
    result = resize_box(image, box, size)
    rows = weights(box[0], box[2], height, size[0])
    columns = weights(box[1], box[3], width, size[1])
    expected = np.einsum("yr,rcn,xc->yxn", rows, image.astype(float), columns)
    assert result.shape == (*size, channels)
    assert result.flags.writeable
    # PIL rounds after either direction.
    assert abs(result - expected).max() <= 1.6


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_whole_pixels_are_cropped_and_resized(filter: str) -> None:
    image = noise(60, 70, 3)
    pil = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "nearest": 0}[filter]
    expected = Image.fromarray(image[7:47, 5:55]).resize((30, 20), Image.Resampling(pil))
    out = np.zeros((20, 30, 3), np.uint8)
    assert resize_box(image, (7.0, 5.0, 40.0, 50.0), (20, 30), filter, out) is out
    np.testing.assert_array_equal(out, expected)


def test_a_crop_of_a_reduced_picture_is_that_of_the_picture() -> None:
    smooth = cv2.GaussianBlur(noise(300, 300, 3), (0, 0), 6)
    full = cv2.normalize(smooth, np.zeros_like(smooth), 0, 255, cv2.NORM_MINMAX)
    half = full.reshape(150, 2, 150, 2, 3).mean((1, 3)).round().astype(np.uint8)
    expected = Image.fromarray(full[31:231, 13:253]).resize((80, 80), Image.Resampling.BILINEAR)
    result = resize_box(half, (15.5, 6.5, 100.0, 120.0), (80, 80))
    rounded = resize_box(half, (15.0, 6.0, 100.0, 120.0), (80, 80))
    inner = np.s_[2:-2, 2:-2]  # at the edges, half a pixel belongs to the outside
    error = abs(result[inner].astype(float) - np.asarray(expected)[inner]).mean()
    assert error < 1
    assert abs(rounded[inner].astype(float) - np.asarray(expected)[inner]).mean() > 4 * error
