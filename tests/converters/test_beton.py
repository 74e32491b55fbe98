"""What is special to FFCV's .beton."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_beton import ARRAY, BYTES, FLOAT, IMAGE, INT, JSON, Beton, array_arguments, jpegs
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.spans import close_files
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "beton"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(3)


def pack(location: Path, out: Path, **options: Any) -> Any:
    return fastdata.pack(
        location, out, num_workers=0, progress=False, **{"codec": "raw", "resize": "none"} | options
    )


def pixels(image: Any) -> Any:
    """Return what a dataset gives, C x H x W, as H x W x C."""
    return np.asarray(image).transpose(1, 2, 0).astype(int)


def test_what_ffcv_wrote_reads_as_ffcv_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "all.beton"
    path.write_bytes(gzip.decompress((FIXTURES / "all.beton.gz").read_bytes()))
    wanted = np.load(FIXTURES / "all.npz")
    count = len(wanted["label"])
    assert set(wanted["mode"].tolist()) == {0, 1}, "the fixture has images of both modes"
    report = pack(path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (count, 0)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "second": ImageField(),
        "label": ScalarField("int64"),
        "weight": ScalarField("float64"),
        "blob": BytesField(),
        "about": StringField(),
        "grid": ArrayField("int16", (2, 3)),
        "vector": ArrayField("float32", (4,)),
    }
    for index in range(count):
        sample: Any = dataset[index]
        assert sample.label == wanted["label"][index]
        assert sample.weight == wanted["weight"][index]
        assert np.array_equal(sample.grid, wanted["grid"][index])
        assert np.array_equal(sample.vector, wanted["vector"][index])
        # FFCV pads bytes to the longest of the file.
        assert wanted["blob"][index].tobytes()[: len(sample.blob)] == sample.blob
        assert len(sample.blob) == len(f"note {index} é".encode()) * (index + 1)
        assert json.loads(sample.about) == {"index": index, "name": f"sample {index}"}
        for name in ("image", "second"):
            found = pixels(getattr(sample, name))
            # Two builds of libjpeg may round differently; pixels must be the same.
            limit = 3 if name == "second" or wanted["mode"][index] == 0 else 0
            assert np.abs(found - wanted[name][index]).max() <= limit


def test_jpegs_are_only_pointed_at(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(jpegs(tmp_path, pictures))
    for sample, picture in zip(source, pictures, strict=True):
        span, label = sample.values.load()  # type: ignore[union-attr]
        assert span.read() == picture.data
        assert label == picture.label
    close_files()


def test_it_is_recognised_without_its_suffix_too(tmp_path: Path, pictures: list[Picture]) -> None:
    path = jpegs(tmp_path, pictures).rename(tmp_path / "data.bin")
    assert find_source(path).name == "beton"
    (tmp_path / "zeros").write_bytes(bytes(5000))
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path / "zeros")


def test_columns_are_chosen_and_named(tmp_path: Path, pictures: list[Picture]) -> None:
    beton = Beton([("a", IMAGE, b""), ("b", IMAGE, b""), ("n", INT, b""), ("x", FLOAT, b"")])
    for p in pictures:
        size = p.pixels.shape[1::-1]
        dark = (p.pixels // 2).tobytes()
        beton.add((0, *size, p.data), (1, *size, dark), (p.label,), (0.5,))
    (tmp_path / "a.beton").write_bytes(beton.data())
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    assert list(find_source(tmp_path / "a.beton").schema) == ["image", "b", "n", "x"]
    options = {"columns": "image=b,label=n", "classes": str(tmp_path / "names.txt")}
    report = pack(tmp_path / "a.beton", tmp_path / "a.lmdb", source_options=options)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema.classes == ("ant", "bee", "cat")
    assert [int(s.label) for s in dataset] == [p.label for p in pictures]  # type: ignore[attr-defined]
    sample: Any = dataset[1]
    assert np.array_equal(pixels(sample.image), pictures[1].pixels // 2)
    assert any("columns left out: a, x" in note for note in report.notes)
    with pytest.raises(OptionError, match=r"no column 'nix' .* a, b, n, x"):
        find_source(tmp_path / "a.beton", options={"columns": "image=nix"})


def test_a_mask_is_a_grey_array_that_is_named_so(tmp_path: Path, pictures: list[Picture]) -> None:
    beton = Beton([("image", IMAGE, b""), ("mask", ARRAY, array_arguments("|u1", (40, 48)))])
    for p in pictures:
        beton.add((0, 48, 40, p.data), ((p.pixels[:, :, 0] // 90).tobytes(),))
    (tmp_path / "a.beton").write_bytes(beton.data())
    pack(tmp_path / "a.beton", tmp_path / "a.lmdb", fields={"mask": "mask"})
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema["mask"] == ImageField(channels=1, mask=True)
    found = np.asarray(dataset[2].mask).squeeze()  # type: ignore[attr-defined]
    assert np.array_equal(found, pictures[2].pixels[:, :, 0] // 90)


@pytest.mark.parametrize("kind", [255, 7, 200])
def test_fields_of_unknown_kind_are_refused(tmp_path: Path, kind: int) -> None:
    beton = Beton([("image", IMAGE, b""), ("own", BYTES, b"")])
    data = bytearray(beton.data())
    data[24 + 1041] = kind
    (tmp_path / "a.beton").write_bytes(data)
    with pytest.raises(SourceError, match="the field 'own' is"):
        find_source(tmp_path / "a.beton")


@pytest.mark.parametrize("dtype", ["|O", "O", "|S5", "<M8[s]", [["a", "<i4"]]])
def test_arrays_of_objects_and_records_are_refused(tmp_path: Path, dtype: Any) -> None:
    beton = Beton([("grid", ARRAY, array_arguments(dtype, (2,)))])
    (tmp_path / "a.beton").write_bytes(beton.data())
    with pytest.raises(SourceError, match=r"the array 'grid' cannot be read"):
        find_source(tmp_path / "a.beton")


def damaged(tmp_path: Path, pictures: list[Picture], change: dict[int, bytes]) -> Path:
    path = jpegs(tmp_path, pictures)
    data = bytearray(path.read_bytes())
    for at, value in change.items():
        data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


METADATA = 24 + 2 * 1041


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({METADATA: b"\2"}, "unknown mode 2"),
        ({METADATA + 5: struct.pack("<Q", 1 << 60)}, "is not in the allocation table"),
        ({METADATA + 5: struct.pack("<Q", 9)}, "is not in the allocation table"),
        ({METADATA: struct.pack("<BHH", 1, 60000, 60000)}, "10,800,000,000 bytes at byte"),
    ],
)
def test_a_bad_sample_is_a_reject_and_the_rest_goes_on(
    tmp_path: Path, pictures: list[Picture], change: dict[int, bytes], reason: str
) -> None:
    report = pack(damaged(tmp_path, pictures, change), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (2, 1)
    assert report.rejects[0].key == "train.beton@0"
    assert reason in report.rejects[0].reason


def test_a_length_in_the_table_is_not_believed(tmp_path: Path, pictures: list[Picture]) -> None:
    path = jpegs(tmp_path, pictures)
    data = bytearray(path.read_bytes())
    data[-8:] = struct.pack("<Q", 1 << 62)
    path.write_bytes(data)
    report = pack(path, tmp_path / "a.lmdb")
    assert [r.key for r in report.rejects] == ["train.beton@2"]
    assert "it is damaged" in report.rejects[0].reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: b"\1"}, "version 1 of .beton"),
        ({16: bytes(8)}, "never finished"),
        ({8: b"\xff" * 7}, "damaged or cut short"),
        ({2: b"\xff\xff"}, "5,737 bytes with 65,535 fields"),
        ({2: b"\0\0"}, "5,737 bytes with 0 fields"),
    ],
)
def test_a_header_that_cannot_be_is_an_error(
    tmp_path: Path, pictures: list[Picture], change: dict[int, bytes], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        find_source(damaged(tmp_path, pictures, change))


def test_a_file_cut_in_its_table_loses_the_images_that_it_told_of(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    path = jpegs(tmp_path, pictures)
    path.write_bytes(path.read_bytes()[:-30])
    report = pack(path, tmp_path / "a.lmdb")
    assert [r.key for r in report.rejects] == ["train.beton@1", "train.beton@2"]
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(SourceError, match="damaged or cut short"):
        find_source(path)


def test_json_that_is_none_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    beton = Beton([("image", IMAGE, b""), ("about", JSON, b"")])
    for p, about in zip(pictures, (b'{"a": 1}\0', b"{a: 1}\0", b"[" * 99999), strict=True):
        beton.add((0, 48, 40, p.data), (about,))
    (tmp_path / "a.beton").write_bytes(beton.data())
    report = pack(tmp_path / "a.beton", tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (1, 2)
    assert fastdata.open(tmp_path / "a.lmdb")[0].about == '{"a": 1}'  # type: ignore[attr-defined]


def test_two_fields_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.beton").write_bytes(Beton([("x", INT, b""), ("x", INT, b"")]).data())
    with pytest.raises(SourceError, match="same name: x, x"):
        find_source(tmp_path / "a.beton")
