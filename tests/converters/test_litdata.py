"""What is special to LitData's chunks."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from case_litdata import LEAF, files, tree, write_litdata
from cases import Picture, make_pictures

import fastdata
from fastdata.converters import litdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "litdata"
HEIGHT, WIDTH, COUNT = 6, 8, 5


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12)


def pack(location: Path, out: Path, **options: Any) -> Any:
    return fastdata.pack(
        location, out, num_workers=0, progress=False, **{"codec": "raw", "resize": "none"} | options
    )


def picture(index: int) -> Any:
    """Return the fixture's pixels, as ``make_litdata.py`` makes them."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([9 * y, 9 * x, 40 * index + x + y], axis=2).astype(np.uint8)


def pixels(image: Any) -> Any:
    return np.asarray(image).transpose(1, 2, 0)


def test_what_litdata_wrote_is_read(tmp_path: Path) -> None:
    report = pack(FIXTURES / "plain", tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (COUNT, 0)
    assert any("'hwc' of shape (6, 8, 3) is stored as an array" in note for note in report.notes)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "raw": ImageField(),
        "file": ImageField(),
        "chw": ArrayField("uint8", (3, HEIGHT, WIDTH)),
        "hwc": ArrayField("uint8", (HEIGHT, WIDTH, 3)),
        "label": ScalarField("int64"),
        "weight": ScalarField("float64"),
        "flag": ScalarField("bool"),
        "name": StringField(),
        "vector": ArrayField("float32", (None,)),
        "list_grid": ArrayField("int16", (2, 3)),
        "list_line": ArrayField("float64", (4,)),
    }
    for index in range(COUNT):
        sample: Any = dataset[index]
        assert np.array_equal(pixels(sample.raw), picture(index))
        assert np.array_equal(sample.hwc, picture(index))
        assert np.array_equal(pixels(sample.chw), picture(index))
        # LitData's writer made a JPEG of it, with its chroma at half the size.
        for name in ("image", "file"):
            assert np.abs(pixels(getattr(sample, name)).astype(int) - picture(index)).mean() < 20
        assert (sample.label, sample.flag) == (index % 3, index % 2 == 0)
        assert (sample.weight, sample.name) == (index / 7, f"sample {index} é")
        assert np.array_equal(sample.vector, np.arange(index + 1))
        assert np.array_equal(sample.list_grid, np.full((2, 3), index))
        assert np.array_equal(sample.list_line, np.arange(4))


@pytest.mark.parametrize("level", ["chunk", "sample"])
def test_both_ways_to_compress_have_the_same_samples(tmp_path: Path, level: str) -> None:
    columns = {"columns": "image,label=class"}
    plain = pack(FIXTURES / "plain", tmp_path / "a.lmdb", source_options=columns, codec="keep")
    report = pack(FIXTURES / level, tmp_path / "b.lmdb", codec="keep")
    assert (report.num_samples, report.num_rejected) == (COUNT, 0)
    [first], [second] = (list(fastdata.open(r.path).shards) for r in (plain, report))
    for index in range(COUNT):
        assert first.blob("image", index) == second.blob("image", index)
        assert second.value("label", index) == index % 3


def test_samples_without_names_have_image_and_label(tmp_path: Path) -> None:
    assert pack(FIXTURES / "tuple", tmp_path / "a.lmdb").num_samples == 2
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image", "label"]
    renamed = find_source(FIXTURES / "tuple", options={"columns": "photo=0,number=1"})
    assert list(renamed.schema) == ["photo", "number"]


def test_a_pickled_column_is_refused_unless_it_is_left_out() -> None:
    with pytest.raises(OptionError, match=r"'set' is pickled.*columns=image"):
        find_source(FIXTURES / "pickle")
    source = find_source(FIXTURES / "pickle", options={"columns": "image"})
    assert any(note.startswith("columns left out: set (") for note in source.notes)


@pytest.mark.parametrize(
    ("name", "reason"), [("rows", "a table of Arrow"), ("batch", "compression_level 'batch'")]
)
def test_tables_and_frames_that_litdata_wrote_are_refused(name: str, reason: str) -> None:
    with pytest.raises(SourceError, match=rf"{reason}.*fastdata\.pack\(litdata\.Stream"):
        find_source(FIXTURES / name)


# -- names ---------------------------------------------------------------------------


def test_columns_inside_others_are_named_by_their_place(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    inner = {"type": "builtins.list", "context": "null", "children_spec": [LEAF, LEAF]}
    node = {"type": "builtins.dict", "context": '["img", "more"]', "children_spec": [LEAF, inner]}
    rows = [(p.data, struct.pack("<q", p.label), p.name.encode()) for p in pictures]
    spec = json.dumps([1, node])
    write_litdata(tmp_path, ("jpeg", "int", "str"), spec, rows)
    assert list(find_source(tmp_path).schema) == ["image", "more_0", "more_1"]
    chosen = find_source(tmp_path, options={"columns": "image=img,label=more.0"})
    assert list(chosen.schema) == ["image", "label"]


def test_class_names_are_kept(tmp_path: Path, pictures: list[Picture]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    files(None)(folder, pictures)
    (tmp_path / "names").write_text("ant\nbee\ncat\n")
    source = find_source(folder, options={"classes": str(tmp_path / "names")})
    assert source.schema.classes == ("ant", "bee", "cat")


# -- damage --------------------------------------------------------------------------


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i["config"].update(encryption={"algorithm": "fernet"}), "are encrypted"),
        (lambda i: i["config"].update(item_loader="TokensLoader"), "written for TokensLoader"),
        (lambda i: i["config"].update(compression="lz4"), "compressed by 'lz4'"),
        (lambda i: i["config"].update(compression="gz"), "LitData has only zstd"),
        (
            lambda i: i["config"].update(compression="zstd", compression_level="x"),
            "compression_level 'x'",
        ),
        (lambda i: i["config"].update(data_format=["jpeg"]), "has 2 columns and data_format 1"),
        (lambda i: i["config"].update(data_format=7), "not a list of the index"),
        (lambda i: i["config"].update(data_spec="[1, 2]"), "data_spec cannot be read"),
        (lambda i: i["config"].update(data_spec="[" * 99999), "data_spec cannot be read"),
        (lambda i: i["chunks"][0].update(filename="../x.bin"), "outside of its folder"),
        (lambda i: i["chunks"][0].update(chunk_size=2**40), "not a number of samples"),
        (lambda i: i.update(chunks=[]), "lists no chunks"),
        (lambda i: i.update(config=None), "not a list of the index"),
    ],
)
def test_an_index_that_cannot_be_is_an_error(
    tmp_path: Path, pictures: list[Picture], change: Any, message: str
) -> None:
    edit_index(files(None)(tmp_path, pictures), change)
    with pytest.raises(SourceError, match=message):
        litdata.LitDataSource(tmp_path)


@pytest.mark.parametrize("kind", ["pickle", "video", "json", "graph", "own"])
def test_other_serialisers_are_refused(tmp_path: Path, pictures: list[Picture], kind: str) -> None:
    rows = [(p.data, b"1") for p in pictures]
    write_litdata(tmp_path, ("jpeg", kind), tree(["image", "x"]), rows)
    with pytest.raises(OptionError, match="the column 'x' is"):
        find_source(tmp_path)


def test_a_sample_of_damaged_zstandard_is_one_reject(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    path = files("sample")(tmp_path, pictures) / "chunk-0-0.bin"
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<I", data, 8)[0]
    data[start] ^= 0xFF
    path.write_bytes(data)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert [r.key for r in report.rejects] == [f"chunk-0-0.bin@{start}"]
    assert "a piece of Zstandard is damaged" in report.rejects[0].reason


def test_zstandard_that_asks_for_much_memory_is_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    huge = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=huge).compressobj()
    rows = [(pictures[0].data, struct.pack("<q", 1))]
    write_litdata(tmp_path, ("jpeg", "int"), tree(["image", "label"]), rows, level="chunk")
    path = tmp_path / "chunk-0-0.zstd.bin"
    data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    path.write_bytes(packed.compress(data) + packed.flush())
    with pytest.raises(SourceError, match="requires too much memory"):
        pack(tmp_path, tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("numpy", struct.pack("<5I", 4, 3, 2**31, 2**31, 3) + b"abc", "not 3"),
        ("numpy", struct.pack("<2I", 14, 1) + bytes(12), "dtype number 14"),  # objects
        ("numpy", struct.pack("<2I", 4, 2**31), "claims 2147483648 dimensions"),
        ("numpy", b"abc", "has no head"),
        ("tensor", struct.pack(">3I", 10, 1, 1) + b"ab", "dtype number 10"),  # bfloat16
        ("no_header_numpy:15", b"ab", "dtype number 15"),
        ("no_header_tensor:x", b"ab", "dtype number -1"),
        ("no_header_numpy:3", b"abc", "not 3"),
        ("int", b"abc", "not 3"),
        ("str", b"\xff", "invalid start byte"),
        ("pil", struct.pack("<3I", 1, 1, 3) + b"RGBab", "not 2"),
    ],
)
def test_values_that_cannot_be_are_errors(encoding: str, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        litdata.decode(encoding, data)


def test_tensors_of_older_versions_are_read() -> None:
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    for order in "<>":
        data = struct.pack(f"{order}4I", 0, 2, 2, 3) + grid.tobytes()
        assert np.array_equal(litdata.decode("tensor", data), grid)


def test_mds_and_litdata_are_told_apart(tmp_path: Path, pictures: list[Picture]) -> None:
    assert find_source(files(None)(tmp_path, pictures)).name == "litdata"
    assert find_source(FIXTURES.parent / "mds" / "plain").name == "mds"
    (tmp_path / "index.json").write_text('{"some": "json"}')
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path)
