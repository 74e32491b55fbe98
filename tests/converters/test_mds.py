"""What is special to MosaicML's MDS."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_mds import COMPRESS, files, plain, raw_image, write_mds
from cases import Picture, make_pictures

import fastdata
from fastdata.converters import mds
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.converters.reading import chunks, refusals
from fastdata.errors import FastdataError, MissingExtraError, OptionError, SourceError
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "mds"
HEIGHT, WIDTH, COUNT = 6, 8, 5


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12)


def pack(location: Path, out: Path, **options: Any) -> Any:
    return fastdata.pack(
        location, out, num_workers=0, progress=False, **{"codec": "raw", "resize": "none"} | options
    )


def picture(index: int) -> Any:
    """Return the fixture's pixels, as ``make_mds.py`` makes them."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([9 * y, 9 * x, 40 * index + x + y], axis=2).astype(np.uint8)


def pixels(image: Any) -> Any:
    return np.asarray(image).transpose(1, 2, 0)


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_what_streaming_wrote_is_read(tmp_path: Path, name: str) -> None:
    report = pack(FIXTURES / name, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (COUNT, 0)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "about": StringField(),
        "any": ArrayField("float64", (None,)),
        "blob": BytesField(),
        "digits": ScalarField("int64"),
        "fixed": ArrayField("int16", (2, 3)),
        "grey": ImageField(),
        "image": ImageField(),
        "label": ScalarField("int64"),
        "large": ScalarField("int64"),
        "name": StringField(),
        "pil": ImageField(),
        "png": ImageField(),
        "price": StringField(),
        "small": ScalarField("uint8"),
        "typed": ArrayField("float32", (2, None)),
        "weight": ScalarField("float32"),
    }
    for index in range(COUNT):
        sample: Any = dataset[index]
        assert np.array_equal(pixels(sample.png), picture(index))
        assert np.array_equal(pixels(sample.pil), picture(index))
        assert np.array_equal(pixels(sample.grey)[:, :, 0], picture(index)[:, :, 2])
        # Streaming's writer made a JPEG of it, with its chroma at half the size.
        assert np.abs(pixels(sample.image).astype(int) - picture(index)).mean() < 20
        assert (sample.label, sample.small, sample.large) == (index % 3, index, index + 2**40)
        assert sample.weight == np.float32(index / 7)
        assert (sample.name, sample.digits) == (f"sample {index} é", 10**12 + index)
        assert (sample.price, json.loads(sample.about)) == (f"{index}.25", {"index": index})
        assert sample.blob == bytes([index]) * (index + 1)
        assert np.array_equal(sample.any, np.arange(index + 1))
        assert np.array_equal(sample.typed, np.full((2, index + 1), index))
        assert np.array_equal(sample.fixed, np.arange(6).reshape(2, 3) + index)


def test_gzip_of_streamings_is_read(tmp_path: Path) -> None:
    assert pack(FIXTURES / "gz", tmp_path / "a.lmdb").num_samples == COUNT
    sample: Any = fastdata.open(tmp_path / "a.lmdb")[3]
    assert np.array_equal(pixels(sample.image), picture(3))


def test_bzip2_is_read(tmp_path: Path, pictures: list[Picture]) -> None:
    columns = {"image": "jpeg", "label": "int"}
    write_mds(tmp_path, columns, files(pictures), compression="bz2")
    assert pack(tmp_path, tmp_path / "a.lmdb").num_samples == 12


def test_the_index_itself_is_a_location(tmp_path: Path, pictures: list[Picture]) -> None:
    assert find_source(plain(tmp_path, pictures) / "index.json").name == "mds"


def test_a_pickled_column_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'anything' is pickled .*columns=label,png"):
        find_source(FIXTURES / "pkl")
    report = pack(FIXTURES / "pkl", tmp_path / "a.lmdb", source_options={"columns": "image=png"})
    assert report.num_samples == COUNT
    assert any(n.startswith("columns left out: anything, label (") for n in report.notes)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(SourceError, match=r"compressed by 'br', .* gz, bz2, zstd"):
        find_source(FIXTURES / "br")


def test_without_zstandard_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(refusals.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[zstd\]'"):
        mds.MDSSource(FIXTURES / "zstd")


def test_unpacked_shards_beside_packed_ones_are_taken(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    columns = {"image": "jpeg", "label": "int"}
    write_mds(tmp_path, columns, files(pictures), compression="zstd")
    other = tmp_path / "plain"
    other.mkdir()
    shutil.copy(write_mds(other, columns, files(pictures)) / "shard.00000.mds", tmp_path)
    source = find_source(tmp_path)
    assert source.indexed().num_samples == 12  # which compressed ones do not admit
    assert sum(1 for _ in source) == 12


@pytest.mark.parametrize("parts", [False, True])
def test_shards_without_an_index_are_told_how_to_get_one(
    tmp_path: Path, pictures: list[Picture], parts: bool
) -> None:
    folder = tmp_path / "00" if parts else tmp_path
    folder.mkdir(exist_ok=True)
    plain(folder, pictures)
    if not parts:
        (folder / "index.json").unlink()
    with pytest.raises(SourceError, match=r"MDS.*streaming\.base\.util\.merge_index"):
        find_source(tmp_path)


def test_columns_of_masks_and_boxes_are_fields_of_such(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    height, width = pictures[0].pixels.shape[:2]
    columns = {
        "image": "jpeg",
        "mask": f"ndarray:int32:{height},{width}",
        "bbox": "ndarray:float32",
    }
    made = [
        {
            "image": p.data,
            "mask": np.full((height, width), p.label, "<i4").tobytes(),
            "bbox": b"\x08\x01\x04" + struct.pack("<4f", 0.25, 0.5, 0.5, 0.25),
        }
        for p in pictures
    ]
    write_mds(tmp_path, columns, made)
    with pytest.raises(SourceError, match=r"'bbox': its boxes .*boxes="):
        find_source(tmp_path)
    options = {"boxes": "xywh,normalised"}
    assert pack(tmp_path, tmp_path / "a.lmdb", source_options=options).num_rejected == 0
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema["mask"] == ImageField(channels=1, mask=True)
    assert dataset.schema["bbox"] == ArrayField("float32", (None, 4), boxes=True)
    box = [width / 4, height / 2, width * 3 / 4, height * 3 / 4]
    sample: Any = dataset[1]
    assert np.allclose(sample.bbox, [box])
    assert set(np.asarray(sample.mask).flat) == {1}


# -- damage --------------------------------------------------------------------------


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("hash", ["sha1", "md5", "sha256"])
def test_a_wrong_hash_rejects_the_shard_alone(
    tmp_path: Path, pictures: list[Picture], hash: str
) -> None:
    columns = {"image": "jpeg", "label": "int"}
    folder = tmp_path / "in"
    folder.mkdir()
    write_mds(folder, columns, files(pictures), per_shard=4, hashes=[hash])
    path = folder / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of a label
    path.write_bytes(data)
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (8, 1)
    assert report.rejects[0].key.endswith("shard.00001.mds")
    assert f"its {hash} is" in report.rejects[0].reason
    assert "4 samples are left out" in report.rejects[0].reason


def test_shards_are_hashed_once_until_they_change(
    tmp_path: Path, pictures: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"image": "jpeg", "label": "int"}
    write_mds(tmp_path, columns, files(pictures), per_shard=4, hashes=["sha1", "md5"])
    hashed: list[str] = []
    new = hashlib.new

    def counted(name: str, **options: Any) -> Any:
        hashed.append(name)
        return new(name, **options)

    monkeypatch.setattr(chunks.hashlib, "new", counted)
    source = find_source(tmp_path)
    assert source.count() == 12
    assert source.indexed().num_samples == 12
    assert hashed == ["md5"] * 3
    path = tmp_path / "shard.00001.mds"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(1, 1))
    assert sum(isinstance(made, Reject) for made in source) == 1


def test_a_hash_of_unknown_kind_is_not_compared(tmp_path: Path, pictures: list[Picture]) -> None:
    plain(tmp_path, pictures)

    def change(index: dict[str, Any]) -> None:
        index["shards"][0]["raw_data"]["hashes"] = {"shake_128": "00"}

    assert pack(edit_index(tmp_path, change), tmp_path / "a.lmdb").num_samples == 12


@pytest.mark.parametrize("name", ["../other.mds", "/etc/hostname", "a/../../b", "", "x\0y", None])
def test_a_file_outside_the_folder_is_never_opened(
    tmp_path: Path, pictures: list[Picture], name: Any
) -> None:
    plain(tmp_path, pictures)

    def change(index: dict[str, Any]) -> None:
        index["shards"][0]["raw_data"]["basename"] = name

    with pytest.raises(SourceError, match=r"outside of its folder|no name of a file"):
        find_source(edit_index(tmp_path, change))


def test_shards_in_folders_of_a_merged_index_are_read(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    plain(tmp_path, pictures)
    (tmp_path / "part").mkdir()
    shutil.move(tmp_path / "shard.00001.mds", tmp_path / "part" / "shard.00000.mds")

    def change(index: dict[str, Any]) -> None:
        index["shards"][1]["raw_data"]["basename"] = "part/shard.00000.mds"

    assert pack(edit_index(tmp_path, change), tmp_path / "a.lmdb").num_samples == 12
    keys = fastdata.open(tmp_path / "a.lmdb").keys
    assert len(set(keys)) == 12
    assert sum(key.startswith("part/shard.00000.mds@") for key in keys) == 5


def test_a_missing_shard_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    (plain(tmp_path, pictures) / "shard.00001.mds").unlink()
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (7, 1)
    assert "No such file" in report.rejects[0].reason


@pytest.mark.parametrize(
    ("at", "value", "samples", "reason"),
    [
        (0, 6, 7, "has 6 samples and index.json says 5"),
        (0, 2**32 - 1, 7, "has 4,294,967,295 samples"),
        (8, 2**32 - 1, 10, "damaged or cut short"),  # the end of the first, start of the second
        (4, 0, 11, "damaged or cut short"),
    ],
)
def test_a_bad_table_is_not_believed(
    tmp_path: Path, pictures: list[Picture], at: int, value: int, samples: int, reason: str
) -> None:
    path = plain(tmp_path, pictures) / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack("<I", value)
    path.write_bytes(data)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_samples == samples
    assert reason in report.rejects[0].reason
    assert report.rejects[0].key.startswith(("shard.00000.mds@", str(path)))


def test_lengths_of_columns_are_not_believed(tmp_path: Path, pictures: list[Picture]) -> None:
    path = plain(tmp_path, pictures) / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<I", data, 4)[0]
    data[start : start + 4] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (11, 1)
    assert "the columns of a sample have 2,147,483,660 bytes" in report.rejects[0].reason
    assert report.rejects[0].key == f"shard.00000.mds@{start}"


@pytest.mark.parametrize("codec", list(COMPRESS))
def test_a_compressed_shard_cut_short_says_how_many_are_lost(
    tmp_path: Path, pictures: list[Picture], codec: str
) -> None:
    columns = {"image": "jpeg", "label": "int"}
    write_mds(tmp_path, columns, files(pictures), per_shard=6, compression=codec, hashes=())
    path = tmp_path / f"shard.00000.mds.{codec}"
    path.write_bytes(path.read_bytes()[:-40])
    report = pack(tmp_path, tmp_path / "a.lmdb")
    lost = 12 - report.num_samples
    assert 1 <= lost <= (5 if codec == "gz" else 6)  # the others come in one block here
    assert report.num_rejected == 1
    assert f"; {lost} of its samples are lost" in report.rejects[0].reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i["shards"][0].update(version=1), "version 1; mds, version 2, is read"),
        (lambda i: i["shards"][0].update(format="json"), "a shard of format 'json'"),
        (lambda i: i["shards"][0].update(samples=10**30), "not a number of samples"),
        (lambda i: i["shards"][0].update(samples=-1), "not a number of samples"),
        (lambda i: i["shards"][0].update(column_sizes=[None, 2**60]), "not lengths in bytes"),
        (lambda i: i["shards"][0].update(column_names=["image"]), "1 columns with 2 encodings"),
        (lambda i: i["shards"][1].update(column_encodings=["png", "int"]), "different columns"),
        (lambda i: i.update(shards=[]), "lists no shards"),
        (lambda i: i.update(shards=7), "not a list of the index"),
        (lambda i: i["shards"][0].update(raw_data=None), "a shard without a file"),
    ],
)
def test_an_index_that_cannot_be_is_an_error(
    tmp_path: Path, pictures: list[Picture], change: Any, message: str
) -> None:
    edit_index(plain(tmp_path, pictures), change)
    with pytest.raises(SourceError, match=message):
        mds.MDSSource(tmp_path)


def test_an_index_cut_short_is_an_error(tmp_path: Path, pictures: list[Picture]) -> None:
    path = plain(tmp_path, pictures) / "index.json"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(FastdataError, match="not JSON"):
        find_source(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("pil", raw_image("RGB", 2**31, 2**31, b"abc"), "has 13,835,058,055,282,163,712 bytes"),
        ("pil", raw_image("BGR;15", 1, 1, b"ab"), "mode 'BGR;15' cannot be read"),
        ("pil", b"abc", "has no head"),
        ("ndarray", b"\x22\xfdabc", "an array without a shape"),
        ("ndarray", b"\x08\x0b" + struct.pack("<2Q", 2**62, 2**62) + b"ab", "not 2"),
        ("ndarray", b"\x07\x04\x01a", "unknown dtype"),
        ("int", b"abc", "not 3"),
        ("str_int", b"1x", "invalid literal"),
        ("str", b"\xff", "invalid start byte"),
        ("json", b"{", "Expecting property name"),
    ],
)
def test_values_that_cannot_be_are_errors(encoding: str, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        mds.decode(encoding, data)


@pytest.mark.parametrize("encoding", ["list[jpeg]", "jpeg_array", "own", "ndarray:object:2"])
def test_other_encodings_are_refused(
    tmp_path: Path, pictures: list[Picture], encoding: str
) -> None:
    samples = [{"image": p.data, "x": b"12"} for p in pictures]
    write_mds(tmp_path, {"image": "jpeg", "x": encoding}, samples)
    with pytest.raises(
        OptionError,
        match=r"the column 'x' .*columns=image",
    ):
        find_source(tmp_path)


def test_large_unsigned_numbers_are_not_wrapped(tmp_path: Path, pictures: list[Picture]) -> None:
    samples = [
        {"image": p.data, "n": struct.pack("<Q", 2**63 if p.label else 7)} for p in pictures[:3]
    ]
    write_mds(tmp_path, {"image": "jpeg", "n": "uint64"}, samples)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (1, 2)
    assert "9223372036854775808" in report.rejects[0].reason
