"""Every sort of image file has one defined result, and the pixels are those of torchvision."""

from __future__ import annotations

import io
import itertools
import random
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
from pack_helpers import ORIENTED, pil_file, pixels, with_orientation
from PIL import Image
from samples import photo, pil_decode, psnr
from segment_index import read_segment_index

import fastdata
from fastdata.codecs.image import decode_image
from fastdata.converters.base import Reject, Sample
from fastdata.converters.packing import driver
from fastdata.converters.packing.chunk import encode_chunk, place_image
from fastdata.converters.packing.options import EncodeOptions
from fastdata.errors import OptionError
from fastdata.formats.layout import CODECS
from fastdata.formats.writer import EncodedImage
from fastdata.native.library import loaded_library
from fastdata.schema import ImageField, Schema

COLOUR = photo(60, 83)
GREY = photo(60, 83, 1)[:, :, 0]
DEEP = np.random.default_rng(1).integers(0, 65536, (60, 83, 3), np.uint16)
INDICES = (np.arange(60 * 83).reshape(60, 83) // 100).astype(np.uint8)
PALETTE = bytes(np.random.default_rng(2).integers(0, 256, 768, np.uint8))


def encode_image(value: Any, field: ImageField, options: EncodeOptions) -> EncodedImage:
    return place_image(value, field, options)[0]


def paletted() -> Image.Image:
    picture = Image.fromarray(INDICES).copy()
    picture.putpalette(PALETTE)
    return picture


def ycck() -> bytes:
    """Return a JPEG that says it is YCCK: a CMYK one with another word in its Adobe segment."""
    data = bytearray(pil_file(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def rgb_jpeg() -> bytes:
    """Return a JPEG that stores RGB, not YCbCr."""
    return pil_file(COLOUR, "JPEG", keep_rgb=True)


def deep_png(array: np.ndarray[Any, Any]) -> bytes:
    done, data = cv2.imencode(".png", array)
    assert done
    return data.tobytes()


def bomb_png() -> bytes:
    """Return a PNG of 60,000 x 60,000 pixels, by its own account."""
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", len(header))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + pil_file(COLOUR, "PNG")[33:]
    )


def bomb_jpeg() -> bytes:
    data = bytearray(pil_file(COLOUR, "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    return bytes(data)


def by_pil(data: bytes) -> np.ndarray[Any, Any]:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def repeated(grey: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.repeat(grey[:, :, None], 3, axis=2)


JPEG = pil_file(COLOUR, "JPEG", quality=95)
ALPHA = np.dstack([COLOUR, GREY])
FRAMES = [Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)]
ONE_BIT = Image.fromarray(GREY > 128)
TRANSPARENT = {"transparency": bytes(range(0, 250, 5))}

GOOD: dict[str, tuple[bytes, np.ndarray[Any, Any] | None]] = {
    # name: (file, pixels), or None where PIL decodes it as it should be
    "colour.jpg": (JPEG, None),
    "grey.jpg": (pil_file(GREY, "JPEG"), None),
    "444.jpg": (pil_file(COLOUR, "JPEG", subsampling=0), None),
    "progressive.jpg": (pil_file(COLOUR, "JPEG", progressive=True), None),
    "rgb.jpg": (rgb_jpeg(), None),
    "cmyk.jpg": (pil_file(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"), None),
    "ycck.jpg": (ycck(), None),
    "a-few-bytes-behind.jpg": (JPEG + b"\0" * 99, None),
    "a-film-behind.jpg": (JPEG + bytes(100_000), None),
    "really-a-png.jpg": (pil_file(COLOUR, "PNG"), COLOUR),
    "really-a-jpeg.png": (JPEG, None),
    "colour.png": (pil_file(COLOUR, "PNG"), COLOUR),
    "grey.png": (pil_file(GREY, "PNG"), repeated(GREY)),
    "alpha.png": (pil_file(ALPHA, "PNG"), COLOUR),
    "grey-alpha.png": (pil_file(Image.fromarray(GREY).convert("LA"), "PNG"), repeated(GREY)),
    "palette.png": (
        pil_file(paletted(), "PNG"),
        np.frombuffer(PALETTE, np.uint8).reshape(256, 3)[INDICES],
    ),
    "palette-transparent-index.png": (
        pil_file(paletted(), "PNG", transparency=7),
        np.frombuffer(PALETTE, np.uint8).reshape(256, 3)[INDICES],
    ),
    "palette-transparent.png": (
        pil_file(paletted(), "PNG", **TRANSPARENT),
        np.frombuffer(PALETTE, np.uint8).reshape(256, 3)[INDICES],
    ),
    "1-bit.png": (pil_file(ONE_BIT, "PNG"), repeated((GREY > 128) * np.uint8(255))),
    "1-bit.tif": (pil_file(ONE_BIT, "TIFF"), repeated((GREY > 128) * np.uint8(255))),
    "16-bit-grey.png": (
        deep_png(DEEP[:, :, 0]),
        repeated((DEEP[:, :, 0] >> 8).astype(np.uint8)),
    ),
    "16-bit-colour.png": (deep_png(DEEP[:, :, ::-1]), (DEEP >> 8).astype(np.uint8)),
    "16-bit-grey.tif": (
        pil_file(Image.fromarray(DEEP[:, :, 0]), "TIFF"),
        repeated((DEEP[:, :, 0] >> 8).astype(np.uint8)),
    ),
    "still.gif": (
        pil_file(paletted(), "GIF"),
        np.frombuffer(PALETTE, np.uint8).reshape(256, 3)[INDICES],
    ),
    "film.gif": (
        pil_file(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
        None,
    ),
    "colour.bmp": (pil_file(COLOUR, "BMP"), COLOUR),
    "lossless.webp": (pil_file(COLOUR, "WEBP", lossless=True), COLOUR),
    "lossy.webp": (pil_file(COLOUR, "WEBP"), None),
    "alpha.webp": (pil_file(ALPHA, "WEBP", lossless=True, exact=True), COLOUR),
    "colour.tif": (pil_file(COLOUR, "TIFF"), COLOUR),
    "two-pages.tif": (
        pil_file(FRAMES[0], "TIFF", save_all=True, append_images=FRAMES[1:]),
        COLOUR,
    ),
    "colour.ppm": (pil_file(COLOUR, "PPM"), COLOUR),
}

BAD: dict[str, tuple[bytes, str]] = {
    "zero.jpg": (b"", "the file is empty"),
    "page.jpg": (b"<!doctype html><p>404", "not an image of a known format"),
    "truncated.jpg": (JPEG[: len(JPEG) // 2], "truncated"),
    "no-eoi.jpg": (JPEG[:-2], "truncated"),
    "only-its-header.jpg": (JPEG[:100], "broken JPEG header"),
    "middle-lost.jpg": (JPEG[: len(JPEG) // 2] + JPEG[-50:], "broken JPEG"),
    "progressive-truncated.jpg": (
        pil_file(COLOUR, "JPEG", progressive=True)[:-800],
        "truncated",
    ),
    "cmyk-truncated.jpg": (GOOD["cmyk.jpg"][0][:-600], "cannot be decoded: OSError"),
    "truncated.png": (GOOD["colour.png"][0][:-3000], "cannot be decoded"),
    "truncated.gif": (GOOD["still.gif"][0][:900], "cannot be decoded"),
    "truncated.webp": (GOOD["lossy.webp"][0][:300], "cannot be decoded|not an image"),
    "truncated.tif": (GOOD["colour.tif"][0][:9000], "cannot be decoded"),
    "truncated.bmp": (GOOD["colour.bmp"][0][:9000], "cannot be decoded"),
    "32-bit-int.tif": (
        pil_file(Image.fromarray(DEEP[:, :, 0].astype(np.int32)), "TIFF"),
        "32 bits",
    ),
    "32-bit-float.tif": (
        pil_file(Image.fromarray(DEEP[:, :, 0].astype(np.float32)), "TIFF"),
        "32 bits",
    ),
    "bomb.png": (bomb_png(), "3600000000 pixels.* exceeds limit"),
    "bomb.jpg": (bomb_jpeg(), "65000 x 65000 pixels are more than the limit"),
}


class Packed(NamedTuple):
    images: Mapping[str, Any]
    rejects: Mapping[str, str]


@pytest.fixture(scope="module", params=[3, 1], ids=["colour", "grey"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Pack all of `GOOD` and `BAD` at once, without loss."""
    folder = tmp_path_factory.mktemp("every-input")
    for name, (data, _) in [*GOOD.items(), *BAD.items()]:
        (folder / name).write_bytes(data)
    manifest = folder / "all.csv"
    manifest.write_text("\n".join(["path", *GOOD, *BAD, "missing.jpg"]))
    report = fastdata.pack(
        manifest,
        folder / "all.lmdb",
        resize="none",
        codec="png",
        channels=request.param,
        num_workers=0,
    )
    dataset = fastdata.open(folder / "all.lmdb")
    images = {key: pixels(sample.image) for key, sample in zip(dataset.keys, dataset, strict=True)}
    return Packed(images, dict(report.rejects))


@pytest.mark.parametrize("name", GOOD)
def test_every_good_input_has_its_pixels(packed: Packed, name: str) -> None:
    data, expected = GOOD[name]
    if expected is None:
        expected = by_pil(data)
    found = packed.images[name]
    if found.shape[2] == 1:
        luma = Image.fromarray(expected).convert("L")
        if Image.open(io.BytesIO(data)).format == "JPEG":
            # The file has luma itself; by way of RGB it is rounded, and clipped where RGB is.
            assert psnr(found[:, :, 0], np.array(luma)) > 36
            return
        expected = np.array(luma)[:, :, None]
    # Decoders differ by the rounding of their colour conversion, if at all.
    assert np.abs(found.astype(int) - expected).max() <= (2 if name.endswith(".jpg") else 1)


@pytest.mark.parametrize("name", BAD)
def test_every_bad_input_is_rejected_with_its_reason(packed: Packed, name: str) -> None:
    assert re.search(BAD[name][1], packed.rejects[name])


def test_nothing_else_is_rejected_and_nothing_lost(packed: Packed) -> None:
    assert set(packed.rejects) == {*BAD, "missing.jpg"}
    assert "No such file or directory" in packed.rejects["missing.jpg"]
    assert set(packed.images) == set(GOOD)


FIELD = ImageField()
FILES = {
    "jpeg": JPEG,
    "progressive": GOOD["progressive.jpg"][0],
    "cmyk": GOOD["cmyk.jpg"][0],
    "png": GOOD["colour.png"][0],
    "palette": GOOD["palette-transparent.png"][0],
    "gif": GOOD["still.gif"][0],
    "webp": GOOD["lossy.webp"][0],
    "tiff": GOOD["colour.tif"][0],
    "bmp": GOOD["colour.bmp"][0],
    "exif": with_orientation(COLOUR, 6, "JPEG"),
}


@pytest.mark.parametrize("codec", ["auto", "keep"])
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_packed_or_rejected_but_never_worse(name: str, codec: Any) -> None:
    """A flipped bit may well leave a picture; it may not leave anything else."""
    dice = random.Random(name)
    options = EncodeOptions(
        size=(32, 32),
        codec=codec,
        resize="none" if codec == "keep" else "crop",
        max_pixels=1 << 20,
    )
    samples = []
    for number in range(40):
        data = bytearray(FILES[name])
        for _ in range(dice.choice([1, 1, 5, 50])):
            data[dice.randrange(min(len(data), dice.choice([64, 700, 10**6])))] ^= (
                1 << dice.randrange(8)
            )
        samples.append(Sample(str(number), (bytes(data),)))
    result = encode_chunk(samples, Schema({"image": FIELD}), options)
    assert len(result) == len(samples)
    for record in result:
        if isinstance(record, Reject):
            assert record.reason
            continue
        (image,) = record.values
        if codec == "auto":
            assert (image.height, image.width) == (32, 32)
        assert 0 < image.height * image.width <= 1 << 20


# -- sizes and filters ----------------------------------------------------------------------

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def torchvision_resize(
    picture: Image.Image, mode: str, size: tuple[int, int], filter: Any
) -> Image.Image:
    """``torchvision.transforms.Resize`` and ``CenterCrop`` on PIL images, from their documentation.

    ``Resize(s)``: the smaller edge becomes s, the other ``int(s * long / short)``.
    """
    width, height = picture.size
    if mode == "none":
        return picture
    if mode == "exact":
        return picture.resize(size[::-1], filter)
    if mode == "short":
        short, long = min(width, height), max(width, height)
        other = int(size[0] * long / short)
        new = (size[0], other) if width <= height else (other, size[0])
        return picture.resize(new, filter)
    if mode == "long":
        short, long = min(width, height), max(width, height)
        other = max(1, int(size[0] * short / long))
        new = (other, size[0]) if width <= height else (size[0], other)
        return picture.resize(new, filter)
    scale = max(size[0] / height, size[1] / width)
    new = (max(size[1], int(width * scale + 1e-9)), max(size[0], int(height * scale + 1e-9)))
    picture = picture.resize(new, filter)
    top, left = round((new[1] - size[0]) / 2), round((new[0] - size[1]) / 2)
    return picture.crop((left, top, left + size[1], top + size[0]))


def pack_raw(path: Path, images: list[Any], **options: Any) -> list[np.ndarray[Any, Any]]:
    """Pack images without a codec; return their pixels."""
    report = fastdata.pack(images, path, codec="raw", num_workers=0, **options)
    assert not report.rejects
    return [pixels(sample.image) for sample in fastdata.open(path)]


def size_option(mode: str, size: tuple[int, int]) -> int | tuple[int, int]:
    return size if mode in ("exact", "crop") else size[0]


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("short", (70, 70)),
        ("long", (90, 90)),
        ("exact", (64, 96)),
        ("crop", (80, 80)),
        ("crop", (60, 110)),
        ("crop", (110, 60)),
    ],
)
def test_pixels_are_those_of_torchvision(
    tmp_path: Path, mode: Any, size: tuple[int, int], filter: Any
) -> None:
    pictures = [photo(*shape) for shape in ((200, 301), (301, 200), (250, 250))]
    images = [pil_file(pictures[0], "PNG"), pictures[1], Image.fromarray(pictures[2])]
    options = {"size": size_option(mode, size), "resize": mode, "filter": filter}
    for picture, found in zip(pictures, pack_raw(tmp_path / "x", images, **options), strict=True):
        expected = torchvision_resize(Image.fromarray(picture), mode, size, FILTERS[filter])
        assert psnr(found, np.array(expected)) >= 45


@pytest.mark.parametrize(
    ("shape", "filter"),
    [
        ((450, 611), "bilinear"),
        ((450, 611), "bicubic"),
        ((450, 611), "lanczos"),
        ((613, 450), "bilinear"),
        ((905, 1101), "bilinear"),
    ],
)
def test_large_jpegs_are_decoded_at_a_reduced_scale_and_still_equal_torchvision(
    tmp_path: Path, shape: tuple[int, int], filter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pil_file(photo(*shape), "JPEG", quality=92)
    expected = torchvision_resize(Image.open(io.BytesIO(data)), "short", (70, 70), FILTERS[filter])
    (found,) = pack_raw(tmp_path / "x", [data], size=70, filter=filter)
    assert psnr(found, np.array(expected)) >= 45
    monkeypatch.setattr(driver, "EncodeOptions", partial(EncodeOptions, dct_margin=1e6))
    (whole,) = pack_raw(tmp_path / "whole", [data], size=70, filter=filter)
    assert not np.array_equal(found, whole)


def test_only_jpegs_that_are_no_masks_are_reduced() -> None:
    def scale(height: int, width: int) -> int:
        return 8

    data = pil_file(photo(64, 80, 1)[:, :, 0], "JPEG")
    assert decode_image(data, 1, scale=scale).pixels.shape == (8, 10, 1)
    assert decode_image(data, 1, mask=True, scale=scale).pixels.shape == (64, 80, 1)


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("short", (30, 30)),
        ("long", (30, 30)),
        ("exact", (20, 44)),
        ("crop", (36, 28)),
        ("none", (1, 1)),
    ],
)
def test_exif_orientation_is_baked_in(tmp_path: Path, mode: Any, size: tuple[int, int]) -> None:
    picture = photo(60, 84)
    kinds = {
        "JPEG": {"quality": 95, "subsampling": 0},
        "PNG": {},
        "WEBP": {"lossless": True},
        "TIFF": {},
    }
    files, expected = [], []
    for kind, orientation in itertools.product(kinds, ORIENTED):
        files.append(with_orientation(picture, orientation, kind, **kinds[kind]))
        stored = by_pil(files[-1]) if kind == "JPEG" else picture
        upright = Image.fromarray(np.ascontiguousarray(ORIENTED[orientation](stored)))
        expected.append(torchvision_resize(upright, mode, size, FILTERS["bilinear"]))
    found = pack_raw(tmp_path / "x", files, size=size_option(mode, size), resize=mode)
    for one, wanted in zip(found, expected, strict=True):
        if mode == "none":
            np.testing.assert_array_equal(one, np.array(wanted))
        else:
            assert psnr(one, np.array(wanted)) >= 45


def test_a_reduced_jpeg_is_turned_as_well(tmp_path: Path) -> None:
    picture, turns = photo(460, 611), (3, 6, 7)
    files = [with_orientation(picture, turn, "JPEG", quality=92) for turn in turns]
    stored = by_pil(files[0])
    for turn, found in zip(turns, pack_raw(tmp_path / "x", files, size=70), strict=True):
        upright = Image.fromarray(np.ascontiguousarray(ORIENTED[turn](stored)))
        expected = torchvision_resize(upright, "short", (70, 70), FILTERS["bilinear"])
        assert psnr(found, np.array(expected)) >= 45


def test_an_absurd_orientation_is_ignored(tmp_path: Path) -> None:
    files = [with_orientation(COLOUR, turn, "JPEG") for turn in (0, 9, 65535)]
    for found in pack_raw(tmp_path / "x", files, resize="none"):
        assert found.shape == COLOUR.shape


@pytest.mark.parametrize(
    ("mode", "enlarge", "expected"),
    [
        ("short", False, (60, 83)),
        ("short", True, (90, 124)),
        ("long", False, (60, 83)),
        ("long", True, (65, 90)),
        ("exact", False, (90, 90)),
        ("crop", False, (90, 90)),
        ("none", False, (60, 83)),
    ],
)
def test_small_images_are_enlarged_only_where_that_is_asked_for(
    tmp_path: Path, mode: Any, enlarge: bool, expected: tuple[int, int]
) -> None:
    size = size_option(mode, (90, 90))
    (found,) = pack_raw(tmp_path / "x", [COLOUR], size=size, resize=mode, enlarge=enlarge)
    assert found.shape[:2] == expected


@pytest.mark.parametrize("mode", ["short", "long", "exact", "crop", "none"])
@pytest.mark.parametrize("channels", [3, 1])
def test_thin_images_keep_at_least_a_pixel(tmp_path: Path, mode: Any, channels: int) -> None:
    shapes = [(1, 1), (1, 500), (500, 1), (3, 700)]
    images = [np.full((*shape, 3), 77, np.uint8) for shape in shapes]
    for found in pack_raw(tmp_path / "x", images, size=20, resize=mode, channels=channels):
        assert found.shape[0] >= 1
        assert found.shape[1] >= 1
        assert (found == 77).all()


# -- files that are kept ----------------------------------------------------------------------

SQUARE = photo(80, 80)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (pil_file(photo(80, 120), "JPEG"), {"size": (80, 80)}),
        (pil_file(photo(80, 120), "JPEG"), {"size": (120, 120), "resize": "long"}),
        (pil_file(photo(80, 120), "JPEG"), {"size": (100, 100)}),  # smaller already
        (pil_file(photo(80, 120), "JPEG"), {"size": (80, 120), "resize": "exact"}),
        (pil_file(photo(80, 120), "JPEG"), {"size": (80, 120), "resize": "crop"}),
        (pil_file(photo(80, 120), "JPEG"), {"resize": "none"}),
        (pil_file(photo(80, 120), "JPEG", subsampling=0), {"size": (80, 80)}),
        (pil_file(photo(80, 120), "JPEG", quality=30), {"size": (80, 80), "quality": 95}),
        (pil_file(photo(80, 120, 1)[:, :, 0], "JPEG"), {"size": (80, 80)}),
    ],
)
@pytest.mark.parametrize("codec", ["jpeg", "auto"])
def test_a_jpeg_that_is_what_is_wanted_keeps_its_pixels(
    data: bytes, options: dict[str, Any], codec: Any
) -> None:
    for compiled in (True, False) if loaded_library() else (False,):
        chosen = EncodeOptions(**options, codec=codec, compiled=compiled)
        image = encode_image(data, FIELD, chosen)
        assert (image.data == data) is not compiled
        assert (read_segment_index(image.data) is not None) is compiled
        assert CODECS[image.codec] == "jpeg"
        np.testing.assert_array_equal(pil_decode(image.data, 3), pil_decode(data, 3))
        assert encode_image(image.data, FIELD, chosen) == image


needs_library = pytest.mark.skipif(
    loaded_library() is None, reason="the compiled library is not here (no C compiler)"
)


@needs_library
@pytest.mark.parametrize("options", [{"progressive": True}, {"icc_profile": b"no profile"}])
def test_a_jpeg_that_only_its_code_keeps_from_being_stored_is_not_encoded_again(
    options: dict[str, Any],
) -> None:
    data = pil_file(SQUARE, "JPEG", **options)
    image = encode_image(data, FIELD, EncodeOptions(size=(80, 80)))
    np.testing.assert_array_equal(pil_decode(image.data, 3), pil_decode(data, 3))
    assert read_segment_index(image.data) is not None


@pytest.mark.parametrize(
    ("data", "options", "codec"),
    [
        (pil_file(SQUARE, "JPEG"), {"size": (70, 70)}, "jpeg"),
        (pil_file(SQUARE, "JPEG", progressive=True), {"compiled": False}, "jpeg"),
        (with_orientation(SQUARE, 3, "JPEG"), {}, "jpeg"),
        (pil_file(Image.fromarray(SQUARE), "JPEG", keep_rgb=True), {}, "jpeg"),
        (pil_file(Image.fromarray(SQUARE).convert("CMYK"), "JPEG"), {}, "jpeg"),
        (pil_file(SQUARE, "PNG"), {}, "jpeg"),
        (pil_file(SQUARE, "JPEG"), {"codec": "png"}, "png"),
        (pil_file(SQUARE, "JPEG"), {"codec": "raw"}, "raw"),
        (pil_file(SQUARE, "JPEG"), {"resize": "crop", "size": (80, 70)}, "jpeg"),
        (pil_file(SQUARE, "JPEG"), {"enlarge": True, "size": (81, 81)}, "jpeg"),
        (pil_file(photo(64, 64), "JPEG"), {}, "raw"),  # auto: small enough to lie raw
    ],
)
def test_every_other_file_is_encoded(data: bytes, options: dict[str, Any], codec: str) -> None:
    image = encode_image(data, FIELD, EncodeOptions(**{"size": (80, 80), **options}))
    assert image.data != data
    assert CODECS[image.codec] == codec


def test_a_colour_jpeg_is_encoded_again_where_grey_is_asked_for(tmp_path: Path) -> None:
    data = pil_file(SQUARE, "JPEG")
    fastdata.pack([data], tmp_path / "x", size=80, channels=1, num_workers=0)
    (reader,) = fastdata.open(tmp_path / "x").shards
    assert reader.codec("image", 0) == "jpeg"
    assert Image.open(io.BytesIO(reader.blob("image", 0))).mode == "L"


def test_a_broken_jpeg_of_the_right_size_is_not_kept(tmp_path: Path) -> None:
    data = pil_file(photo(80, 120), "JPEG")
    report = fastdata.pack([data, data[:-2]], tmp_path / "x", size=80, num_workers=0)
    (reject,) = report.rejects
    assert "truncated" in reject.reason


def test_keep_takes_files_over_byte_for_byte_unless_they_are_broken(tmp_path: Path) -> None:
    for name, (data, _) in [*GOOD.items(), *BAD.items()]:
        (tmp_path / name).write_bytes(data)
    manifest = tmp_path / "all.csv"
    manifest.write_text("\n".join(["path", *GOOD, *BAD]))
    report = fastdata.pack(
        manifest, tmp_path / "all.lmdb", resize="none", codec="keep", num_workers=0
    )
    dataset = fastdata.open(tmp_path / "all.lmdb")
    assert list(dataset.keys) == list(GOOD)
    (reader,) = dataset.shards
    for row, (name, (data, _)) in enumerate(GOOD.items()):
        assert reader.blob("image", row) == data, name
        plain = name in ("colour.jpg", "grey.jpg", "444.jpg", "really-a-jpeg.png")
        plain |= name.endswith("-behind.jpg")
        assert reader.codec("image", row) == ("jpeg" if plain else "file"), name
    rejects = dict(report.rejects)
    assert rejects.keys() == BAD.keys()
    for name, (_, reason) in BAD.items():
        assert re.search(reason, rejects[name]), name


def test_a_kept_file_is_turned_when_it_is_read(tmp_path: Path) -> None:
    data = with_orientation(COLOUR, 6, "PNG")
    fastdata.pack([data], tmp_path / "kept.lmdb", codec="keep", num_workers=0)
    (sample,) = fastdata.open(tmp_path / "kept.lmdb")
    np.testing.assert_array_equal(pixels(sample.image), ORIENTED[6](COLOUR))


def test_keep_and_a_new_size_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="use it with resize='none'"):
        fastdata.pack([JPEG], tmp_path / "x.lmdb", codec="keep", resize="short")


def test_auto_stores_little_images_raw(tmp_path: Path) -> None:
    shapes = {(64, 64): "raw", (64, 20): "raw", (65, 20): "jpeg", (20, 65): "jpeg"}
    pictures = [photo(*shape) for shape in shapes]
    images = [*(pil_file(picture, "PNG") for picture in pictures), *pictures]
    fastdata.pack(images, tmp_path / "x", resize="none", num_workers=0)
    (reader,) = fastdata.open(tmp_path / "x").shards
    assert [reader.codec("image", row) for row in range(8)] == [*shapes.values()] * 2


def test_the_limit_of_pixels_is_the_users_to_set(tmp_path: Path) -> None:
    values = [*(GOOD[name][0] for name in ("colour.jpg", "colour.png", "cmyk.jpg")), COLOUR]
    assert len(pack_raw(tmp_path / "a", values, max_pixels=60 * 83)) == 4
    values.append(COLOUR[:9])
    report = fastdata.pack(values, tmp_path / "b", max_pixels=60 * 83 - 1, num_workers=0)
    assert (report.num_samples, report.num_rejected) == (1, 4)
    for reject in report.rejects:
        assert "83 x 60 pixels are more than the limit of 4979" in reject.reason


# -- pixels given as such ----------------------------------------------------------------------

VALUES: dict[str, Callable[[], Any]] = {
    "H x W x 3": lambda: COLOUR,
    "3 x H x W": lambda: COLOUR.transpose(2, 0, 1),
    "not contiguous": lambda: np.repeat(COLOUR, 2, axis=1)[:, ::2],
    "read-only": lambda: np.frombuffer(COLOUR.tobytes(), np.uint8).reshape(COLOUR.shape),
    "PIL RGB": lambda: Image.fromarray(COLOUR),
    "PIL RGBA": lambda: Image.fromarray(ALPHA),
}


def test_pixels_in_any_form_are_taken(tmp_path: Path) -> None:
    import torch

    values = [make() for make in VALUES.values()]
    values += [
        torch.from_numpy(v) for v in values if isinstance(v, np.ndarray) and v.flags.writeable
    ]
    assert len(values) == 9
    for found in pack_raw(tmp_path / "x", values, resize="none"):
        np.testing.assert_array_equal(found, COLOUR)


@pytest.mark.parametrize("channels", [3, 1])
def test_grey_pixels_get_as_many_channels_as_are_asked_for(tmp_path: Path, channels: int) -> None:
    values = [GREY, GREY[:, :, None], GREY[None], Image.fromarray(GREY)]
    for found in pack_raw(tmp_path / "x", values, resize="none", channels=channels):
        np.testing.assert_array_equal(found, np.repeat(GREY[:, :, None], channels, axis=2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [3, 1])
def test_floats_from_0_to_1_are_the_pixels_that_they_were_made_of(
    tmp_path: Path, channels: int, dtype: Any
) -> None:
    unit = (COLOUR / 255).astype(dtype)
    values = [COLOUR, unit.transpose(2, 0, 1), unit, np.zeros_like(unit)]
    packed = pack_raw(tmp_path / "x", values, resize="none", channels=channels)
    np.testing.assert_array_equal(packed[1], packed[0])
    np.testing.assert_array_equal(packed[2], packed[0])
    assert not packed[3].any()


@pytest.mark.parametrize("channels", [3, 1])
def test_pixels_with_alpha_are_what_their_file_is(tmp_path: Path, channels: int) -> None:
    values = [pil_file(ALPHA, "PNG"), ALPHA, ALPHA.transpose(2, 0, 1)]
    expected, *others = pack_raw(tmp_path / "x", values, resize="none", channels=channels)
    for found in others:
        np.testing.assert_array_equal(found, expected)


def check_rejects(path: Path, wrong: list[tuple[Any, str]], good: Any, **options: Any) -> None:
    """Pack a good value and some wrong ones, and compare the reasons."""
    (name,) = good
    samples = [good, *({name: value} for value, _ in wrong)]
    report = fastdata.pack(samples, path, resize="none", num_workers=0, **options)
    assert report.num_samples == 1
    for reject, (_, reason) in zip(report.rejects, wrong, strict=True):
        assert re.search(reason, reject.reason)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    wrong = [
        (COLOUR.astype(np.float32), "are not whole numbers from 0 to 255 divided by 255"),
        (COLOUR.astype(np.uint16), "pixels are uint16, not uint8"),
        (COLOUR[:0], r"shape \(0, 83, 3\) is not an image"),
        (np.zeros(9, np.uint8), r"shape \(9,\) is not an image"),
        (np.zeros((9, 9, 9), np.uint8), "has not 1, 3 or 4 channels"),
    ]
    check_rejects(tmp_path / "x", wrong, {"image": COLOUR})


# -- masks ----------------------------------------------------------------------

CLASSES = np.random.default_rng(4).integers(0, 200, (12, 17), np.uint8).repeat(11, 0).repeat(11, 1)


def mask_palette() -> Image.Image:
    picture = Image.fromarray(CLASSES).copy()
    picture.putpalette(PALETTE)
    return picture


MASKS = {
    "grey.png": pil_file(CLASSES, "PNG"),
    "palette.png": pil_file(mask_palette(), "PNG"),
    "palette-transparent.png": pil_file(mask_palette(), "PNG", transparency=0),
    "palette.bmp": pil_file(mask_palette(), "BMP"),
    "16-bit.png": deep_png(CLASSES.astype(np.uint16)),
    "array": CLASSES,
    "H x W x 1": CLASSES[:, :, None],
    "PIL": Image.fromarray(CLASSES),
    "PIL palette": mask_palette(),
    **{str(np.dtype(t)): CLASSES.astype(t) for t in (np.int32, np.int64, np.uint16, np.float32)},
    "1 x H x W": CLASSES[None].astype(np.int64),
    "one-hot, C x H x W": np.arange(200)[:, None, None] == CLASSES,
    "one-hot, H x W x C": (CLASSES[:, :, None] == np.arange(200)).astype(np.float32),
}


@pytest.mark.parametrize(
    ("mode", "size", "codec"),
    [
        ("short", (50, 50), "auto"),
        ("crop", (60, 60), "jpeg"),
        ("exact", (33, 71), "png"),
        ("none", (1, 1), "jpeg"),
    ],
)
def test_masks_keep_their_class_numbers(
    tmp_path: Path, codec: Any, mode: Any, size: tuple[int, int]
) -> None:
    """Whatever codec images have."""
    report = fastdata.pack(
        [{"mask": value} for value in MASKS.values()],
        tmp_path / "x",
        size=size_option(mode, size),
        resize=mode,
        codec=codec,
        fields={"mask": "mask"},
        num_workers=0,
    )
    assert not report.rejects
    expected = torchvision_resize(Image.fromarray(CLASSES), mode, size, Image.Resampling.NEAREST)
    dataset = fastdata.open(tmp_path / "x")
    for name, sample in zip(MASKS, dataset, strict=True):
        np.testing.assert_array_equal(pixels(sample.mask)[:, :, 0], np.array(expected), name)


def test_a_mask_of_one_bit_has_the_classes_0_and_1(tmp_path: Path) -> None:
    sample = {"mask": pil_file(ONE_BIT, "PNG")}
    fields = {"mask": "mask"}
    fastdata.pack([sample], tmp_path / "x", resize="none", fields=fields, num_workers=0)
    (found,) = fastdata.open(tmp_path / "x")
    np.testing.assert_array_equal(pixels(found.mask)[:, :, 0], GREY > 128)


def test_what_is_no_mask_is_refused(tmp_path: Path) -> None:
    wrong = [
        (pil_file(COLOUR, "PNG"), "class numbers; this has mode 'RGB'"),
        (pil_file(COLOUR, "JPEG"), "a mask as JPEG with colours"),
        (deep_png(DEEP[:, :, 0]), "do not fit 8 bits"),
        (COLOUR, "has neither 1 channel nor one for a class"),
    ]
    check_rejects(tmp_path / "x", wrong, {"mask": INDICES}, fields={"mask": "mask"})


@pytest.mark.parametrize("mode", ["short", "long", "exact", "crop"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("names", [("image", "mask"), ("mask", "image")])
def test_a_mask_stays_aligned_with_its_image(
    tmp_path: Path, names: tuple[str, str], orientation: int, mode: Any
) -> None:
    """Blocks of colour, and a mask that says which: both go through the same geometry."""
    colours = np.array([[200, 10, 10], [10, 200, 10], [10, 10, 200], [200, 200, 10]], np.uint8)
    classes = np.random.default_rng(8).integers(0, 4, (3, 5)).repeat(60, 0).repeat(60, 1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    sample = {
        "image": pil_file(colours[classes], "JPEG", quality=95, exif=exif),
        "mask": pil_file(classes.astype(np.uint8), "PNG", exif=exif),
    }
    fastdata.pack(
        [{name: sample[name] for name in names}],
        tmp_path / "x.lmdb",
        size=90,
        resize=mode,
        codec="png",
        num_workers=0,
    )
    (found,) = fastdata.open(tmp_path / "x.lmdb")
    image, mask = pixels(found.image).astype(int), pixels(found.mask)[:, :, 0]
    assert image.shape[:2] == mask.shape
    nearest = np.abs(image[:, :, None] - colours.astype(int)).sum(axis=3).argmin(axis=2)
    # They may differ only beside an edge, where the image is a mixture.
    assert (nearest == mask).mean() > 0.93
    edges = cv2.dilate((cv2.Laplacian(mask, cv2.CV_16S) != 0).astype(np.uint8), np.ones((5, 5)))
    assert (nearest == mask)[edges == 0].all()


@pytest.mark.parametrize("names", [("image", "mask"), ("mask", "image")])
def test_a_mask_of_another_size_is_rejected(tmp_path: Path, names: tuple[str, str]) -> None:
    good = {"image": COLOUR, "mask": INDICES}
    bad = {"image": COLOUR, "mask": INDICES[:, :-9]}
    report = fastdata.pack(
        [{name: sample[name] for name in names} for sample in (good, bad)],
        tmp_path / "x.lmdb",
        num_workers=0,
    )
    assert report.rejects == [
        Reject(
            "00000001",
            "the mask 'mask' has 74 x 60 pixels and its image 83 x 60: both must have the same "
            "size",
        )
    ]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_class_numbers_of_grey_masks_of_few_bits_are_kept(bits: int) -> None:
    values = (np.arange(64) % 2**bits).astype(np.uint8).reshape(8, 8)
    packed = np.packbits(np.unpackbits(values[:, :, None], axis=2)[:, :, 8 - bits :].reshape(8, -1))
    rows = packed.reshape(8, -1)
    scanlines = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, bits, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(scanlines))
        + chunk(b"IEND", b"")
    )
    decoded = decode_image(png, 1, mask=True)
    assert np.array_equal(decoded.pixels[:, :, 0], values)
