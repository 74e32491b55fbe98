"""Legal but unusual image files: packed, kept and read again as PIL reads them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples import photo, pil_decode, put_blob

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.decoders import DecoderName
from fastdata.formats.reader import ShardReader
from fastdata.verifying import verify

JPEGS = sorted((Path(__file__).parent / "jpegs").glob("*.jpg"))
DECODERS: tuple[DecoderName, ...] = ("auto", "simplejpeg", "opencv", "pil")


def _segments(data: bytes) -> list[int]:
    """Return where the segments of a JPEG begin, as far as its first scan."""
    places, position = [], 2
    while not places or data[places[-1] + 1] != 0xDA:
        places.append(position)
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return places


def _with(data: bytes, at: int, inserted: bytes) -> bytes:
    place = _segments(data)[at]
    return data[:place] + inserted + data[place:]


def _profile(*pieces: bytes) -> bytes:
    """Return pieces of a colour profile, each with its number and count, as APP2 segments."""
    bodies = [b"ICC_PROFILE\0" + piece for piece in pieces]
    return b"".join(b"\xff\xe2" + struct.pack(">H", 2 + len(b)) + b for b in bodies)


def _jpeg(mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(37, 53)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


PLAIN, CMYK = _jpeg(), _jpeg("CMYK")
ODD = (Path(__file__).parent / "jpegs" / "410.jpg").read_bytes()

BROKEN = {
    "stray bytes": lambda data: _with(data, 2, b"abc\0def"),
    "stray bytes before the scan": lambda data: _with(data, -1, b"\xff\0\xff\0xx"),
    "fill bytes": lambda data: _with(data, 2, b"\xff\xff\xff"),
    "empty profile": lambda data: _with(data, 1, _profile(b"")),
    "profile without a count": lambda data: _with(data, 1, _profile(b"\1")),
    "piece 0 of a profile": lambda data: _with(data, 1, _profile(b"\0\1abc")),
    "missing piece of a profile": lambda data: _with(data, 1, _profile(b"\1\3abc")),
    "piece of a profile twice": lambda data: _with(data, 1, _profile(b"\1\2abc", b"\1\2abc")),
    "Adobe segment cut short": lambda data: _with(data, 1, b"\xff\xee\0\x07Adobe"),
}


def _pack(path: Path, files: list[bytes], **options: Any) -> fastdata.Dataset:
    samples = [{"image": data, "label": k} for k, data in enumerate(files)]
    report = fastdata.pack(samples, path, num_workers=0, progress=False, **options)
    assert not report.rejects, report.rejects[0]
    assert verify(path, progress=False).intact
    return fastdata.open(path)


def _pixels(image: Any) -> np.ndarray[Any, Any]:
    return np.asarray(image.permute(1, 2, 0).numpy())


def _reference(data: bytes, channels: int) -> np.ndarray[Any, Any]:
    """Return what PIL reads: of one channel the luma of the file, not that of its colours."""
    with Image.open(io.BytesIO(data)) as image:
        mode = "RGB" if channels == 3 else "L"
        image.draft(mode, None)
        return np.array(image.convert(mode)).reshape(image.height, image.width, channels)


def _loaded(data: Any, **options: Any) -> list[np.ndarray[Any, Any]]:
    with fastdata.loader(data, batch_size=1, num_workers=0, **options) as loader:
        return [_pixels(batch.image[0]) for batch in loader]


@pytest.mark.parametrize("codec", ["raw", "jpeg", "auto"])
def test_every_sampling_is_packed(tmp_path: Path, codec: str) -> None:
    files = [path.read_bytes() for path in JPEGS]
    dataset = _pack(tmp_path / "a.lmdb", files, codec=codec, size=32, resize="none")
    for path, (image, _), data in zip(JPEGS, dataset, files, strict=True):
        expected = pil_decode(data, 3)
        assert image.shape == (3, 37, 53)
        if codec == "raw":
            assert np.array_equal(_pixels(image), expected), path.name
        else:
            difference = np.abs(_pixels(image).astype(int) - expected)
            assert difference.mean() < 6, path.name


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("channels", [3, 1])
def test_what_is_kept_can_be_read(tmp_path: Path, decoder: DecoderName, channels: int) -> None:
    files = [path.read_bytes() for path in JPEGS]
    dataset = _pack(tmp_path / "a.h5", files, codec="keep", resize="none", channels=channels)
    (reader,) = dataset.shards
    assert [bytes(reader.blob("image", k)) for k in range(len(files))] == files
    expected = [_reference(data, channels) for data in files]
    for found in (
        [_pixels(image) for image, _ in dataset],
        _loaded(dataset, decoder=decoder),
        _loaded(dataset, decoder=decoder, transform=T.ImageOnly(lambda image: image)),
    ):
        for path, pixels, wanted in zip(JPEGS, found, expected, strict=True):
            assert np.array_equal(pixels, wanted), path.name
    crop = [T.CenterCrop(16)]
    for path, pixels, wanted in zip(
        JPEGS, _loaded(dataset, decoder=decoder, transform=crop), expected, strict=True
    ):
        assert np.array_equal(pixels, wanted[10:26, 18:34]), path.name  # as torchvision rounds


@pytest.mark.parametrize("decoder", DECODERS)
def test_samplings_under_codec_jpeg_are_read(tmp_path: Path, decoder: DecoderName) -> None:
    """As the format allows them; other writers may leave them there."""
    path = tmp_path / "a.lmdb"
    _pack(path, [PLAIN] * len(JPEGS), codec="keep", resize="none")
    files = [file.read_bytes() for file in JPEGS if "progressive" not in file.name]
    for index, data in enumerate(files):
        put_blob(path, index, data, codec=1, height=37, width=53)
    expected = [pil_decode(data, 3) for data in files]
    small = [T.Resize((8, 8))]
    dataset = fastdata.open(path)
    for index, wanted in enumerate(expected):
        assert np.array_equal(_pixels(dataset[index].image), wanted), JPEGS[index].name
    for pixels, wanted in zip(_loaded(dataset, decoder=decoder), expected, strict=False):
        assert np.array_equal(pixels, wanted)
    assert len(_loaded(dataset, decoder=decoder, transform=small)) == len(JPEGS)


@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("original", [PLAIN, CMYK, ODD], ids=["plain", "CMYK", "odd sampling"])
def test_oddities_of_headers_are_passed_over(tmp_path: Path, original: bytes, codec: str) -> None:
    files = [change(original) for change in BROKEN.values()]
    dataset = _pack(tmp_path / "a.lmdb", files, codec=codec, resize="none")
    expected = pil_decode(original, 3)
    for name, (image, _), loaded in zip(BROKEN, dataset, _loaded(dataset), strict=True):
        assert np.array_equal(_pixels(image), expected), name
        assert np.array_equal(loaded, expected), name


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_orientation_outlives_a_broken_profile(tmp_path: Path, mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = pil_decode(_jpeg(mode), 3)
    turned = np.rot90(upright, {3: 2, 6: 3}[orientation])
    data = BROKEN["piece of a profile twice"](_jpeg(mode, exif=exif))
    for codec in ("raw", "keep"):
        dataset = _pack(tmp_path / f"{codec}.lmdb", [data], codec=codec, resize="none")
        assert np.array_equal(_pixels(dataset[0].image), turned)


def _pgm(values: np.ndarray[Any, Any], largest: int, *, plain: bool = False) -> bytes:
    height, width = values.shape
    head = f"P{2 if plain else 5}\n{width} {height}\n{largest}\n".encode()
    if plain:
        return head + "\n".join(" ".join(map(str, row)) for row in values.tolist()).encode()
    return head + values.astype(">u2" if largest > 255 else "u1").tobytes()


@pytest.mark.parametrize("plain", [False, True])
def test_a_pgm_of_16_bits_is_read_as_a_png_of_16_bits(tmp_path: Path, plain: bool) -> None:
    values = np.arange(40 * 50, dtype=np.uint16).reshape(40, 50) * 32 + 7
    png = io.BytesIO()
    Image.fromarray(values).save(png, "PNG")
    files = [_pgm(values, 65535, plain=plain), png.getvalue()]
    for codec in ("raw", "keep"):
        kind = {"image": "image"}
        dataset = _pack(
            tmp_path / f"{codec}.h5", files, codec=codec, resize="none", channels=1, fields=kind
        )
        for image, _ in dataset:
            assert np.array_equal(_pixels(image)[:, :, 0], values >> 8)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("largest", [20, 255, 1000, 65535])
def test_a_pgm_as_mask_keeps_its_values(tmp_path: Path, largest: int, plain: bool) -> None:
    classes = (np.arange(30 * 31) % 20).reshape(30, 31)
    samples = [{"image": photo(30, 31), "mask": _pgm(classes, largest, plain=plain)}]
    report = fastdata.pack(
        samples,
        tmp_path / "a.lmdb",
        num_workers=0,
        progress=False,
        resize="none",
        fields={"mask": "mask"},
    )
    assert not report.rejects, report.rejects[0]
    assert np.array_equal(_pixels(fastdata.open(tmp_path / "a.lmdb")[0].mask)[:, :, 0], classes)


def test_a_kept_file_is_called_what_readers_take_it_for(tmp_path: Path) -> None:
    files = [path.read_bytes() for path in JPEGS] + [BROKEN["stray bytes"](PLAIN)]
    _pack(tmp_path / "a.lmdb", files, codec="keep", resize="none")
    reader = ShardReader(tmp_path / "a.lmdb")
    codecs = {path.stem: reader.codec("image", k) for k, path in enumerate(JPEGS)}
    assert codecs["420"] == codecs["411"] == codecs["grey-2x2"] == "jpeg"
    assert codecs["441"] == codecs["410"] == codecs["mixed-2x1-2x1-1x1"] == "file"
    assert reader.codec("image", len(JPEGS)) == "file"
