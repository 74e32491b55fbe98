"""Cutting windows out of compressed JPEGs: the same pixels as decoding the whole, and nothing
that bytes can say leads outside of them."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import photo, pil_encode
from segment_index import read_segment_index

from fastdata.codecs.jpeg import read_jpeg_header
from fastdata.codecs.jpeg_segments import CutJpeg, add_segment_index, cut_jpeg

# Sampling, and height and width of an MCU in pixels.
SAMPLINGS = {
    "4:4:4": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444, 8, 8),
    "4:2:2": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, 8, 16),
    "4:4:0": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, 16, 8),
    "4:2:0": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420, 16, 16),
    "4:1:1": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, 8, 32),
    "grey": (None, 8, 8),
}
FACTORS = [1, 2, 4, 8]
Window = tuple[int, int, int, int]


def jpeg_of(
    height: int, width: int, sampling: str = "4:2:0", interval: int = 1, seed: int = 0
) -> bytes:
    """Encode a picture with an interval and its index."""
    factor = SAMPLINGS[sampling][0]
    pixels = photo(height, width, 1 if factor is None else 3, seed)
    # Strong noise: a neighbour that should not matter, or should, does.
    noise = np.random.default_rng(seed).normal(0, 40, pixels.shape)
    pixels = np.clip(pixels + noise, 0, 255).astype(np.uint8)
    options = [cv2.IMWRITE_JPEG_RST_INTERVAL, interval, cv2.IMWRITE_JPEG_QUALITY, 90]
    if factor is not None:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    done, data = cv2.imencode(".jpg", pixels, options)
    assert done
    return add_segment_index(data.tobytes())


def decode(data: bytes, factor: int = 1) -> np.ndarray[Any, Any]:
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    least = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
    pixels: np.ndarray[Any, Any] = simplejpeg.decode_jpeg(data, "RGB", min_factor=factor, **least)
    assert pixels.shape[:2] == tuple(least.values())
    return pixels


def check_cut(whole: bytes, cut: CutJpeg, window: Window, factor: int = 1) -> None:
    """Compare the pixels of a cut with those of decoding the whole and cropping."""
    header = read_jpeg_header(cut.data)
    assert (header.height, header.width) == (cut.height, cut.width)
    everything = decode(whole, factor)
    assert -(-cut.whole[0] // factor) == everything.shape[0]
    assert -(-cut.whole[1] // factor) == everything.shape[1]
    top, left = window[0] // factor, window[1] // factor
    bottom = -(-(window[0] + window[2]) // factor)
    right = -(-(window[1] + window[3]) // factor)
    assert cut.top % 8 == 0
    assert cut.left % 8 == 0
    y, x = cut.top // factor, cut.left // factor
    found = decode(cut.data, factor)[top - y : bottom - y, left - x : right - x]
    np.testing.assert_array_equal(found, everything[top:bottom, left:right])


# -- the same pixels ---------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, str, int, Window, int, int]:
    height, width = draw(st.integers(1, 100)), draw(st.integers(1, 130))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    window = (
        top,
        left,
        draw(st.integers(1, height - top)),
        draw(st.integers(1, width - left)),
    )
    return (
        height,
        width,
        draw(st.sampled_from(list(SAMPLINGS))),
        draw(st.integers(1, 6)),
        window,
        draw(st.sampled_from(FACTORS)) if min(height, width) >= 8 else 1,
        draw(st.integers(0, 3)),
    )


@settings(max_examples=500, deadline=None)
@given(cases())
# The last column of chroma alone would be enlarged without looking at its neighbours.
@example((64, 35, "4:2:0", 1, (0, 33, 64, 2), 1, 0))
@example((64, 36, "4:2:2", 1, (0, 34, 64, 1), 1, 0))
@example((64, 70, "4:2:2", 1, (20, 20, 8, 8), 4, 0))
@example((64, 70, "4:2:2", 1, (20, 0, 8, 10), 4, 0))
# The next pixel's chroma matters, the one after it no more.
@example((64, 64, "4:2:0", 1, (16, 16, 16, 16), 1, 0))
@example((64, 64, "4:2:2", 1, (16, 16, 16, 16), 2, 0))
@example((64, 64, "4:4:0", 1, (16, 16, 16, 16), 2, 0))
@example((64, 64, "4:2:2", 1, (17, 19, 12, 10), 4, 0))
@example((64, 64, "4:4:0", 1, (19, 17, 10, 12), 4, 0))
@example((17, 17, "4:4:4", 1, (16, 16, 1, 1), 4, 0))
def test_a_cut_gives_the_pixels_of_the_whole(
    case: tuple[int, int, str, int, Window, int, int],
) -> None:
    height, width, sampling, interval, window, factor, seed = case
    whole = jpeg_of(height, width, sampling, interval, seed)
    cut = cut_jpeg(whole, window, factor)
    mcu_columns = -(-width // SAMPLINGS[sampling][2])
    if mcu_columns % interval and interval % mcu_columns:
        assert cut is None
    if cut is not None:
        assert len(cut.data) < len(whole)
        check_cut(whole, cut, window, factor)


# -- no more than is needed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "interval", "window", "expected"),
    [
        # Nothing is subsampled: the very MCUs, and in the last ones no pixel behind the window.
        ("grey", 1, (8, 16, 8, 8), (8, 16, 8, 8)),
        ("4:4:4", 1, (8, 16, 8, 8), (8, 16, 8, 8)),
        ("4:4:4", 1, (7, 15, 1, 2), (0, 8, 8, 9)),
        # A pixel more where chroma is.
        ("4:2:0", 1, (17, 33, 14, 14), (16, 32, 16, 16)),
        ("4:2:0", 1, (16, 33, 15, 14), (0, 32, 32, 16)),
        ("4:2:0", 1, (17, 33, 15, 14), (16, 32, 17, 16)),
        ("4:2:0", 1, (17, 32, 14, 15), (16, 16, 16, 32)),
        ("4:2:0", 1, (17, 33, 14, 15), (16, 32, 16, 17)),
        ("4:2:2", 1, (16, 33, 16, 14), (16, 32, 16, 16)),
        ("4:2:2", 1, (16, 32, 16, 14), (16, 16, 16, 31)),
        ("4:4:0", 1, (17, 32, 14, 8), (16, 32, 16, 8)),
        ("4:4:0", 1, (16, 32, 14, 8), (0, 32, 31, 8)),
        # Whole intervals, to the image's edge.
        ("4:2:0", 3, (17, 50, 5, 40), (16, 48, 7, 42)),
        ("4:2:0", 3, (30, 60, 71, 30), (16, 48, 85, 42)),
        ("4:2:0", 3, (17, 30, 5, 10), (16, 0, 7, 41)),
        # Intervals of one row of MCUs and of three.
        ("4:4:4", 12, (30, 60, 10, 10), (24, 0, 16, 89)),
        ("4:2:0", 6, (17, 50, 5, 5), (16, 0, 7, 81)),
        ("4:2:0", 18, (50, 50, 5, 5), (48, 0, 33, 81)),
        ("4:2:0", 18, (97, 50, 2, 5), (96, 0, 4, 81)),
    ],
)
def test_a_cut_is_as_small_as_it_can_be(
    sampling: str, interval: int, window: Window, expected: Window
) -> None:
    whole = jpeg_of(101, 90, sampling, interval)
    cut = cut_jpeg(whole, window)
    assert cut is not None
    assert (cut.top, cut.left, cut.height, cut.width) == expected
    check_cut(whole, cut, window)


def test_a_cut_is_a_jpeg_of_its_own() -> None:
    whole = jpeg_of(200, 304, "4:2:0", 1)
    cut = cut_jpeg(whole, (20, 20, 150, 250))
    assert cut is not None
    assert isinstance(cut.data, bytes)
    header = read_jpeg_header(cut.data)
    assert header.restart_interval == 1
    assert b"fastdata" not in cut.data
    coded = cut.data[header.scan_offset :]
    markers = [match[1] - 0xD0 for match in re.findall(rb"\xff[\xd0-\xd7]", coded)]
    assert markers == [k % 8 for k in range(len(markers))]
    rows, columns = header.mcu_grid
    assert len(markers) == rows * columns - 1
    assert coded.endswith(b"\xff\xd9")
    # What decodes is the same also when it is cut once more.
    again = cut_jpeg(add_segment_index(cut.data), (30, 40, 20, 20))
    assert again is not None
    check_cut(cut.data, again, (30, 40, 20, 20))


def test_an_image_of_many_segments_is_cut() -> None:
    # More lengths than two parts of the index hold, and than there are markers at hand.
    whole = jpeg_of(2064, 2056, "grey", 1)
    assert len(re.findall(rb"\xff\xe9..fastdata\0", whole, re.DOTALL)) == 3
    for window in ((1000, 1003, 40, 50), (0, 0, 9, 9), (2050, 2000, 14, 56)):
        cut = cut_jpeg(whole, window)
        assert cut is not None
        assert cut.height * cut.width < 70 * 70
        check_cut(whole, cut, window)
    disordered = whole.replace(b"fastdata\0\1\1\3", b"fastdata\0\1\2\3")
    assert cut_jpeg(disordered, (1000, 1003, 40, 50)) is None
    first = whole.index(b"\xff\xe9")
    swapped = whole[:first] + whole[first + 65536 :][:65536] + whole[first:][:65536]
    assert cut_jpeg(swapped + whole[first + 131072 :], (1000, 1003, 40, 50)) is None


# -- what is not cut ---------------------------------------------------------------------------


WHOLE = jpeg_of(64, 96, "4:2:0", 2)
INSIDE = (20, 40, 20, 40)  # segments 4, 5, 7 and 8 of 4 rows of 3


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def marker_at(number: int) -> int:
    """Return where the restart marker before a segment of `WHOLE` stands."""
    starts = read_segment_index(WHOLE)
    assert starts is not None
    return int(starts[number]) - 2


def with_segment(data: bytes, at: int, comment: bytes, marker: bytes = b"\xff\xfe") -> bytes:
    return data[:at] + marker + (len(comment) + 2).to_bytes(2, "big") + comment + data[at:]


LONG = b"x" * 5000
SCAN = WHOLE[WHOLE.index(b"\xff\xda") :][:14]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xd8", id="only its beginning"),
        pytest.param(pil_encode(photo(64, 96), "JPEG"), id="no index"),
        pytest.param(pil_encode(photo(64, 96), "PNG"), id="no JPEG"),
        pytest.param(jpeg_of(64, 96, "4:2:0", 4), id="rows begin within a segment"),
        pytest.param(WHOLE[:-1], id="cut short"),
        pytest.param(WHOLE[:-2] + b"\xff\xd8", id="no end-of-image marker"),
        pytest.param(WHOLE[:300], id="cut in its header"),
        pytest.param(WHOLE + b"\xff\xd9", id="something behind it"),
        pytest.param(WHOLE.replace(b"fastdata", b"fastdatb"), id="another's APP9"),
        pytest.param(WHOLE.replace(b"fastdata\0\x01", b"fastdata\0\x02"), id="newer index"),
        pytest.param(WHOLE.replace(b"fastdata\0\x01\0", b"fastdata\0\x01\x01"), id="part 1 first"),
        pytest.param(WHOLE.replace(b"fastdata\0\x01\0\x01", b"fastdata\0\x01\0\x02"), id="a part"),
        pytest.param(WHOLE.replace(b"fastdata\0\x01\0\x01", b"fastdata\0\x01\0\0"), id="no parts"),
        pytest.param(WHOLE[:22] + b"\0\x25" + WHOLE[24:], id="half a length"),
        pytest.param(WHOLE[:22] + b"\0\x04" + WHOLE[24:], id="an index shorter than its name"),
        pytest.param(WHOLE[:41] + b"\xff\xd9", id="an index that ends early"),
        pytest.param(WHOLE[:22] + b"\0\x0e" + WHOLE[24:36] + WHOLE[60:], id="an index of nothing"),
        pytest.param(WHOLE.replace(b"\xff\xdd\0\4\0\2", b"\xff\xdd\0\4\0\3"), id="interval lies"),
        pytest.param(WHOLE.replace(b"\xff\xdd\0\4\0\2", b"\xff\xdd\0\4\0\0"), id="interval 0"),
        pytest.param(WHOLE.replace(b"\xff\xc0", b"\xff\xc2", 1), id="progressive"),
        pytest.param(
            WHOLE.replace(b"\xff\xc0\0\x11\x08\0\x40", b"\xff\xc0\0\x11\x08\1\0"), id="size lies"
        ),
        pytest.param(
            WHOLE.replace(b"\xff\xda\0\x0c\x03", b"\xff\xda\0\x0c\x01"), id="scan of one component"
        ),
        pytest.param(WHOLE.replace(SCAN, SCAN + SCAN), id="two scans"),
        pytest.param(with_segment(WHOLE, 2, LONG), id="a long header before the index"),
        pytest.param(with_segment(WHOLE, WHOLE.index(b"\xff\xdb"), LONG), id="and behind it"),
    ],
)
def test_what_cannot_be_cut_is_decoded_whole(data: bytes) -> None:
    assert cut_jpeg(WHOLE, INSIDE) is not None
    assert cut_jpeg(data, INSIDE) is None


@pytest.mark.parametrize(
    ("window", "used"),
    [
        (INSIDE, {4, 5, 7, 8}),
        ((0, 40, 30, 50), {1, 2, 4, 5}),
        ((20, 0, 30, 40), {3, 4, 6, 7, 9, 10}),
        ((0, 0, 10, 40), {1}),
    ],
)
def test_markers_before_what_is_cut_out_are_checked(window: Window, used: set[int]) -> None:
    for number in range(1, 12):
        for at, value in ((0, b"\xfe"), (1, b"\xd7" if number != 8 else b"\xd6")):
            cut = cut_jpeg(changed(WHOLE, marker_at(number) + at, value), window)
            assert (cut is None) == (number in used)


@pytest.mark.parametrize(
    "window",
    [
        (0, 0, 64, 96),
        (8, 8, 48, 80),
        (-1, 40, 10, 10),
        (20, -1, 10, 10),
        (60, 40, 5, 10),
        (20, 90, 10, 7),
        (20, 40, 0, 10),
        (20, 40, 10, 0),
        (2**40, 2**40, 2**40, 2**40),
    ],
)
def test_windows_that_save_nothing_or_lie_outside_are_not_cut(window: Window) -> None:
    assert cut_jpeg(WHOLE, window) is None


def test_other_segments_are_kept_wherever_they_stand() -> None:
    first, index = WHOLE.index(b"\xff\xe0"), WHOLE.index(b"\xff\xe9")
    tables = WHOLE.index(b"\xff\xdb")
    # A comment, and a segment of the index's kind that is another's.
    for at, marker in itertools.product((first, index, tables), (b"\xff\xfe", b"\xff\xe9")):
        data = with_segment(WHOLE, at, b"a comment", marker)
        cut = cut_jpeg(data, INSIDE)
        assert cut is not None
        assert b"a comment" in cut.data
        check_cut(data, cut, INSIDE)


# -- bytes are not trusted -----------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(WHOLE)),
    st.booleans(),
)
def test_damaged_bytes_are_cut_or_not_but_never_anything_else(
    changes: list[tuple[int, int]], length: int, shorten: bool
) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    damaged = bytes(data[:length] if shorten else data)
    check_harmless(damaged)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, WHOLE.index(b"\xff\xda") + 20), st.integers(0, 255))
def test_damaged_headers_are_cut_or_not_but_never_anything_else(at: int, value: int) -> None:
    check_harmless(changed(WHOLE, at, bytes([value])))


def check_harmless(data: bytes) -> None:
    """Cut, and let a decoder read what comes of it: it finds the damage or does not."""
    cut = cut_jpeg(data, INSIDE)
    if cut is None:
        return
    assert len(cut.data) <= len(data)
    assert cut.height <= cut.whole[0]
    assert cut.width <= cut.whole[1]
    header = read_jpeg_header(cut.data)
    assert (header.height, header.width) == (cut.height, cut.width)
    if cut.height * cut.width > 10**6:
        return  # for the caller to refuse: the columns of a shard say otherwise
    with contextlib.suppress(ValueError):
        simplejpeg.decode_jpeg(cut.data, "RGB")
