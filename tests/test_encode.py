"""The compiled encoder: the bytes of OpenCV's libjpeg-turbo, with the index put in."""

from __future__ import annotations

import io
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import photo

from fastdata.codecs.jpeg_segments import add_segment_index, restart_interval
from fastdata.native import library as native

SIDES = st.integers(1, 75)
QUALITIES = st.sampled_from([1, 7, 49, 50, 51, 75, 90, 95, 100])


@pytest.fixture(params=["avx2", "portable"])
def code(request: pytest.FixtureRequest) -> Iterator[str]:
    compiled = native.loaded_library()
    if compiled is None:
        pytest.skip("the compiled library is not here")
    compiled.fd_use_portable(request.param == "portable")
    yield request.param
    compiled.fd_use_portable(0)


def by_opencv(pixels: np.ndarray, quality: int, interval: int) -> bytes:
    ordered = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.shape[2] == 3 else pixels
    done, data = cv2.imencode(
        ".jpg",
        ordered,
        [
            *(cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval),
            *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
        ],
    )
    assert done
    return add_segment_index(data.tobytes())


def picture(kind: str, height: int, width: int, channels: int) -> np.ndarray:
    random = np.random.default_rng(height * 100 + width)
    shape = height, width, channels
    if kind == "noise":
        return random.integers(0, 256, shape, np.uint8)
    if kind == "extremes":
        return random.integers(0, 2, shape, np.uint8) * np.uint8(255)
    if kind == "dots":  # long runs of zeros
        return np.where(random.random(shape) < 0.01, 140, 120).astype(np.uint8)
    return photo(*shape)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("kind", ["noise", "extremes", "dots", "photo"])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_are_those_of_libjpeg_turbo(channels: int, kind: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(SIDES, SIDES, QUALITIES, st.sampled_from([1, 2, 3, 5, 64]))
    def check(height: int, width: int, quality: int, interval: int) -> None:
        pixels = picture(kind, height, width, channels)
        assert native.encode_jpeg(pixels, quality, interval) == by_opencv(pixels, quality, interval)

    check()


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("shape", [(300, 411, 3), (1, 5000, 3), (4100, 2, 1), (800, 800, 1)])
def test_larger_files_are_too(shape: tuple[int, int, int]) -> None:
    pixels = picture("noise", *shape)
    interval = restart_interval(-(-shape[1] // (16 if shape[2] == 3 else 8)))
    for quality in (10, 90, 100):
        assert native.encode_jpeg(pixels, quality, interval) == by_opencv(pixels, quality, interval)


@pytest.mark.usefixtures("code")
def test_an_index_of_several_parts_is_written() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1600, 1700, 1), np.uint8)
    data = native.encode_jpeg(pixels, 1, 1)
    assert data is not None
    assert data.count(b"fastdata\0") == 2
    assert data == by_opencv(pixels, 1, 1)


@pytest.mark.usefixtures("code")
def test_colours_of_all_kinds_are_converted_as_libjpeg_does() -> None:
    steps = np.arange(0, 256, 5, dtype=np.uint8)
    pixels = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(len(steps) ** 2, -1, 3)
    assert native.encode_jpeg(pixels, 100, 2) == by_opencv(pixels, 100, 2)


def test_what_cannot_be_encoded_is_refused() -> None:
    if native.loaded_library() is None:
        pytest.skip("the compiled library is not here")
    grey = np.zeros((9, 9, 1), np.uint8)
    assert native.encode_jpeg(grey, 90, 0) is None
    assert native.encode_jpeg(grey, 0, 1) is None
    assert native.encode_jpeg(grey, 101, 1) is None
    assert native.encode_jpeg(np.zeros((1, 65536, 1), np.uint8), 90, 1) is None
    assert native.encode_jpeg(np.zeros((9, 9, 2), np.uint8), 90, 1) is None


def test_a_view_of_pixels_is_encoded() -> None:
    if native.loaded_library() is None:
        pytest.skip("the compiled library is not here")
    whole = photo(64, 80)
    data = native.encode_jpeg(whole[::-1, 3:51], 95, 1)
    assert data is not None
    found = np.array(Image.open(io.BytesIO(data)))
    assert np.abs(found.astype(int) - whole[::-1, 3:51]).mean() < 8


@pytest.mark.usefixtures("code")
@settings(max_examples=100, deadline=None)
@given(
    sides=st.tuples(*[st.integers(9, 120)] * 2),
    resized=st.tuples(SIDES, SIDES),
    channels=st.sampled_from([1, 3]),
    quality=QUALITIES,
)
def test_a_resized_jpeg_is_what_the_steps_make(
    sides: tuple[int, int], resized: tuple[int, int], channels: int, quality: int
) -> None:
    data = simplejpeg.encode_jpeg(
        photo(*sides, channels), 85, "GRAY" if channels == 1 else "RGB", "420", fastdct=False
    )
    pixels = simplejpeg.decode_jpeg(data, "GRAY" if channels == 1 else "RGB")
    small = np.empty((*resized, channels), np.uint8)
    assert native.resize(pixels, small, antialias=True)

    made = native.resize_jpeg(data, sides, 1, resized, channels, quality, 2)

    assert made == native.encode_jpeg(small, quality, 2)


@pytest.mark.usefixtures("code")
def test_what_cannot_be_resized_is_refused() -> None:
    data = simplejpeg.encode_jpeg(photo(40, 60), 85, "RGB", "420")

    assert native.resize_jpeg(data, (40, 60), 1, (20, 30), 3, 90, 2) is not None
    assert native.resize_jpeg(data[:-9], (40, 60), 1, (20, 30), 3, 90, 2) is None
    assert native.resize_jpeg(data, (60, 40), 1, (20, 30), 3, 90, 2) is None
    for size in ((0, 30), (20, 0), (65536, 1), (1, 65536), (-1, -1)):
        assert native.resize_jpeg(data, (40, 60), 1, size, 3, 90, 2) is None
    for factor, channels, quality, interval in [(3, 3, 90, 2), (1, 2, 90, 2), (1, 3, 0, 2)]:
        assert (
            native.resize_jpeg(data, (40, 60), factor, (20, 30), channels, quality, interval)
            is None
        )
