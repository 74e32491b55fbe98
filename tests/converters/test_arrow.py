"""What is special to Arrow files: folders by save_to_disk, streams, and images left in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
from case_parquet import saved_to_disk
from cases import make_pictures
from packed import pack, samples
from test_parquet import FIXTURES, check_fixture

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.spans import FileSpan, close_files
from fastdata.errors import FastdataError, OptionError, SourceError

PICTURES = make_pictures(6)


def stream(path: Path, batches: list[Any], options: Any = None) -> Path:
    with pa.ipc.new_stream(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def batch(start: int = 0, stop: int = 6) -> Any:
    columns = {
        "image": pa.array([p.data for p in PICTURES[start:stop]]),
        "label": pa.array(range(start, stop)),
    }
    return pa.record_batch(columns)


def labels(path: Path) -> list[int]:
    return [int(sample["label"]) for sample in samples(path)]


def test_what_datasets_saved_to_disk_is_read(tmp_path: Path) -> None:
    report = pack(FIXTURES / "disk", tmp_path / "a.lmdb", boxes="xyxy,pixels")
    assert report.num_rejected == 0
    check_fixture(tmp_path / "a.lmdb", [6, 7, 0, 1, 2, 3, 4, 5])
    assert fastdata.open(tmp_path / "a.lmdb").keys[2] == "train/data-00000-of-00001.arrow@0"


def test_a_split_is_chosen_by_its_name_or_its_folder(tmp_path: Path) -> None:
    pack(FIXTURES / "disk", tmp_path / "a.lmdb", split="test", boxes="xyxy,pixels")
    pack(FIXTURES / "disk" / "test", tmp_path / "b.lmdb", boxes="xyxy,pixels")
    assert fastdata.open(tmp_path / "a.lmdb").keys[0] == "test/data-00000-of-00001.arrow@0"
    assert fastdata.open(tmp_path / "b.lmdb").keys[0] == "data-00000-of-00001.arrow@0"
    for name in ("a.lmdb", "b.lmdb"):
        assert [s["caption"] for s in samples(tmp_path / name)] == [
            "picture 6 - ä",
            "picture 7 - ä",
        ]
    with pytest.raises(OptionError, match="split=dev: none of the 2 files"):
        pack(FIXTURES / "disk", tmp_path / "c.lmdb", split="dev")


def test_images_are_left_in_the_file(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", [batch(0, 3), batch(2, 6).slice(1)])
    source = find_source(path)
    for picture, sample in zip(PICTURES, source, strict=True):
        assert isinstance(sample.values[0], FileSpan)
        assert sample.values[0].read() == picture.data
        start = sample.values[0].offset
        assert path.read_bytes()[start : start + len(picture.data)] == picture.data
    close_files()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_inflated(tmp_path: Path, compression: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    rows = pa.record_batch({"image": pa.array([PICTURES[0].data] * 6), "label": pa.array(range(6))})
    path = stream(tmp_path / "a.arrow", [rows], options)
    assert isinstance(next(iter(find_source(path))).values[0], bytes)
    pack(path, tmp_path / "a.lmdb")
    assert [s["image"] for s in samples(tmp_path / "a.lmdb")] == [PICTURES[0].data] * 6
    pa.feather.write_feather(pa.table(rows), tmp_path / "a.feather", compression=compression)
    pack(tmp_path / "a.feather", tmp_path / "a.lmdb")
    assert [s["image"] for s in samples(tmp_path / "a.lmdb")] == [PICTURES[0].data] * 6


def test_a_stream_with_dictionaries_is_refused(tmp_path: Path) -> None:
    columns = {"image": pa.array([PICTURES[0].data]), "label": pa.array(["a"]).dictionary_encode()}
    path = stream(tmp_path / "a.arrow", [pa.record_batch(columns)])
    with pytest.raises(SourceError, match="a stream with dictionaries is not read"):
        find_source(path)


def test_a_stream_without_its_end_is_a_reject_besides_its_rows(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", [batch(0, 3), batch(3, 6)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    report = pack(path, tmp_path / "a.lmdb")
    assert labels(tmp_path / "a.lmdb") == [0, 1, 2, 3, 4, 5]
    assert "does not end with the mark of its end" in report.rejects[0].reason
    path.write_bytes(whole + b"12345678")
    report = pack(path, tmp_path / "a.lmdb")
    assert "does not end with the mark of its end" in report.rejects[0].reason


def test_of_a_stream_cut_short_the_whole_batches_are_read(tmp_path: Path) -> None:
    for number in range(2):
        stream(tmp_path / f"{number}.arrow", [batch(0, 3), batch(3, 6)])
    os.truncate(tmp_path / "0.arrow", (tmp_path / "0.arrow").stat().st_size - 500)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert labels(tmp_path / "a.lmdb") == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    (reject,) = report.rejects
    assert reject.key == "0.arrow@3"
    assert "record batch 1 cannot be read, the rest is lost" in reject.reason


def test_offsets_that_lead_out_of_the_file_are_rejects_and_no_crash(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", [batch(0, 3), batch(3, 6)])
    data = path.read_bytes()
    ends = [0]
    for picture in PICTURES[:3]:
        ends.append(ends[-1] + len(picture.data))
    place = data.index(b"".join(end.to_bytes(4, "little") for end in ends))
    for wrong in (2**31 - 1, 2**31 + 5, 0):
        changed = data[: place + 8] + wrong.to_bytes(4, "little") + data[place + 12 :]
        path.write_bytes(changed)
        report = pack(path, tmp_path / "a.lmdb")
        assert labels(tmp_path / "a.lmdb") == [3, 4, 5]
        assert [reject.key for reject in report.rejects] == ["a.arrow@0", "a.arrow@1", "a.arrow@2"]
        assert "the block 0 that it is in is damaged" in report.rejects[0].reason
        source = find_source(path).indexed()
        assert "block 0" in source.get(1).reason
        assert source.get(4).values[1] == 4


def test_all_files_of_a_saved_dataset_must_be_there(tmp_path: Path) -> None:
    saved_to_disk(tmp_path, PICTURES)
    (tmp_path / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(SourceError, match=r"1 file of the set missing: .*data-00001-of-00002"):
        pack(tmp_path, tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, "only some are meant"),
        ("{", "state.json: not JSON"),
        ("[" * 100_000, "state.json: not JSON"),
    ],
)
def test_a_state_that_says_something_else_is_an_error(
    tmp_path: Path, state: Any, reason: str
) -> None:
    stream(tmp_path / "secret.arrow", [batch()])
    folder = tmp_path / "in"
    folder.mkdir()
    saved_to_disk(folder, PICTURES)
    text = state if isinstance(state, str) else json.dumps(state)
    (folder / "state.json").write_text(text)
    with pytest.raises(SourceError, match=reason):
        pack(folder, tmp_path / "a.lmdb")


def test_caches_of_datasets_are_no_part_of_it(tmp_path: Path) -> None:
    saved_to_disk(tmp_path, PICTURES)
    stream(tmp_path / "cache-0123456789abcdef.arrow", [batch()])
    assert pack(tmp_path, tmp_path / "a.lmdb").num_samples == 6


def test_other_files_are_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"\xff\xff\xff\xff" + b"\xff" * 100)
    with pytest.raises(FastdataError, match="not recognised"):
        find_source(tmp_path / "a.arrow")
