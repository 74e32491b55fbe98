"""Formats of image files: what each source takes, and the names of those that are not opened."""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features
from samples import photo

import fastdata
from fastdata.codecs.pillow import FORMATS
from fastdata.converters.reading.image_files import SUFFIXES, is_image_name
from fastdata.errors import SourceError

Array = np.ndarray[Any, Any]
QUICK: dict[str, Any] = {"num_workers": 0, "progress": False, "overwrite": True}
SIZE = 24, 32

KINDS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jfif", ".jpe"), "JPEG"),
    **dict.fromkeys((".png", ".apng"), "PNG"),
    **dict.fromkeys((".bmp", ".dib"), "BMP"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
    **dict.fromkeys((".jp2", ".j2k", ".jpx"), "JPEG2000"),
    ".gif": "GIF", ".mpo": "MPO", ".avif": "AVIF", ".webp": "WEBP", ".tga": "TGA",
}  # fmt: skip
FIRST = {"a": 0, "b": 100}
"""Class folders, and where their numbers begin."""

NEW = (".gif", ".jfif", ".jpe", ".avif", ".jp2", ".tga")


def _saved(kind: str, pixels: Array | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(photo(*SIZE) if pixels is None else pixels)
    picture.save(file, "BMP" if kind == "DIB" else kind, **options)
    return file.getvalue()


def _files(folder: Path, suffixes: tuple[str, ...] = NEW, first: int = 0) -> list[str]:
    """Write a file of each suffix, each another picture; return the names, numbers from `first`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}{suffix}" for number, suffix in enumerate(suffixes, first)]
    for number, name in enumerate(names, first):
        data = _saved(KINDS[Path(name).suffix.lower()], photo(*SIZE, seed=number))
        (folder / name).write_bytes(data)
    return names


def _pack(source: Any, folder: Path, **options: Any) -> Any:
    return fastdata.pack(source, folder / "packed.lmdb", **QUICK, **options)


pytestmark = pytest.mark.skipif(
    not (features.check("avif") and features.check("jpg_2000")), reason="Pillow without AVIF"
)


def test_every_suffix_is_of_a_format_that_is_opened(tmp_path: Path) -> None:
    assert set(KINDS) == set(SUFFIXES)
    assert set(KINDS.values()) == set(FORMATS)
    suffixes = (*KINDS, *map(str.upper, KINDS))
    for name, first in FIRST.items():
        _files(tmp_path / "images" / name, suffixes, first)
    report = _pack(tmp_path / "images", tmp_path)
    assert (report.num_samples, report.num_rejected) == (2 * len(suffixes), 0)


def _folders(root: Path) -> dict[str, Any]:
    for name, first in FIRST.items():
        _files(root / name, first=first)
    return {"format": "folder"}


def _flat(root: Path) -> dict[str, Any]:
    _files(root)
    _files(root, (".png",) * 12, 20)
    return {"format": "flat"}


def _zip(root: Path) -> dict[str, Any]:
    _folders(root)
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        for file in sorted(root.glob("[ab]/*")):
            archive.write(file, file.relative_to(root))
    return {"source": root / "a.zip"}


def _tar(root: Path) -> dict[str, Any]:
    _folders(root)
    with tarfile.open(root / "a.tar", "w") as archive:
        for file in sorted(root.glob("[ab]/*")):
            archive.add(file, file.relative_to(root))
    return {"source": root / "a.tar", "format": "archive"}


def _webdataset(root: Path) -> dict[str, Any]:
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as archive:
        for number in range(6):
            for name, data in ((f"{number}.gif", _saved("GIF")), (f"{number}.cls", b"1")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return {"source": root / "a.tar"}


def _list(root: Path, *, with_suffix: bool = True) -> dict[str, Any]:
    names = _files(root / "images")
    shown = [name if with_suffix else Path(name).stem for name in names]
    rows = "".join(f"{name},{k % 2}\n" for k, name in enumerate(shown))
    (root / "list.csv").write_text(f"path,label\n{rows}")
    return {"source": root / "list.csv"}


def _stems(root: Path) -> dict[str, Any]:
    return _list(root, with_suffix=False)


def _hugging_face(root: Path) -> dict[str, Any]:
    rows = [json.dumps({"file_name": n, "label": k % 2}) for k, n in enumerate(_files(root))]
    (root / "metadata.jsonl").write_text("\n".join(rows))
    return {}


def _coco(root: Path) -> dict[str, Any]:
    names = _files(root / "images")
    size = {"height": SIZE[0], "width": SIZE[1]}
    box = {"category_id": 1, "bbox": [1, 2, 8, 9], "area": 72, "iscrowd": 0}
    found = {
        "images": [{"id": k, "file_name": name, **size} for k, name in enumerate(names)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": k, "image_id": k, **box} for k in range(len(names))],
    }
    (root / "annotations.json").write_text(json.dumps(found))
    return {"source": root / "annotations.json"}


def _yolo(root: Path) -> dict[str, Any]:
    (root / "labels").mkdir(parents=True)
    for name in _files(root / "images"):
        (root / "labels" / Path(name).with_suffix(".txt")).write_text("0 0.5 0.5 0.4 0.4\n")
    (root / "data.yaml").write_text("path: .\ntrain: images\nval: images\nnames: [cat]\n")
    return {"format": "yolo", "source_options": {"split": "train"}}


def _voc(root: Path) -> dict[str, Any]:
    (root / "Annotations").mkdir(parents=True)
    for name in _files(root / "JPEGImages"):
        (root / "Annotations" / Path(name).with_suffix(".xml")).write_text(
            f"<annotation><filename>{name}</filename><size><width>{SIZE[1]}</width>"
            f"<height>{SIZE[0]}</height><depth>3</depth></size><object><name>cat</name><bndbox>"
            "<xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
            "</annotation>"
        )
    return {"format": "voc"}


def _masks(root: Path) -> dict[str, Any]:
    (root / "masks").mkdir(parents=True)
    classes = np.zeros(SIZE, np.uint8)
    classes[3:9, 4:20] = 1
    for name in _files(root / "images"):
        (root / "masks" / Path(name).with_suffix(".png")).write_bytes(_saved("PNG", classes))
    return {"format": "masks"}


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "class folders": _folders,
    "flat": _flat,
    "zip": _zip,
    "tar": _tar,
    "WebDataset": _webdataset,
    "list": _list,
    "list without suffixes": _stems,
    "Hugging Face": _hugging_face,
    "COCO": _coco,
    "YOLO": _yolo,
    "VOC": _voc,
    "masks": _masks,
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_takes_the_same_suffixes(tmp_path: Path, name: str) -> None:
    options = SOURCES[name](tmp_path / "in")
    source = options.pop("source", tmp_path / "in")
    report = _pack(source, tmp_path, **options)
    expected = {"class folders": 12, "zip": 12, "tar": 12, "flat": 18}.get(name, 6)
    assert (report.num_samples, report.num_rejected) == (expected, 0)
    assert "image" in fastdata.open(tmp_path / "packed.lmdb").schema.images


def test_class_folders_are_loaded_without_packing(tmp_path: Path) -> None:
    _folders(tmp_path)
    with fastdata.loader(tmp_path, batch_size=4, num_workers=0, shuffle=False) as loader:
        images = [image for batch in loader for image in batch.image]
    files = [file for name in "ab" for file in sorted((tmp_path / name).iterdir())]
    for file, image in zip(files, images, strict=True):
        with Image.open(file) as opened:
            expected = np.asarray(opened.convert("RGB"))
        assert np.array_equal(image.permute(1, 2, 0), expected), file.name


# -- animations --------------------------------------------------------------------------


def _animated(kind: str) -> bytes:
    frames = [Image.fromarray(photo(*SIZE, seed=seed)) for seed in (1, 2, 3)]
    if kind == "GIF":
        frames = [frame.quantize(32) for frame in frames]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF"])
def test_of_an_animation_the_first_frame_is_packed_with_a_note(
    tmp_path: Path, kind: str, codec: str
) -> None:
    data = _animated(kind)
    rows = [{"image": data}, {"image": _saved(kind)}, {"image": data}]
    report = _pack(rows, tmp_path, codec=codec, resize="none")
    (note,) = [note for note in report.notes if "frame" in note]
    assert note.startswith("only the first frame or page of an animation or a file of several")
    assert note.endswith("2 images, the first 00000000")
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3
        expected = np.asarray(image.convert("RGB"))
    found = fastdata.open(tmp_path / "packed.lmdb")[0].image.permute(1, 2, 0)
    assert np.array_equal(found, expected)


def test_a_gif_whose_second_frame_is_damaged_has_its_first(tmp_path: Path) -> None:
    data = _animated("GIF")
    second = data.index(b"\x2c", data.index(b"\x21\xf9", data.index(b"\x2c") + 1))
    report = _pack([{"image": data[: second + 12]}], tmp_path, resize="none")
    assert report.num_rejected == 0


# -- what is not opened ------------------------------------------------------------------


def _jpeg_with(frame: int, precision: int = 8) -> bytes:
    data = bytearray(_saved("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 1], data[at + 4] = frame, precision
    return bytes(data)


def _tiff_of(samples: int, **first: int) -> bytes:
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: 0, 277: samples, 278: 4}
    tags |= {279: 16 * samples}
    tags |= {int(name[1:]): value for name, value in first.items()}
    start = 8 + 2 + 12 * len(tags) + 4
    tags[273] = start
    entries = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())
    )
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4 + 16 * samples)


_LS = b"\xff\xd8\xff\xf7\0\x0b\x08\0\x10\0\x10\1\1\x11\0\xff\xda\0\x08\1\1\0\0\0\0" + bytes(99)

NAMED: dict[str, tuple[bytes, str]] = {
    "a.heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "HEIC; .*`magick IN.heic"),
    "a.jxl": (b"\xff\x0a" + bytes(99), "JPEG XL; .*`djxl IN.jxl"),
    "boxed.jxl": (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(99), "JPEG XL; .*`djxl"),
    "a.psd": (b"8BPS\0\1" + bytes(99), "Photoshop; .*IN.psd"),
    "a.dcm": (bytes(128) + b"DICM" + bytes(99), "DICOM; .*`dcmj2pnm .*IN.dcm"),
    "a.exr": (b"v/1\x01" + bytes(99), "OpenEXR; .*`magick IN.exr"),
    "ls.jpg": (_LS, "JPEG-LS; .*`ffmpeg -i IN.jls"),
    "12 bits.jpg": (_jpeg_with(0xC1, 12), "a 12-bit JPEG; .*`ffmpeg"),
    "lossless.jpg": (_jpeg_with(0xC3), "a lossless JPEG; .*`ffmpeg"),
    "lossless 16 bits.jpg": (_jpeg_with(0xC3, 16), "a 16-bit lossless JPEG; .*`ffmpeg"),
    "hierarchical.jpg": (_jpeg_with(0xC5), "a hierarchical JPEG; .*`ffmpeg"),
    "a.dng": (_tiff_of(1, _254=1, _330=8), "a camera raw file.*`magick IN.dng"),
    "a.cr2": (b"II*\0\x10\0\0\0CR\2\0" + bytes(99), "camera raw; .*`magick IN.cr2"),
    "2 channels.tif": (_tiff_of(2, _258=16), "2 channels of 16 bits.*`gdal_translate -b 1 IN.tif"),
    "6 channels.tif": (_tiff_of(6), "a TIFF of 6 channels of 8 bits.*`gdal_translate"),
}


@pytest.mark.parametrize("codec", ["auto", "keep"])
@pytest.mark.parametrize("name", NAMED)
def test_the_reason_names_the_format_and_what_to_do(tmp_path: Path, name: str, codec: str) -> None:
    data, expected = NAMED[name]
    report = _pack([{"image": photo(*SIZE)}, {"image": data}], tmp_path, codec=codec)
    (reject,) = report.rejects
    assert re.search(expected, reject.reason), reject.reason


@pytest.mark.parametrize("kind", ["AVIF", "GIF", "PNG", "TIFF"])
def test_the_reason_says_that_a_file_is_damaged(tmp_path: Path, kind: str) -> None:
    data = _saved(kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
    report = _pack([{"image": photo(*SIZE)}, {"image": data[:30]}], tmp_path)
    (reject,) = report.rejects
    expected = f"not opened, since it is damaged or of an unusual kind: {kind}, "
    assert reject.reason.startswith(expected)


@pytest.mark.parametrize("first", [{"_254": 1}, {"_254": 2, "_330": 8}, {"_254": 0, "_330": 8}])
def test_the_first_picture_of_a_tiff_is_packed_unless_it_is_a_thumbnail_of_another(
    tmp_path: Path, first: dict[str, int]
) -> None:
    report = _pack([{"image": _tiff_of(1, **first)}], tmp_path)
    assert report.num_rejected == 0


def test_class_folders_name_pictures_that_are_not_opened(tmp_path: Path) -> None:
    for name, first in FIRST.items():
        _files(tmp_path / "in" / name, first=first)
        for number in range(2):
            (tmp_path / "in" / name / f"{number}.HEIC").write_bytes(NAMED["a.heic"][0])
    (tmp_path / "in" / "a" / "notes.txt").write_text("three cats")
    report = _pack(tmp_path / "in", tmp_path)
    assert report.num_samples == 12
    assert (
        "left out: pictures of formats that fastdata does not open: 4 .HEIC (HEIC); convert them, "
        "e.g. `magick IN.heic OUT.png`"
    ) in report.notes
    assert "1 files without an image suffix left out: 1 .txt" in report.notes


@pytest.mark.parametrize("format", ["folder", "flat", "archive"])
def test_sources_without_any_image_name_pictures_that_are_not_opened(
    tmp_path: Path, format: str
) -> None:
    source = tmp_path / "in"
    for name in "ab":
        place = source if format == "flat" else source / name
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.heic").write_bytes(NAMED["a.heic"][0])
    if format == "archive":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for file in sorted(source.glob("*/*")):
                archive.write(file, file.relative_to(source))
        source = tmp_path / "a.zip"
    with pytest.raises(SourceError, match=r"does not open: 2 .heic \(HEIC\); convert them, e.g."):
        _pack(source, tmp_path, format=format)


def test_suffixes_that_are_not_opened_are_no_names_of_images() -> None:
    assert not any(map(is_image_name, ("a.heic", "a.jxl", "a.psd", "a.svg", "a.dcm", "gif")))
