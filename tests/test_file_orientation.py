"""The orientation of image files in Exif and XMP: the one that PIL applies, damaged or not."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from samples import photo

import fastdata
from fastdata.verifying import verify

PICTURE = photo(24, 40)


def _exif(orientation: int | None) -> bytes:
    """Return Exif as a TIFF, with the make of a camera and perhaps an orientation."""
    exif = Image.Exif()
    exif[0x010F] = "camera"
    if orientation is not None:
        exif[0x0112] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


def _xmp(orientation: int, *, as_element: bool = False) -> bytes:
    if as_element:
        inside = f"><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>"
    else:
        inside = f' tiff:Orientation="{orientation}"/>'
    return f"<x:xmpmeta><rdf:Description{inside}</x:xmpmeta>".encode()


def _jpeg(*bodies: bytes, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG with APP1 segments of these bodies, before the JFIF segment."""
    file = io.BytesIO()
    Image.fromarray(PICTURE).convert(mode).save(file, "JPEG", quality=95, **options)
    data = file.getvalue()
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(b) + 2) + b for b in bodies)
    return data[:2] + segments + data[2:]


def _in_exif(orientation: int | None) -> bytes:
    return b"Exif\0\0" + _exif(orientation)


def _in_xmp(orientation: int, **options: Any) -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\0" + _xmp(orientation, **options)


def _png(*chunks: tuple[bytes, bytes]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, "PNG")
    data = file.getvalue()
    added = b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return data[:33] + added + data[33:]


def _webp(**options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, "WEBP", lossless=True, **options)
    return file.getvalue()


def _packed(folder: Path, data: bytes, **options: Any) -> np.ndarray[Any, Any]:
    """Pack one file without loss; return its pixels."""
    path = folder / "packed.lmdb"
    report = fastdata.pack(
        [{"image": data}], path, num_workers=0, progress=False, resize="none", overwrite=True,
        **{"codec": "raw", **options},
    )  # fmt: skip
    assert not report.rejects, report.rejects
    return np.asarray(fastdata.open(path)[0].image.permute(1, 2, 0).numpy())


TURNED = {
    "two Exif segments": _jpeg(_in_exif(6), _in_exif(3)),
    "the second Exif segment alone has one": _jpeg(_in_exif(None), _in_exif(3)),
    "XMP": _jpeg(_in_xmp(6)),
    "XMP with an element": _jpeg(_in_xmp(8, as_element=True)),
    "XMP of a CMYK picture": _jpeg(_in_xmp(6), mode="CMYK"),
    "XMP of a progressive picture": _jpeg(_in_xmp(6), progressive=True),
    "Exif before XMP": _jpeg(_in_xmp(6), _in_exif(3)),
    "Exif without one, and XMP": _jpeg(_in_exif(None), _in_xmp(6)),
    "Exif that says upright, and XMP": _jpeg(_in_exif(1), _in_xmp(6)),
    "Exif with an absurd one, and XMP": _jpeg(_in_exif(9), _in_xmp(6)),
    "XMP with an absurd one": _jpeg(_in_xmp(9)),
    "PNG with XMP": _png((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + _xmp(6))),
    "PNG with Exif": _png((b"eXIf", _exif(6))),
    "WebP with XMP": _webp(xmp=_xmp(6)),
    "WebP with Exif": _webp(exif=_exif(6)),
}


@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("name", TURNED)
def test_the_orientation_is_the_one_that_pil_applies(tmp_path: Path, name: str, codec: str) -> None:
    with Image.open(io.BytesIO(TURNED[name])) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    found = _packed(tmp_path, TURNED[name], codec=codec)
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


def test_a_folder_is_loaded_with_the_orientation_of_xmp(tmp_path: Path) -> None:
    for number, name in enumerate(("two Exif segments", "XMP", "PNG with XMP")):
        (tmp_path / f"class {number}").mkdir()
        (tmp_path / f"class {number}" / "a.png").write_bytes(TURNED[name])
    with fastdata.loader(tmp_path, batch_size=1, num_workers=0) as loader:
        for batch in loader:
            assert tuple(batch.image[0].shape) == (3, 40, 24)


_CUT = b"II*\0\x08\0\0\0\x05\0\x12\x01"
"""A directory of five tags that ends in the first."""

DAMAGED = {
    "no TIFF": b"no Exif at all, but text",
    "too short": b"II",
    "empty": b"",
    "a directory that is cut off": _CUT,
    "a directory outside the file": b"MM\0*\xff\xff\xff\xff",
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("codec", ["raw", "keep"])
def test_damaged_exif_does_not_lose_the_picture(
    tmp_path: Path, kind: str, damage: str, codec: str
) -> None:
    exif = DAMAGED[damage]
    data = {
        "JPEG": lambda: _jpeg(b"Exif\0\0" + exif),
        "PNG": lambda: _png((b"eXIf", exif)),
        "WebP": lambda: _webp(exif=exif),
    }[kind]()
    with Image.open(io.BytesIO(_jpeg() if kind == "JPEG" else _png())) as image:
        expected = np.asarray(image)
    assert np.array_equal(_packed(tmp_path, data, codec=codec), expected)


def _directory(*tags: tuple[int, int, int, bytes], order: str = "<") -> bytes:
    """Return Exif with tags of a number, a type, a count and four bytes."""
    start = struct.pack(f"{order}HI", 42, 8)
    entries = b"".join(
        struct.pack(f"{order}HHI", tag, kind, count) + value.ljust(4, b"\0")
        for tag, kind, count, value in tags
    )
    count = struct.pack(f"{order}H", len(tags))
    return (b"II" if order == "<" else b"MM") + start + count + entries + b"\0\0\0\0"


_SIX, _THREE = ((0x0112, 3, 1, struct.pack("<H", value)) for value in (6, 3))
_ITSELF = (34853, 4, 1, struct.pack("<I", 8))
"""A pointer to a directory of positions: the one that it is in."""

ODD = {
    "LONG": _directory((0x0112, 4, 1, struct.pack("<I", 6))),
    "SSHORT, big-endian": _directory((0x0112, 8, 1, struct.pack(">h", 6)), order=">"),
    "two numbers": _directory((0x0112, 3, 2, struct.pack("<HH", 6, 3))),
    "no number, then one": _directory((0x0112, 3, 0, b""), _SIX),
    "twice": _directory(_SIX, _THREE),
    "a name before it": b"Exif\0\0" + _directory(_SIX),
    "a directory that points to itself": _directory(_SIX, _ITSELF),
    "5,000 tags": _directory(_SIX, *((0x8000 + k, 3, 1, b"") for k in range(5000))),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_odd_exif_turns_every_format_alike(tmp_path: Path, kind: str, odd: str) -> None:
    exif = ODD[odd]
    data = {
        "JPEG": lambda: _jpeg(b"Exif\0\0" + exif),
        "PNG": lambda: _png((b"eXIf", exif)),
        "WebP": lambda: _webp(exif=exif),
    }[kind]()
    with Image.open(io.BytesIO(_jpeg() if kind == "JPEG" else _png())) as image:
        expected = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    for codec in ("raw", "keep"):
        assert np.array_equal(_packed(tmp_path, data, codec=codec), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_a_tag_outside_of_exif_does_not_lose_the_orientation(tmp_path: Path, kind: str) -> None:
    """Pillow loses it with all tags that follow."""
    exif = _directory((0x010F, 2, 90, struct.pack("<I", 99_999)), _SIX)
    data = {
        "JPEG": lambda: _jpeg(b"Exif\0\0" + exif),
        "PNG": lambda: _png((b"eXIf", exif)),
        "WebP": lambda: _webp(exif=exif),
    }[kind]()
    assert _packed(tmp_path, data).shape == (40, 24, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_xmp_counts_where_exif_is_damaged(tmp_path: Path, kind: str) -> None:
    exif, xmp = DAMAGED["no TIFF"], _xmp(6)
    data = {
        "JPEG": lambda: _jpeg(b"Exif\0\0" + exif, _in_xmp(6)),
        "PNG": lambda: _png((b"eXIf", exif), (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)),
        "WebP": lambda: _webp(exif=exif, xmp=xmp),
    }[kind]()
    with Image.open(io.BytesIO(_jpeg() if kind == "JPEG" else _png())) as image:
        expected = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    assert np.array_equal(_packed(tmp_path, data), expected)


def test_exif_behind_the_pixels_of_a_png_counts(tmp_path: Path) -> None:
    data, chunk = _png(), b"eXIf" + _exif(6)
    added = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    for codec in ("raw", "keep"):
        found = _packed(tmp_path, data[:-12] + added + data[-12:], codec=codec)
        assert np.array_equal(found, np.rot90(PICTURE, -1))


def test_a_damaged_raw_profile_does_not_lose_a_png(tmp_path: Path) -> None:
    data = _png((b"tEXt", b"Raw profile type exif\0\nexif\n  8\nnot hexadecimal\n"))
    assert np.array_equal(_packed(tmp_path, data), PICTURE)


def test_a_damaged_picture_is_still_rejected(tmp_path: Path) -> None:
    for data in (_png((b"eXIf", b"nothing"))[:-200], _webp(exif=b"nothing")[:400]):
        report = fastdata.pack(
            [{"image": PICTURE}, {"image": data}], tmp_path / "a.lmdb",
            num_workers=0, progress=False, overwrite=True,
        )  # fmt: skip
        assert report.num_rejected == 1


# -- a TIFF, of which Pillow gives the size of the upright picture -------------------------


def _box(orientation: int, kind: str) -> bytes:
    """Return a black picture with a white box at (5, 3) to (17, 9), and an orientation."""
    pixels, exif, file = np.zeros((24, 40, 3), np.uint8), Image.Exif(), io.BytesIO()
    pixels[3:9, 5:17] = 255
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


def _voc(root: Path, image: bytes, size: tuple[int, int], box: tuple[int, ...]) -> None:
    for name in ("JPEGImages", "Annotations"):
        (root / name).mkdir(parents=True)
    (root / "JPEGImages" / "a.png").write_bytes(image)
    names = zip(("xmin", "ymin", "xmax", "ymax"), (box[0] + 1, box[1] + 1, *box[2:]), strict=True)
    numbers = "".join(f"<{name}>{value}</{name}>" for name, value in names)
    (root / "Annotations" / "a.xml").write_text(
        f"<annotation><filename>a.png</filename><size><width>{size[1]}</width>"
        f"<height>{size[0]}</height><depth>3</depth></size><object><name>x</name>"
        f"<difficult>0</difficult><bndbox>{numbers}</bndbox></object></annotation>"
    )


def _yolo(root: Path, image: bytes, size: tuple[int, int], box: tuple[int, ...]) -> None:
    for name in ("images", "labels"):
        (root / name).mkdir(parents=True)
    (root / "images" / "a.png").write_bytes(image)
    x, y = (box[0] + box[2]) / 2 / size[1], (box[1] + box[3]) / 2 / size[0]
    width, height = (box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0]
    (root / "labels" / "a.txt").write_text(f"0 {x} {y} {width} {height}\n")
    (root / "data.yaml").write_text("train: images\nnc: 1\nnames: [x]\n")


_UPRIGHT = (40, 24), (15, 5, 21, 17)
"""Size and box after orientation 6."""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("source", ["voc of the file", "voc of the upright picture", "yolo"])
def test_boxes_turn_with_a_file(tmp_path: Path, source: str, kind: str, codec: str) -> None:
    data = _box(6, kind)
    if source == "voc of the file":
        _voc(tmp_path / "in", data, (24, 40), (5, 3, 17, 9))
    else:
        (_yolo if source == "yolo" else _voc)(tmp_path / "in", data, *_UPRIGHT)
    report = fastdata.pack(
        tmp_path / "in", tmp_path / "a.lmdb", num_workers=0, progress=False, resize="none",
        codec=codec,
    )  # fmt: skip
    assert not report.rejects, report.rejects
    sample = fastdata.open(tmp_path / "a.lmdb")[0]
    rows, columns = np.nonzero(np.asarray(sample.image[0]) > 127)
    seen = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    np.testing.assert_allclose(seen, _UPRIGHT[1], atol=1 if kind == "JPEG" else 0)
    np.testing.assert_allclose(sample.boxes[0], _UPRIGHT[1], atol=1e-4)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_tiff_that_is_kept_is_intact_and_can_be_packed_again(
    tmp_path: Path, orientation: int
) -> None:
    first = tmp_path / "a.lmdb"
    expected = _packed(tmp_path, _box(orientation, "TIFF"))
    fastdata.pack(
        [{"image": _box(orientation, "TIFF")}], first, num_workers=0, progress=False, codec="keep",
        resize="none",
    )  # fmt: skip
    assert verify(first, progress=False).intact
    report = fastdata.pack(
        first, tmp_path / "b.lmdb", num_workers=0, progress=False, codec="raw", resize="none"
    )
    assert not report.rejects, report.rejects
    again = fastdata.open(tmp_path / "b.lmdb")[0].image.permute(1, 2, 0)
    assert np.array_equal(again, expected)
