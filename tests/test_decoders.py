"""JPEG decoders behind one contract, and decoding windows of stored images with each of them."""

from __future__ import annotations

import io
import itertools
import pickle
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features
from samples import mask, photo, pil_decode, pil_encode
from test_jpeg_crop import FACTORS, SAMPLINGS, jpeg_of

from fastdata.codecs import decoders
from fastdata.codecs.blobs import decode_stored, decode_window, encode_jpeg, encode_png
from fastdata.codecs.decoders import JpegDecoder, jpeg_decoder
from fastdata.codecs.jpeg_segments import cut_jpeg
from fastdata.errors import ImageError, MissingExtraError, OptionError
from fastdata.native.library import compiled

NAMES = ["native", "simplejpeg", "jpeg4py", "opencv", "pil"]
SIZES = [(8, 8), (15, 9), (9, 15), (33, 47), (64, 100)]

# Of PIL this holds where it was built with libjpeg-turbo, as its wheels are.
assert features.check("libjpeg_turbo"), "these tests compare with libjpeg-turbo's pixels"


@pytest.fixture(params=NAMES)
def decoder(request: pytest.FixtureRequest) -> JpegDecoder:
    """Every decoder that is installed, in turn."""
    try:
        return jpeg_decoder(request.param)
    except MissingExtraError as error:
        pytest.skip(str(error))


def reference(data: bytes, channels: int, factor: int = 1) -> np.ndarray[Any, Any]:
    """Decode with OpenCV, by its own names for the sizes."""
    flags = {
        (3, 1): cv2.IMREAD_COLOR,
        (3, 2): cv2.IMREAD_REDUCED_COLOR_2,
        (3, 4): cv2.IMREAD_REDUCED_COLOR_4,
        (3, 8): cv2.IMREAD_REDUCED_COLOR_8,
        (1, 1): cv2.IMREAD_GRAYSCALE,
        (1, 2): cv2.IMREAD_REDUCED_GRAYSCALE_2,
        (1, 4): cv2.IMREAD_REDUCED_GRAYSCALE_4,
        (1, 8): cv2.IMREAD_REDUCED_GRAYSCALE_8,
    }
    pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags[channels, factor])
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return pixels[:, :, ::-1] if channels == 3 else pixels


# -- the contract ------------------------------------------------------------------------------


def check_decoding(decoder: JpegDecoder, sampling: str, channels: int, factor: int) -> None:
    for size in SIZES:
        data = jpeg_of(*size, sampling)
        expected = reference(data, channels, factor)
        assert expected.shape == (-(-size[0] // factor), -(-size[1] // factor), channels)
        found = decoder.decode(data, channels, factor=factor)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
        out = np.zeros_like(found)
        assert decoder.decode(memoryview(data), channels, factor=factor, size=size, out=out) is out
        np.testing.assert_array_equal(out, expected)


# Of the libraries only calls are fastdata's: each depends on channels and factor alone.
@pytest.mark.parametrize(
    ("sampling", "channels", "factor"),
    [
        ("4:2:0", 3, 1),
        ("4:4:4", 3, 2),
        ("4:2:2", 3, 4),
        ("4:4:0", 3, 8),
        ("grey", 1, 1),
        ("4:1:1", 1, 2),
        ("4:2:0", 1, 4),
        ("grey", 1, 8),
        ("grey", 3, 1),
    ],
)
def test_all_decoders_give_the_same_pixels(
    decoder: JpegDecoder, sampling: str, channels: int, factor: int
) -> None:
    check_decoding(decoder, sampling, channels, factor)


@pytest.mark.skipif(not compiled(), reason="the compiled library is not here")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_compiled_decoder_knows_every_sampling_at_every_scale(sampling: str) -> None:
    for channels, factor in itertools.product((1, 3), FACTORS):
        check_decoding(jpeg_decoder("native"), sampling, channels, factor)


def test_small_images_are_decoded(decoder: JpegDecoder) -> None:
    for height, width, channels in [(1, 1, 3), (1, 9, 1), (7, 3, 3), (2, 100, 3), (1, 1, 1)]:
        data = pil_encode(photo(height, width, channels), "JPEG")
        np.testing.assert_array_equal(decoder.decode(data, 3), pil_decode(data, 3))


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"keep_rgb": True}, {"optimize": True, "quality": 30}]
)
def test_other_jpegs_are_decoded(decoder: JpegDecoder, options: dict[str, Any]) -> None:
    data = pil_encode(photo(40, 50), "JPEG", **options)
    np.testing.assert_array_equal(decoder.decode(data, 3), pil_decode(data, 3))


def test_an_exif_orientation_is_not_applied(decoder: JpegDecoder) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = pil_encode(photo(20, 30), "JPEG", exif=exif)
    np.testing.assert_array_equal(decoder.decode(data, 3), pil_decode(data, 3))
    assert decoder.decode(data, 1).shape == (20, 30, 1)


def test_decoders_are_sent_to_workers_by_name(decoder: JpegDecoder) -> None:
    copy = pickle.loads(pickle.dumps(decoder))
    assert type(copy) is type(decoder)
    assert copy.name == decoder.name
    assert repr(decoder) == f"jpeg_decoder({decoder.name!r})"
    assert len(pickle.dumps(decoder)) < 100


def test_threads_share_a_decoder(decoder: JpegDecoder) -> None:
    files = [jpeg_of(60 + 8 * n, 90 - 4 * n, seed=n) for n in range(8)] * 8
    expected = [reference(data, 3) for data in files]
    together = threading.Barrier(4)
    with ThreadPoolExecutor(4, initializer=together.wait) as pool:
        found = list(pool.map(lambda data: decoder.decode(data, 3), files))
    for pixels, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(pixels, wanted)


# -- what is refused ---------------------------------------------------------------------------

JPEG = jpeg_of(40, 56, interval=1)


def damaged(data: bytes) -> bytes:
    """Put a code that no table has into the coded bytes."""
    at = data.index(b"\xff\xda") + 200
    return data[:at] + b"\xff\x00" * 10 + data[at + 20 :]


NOT_WHOLE = [
    (b"", "the JPEG cannot be decoded"),
    (b"no JPEG at all", "the JPEG cannot be decoded"),
    (JPEG[:100], "the JPEG cannot be decoded"),
    (encode_png(photo(40, 56)), "the JPEG cannot be decoded"),
    (JPEG[:-2], "truncated: it has no end-of-image marker"),
    (JPEG[: len(JPEG) // 2], "truncated: it has no end-of-image marker"),
    # A thumbnail in the header has an end too.
    (JPEG[:2] + b"\xff\xe1\0\4\xff\xd9" + JPEG[2:-2], "truncated: it has no end-of-image"),
    (pil_encode(photo(40, 56), "JPEG").replace(b"\x11\x08\0\x28", b"\x11\x08\0\0"), "JPEG"),
]


def test_what_is_no_whole_jpeg_is_refused(decoder: JpegDecoder) -> None:
    for data, message in NOT_WHOLE:
        for source in (data, memoryview(data)):
            with pytest.raises(ImageError, match=message):
                decoder.decode(source, 3)


def test_cmyk_is_refused(decoder: JpegDecoder) -> None:
    file = io.BytesIO()
    Image.fromarray(photo(20, 30)).convert("CMYK").save(file, "JPEG")
    with pytest.raises(ImageError, match="is CMYK; only YCbCr, grey and RGB"):
        decoder.decode(file.getvalue(), 3)


@pytest.mark.parametrize("name", ["simplejpeg", "jpeg4py"])
def test_damage_is_found_by_what_is_strict(name: Any) -> None:
    try:
        strict = jpeg_decoder(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    with pytest.raises(ImageError, match="broken JPEG: "):
        strict.decode(damaged(JPEG), 3)
    with pytest.raises(ImageError, match="broken JPEG: "):
        strict.decode(damaged(JPEG), 3, out=np.zeros((40, 56, 3), np.uint8))


def test_a_harmless_oddity_is_no_damage(decoder: JpegDecoder) -> None:
    odd = JPEG[:-2] + b"\0\0\0" + JPEG[-2:]  # libjpeg warns of extraneous bytes
    np.testing.assert_array_equal(decoder.decode(odd, 3), reference(JPEG, 3))
    out = np.zeros((20, 28, 3), np.uint8)
    assert decoder.decode(odd, 3, factor=2, out=out) is out
    np.testing.assert_array_equal(out, reference(JPEG, 3, 2))


def test_bytes_behind_the_end_are_no_damage(decoder: JpegDecoder) -> None:
    data = JPEG + b"a film"
    np.testing.assert_array_equal(decoder.decode(memoryview(data), 3), reference(JPEG, 3))


def test_what_only_a_library_refuses_is_decoded_by_another(
    decoder: JpegDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(decoder), "_decode", lambda *arguments: None)
    out = np.zeros((40, 56, 3), np.uint8)
    assert decoder.decode(JPEG, 3, out=out) is out
    np.testing.assert_array_equal(out, reference(JPEG, 3))
    np.testing.assert_array_equal(decoder.decode(JPEG, 1, factor=4), reference(JPEG, 1, 4))


def test_a_size_is_refused_before_memory_is_taken(decoder: JpegDecoder) -> None:
    frame = JPEG.index(b"\xff\xc0") + 5
    large = JPEG[:frame] + b"\xff\xdc\xff\xdc" + JPEG[frame + 4 :]
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=r"shape \(65500, 65500, 3\), the columns say \(40, "):
            decoder.decode(large, 3, size=(40, 56))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_other_factors_are_refused(decoder: JpegDecoder) -> None:
    for factor in (0, 3, 16, -1):
        with pytest.raises(OptionError, match=f"factor is {factor}; it must be 1, 2, 4 or 8"):
            decoder.decode(JPEG, 3, factor=factor)


def test_images_too_small_for_a_factor_are_refused(decoder: JpegDecoder) -> None:
    for size in ((7, 100), (100, 7)):
        with pytest.raises(OptionError, match="1 for images with a side below 8 pixels"):
            decoder.decode(jpeg_of(*size), 3, factor=2)


def test_memory_that_does_not_fit_is_refused(decoder: JpegDecoder) -> None:
    for out in (
        np.zeros((40, 56, 1), np.uint8),
        np.zeros((41, 56, 3), np.uint8),
        np.zeros((40, 56, 3), np.int8),
        np.zeros((40, 56, 6), np.uint8)[:, :, ::2],
    ):
        with pytest.raises(OptionError, match=r"out must be uint8, C-contiguous and of shape \(40"):
            decoder.decode(JPEG, 3, out=out)


# -- choosing ----------------------------------------------------------------------------------


def test_auto_is_the_compiled_decoder_where_there_is_one() -> None:
    best = "native" if compiled() else "simplejpeg"
    assert jpeg_decoder().name == best
    assert jpeg_decoder("auto").name == best


def test_without_the_compiled_library_its_decoder_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoders, "compiled", lambda: False)
    with pytest.raises(MissingExtraError, match=r"Install a C compiler.*'simplejpeg'"):
        jpeg_decoder("native")
    assert jpeg_decoder().name == "simplejpeg"


def test_a_missing_library_is_an_error_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jpeg4py", None)
    with pytest.raises(
        MissingExtraError,
        match=r"pip install 'fastdata-vision\[jpeg\]'.*libturbojpeg0.*'simplejpeg'",
    ):
        jpeg_decoder("jpeg4py")


def test_an_unknown_decoder_is_an_error() -> None:
    with pytest.raises(
        OptionError, match="no JPEG decoder 'turbo'; there are auto, native, simplejpeg, "
    ):
        jpeg_decoder("turbo")  # type: ignore[arg-type]


# -- windows -----------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn, height: int, width: int) -> tuple[int, int, int, int]:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


LARGE = {sampling: jpeg_of(155, 203, sampling, 1) for sampling in SAMPLINGS}


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(list(SAMPLINGS)),
    st.sampled_from(FACTORS),
    st.sampled_from([1, 3]),
    st.sampled_from(NAMES),
    windows(155, 203),
)
def test_windows_of_jpegs_are_those_of_the_whole(
    sampling: str, factor: int, channels: int, name: Any, window: tuple[int, int, int, int]
) -> None:
    try:
        decoder = jpeg_decoder(name)
    except MissingExtraError:
        decoder = jpeg_decoder()
    data = LARGE[sampling]
    found, used = decode_window(
        memoryview(data), "jpeg", (155, 203, channels), window, decoder=decoder, factor=factor
    )
    assert used == factor
    top, left, height, width = window
    expected = reference(data, channels, factor)[
        top // factor : -(-(top + height) // factor), left // factor : -(-(left + width) // factor)
    ]
    np.testing.assert_array_equal(found, expected)


def palette_png(classes: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(classes[:, :, 0], "L")
    image.putpalette(np.random.default_rng(0).permutation(768).astype(np.uint8).tobytes())
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("codec", ["raw", "png", "file", "jpeg", "mask"])
def test_windows_of_every_codec(codec: str) -> None:
    pixels = mask(60, 70) if codec == "mask" else photo(60, 70)
    data = {
        "raw": pixels.tobytes(),
        "png": encode_png(pixels),
        "mask": palette_png(pixels),
        "file": pil_encode(pixels, "TIFF"),
        "jpeg": pil_encode(pixels, "JPEG"),
    }[codec]
    kind = "file" if codec == "mask" else codec
    whole = decode_stored(memoryview(data), kind, pixels.shape, mask=codec == "mask")
    found, factor = decode_window(
        memoryview(data), kind, pixels.shape, (5, 6, 20, 30), mask=codec == "mask", factor=2
    )
    if codec == "jpeg":
        assert factor == 2
        np.testing.assert_array_equal(found, reference(data, 3, 2)[2:13, 3:18])
    else:
        assert factor == 1
        np.testing.assert_array_equal(whole, pixels)
        np.testing.assert_array_equal(found, pixels[5:25, 6:36])
    if codec == "raw":
        assert np.shares_memory(found, np.frombuffer(data, np.uint8))
        assert not found.flags.writeable


@pytest.mark.parametrize("size", [(7, 200), (200, 7), (3, 3)])
def test_small_images_are_not_reduced(size: tuple[int, int]) -> None:
    data = jpeg_of(*size)
    window = (0, 0, 2, 2)
    found, factor = decode_window(memoryview(data), "jpeg", (*size, 3), window, factor=4)
    assert factor == 1
    np.testing.assert_array_equal(found, reference(data, 3)[:2, :2])


@pytest.mark.parametrize(
    "window",
    [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (36, 0, 5, 5), (0, 52, 5, 5)],
)
@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_windows_outside_the_image_are_refused(window: Any, codec: str) -> None:
    with pytest.raises(OptionError, match=r"is empty or not inside an image of 40 x 56 pixels"):
        decode_window(memoryview(JPEG), codec, (40, 56, 3), window)


@pytest.mark.parametrize("shape", [(154, 203, 3), (155, 204, 3), (203, 155, 3)])
def test_an_image_of_another_size_than_its_columns_is_refused(shape: tuple[int, int, int]) -> None:
    for data in (LARGE["4:2:0"], pil_encode(photo(155, 203), "JPEG")):
        for factor in (1, 2):
            with pytest.raises(ImageError, match=r"has shape \(155, 203, 3\), the columns say"):
                decode_window(memoryview(data), "jpeg", shape, (9, 9, 40, 40), factor=factor)


def test_damage_in_the_window_is_found_and_elsewhere_is_not_met() -> None:
    data = bytearray(LARGE["4:2:0"])
    starts = [k for k in range(len(data) - 1) if data[k] == 0xFF and 0xD0 <= data[k + 1] <= 0xD7]
    at = starts[0] + 20  # in the second segment, row 0
    data[at : at + 20] = b"\xff\x00" * 10
    broken = memoryview(bytes(data))
    with pytest.raises(ImageError, match="broken JPEG: "):
        decode_window(broken, "jpeg", (155, 203, 3), (0, 10, 20, 20))
    found, _ = decode_window(broken, "jpeg", (155, 203, 3), (100, 100, 40, 40))
    np.testing.assert_array_equal(found, reference(LARGE["4:2:0"], 3)[100:140, 100:140])


def test_an_index_that_lies_does_no_harm() -> None:
    data = bytearray(LARGE["grey"])
    at = data.index(b"fastdata\0") + 12
    lengths = np.frombuffer(data, ">u2", 20 * 26, at)
    # The first segments one byte shorter and longer: markers are no longer where it says.
    lengths[0] -= 1
    lengths[1] += 1
    found, _ = decode_window(memoryview(bytes(data)), "jpeg", (155, 203, 3), (0, 5, 20, 20))
    np.testing.assert_array_equal(found, reference(LARGE["grey"], 3)[:20, 5:25])


def test_a_cut_that_does_not_decode_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.codecs import blobs as module

    def wrong(*arguments: Any) -> Any:
        cut = cut_jpeg(*arguments)
        assert cut is not None
        return cut._replace(data=cut.data[:-60] + cut.data[-2:])

    monkeypatch.setattr(module, "cut_jpeg", wrong)
    data = LARGE["4:2:0"]
    found, _ = decode_window(memoryview(data), "jpeg", (155, 203, 3), (50, 50, 60, 60))
    np.testing.assert_array_equal(found, reference(data, 3)[50:110, 50:110])


def test_too_little_memory_is_an_error_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*arguments: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(decoders.JpegDecoder, "decode", decode)
    with pytest.raises(ImageError, match=r"not enough memory for an image of shape \(155"):
        decode_window(
            memoryview(LARGE["grey"]),
            "jpeg",
            (155, 203, 3),
            (9, 9, 40, 40),
            decoder=jpeg_decoder("simplejpeg"),
        )


def test_only_what_is_needed_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    class Watching(type(jpeg_decoder("simplejpeg"))):
        def decode(self, *arguments: Any, **options: Any) -> Any:
            pixels = super().decode(*arguments, **options)
            shapes.append(pixels.shape)
            return pixels

    data = memoryview(encode_jpeg(photo(256, 384)))
    decode_window(data, "jpeg", (256, 384, 3), (33, 97, 30, 62), decoder=Watching())
    decode_window(data, "jpeg", (256, 384, 3), (34, 98, 28, 60), decoder=Watching(), factor=2)
    decode_window(data, "jpeg", (256, 384, 3), (0, 40, 256, 344), decoder=Watching())
    decode_stored(data, "jpeg", (256, 384, 3), decoder=Watching())
    assert shapes == [(32, 64, 3), (16, 32, 3), (256, 384, 3), (256, 384, 3)]
