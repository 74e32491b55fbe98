"""What is special to LitData's chunks."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import zstandard
from case_litdata import LEAF, chunk, files, rows, sample, table, tree, write_litdata, write_tables
from cases import Picture, make_pictures

import fastdata
from fastdata.converters import litdata
from fastdata.converters.base import Sample
from fastdata.converters.finding import find_source
from fastdata.converters.reading import refusals
from fastdata.converters.reading.chunks import litdata_chunks as litdata_columns
from fastdata.converters.reading.spans import FileSpan
from fastdata.errors import FastdataError, MissingExtraError, OptionError, SourceError
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


@pytest.mark.parametrize("level", ["chunk", "batch", "sample"])
def test_the_three_ways_to_compress_have_the_same_samples(tmp_path: Path, level: str) -> None:
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


# -- rows that are a table -----------------------------------------------------------


def test_rows_that_litdata_wrote_as_a_table_are_read(tmp_path: Path) -> None:
    report = pack(FIXTURES / "rows", tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (2, 0)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {"image": ImageField(), "label": ScalarField("int64")}
    for index in range(2):
        sample: Any = dataset[index]
        assert np.abs(pixels(sample.image).astype(int) - picture(index)).mean() < 20
        assert sample.label == index


def test_columns_inside_others_are_read_from_tables(tmp_path: Path) -> None:
    report = pack(FIXTURES / "nested", tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (COUNT - 1, 1)
    assert report.rejects[0].key == "chunk-0-0.bin@1"
    assert "'score' is null in this row" in report.rejects[0].reason
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "about_class": ScalarField("int64"),
        "about_name": StringField(),
        "score": ScalarField("float64"),
    }
    for made, index in zip(iter(dataset), [0, 2, 3, 4], strict=True):
        assert np.abs(pixels(made.image).astype(int) - picture(index)).mean() < 20
        boxes = [[0.5, 1.0, 2.0, 3.0 + n] for n in range(index)]
        assert made.boxes.tolist() == boxes
        assert (made.about_class, made.about_name) == (index % 3, f"sample {index} é")
        assert made.score == index / 7
    chosen = {"columns": "image=photo,label=about.class"}
    assert pack(FIXTURES / "nested", tmp_path / "b", source_options=chosen).num_rejected == 0
    assert list(fastdata.open(tmp_path / "b").schema) == ["image", "label"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_tables_of_several_batches_that_litdata_compressed_are_read(
    tmp_path: Path, shuffle: bool
) -> None:
    report = pack(FIXTURES / "batches", tmp_path / "a.lmdb", shuffle=shuffle)
    assert (report.num_samples, report.num_rejected) == (300, 0)
    dataset: Any = fastdata.open(tmp_path / "a.lmdb")
    labels = [int(sample.label) for sample in dataset]
    assert sorted(labels) == list(range(300))
    assert (labels == sorted(labels)) != shuffle
    assert all(dataset[n].text == f"{labels[n]} é" * 300 for n in (0, 7, 299))


def test_images_of_tables_are_left_to_workers(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(write_tables(tmp_path, [rows(pictures[:7]), rows(pictures[7:])]))
    for sources in (source, source.indexed()):
        for found, made in zip(sources, pictures, strict=True):
            assert isinstance(found, Sample)
            values: Any = found.values.load()
            assert isinstance(values[0], FileSpan)
            path, offset, length = values[0]
            data = Path(path).read_bytes()[offset : offset + length]
            assert (data, values[1]) == (made.data, made.label)


def test_tables_that_older_versions_wrote_as_streams_are_read(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [rows(pictures)], stream=True)
    assert pack(folder, tmp_path / "a.lmdb").num_samples == 12


def test_chunks_that_are_no_tables_may_stand_beside(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    plain = chunk([sample((p.data, struct.pack("<q", p.label))) for p in pictures[5:]])
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [plain, rows(pictures[:5])])
    assert pack(folder, tmp_path / "a.lmdb").num_samples == 12
    labels = [int(made.label) for made in fastdata.open(tmp_path / "a.lmdb")]
    assert labels == [p.label for p in [*pictures[5:], *pictures[:5]]]
    more = rows(pictures[:5]).append_column("more", [[1.5] * 5])
    report = pack(write_tables(folder, [plain, more]), tmp_path / "b.lmdb")
    assert (report.num_samples, report.num_rejected) == (5, 1)
    assert "lacks some of the columns image, label, more" in report.rejects[0].reason


def test_a_column_that_only_some_tables_have_is_said(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    first, second = rows(pictures[:5]), rows(pictures[5:]).append_column("more", [[1] * 7])
    folder = edit_index(
        write_tables(tmp_path, [first, second]),
        lambda i: i["config"].update(types={"image": "bytes", "label": "int", "more": "int"}),
    )
    assert "columns left out: more" in find_source(folder).notes


def test_a_column_that_a_table_lacks_is_null_in_it(tmp_path: Path, pictures: list[Picture]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [rows(pictures[:5]), rows(pictures[5:]).drop_columns("label")])
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (5, 7)
    assert "'label' is null in this row" in report.rejects[0].reason


def test_text_where_images_should_be_opens_no_file(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    paths = [str(tmp_path / "secret.jpg")] * 5
    text = rows(pictures[:5]).set_column(0, "image", [paths])
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    places = pyarrow.array([{"bytes": None, "path": paths[0]}] * 5, kind)
    placed = rows(pictures[:5]).set_column(0, "image", places)
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [rows(pictures), text, placed])
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (12, 10)
    reasons = [reject.reason for reject in report.rejects]
    assert all("'image' is an image elsewhere, and string here" in r for r in reasons[:5])
    assert all("only files below the dataset's folder are read" in r for r in reasons[5:])


def test_a_column_of_a_table_that_no_field_holds_is_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    made = rows(pictures).append_column("tags", [[["a", "b"]] * 12])
    write_tables(tmp_path, [made])
    with pytest.raises(OptionError, match=r"'tags' is a list of string.*columns=image,label"):
        find_source(tmp_path)
    source = find_source(tmp_path, options={"columns": "image,label"})
    assert "columns left out: tags" in source.notes


def table_damaged(pictures: list[Picture], at: int, value: bytes) -> bytes:
    data = bytearray(table(rows(pictures[:7])))
    data[at : at + len(value) or None] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, struct.pack("<I", 8), "has 8 samples and index.json says 7"),
        (-12, struct.pack("<I", 2**32 - 1), "its table cannot be read: 4,294,967,295 bytes"),
        (-12, struct.pack("<I", 0), "its table cannot be read"),
        (-12, struct.pack("<I", 40), "its table cannot be read"),
        (-22, struct.pack("<i", -1), "its table cannot be read"),
        (-22, struct.pack("<i", 2**31 - 1), "its table cannot be read"),
        (4 + 4 * 8, b"ARROW2", "its table cannot be read"),
        (-8, b"LDARW02", "the columns of a sample|0 bytes"),
    ],
)
def test_a_table_that_cannot_be_read_is_its_chunk_lost(
    tmp_path: Path, pictures: list[Picture], at: int, value: bytes, reason: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [table_damaged(pictures, at, value), rows(pictures[7:])])
    edit_index(folder, lambda i: i["chunks"][0].update(chunk_size=7))
    for shuffle in (False, True):
        report = pack(folder, tmp_path / f"{shuffle}.lmdb", shuffle=shuffle)
        assert report.num_samples == 5
        assert re.search(reason, report.rejects[0].reason)
        if at != -8:
            assert report.num_rejected == 1
            assert "its 7 samples are lost" in report.rejects[0].reason


def test_a_damaged_batch_is_its_rows_lost(tmp_path: Path, pictures: list[Picture]) -> None:
    data = bytearray(table(rows(pictures), compression="zstd"))
    place = data.index(b"\x28\xb5\x2f\xfd")  # Zstandard's mark: of the first batch
    data[place : place + 4] = b"\xff" * 4
    folder = tmp_path / "in"
    folder.mkdir()
    write_tables(folder, [bytes(data)])
    for shuffle in (False, True):
        report = pack(folder, tmp_path / f"{shuffle}.lmdb", shuffle=shuffle)
        assert (report.num_samples, report.num_rejected) == (9, 3)
        assert {r.key for r in report.rejects} == {f"chunk-0-0.bin@{n}" for n in range(3)}
        assert "batch 0 of its table is damaged" in report.rejects[0].reason


def joined(parts: list[list[Picture]]) -> bytes:
    """Return a chunk of a table whose batches have these rows."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, rows(parts[0]).schema) as writer:
        for part in parts:
            writer.write_table(rows(part))
    body = sink.getvalue().to_pybytes()
    count = sum(map(len, parts))
    return chunk([b""] * count) + body + struct.pack("<I", len(body)) + b"LDARW01\0"


def test_batches_that_are_not_of_one_size_are_said(tmp_path: Path, pictures: list[Picture]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    uneven = joined([pictures[:4], pictures[4:7], pictures[7:12]])
    few = joined([pictures[:1], pictures[1:12]])
    write_tables(folder, [uneven, few])
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 9)
    reasons = [reject.reason for reject in report.rejects]
    assert all("batch 1 of its table is damaged: it has 3 rows" in r for r in reasons[:4])
    assert all("batch 2 of its table is damaged: it has 5 rows" in r for r in reasons[4:8])
    assert "2 batches of 1 rows do not make the 12 samples" in reasons[8]


def test_tables_beside_compressed_chunks_are_read_as_they_are(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    values = [(p.data, struct.pack("<q", p.label)) for p in pictures]
    write_litdata(folder, ("jpeg", "int"), tree(["image", "label"]), values, level="chunk")
    (folder / "chunk-0-1.bin").write_bytes(table(rows(pictures)))
    more = {"chunk_bytes": 1, "chunk_size": 12, "filename": "chunk-0-1.bin"}
    edit_index(folder, lambda i: i["chunks"].append(more))
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (24, 0)
    edit_index(folder, lambda i: i["chunks"].pop(0))  # none is compressed, whatever the index says
    assert find_source(folder).indexed().num_samples == 12


def test_without_pyarrow_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(refusals.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[parquet\]'"):
        litdata.LitDataSource(FIXTURES / "rows")


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
        (lambda i: i["config"].update(compression="gz"), "LitData knows zstd alone"),
        (
            lambda i: i["config"].update(compression="zstd", compression_level="x"),
            "compression_level 'x'",
        ),
        (lambda i: i["config"].update(data_format=["jpeg"]), "has 2 columns and data_format 1"),
        (lambda i: i["config"].update(data_format=7), "no such list"),
        (lambda i: i["config"].update(data_spec="[1, 2]"), "data_spec cannot be read"),
        (lambda i: i["config"].update(data_spec="[" * 99999), "data_spec cannot be read"),
        (lambda i: i["chunks"][0].update(filename="../x.bin"), "outside of its folder"),
        (lambda i: i["chunks"][0].update(chunk_size=2**40), "not a number of samples"),
        (lambda i: i.update(chunks=[]), "lists no chunks"),
        (lambda i: i.update(config=None), "no such list"),
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


def frames_at(count: int) -> int:
    """Return where the table of frames is."""
    return 24 + 4 * (count + 1)


@pytest.mark.parametrize(
    ("at", "value", "samples", "reason"),
    [
        (0, b"LDFZ02", 0, "no chunk of frames"),
        (12, struct.pack("<I", 11), 0, "has 11 samples and index.json says 12"),
        (20, struct.pack("<I", 2**32 - 1), 0, "within the tables of its 12"),
        (frames_at(12) + 24, struct.pack("<I", 6), 5, "damaged frames; 7 samples are lost"),
        (frames_at(12) + 4, struct.pack("<I", 99), 0, "damaged frames; 12 samples are lost"),
        (frames_at(12) + 8, struct.pack("<Q", 2**62), 7, "5 samples of a frame are lost"),
        (frames_at(12) + 16, struct.pack("<I", 2**31), 7, "5 samples of a frame are lost"),
        (frames_at(12) + 20, struct.pack("<I", 10), 7, "holds more than 10 bytes"),
        (24 + 4 * 2, struct.pack("<I", 2**31), 10, "outside its frame"),
        (-20, b"\0" * 10, 10, "samples of a frame are lost"),
    ],
)
def test_damaged_frames_are_rejects(
    tmp_path: Path, pictures: list[Picture], at: int, value: bytes, samples: int, reason: str
) -> None:
    path = files("batch")(tmp_path, pictures) / "chunk-0-0.bin"
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    if not samples:
        with pytest.raises(FastdataError, match=reason):
            pack(tmp_path, tmp_path / "a.lmdb")
        return
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_samples == samples
    assert reason in report.rejects[0].reason
    assert report.rejects[0].key.startswith("chunk-0-0.bin@")


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
        litdata_columns.decode(encoding, data)


def test_tensors_of_older_versions_are_read() -> None:
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    for order in "<>":
        data = struct.pack(f"{order}4I", 0, 2, 2, 3) + grid.tobytes()
        assert np.array_equal(litdata_columns.decode("tensor", data), grid)


def test_mds_and_litdata_are_told_apart(tmp_path: Path, pictures: list[Picture]) -> None:
    assert find_source(files(None)(tmp_path, pictures)).name == "litdata"
    assert find_source(FIXTURES.parent / "mds" / "plain").name == "mds"
    (tmp_path / "index.json").write_text('{"some": "json"}')
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path)
