"""Images of 1, 2, 4, 12 and 16 bits a sample: what their pixels and their classes become."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples import photo

import fastdata

Array = np.ndarray[Any, Any]


def _packed_rows(values: Array, bits: int) -> bytes:
    """Return rows of samples, the highest bit first, each row padded to a byte."""
    rows = []
    for row in values:
        text = "".join(format(int(value), f"0{bits}b") for value in row)
        text += "0" * (-len(text) % 8)
        rows.append(int(text, 2).to_bytes(len(text) // 8, "big"))
    return b"".join(rows)


def _tiff(
    values: Array, bits: int, *, photometric: int = 1, colours: Array | None = None, **more: int
) -> bytes:
    """Return an uncompressed little-endian TIFF of one channel; `more` has other tags."""
    height, width = values.shape[:2]
    sample = {1: "u", 2: "i", 3: "f"}[more.get("_339", 1)]
    if bits in (16, 32):
        data = values.astype(f"<{sample}{bits // 8}").tobytes()
    else:
        data = _packed_rows(values & 255 if sample == "i" else values, bits)
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1}
    tags[278] = height
    tags |= {int(name[1:]): value for name, value in more.items()}
    tags |= {279: len(data)} | ({320: 0} if colours is not None else {})
    start = 8 + 2 + 12 * len(tags) + 4
    palette = b"" if colours is None else (colours.astype("<u2") * 257).tobytes()
    tags[273], tags[320] = start + len(palette), start
    entries = b"".join(
        struct.pack("<HHII", tag, 4, 1, value)
        if tag != 320
        else struct.pack("<HHII", tag, 3, len(palette) // 2, value)
        for tag, value in sorted(tags.items())
        if tag != 320 or palette
    )
    count = len(tags) - (not palette)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + entries + b"\0\0\0\0" + palette + data


def _png(values: Array, bits: int, colour_type: int = 0, **chunks: bytes) -> bytes:
    height, width = values.shape[:2]
    if bits == 16:
        lines = values.astype(">u2").reshape(height, -1).view(np.uint8)
        data = b"".join(b"\0" + line.tobytes() for line in lines)
    else:
        rows = _packed_rows(values, bits)
        step = len(rows) // height
        data = b"".join(b"\0" + rows[at : at + step] for at in range(0, len(rows), step))
    parts = [("IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0))]
    parts += [*chunks.items(), ("IDAT", zlib.compress(data)), ("IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name.encode() + body
        + struct.pack(">I", zlib.crc32(name.encode() + body))
        for name, body in parts
    )  # fmt: skip


def _pack(folder: Path, samples: list[Any], **options: Any) -> tuple[Any, fastdata.Dataset]:
    path = folder / "packed.lmdb"
    report = fastdata.pack(
        samples, path, num_workers=0, progress=False, resize="none", overwrite=True,
        **{"codec": "raw", **options},
    )  # fmt: skip
    assert not report.rejects, report.rejects
    return report, fastdata.open(path)


def _image(folder: Path, data: bytes, **options: Any) -> Array:
    _, dataset = _pack(folder, [{"image": data}], channels=1, **options)
    return np.asarray(dataset[0].image[0])


def _mask(folder: Path, data: bytes, **options: Any) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        size = image.height, image.width
    samples = [{"image": photo(*size), "mask": data}]
    _, dataset = _pack(folder, samples, fields={"mask": "mask"}, **options)
    return np.asarray(dataset[0].mask[0])


LEVELS = np.arange(16 * 3).reshape(3, 16) % 16


@pytest.mark.parametrize("codec", ["raw", "keep"])
def test_white_of_a_tiff_of_12_bits_is_white(tmp_path: Path, codec: str) -> None:
    values = np.linspace(0, 4095, 64).round().astype(int).reshape(4, 16)
    found = _image(tmp_path, _tiff(values, 12), codec=codec)
    assert np.array_equal(found, values >> 4)
    assert found.max() == 255


def test_an_opened_tiff_of_12_bits_has_the_pixels_of_its_file(tmp_path: Path) -> None:
    values = np.linspace(0, 4095, 64).round().astype(int).reshape(4, 16)
    with Image.open(io.BytesIO(_tiff(values, 12))) as image:
        _, dataset = _pack(tmp_path, [{"image": image}], channels=1)
    assert np.array_equal(np.asarray(dataset[0].image[0]), values >> 4)


def test_a_mask_of_12_bits_keeps_its_classes(tmp_path: Path) -> None:
    assert np.array_equal(_mask(tmp_path, _tiff(LEVELS, 12)), LEVELS)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("kind", [_tiff, _png])
@pytest.mark.parametrize("codec", ["raw", "keep"])
def test_masks_of_few_bits_keep_their_classes(
    tmp_path: Path, kind: Any, bits: int, codec: str
) -> None:
    classes = LEVELS % (1 << bits)
    assert np.array_equal(_mask(tmp_path, kind(classes, bits), codec=codec), classes)


DEEP = {"int8": (8, 2), "int16": (16, 2), "uint32": (32, 1), "int32": (32, 2), "float32": (32, 3)}


@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("kind", DEEP)
def test_masks_of_signed_and_deep_samples_keep_their_classes(
    tmp_path: Path, kind: str, codec: str
) -> None:
    bits, sample = DEEP[kind]
    assert np.array_equal(_mask(tmp_path, _tiff(LEVELS, bits, _339=sample), codec=codec), LEVELS)


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_no_class_is_refused(tmp_path: Path, kind: str) -> None:
    bits, sample = DEEP[kind]
    wrong = [LEVELS - 1] * (sample > 1) + [LEVELS * 100] * (bits > 8)
    wrong += [LEVELS / 2, np.where(LEVELS, LEVELS, np.nan)] * (sample == 3)
    rows = [{"image": photo(3, 16), "mask": _tiff(LEVELS, 8)}]
    rows += [{"image": photo(3, 16), "mask": _tiff(each, bits, _339=sample)} for each in wrong]
    report = fastdata.pack(
        rows, tmp_path / "a", num_workers=0, progress=False, fields={"mask": "mask"}
    )
    assert report.num_samples == 1
    assert len(report.rejects) == len(wrong)
    for reject in report.rejects:
        assert re.search("whole numbers from 0 to 255|has a class below 0", reject.reason)


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("opened", [False, True])
def test_images_of_signed_and_deep_samples_are_refused(
    tmp_path: Path, kind: str, opened: bool
) -> None:
    bits, sample = DEEP[kind]
    data: Any = _tiff(LEVELS, bits, _339=sample)
    report = fastdata.pack(
        [{"image": photo(3, 16)}, {"image": Image.open(io.BytesIO(data)) if opened else data}],
        tmp_path / "a", num_workers=0, progress=False,
    )  # fmt: skip
    (reject,) = report.rejects
    assert re.search(rf"\b{bits} bits.* no defined range of brightness", reject.reason)


@pytest.mark.parametrize(("bits", "photometric"), [(16, 2), (8, 8)])
def test_planes_that_pillow_reads_wrong_are_refused(
    tmp_path: Path, bits: int, photometric: int
) -> None:
    """One strip for all, which Pillow reads up to there."""
    values = np.random.default_rng(0).integers(0, 256, (12, 16))
    data = _tiff(values, bits, photometric=photometric, _257=4, _277=3, _278=4, _284=2)
    report = fastdata.pack(
        [{"image": photo(3, 16)}, {"image": data}], tmp_path / "a", num_workers=0, progress=False
    )
    (reject,) = report.rejects
    assert f"a plane of {bits} bits for each channel" in reject.reason
    assert "-co INTERLEAVE=PIXEL" in reject.reason


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_masks_with_a_palette_keep_their_indices(tmp_path: Path, bits: int) -> None:
    classes = LEVELS % (1 << bits)
    colours = np.random.default_rng(0).integers(0, 256, (3, 1 << bits))
    data = _tiff(classes, bits, photometric=3, colours=colours)
    assert np.array_equal(_mask(tmp_path, data), classes)
    palette = colours.T.astype(np.uint8).tobytes()
    assert np.array_equal(_mask(tmp_path, _png(classes, bits, 3, PLTE=palette)), classes)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_where_0_is_white_a_mask_has_the_classes_that_pil_shows(tmp_path: Path, bits: int) -> None:
    largest = (1 << bits) - 1
    stored = largest - LEVELS % (1 << bits)
    assert np.array_equal(_mask(tmp_path, _tiff(stored, bits, photometric=0)), largest - stored)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("photometric", [0, 1])
def test_images_of_few_bits_are_what_pil_shows(tmp_path: Path, bits: int, photometric: int) -> None:
    data = _tiff(LEVELS % (1 << bits), bits, photometric=photometric)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("L"))
    assert np.array_equal(_image(tmp_path, data), expected)
    assert bits == 8 or set(np.unique(expected)) >= {0, 255}


DARK = np.arange(64).reshape(4, 16) * 65
FULL = np.arange(64).reshape(4, 16) * 1040

NOTED = {
    "12 of 16 bits": (_png(DARK, 16), "only the lower 12 are used"),
    "sBIT says 12": (_png(DARK, 16, sBIT=b"\x0c"), "only the lower 12 are used"),
    "sBIT says 10": (_png(DARK // 4, 16, sBIT=b"\x0a"), "only the lower 10 are used"),
    "sBIT says 14": (_png(DARK * 4, 16, sBIT=b"\x0e"), "only the lower 14 are used"),
    "colours": (_png(np.stack([DARK] * 3, -1), 16, 2), "only the lower 12 are used"),
    "TIFF": (_tiff(DARK, 16), "only the lower 12 are used"),
    "0 is white": (_tiff(FULL, 16, photometric=0), "says that 0 is white"),
}


@pytest.mark.parametrize("codec", ["raw", "keep"])
@pytest.mark.parametrize("name", NOTED)
def test_images_that_come_out_dark_or_inverted_are_noted(
    tmp_path: Path, name: str, codec: str
) -> None:
    data, expected = NOTED[name]
    report, dataset = _pack(tmp_path, [{"image": data}] * 3, codec=codec)
    (note,) = [note for note in report.notes if "16 bits" in note]
    assert expected in note
    assert note.endswith("3 images, the first 00000000")
    with Image.open(io.BytesIO(data)) as image:
        shown = np.asarray(image)
    high = (shown.astype(int) >> 8 if shown.dtype != np.uint8 else shown).reshape(4, 16, -1)
    assert np.array_equal(
        np.asarray(dataset[0].image.permute(1, 2, 0)), high + np.zeros((4, 16, 3))
    )


@pytest.mark.parametrize(
    "data",
    [
        _png(FULL, 16),
        _png(FULL, 16, sBIT=b"\x0c"),
        _png(DARK, 16, sBIT=b"\x10"),
        _png(LEVELS, 4),
        _tiff(FULL, 16),
        _tiff(DARK, 12),
    ],
)
def test_images_that_use_their_range_are_not_noted(tmp_path: Path, data: bytes) -> None:
    report, _ = _pack(tmp_path, [{"image": data}])
    assert not [note for note in report.notes if "bits" in note]


def test_a_mask_of_16_bits_is_not_noted(tmp_path: Path) -> None:
    samples = [{"image": photo(3, 16), "mask": _png(LEVELS, 16)}]
    report, dataset = _pack(tmp_path, samples, fields={"mask": "mask"})
    assert np.array_equal(np.asarray(dataset[0].mask[0]), LEVELS)
    assert not [note for note in report.notes if "bits" in note]


def test_notes_on_images_are_counted_over_workers_parts_and_interruptions(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(70):
        (folder / f"{number:03}.png").write_bytes(_png(DARK, 16) if number % 2 else _png(FULL, 16))
    expected = "35 images, the first 001.png"
    options: dict[str, Any] = {"progress": False, "format": "flat"}
    for workers in (0, 2):
        path = tmp_path / f"{workers}.lmdb"
        report = fastdata.pack(folder, path, num_workers=workers, **options)
        assert [note for note in report.notes if note.endswith(expected)]
    parts = tmp_path / "parts"
    for part in ("plan", "0/2", "1/2"):
        fastdata.pack(folder, parts, shards=3, part=part, num_workers=0, **options)
    report = fastdata.pack(folder, parts, shards=3, part="commit", **options)
    assert [note for note in report.notes if note.endswith(expected)]


def test_notes_on_images_outlive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.converters.packing import packer

    taken = packer.Packer._take

    def stopping(self: Any, result: Any) -> None:
        if self.state.position >= 32:
            raise KeyboardInterrupt
        taken(self, result)

    rows = [{"image": _png(DARK, 16)} for _ in range(40)]
    monkeypatch.setattr(packer.Packer, "_take", stopping)
    with pytest.raises(KeyboardInterrupt):
        fastdata.pack(rows, tmp_path / "a.lmdb", num_workers=0, progress=False)
    monkeypatch.undo()
    report = fastdata.pack(rows, tmp_path / "a.lmdb", num_workers=0, progress=False)
    assert report.resumed_at == 32
    assert [note for note in report.notes if note.endswith("40 images, the first 00000000")]
