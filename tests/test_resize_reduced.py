"""Resizing a part of a picture of which there are reduced pixels, against plain Python."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from resize_reference import reduced_weights

from fastdata.codecs import resize as resizing
from fastdata.codecs.resize import resize_reduced
from fastdata.native.library import compiled


def noise(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    image.flags.writeable = False
    return image


@pytest.fixture(params=["native", "PIL"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both libraries that resize such pictures."""
    if request.param == "PIL":
        monkeypatch.setattr(resizing, "compiled", lambda: False)
    elif not compiled():
        pytest.skip("the compiled library is not here")
    return request.param


def test_pixels_are_those_of_a_triangle_filter(by: str) -> None:
    @given(st.data())
    def check(data: st.DataObject) -> None:
        factor = data.draw(st.sampled_from([2, 4, 8]))
        channels = data.draw(st.sampled_from([1, 3]))
        rows, columns = (
            data.draw(st.integers(3 * factor, 150)),
            data.draw(st.integers(3 * factor, 150)),
        )
        top, left = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
        size = (
            data.draw(st.integers(1, rows // (3 * factor))),
            data.draw(st.integers(1, columns // (3 * factor))),
        )
        first, start = top // factor, left // factor
        high, wide = -(-(top + rows) // factor) - first, -(-(left + columns) // factor) - start
        image = noise(high, wide, channels)
        result = resize_reduced(image, (top, left, rows, columns), factor, size)
        down = reduced_weights(top % factor, rows, high, size[0], factor, True) / (1 << 14)
        across = reduced_weights(left % factor, columns, wide, size[1], factor, True) / (1 << 14)
        expected = np.einsum("yr,rcn,xc->yxn", down, image.astype(float), across)
        assert result.shape == (*size, channels)
        # PIL rounds after either direction, and is given edges that were rounded.
        assert abs(result - expected).max() <= (0.6 if by == "native" else 1.7)

    check()


@pytest.mark.usefixtures("by")
def test_a_crop_of_a_reduced_picture_is_that_of_the_picture() -> None:
    smooth = cv2.GaussianBlur(noise(300, 300, 3), (0, 0), 6)
    full = cv2.normalize(smooth, np.zeros_like(smooth), 0, 255, cv2.NORM_MINMAX)
    half = full.reshape(150, 2, 150, 2, 3).mean((1, 3)).round().astype(np.uint8)
    part, box = Image.fromarray(full[31:231, 13:254]), (31, 13, 200, 241)
    for filter in ("bilinear", "bicubic"):
        expected = np.asarray(part.resize((40, 33), Image.Resampling[filter.upper()]), float)
        result = resize_reduced(half[15:116, 6:127], box, 2, (33, 40), filter)
        shifted = resize_reduced(half[15:115, 6:126], (30, 12, 200, 240), 2, (33, 40), filter)
        error = abs(result - expected).mean()
        assert error < 0.8
        assert abs(shifted - expected).mean() > 4 * error


@pytest.mark.usefixtures("by")
def test_what_is_partly_inside_counts_for_that_part() -> None:
    # A white frame of one pixel around a black picture, which is 1/4 of the outer reduced pixels.
    full = np.full((41, 41, 3), 255, np.uint8)
    full[1:-1, 1:-1] = 0
    padded = np.pad(full, ((3, 0), (3, 0), (0, 0)), mode="edge")
    reduced = padded.reshape(11, 4, 11, 4, 3).mean((1, 3)).round().astype(np.uint8)
    expected = np.asarray(Image.fromarray(full).resize((3, 3), Image.Resampling.BILINEAR))
    result = resize_reduced(reduced, (3, 3, 41, 41), 4, (3, 3))
    assert abs(result.astype(int) - expected).max() <= 6
