"""Coefficients that no picture has: the compiled decoder gives libjpeg-turbo's pixels, or refuses.

Its SIMD code computes with 16 bits, which overflow; what is beyond is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg
from coefficients import jpeg_of
from numpy.typing import NDArray

from fastdata.native.library import decode_jpeg, library

pytestmark = pytest.mark.skipif(library() is None, reason="the compiled library is not here")

FILES = 500


def _decode(data: bytes, colours: int) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8]]:
    """Return what the compiled library makes of it, and libjpeg-turbo."""
    space = "RGB" if colours == 3 else "GRAY"
    expected = simplejpeg.decode_jpeg(data, colorspace=space)
    height, width, _ = expected.shape
    out = np.empty_like(expected)
    made = decode_jpeg(data, (height, width), (0, 0, height, width), out)
    return (out if made else None), expected


def _mutant(dice: np.random.Generator) -> tuple[bytes, int]:
    """Return a JPEG of random coefficients, from usual ones to the largest there are."""
    colours = int(dice.choice([1, 3]))
    sampling = int(dice.choice([0x11, 0x21, 0x22])) if colours == 3 else 0x11
    across, down = sampling >> 4, sampling & 15
    mcus = int(dice.integers(1, 4)), int(dice.integers(1, 4))
    blocks, quants = [], []
    for component in range(colours):
        count = mcus[0] * mcus[1] * (across * down if component == 0 and colours == 3 else 1)
        bits = dice.integers(0, dice.integers(1, 15), (count, 64), endpoint=True)
        values = dice.integers(0, 1 << bits) * dice.choice([-1, 1], (count, 64))
        values[dice.random((count, 64)) < dice.choice([0.0, 0.5, 0.9, 0.98])] = 0
        if dice.random() < 0.2:
            values[:, 1:] = 0
        blocks.append(values)
        quants.append(dice.integers(1, int(dice.choice([2, 32, 256])), 64))
    size = mcus[0] * down * 8, mcus[1] * across * 8
    return jpeg_of(blocks, quants, size, sampling), colours


@pytest.fixture(params=[0, 1], ids=["AVX2", "portable"])
def processor(request: pytest.FixtureRequest) -> Iterator[None]:
    compiled = library()
    assert compiled is not None
    compiled.fd_use_portable(request.param)
    yield
    compiled.fd_use_portable(0)


@pytest.mark.usefixtures("processor")
def test_any_coefficients_give_libjpegs_pixels_or_are_refused() -> None:
    dice = np.random.default_rng(20)
    made = 0
    for number in range(FILES):
        data, colours = _mutant(dice)
        found, expected = _decode(data, colours)
        if found is not None:
            made += 1
            assert np.array_equal(found, expected), f"file {number}"
    assert FILES // 10 < made < FILES


@pytest.mark.parametrize("value", [1, 8, 127, 128, 255])
def test_a_plain_block_at_the_edge_of_what_pictures_have_is_made(value: int) -> None:
    """DC of white and black, and any rounding of them, is no overflow."""
    for difference in (-1024 // value - 1, 1024 // value + 1):
        block = np.zeros((1, 64), np.int64)
        block[0, 0] = difference
        data = jpeg_of([block], [np.full(64, value)], (8, 8))
        found, expected = _decode(data, 1)
        assert found is not None
        assert np.array_equal(found, expected)


def test_sums_of_dc_differences_that_overflow_are_libjpegs_or_refused() -> None:
    for difference in (2047, -2047, 32767, -32767):
        blocks = np.zeros((64, 64), np.int64)
        blocks[:, 0] = difference
        data = jpeg_of([blocks], [np.full(64, 3)], (64, 64))
        found, expected = _decode(data, 1)
        assert found is None or np.array_equal(found, expected)
