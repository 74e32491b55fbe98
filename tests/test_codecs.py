"""Encoding, decoding, headers, the segment index and resizing, against other libraries."""

from __future__ import annotations

import io
import re
import struct
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import photo, pil_decode, pil_encode, psnr
from segment_index import read_segment_index

from fastdata.codecs.blobs import decode_stored, encode_jpeg, encode_png
from fastdata.codecs.image import dct_scale, decode_image
from fastdata.codecs.image_header import size_of
from fastdata.codecs.jpeg import read_jpeg_header
from fastdata.codecs.jpeg_segments import add_segment_index
from fastdata.codecs.pillow import to_pixels
from fastdata.codecs.resize import resize_pixels
from fastdata.errors import ImageError

SIDES = st.integers(1, 120)
CHANNELS = st.sampled_from([1, 3])
QUALITIES = st.integers(1, 100)
SEEDS = st.integers(0, 5)


def cv2_decode(data: bytes, channels: int) -> np.ndarray[Any, Any]:
    flag = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
    return cv2.imdecode(np.frombuffer(data, np.uint8), flag).reshape(-1, 1)


def without_index(jpeg: bytes) -> bytes:
    """Cut the segment index out of a JPEG, as any tool that drops APP segments would."""
    at, pieces = 2, [jpeg[:2]]
    while jpeg[at : at + 2] != b"\xff\xda":
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at : at + 2] != b"\xff\xe9":
            pieces.append(jpeg[at:end])
        at = end
    return b"".join([*pieces, jpeg[at:]])


# -- JPEGs with restart intervals ------------------------------------------------------------


def check_index(jpeg: bytes, height: int, width: int, channels: int) -> int:
    """Compare the segment index with the markers in the file; return the number of segments."""
    side = 16 if channels == 3 else 8
    columns, rows = -(-width // side), -(-height // side)
    (dri,) = re.findall(rb"\xff\xdd\0\x04(..)", jpeg[: jpeg.index(b"\xff\xda")], re.DOTALL)
    interval = int.from_bytes(dri, "big")
    assert interval == next(n for n in (2, 3, 1) if columns % n == 0)
    segments = -(-rows * columns // interval)
    starts = read_segment_index(jpeg)
    assert starts is not None
    assert starts.dtype == np.int64
    assert len(starts) == segments + 1
    sos = jpeg.index(b"\xff\xda")
    assert starts[0] == sos + 2 + int.from_bytes(jpeg[sos + 2 : sos + 4], "big")
    assert starts[-1] == len(jpeg)
    assert jpeg.endswith(b"\xff\xd9")
    # In coded data only restart markers follow 0xFF; a zero is stuffed behind other 0xFF.
    coded = jpeg[starts[0] : -2]
    found = [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", coded)]
    assert (starts[1:-1] - starts[0] - 2).tolist() == found
    assert [coded[k + 1] - 0xD0 for k in found] == [n % 8 for n in range(len(found))]
    assert not re.search(rb"\xff[^\x00\xd0-\xd7]", coded, re.DOTALL)
    return segments


@settings(max_examples=120, deadline=None)
@given(SIDES, SIDES, CHANNELS, QUALITIES, SEEDS)
def test_the_index_points_at_every_restart_marker(
    height: int, width: int, channels: int, quality: int, seed: int
) -> None:
    jpeg = encode_jpeg(photo(height, width, channels, seed), quality)
    check_index(jpeg, height, width, channels)
    header = read_jpeg_header(jpeg)
    assert (header.height, header.width, header.frame) == (height, width, 0xC0)
    assert header.sampling == (((2, 2), (1, 1), (1, 1)) if channels == 3 else ((1, 1),))
    assert header.is_plain


@settings(max_examples=80, deadline=None)
@given(SIDES, SIDES, CHANNELS, QUALITIES, SEEDS)
def test_other_decoders_see_the_same_picture(
    height: int, width: int, channels: int, quality: int, seed: int
) -> None:
    pixels = photo(height, width, channels, seed)
    jpeg = encode_jpeg(pixels, quality)
    plain = without_index(jpeg)
    assert len(plain) < len(jpeg)
    expected = pil_decode(plain, channels)
    shape = (height, width, channels)
    np.testing.assert_array_equal(pil_decode(jpeg, channels), expected)
    np.testing.assert_array_equal(cv2_decode(jpeg, channels), expected.reshape(-1, 1))
    np.testing.assert_array_equal(decode_stored(memoryview(jpeg), "jpeg", shape), expected)
    if quality >= 90 and min(height, width) >= 16:
        assert psnr(expected, pixels) > 25


@pytest.mark.parametrize("quality", [1, 50, 90, 100])
@pytest.mark.parametrize("channels", [1, 3])
def test_quality_is_libjpegs_scale(quality: int, channels: int) -> None:
    pixels = photo(64, 80, channels)
    ours, pils = encode_jpeg(pixels, quality), pil_encode(pixels, "JPEG", quality=quality)
    with Image.open(io.BytesIO(ours)) as one, Image.open(io.BytesIO(pils)) as other:
        assert one.quantization == other.quantization


def test_indexing_refuses_what_has_no_restart_markers_where_they_belong() -> None:
    jpeg = encode_jpeg(photo(64, 64))
    with pytest.raises(ImageError, match="the JPEG does not end with EOI"):
        add_segment_index(jpeg + b"\0")
    marker = jpeg.rindex(b"\xff\xd1")
    with pytest.raises(ImageError, match="has 7 restart segments, not 8"):
        add_segment_index(jpeg[:marker] + b"\0\0" + jpeg[marker + 2 :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 700), st.integers(0, 80))
def test_damaged_headers_raise_nothing_but_image_errors(noise: bytes, at: int, cut: int) -> None:
    data = _DAMAGED[:at] + noise + _DAMAGED[at + cut :]
    for read in (read_segment_index, read_jpeg_header, decode_image):
        try:
            read(data)
        except ImageError:
            continue


_EXIF = Image.Exif()
_EXIF[0x0112], _EXIF[0x010E] = 6, "a description"
_DAMAGED = add_segment_index(
    cv2.imencode(
        ".jpg",
        photo(20, 60),
        [cv2.IMWRITE_JPEG_RST_INTERVAL, 2, cv2.IMWRITE_JPEG_QUALITY, 40],
    )[1].tobytes()
)
_DAMAGED = (
    _DAMAGED[:2]
    + b"\xff\xe1"
    + struct.pack(">H", len(_EXIF.tobytes()) + 2)
    + _EXIF.tobytes()
    + _DAMAGED[2:]
)


# -- the header parser ----------------------------------------------------------------------

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("RGB", {}),
    ("RGB", {"quality": 5}),
    ("RGB", {"subsampling": 0}),
    ("RGB", {"subsampling": 1}),
    ("RGB", {"subsampling": 2}),
    ("RGB", {"progressive": True}),
    ("RGB", {"restart_marker_blocks": 3}),
    ("RGB", {"restart_marker_rows": 1}),
    ("RGB", {"comment": b"\xff\xda\xff\xc0" * 9}),
    ("RGB", {"icc_profile": bytes(range(256)) * 600}),
    ("RGB", {"keep_rgb": True}),
    ("RGB", {"optimize": True, "dpi": (72, 72)}),
    ("L", {}),
    ("L", {"progressive": True}),
    ("CMYK", {}),
    ("CMYK", {"quality": 100}),
]


@pytest.mark.parametrize(("mode", "options"), KINDS, ids=str)
def test_the_header_says_what_pil_says(mode: str, options: dict[str, Any]) -> None:
    for size in ((1, 1), (37, 90), (64, 64)):
        check_header(mode, options, size)


def check_header(mode: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(*size)).convert(mode).save(file, "JPEG", exif=exif, **options)
    data = file.getvalue()
    for given_as in (data, memoryview(data)):
        header = read_jpeg_header(given_as)
        with Image.open(io.BytesIO(data)) as image:
            assert (header.width, header.height) == image.size
            assert header.components == len(image.getbands())
            assert header.precision == image.bits
            assert header.sampling == tuple((h, v) for _, h, v, _ in image.layer)
            assert (header.frame == 0xC2) == bool(image.info.get("progressive"))
            assert header.adobe_transform == image.info.get("adobe_transform")
        assert header.orientation == 6
        rows, columns = header.mcu_grid
        interval = {"restart_marker_blocks": 3, "restart_marker_rows": columns}
        expected = next((interval[name] for name in options if name in interval), 0)
        assert header.restart_interval == expected
        assert rows * header.mcu_size[0] >= size[0] > (rows - 1) * header.mcu_size[0]
        sos = data.index(b"\xff\xda", header.scan_offset - 20)
        assert header.scan_offset == sos + 2 + int.from_bytes(data[sos + 2 : sos + 4], "big")
        assert not header.is_plain


@pytest.mark.parametrize("order", ["little", "big"])
def test_orientation_is_read_in_both_byte_orders(order: str) -> None:
    for orientation in (*range(10), 65535):
        check_orientation(orientation, order)


def check_orientation(orientation: int, order: str) -> None:
    mark = "<" if order == "little" else ">"
    tiff = (b"II*\0" if order == "little" else b"MM\0*") + struct.pack(
        f"{mark}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0
    )
    exif = b"Exif\0\0" + tiff
    plain = encode_jpeg(photo(24, 30))
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + plain[2:]
    header = read_jpeg_header(data)
    assert header.orientation == (orientation if 1 <= orientation <= 8 else 1)
    assert header.is_plain == (header.orientation == 1)


@pytest.mark.parametrize(
    "exif", [b"", b"II", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"\0" * 40, b"MM\0*"]
)
def test_a_broken_exif_segment_is_no_orientation(exif: bytes) -> None:
    plain = encode_jpeg(photo(24, 30))
    body = b"Exif\0\0" + exif
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + plain[2:]
    assert read_jpeg_header(data).orientation == 1


def test_fill_bytes_between_markers_are_skipped() -> None:
    plain = encode_jpeg(photo(24, 30))
    filled = plain[:2] + b"\xff" * 9 + plain[2:]
    header = read_jpeg_header(filled)
    assert (header.height, header.width) == (24, 30)
    assert header.scan_offset == read_jpeg_header(plain).scan_offset + 9
    np.testing.assert_array_equal(decode_image(filled).pixels, pil_decode(plain, 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin with SOI"),
        (b"\x89PNG", "does not begin with SOI"),
        (b"\xff\xd8", "broken JPEG header"),
        (b"\xff\xd8\xff\xd9", "ends before its first scan"),
        (b"\xff\xd8\x00", "no marker at byte 2"),
        (b"\xff\xd8\xff\xe0\x00\x01", "has length 1"),
        (b"\xff\xd8\xff\xe0\x00\x10abc", "has length 16"),
        (b"\xff\xd8\xff\xda\x00\x02", "a scan comes before the frame header"),
    ],
)
def test_broken_headers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_jpeg_header(data)


def test_the_header_of_no_image_is_an_error_that_is_the_same_in_every_run() -> None:
    message = (
        r"its header cannot be read: not an image of a known format: it begins with b'nonsense'$"
    )
    with pytest.raises(ImageError, match=message):
        size_of(b"nonsense bytes")


def test_a_jpeg_cut_anywhere_is_an_error() -> None:
    data = encode_jpeg(photo(20, 30))
    for length in range(len(data)):
        with pytest.raises(ImageError, match=r"empty|JPEG|not an image"):
            decode_image(data[:length])


# -- lossless codecs --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, CHANNELS, SEEDS, st.booleans())
def test_png_and_raw_are_lossless(
    height: int, width: int, channels: int, seed: int, noise: bool
) -> None:
    random = np.random.default_rng(seed)
    pixels = photo(height, width, channels, seed)
    if noise:
        pixels = random.integers(0, 256, pixels.shape, np.uint8)
    png = encode_png(pixels)
    np.testing.assert_array_equal(pil_decode(png, channels), pixels)
    for codec, data in (("png", png), ("raw", pixels.tobytes())):
        out = np.zeros_like(pixels)
        assert decode_stored(memoryview(data), codec, pixels.shape, out=out) is out
        np.testing.assert_array_equal(out, pixels)
        np.testing.assert_array_equal(decode_stored(memoryview(data), codec, out.shape), pixels)


def test_encoders_do_not_change_what_they_are_given() -> None:
    pixels = photo(30, 40)
    before = pixels.copy()
    encode_jpeg(pixels)
    encode_png(pixels)
    np.testing.assert_array_equal(pixels, before)
    pixels.flags.writeable = False
    assert encode_png(pixels) == encode_png(before)


# -- any image file -----------------------------------------------------------------------------


def test_pils_wide_pngs_are_read_whatever_the_mode() -> None:
    """Releases of PIL before 11 open a 16-bit PNG as mode I, like 32-bit files."""
    deep = np.arange(30 * 44, dtype=np.int32).reshape(30, 44) * 49
    image = Image.fromarray(deep)
    assert image.mode == "I"
    with pytest.raises(ImageError, match=r"mode .I. .32 bits a sample. has no"):
        to_pixels(image, 1)
    image.format = "PNG"
    np.testing.assert_array_equal(to_pixels(image, 1)[:, :, 0], deep >> 8)


# -- decoding at reduced scale ----------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("size", "channels"),
    [((64, 96), 3), ((501, 333), 3), ((501, 333), 1), ((9, 1000), 3), ((7, 8), 1)],
    ids=str,
)
def test_reduced_decoding_is_what_pils_draft_gives(
    factor: int, size: tuple[int, int], channels: int
) -> None:
    data = pil_encode(photo(*size, channels), "JPEG", quality=95)
    decoded = decode_image(data, channels, scale=lambda height, width: factor)
    reduced = -(-size[0] // factor), -(-size[1] // factor)
    assert decoded.pixels.shape == (*reduced, channels)
    assert (decoded.size, decoded.factor) == (size, factor)
    assert decoded.extent == (size[0] / factor, size[1] / factor)
    with Image.open(io.BytesIO(data)) as image:
        # PIL chooses the scale by whole divisions of the size it is asked for.
        image.draft(image.mode, (max(1, size[1] // factor), max(1, size[0] // factor)))
        if image.size == reduced[::-1]:
            expected = np.array(image).reshape(decoded.pixels.shape)
            np.testing.assert_array_equal(decoded.pixels, expected)
        else:
            assert min(size) < 2 * factor, "PIL could have decoded at this scale"


def test_the_scale_is_asked_for_with_the_upright_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    asked = []
    data = pil_encode(photo(30, 44), "JPEG", exif=exif)
    decode_image(data, scale=lambda height, width: asked.append((height, width)) or 1)
    assert asked == [(44, 30)]


@given(
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(1, 500),
    st.integers(1, 500),
    st.sampled_from([1.0, 1.5, 2.0, 3.0]),
)
def test_the_dct_scale_leaves_the_margin(h: int, w: int, th: int, tw: int, margin: float) -> None:
    factor = dct_scale(h, w, (th, tw), margin)

    def enough(n: int) -> bool:
        return h / n >= margin * th * (1 - 1e-12) and w / n >= margin * tw * (1 - 1e-12)

    assert factor in (1, 2, 4, 8)
    assert factor == 1 or enough(factor)
    assert factor == 8 or not enough(2 * factor * (1 + 1e-9))


def test_reduced_decoding_and_resizing_do_not_shift_the_picture() -> None:
    """The last column of a picture of 501 pixels at 1/8 is covered only partly."""
    source = photo(501, 749, 3, 4)
    data = pil_encode(source, "JPEG", quality=95)
    decoded = decode_image(data, scale=lambda height, width: 8)
    expected = Image.fromarray(source).resize((37, 25), Image.Resampling.BILINEAR)
    right = resize_pixels(decoded.pixels, (25, 37), extent=decoded.extent)
    wrong = resize_pixels(decoded.pixels, (25, 37))
    assert psnr(right, expected) > psnr(wrong, expected) + 3
