"""Images with metadata, against what Hugging Face's `datasets` read from the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField

FIXTURES = Path(__file__).parent / "fixtures" / "hf_folder"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


def pack(location: Path, path: Path, fields: Any = None, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options, fields=fields,
    )  # fmt: skip
    assert report.num_rejected == 0
    return fastdata.open(path)


def red(image: Any) -> int:
    return int(np.asarray(image).reshape(3, -1)[0].mean())


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_rows_are_those_of_datasets(tmp_path: Path, name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    fields = {"objects": "string"} if name != "csv" else None
    source = find_source(FIXTURES / name, fields=fields)
    assert source.name == "hf_folder"
    data = pack(FIXTURES / name, tmp_path / "x.lmdb", fields)
    splits = [split for split in EXPECTED[name] if split != "classes"]
    rows = [(split, row) for split in sorted(splits) for row in EXPECTED[name][split]]
    assert len(data) == len(rows) > 3
    classes = data.schema["label"].classes
    assert classes == tuple(sorted({row["label"] for _, row in rows}))
    for sample, (split, row) in zip(data, rows, strict=True):
        assert red(sample.image) == row["image"]
        assert classes[sample.label] == row["label"]
        assert sample.text == row["text"]
        if len(splits) > 1:
            assert data.schema["split"].classes[sample.split] == split
        if "objects" in row:
            assert sample.weight == row["weight"]
            assert (np.asarray(sample.target_mask) == row["target_mask"]).all()
            assert data.schema["target_mask"] == ImageField(1, mask=True)


def test_class_folders_below_data_are_numbered_as_by_datasets(tmp_path: Path) -> None:
    data = pack(FIXTURES / "classes", tmp_path / "x.lmdb")
    assert list(data.schema["label"].classes) == EXPECTED["classes"]["classes"]
    assert data.schema["split"] == ScalarField(classes=("train", "test"))
    rows = [(split, row) for split in ("train", "test") for row in EXPECTED["classes"][split]]
    found = sorted((s.split, red(s.image), data.schema["label"].classes[s.label]) for s in data)
    wanted = [(("train", "test").index(s), row["image"], row["label"]) for s, row in rows]
    assert found == sorted(wanted)


TEXT = {"objects": "string"}


def test_one_split_has_the_classes_of_all(tmp_path: Path) -> None:
    source = find_source(FIXTURES / "jsonl", options={"split": "test"}, fields=TEXT)
    assert "split" not in source.schema
    assert [s.key for s in source] == [f"test/{n}.png" for n in (12, 10, 13, 11)]
    every = find_source(FIXTURES / "jsonl", fields=TEXT)
    assert source.schema["label"] == every.schema["label"]
    with pytest.raises(
        OptionError, match=r"split=dev: no row of .* of that split; there are test, train"
    ):
        find_source(FIXTURES / "jsonl", options={"split": "dev"}, fields=TEXT)


def copy(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def test_objects_are_refused_and_kept_as_text_if_asked(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"boxes in 'objects' are not read.*objects=string"):
        find_source(FIXTURES / "jsonl")
    data = pack(FIXTURES / "jsonl", tmp_path / "x.lmdb", fields={"objects": "string"})
    assert json.loads(data[0].objects).keys() == {"bbox", "categories"}


@pytest.mark.parametrize("name", ["/etc/hostname", "sub/../../../0.png"])
def test_files_outside_are_not_read(tmp_path: Path, name: str) -> None:
    root = copy(tmp_path, "csv")
    path = root / "metadata.csv"
    path.write_text(path.read_text().replace("2.png", name))
    report = fastdata.pack(root, tmp_path / "x.lmdb", num_workers=0, progress=False)
    assert report.num_rejected == 1
    assert "outside of its folder" in report.rejects[0].reason


def test_metadata_that_is_not_one_table_is_refused(tmp_path: Path) -> None:
    root = copy(tmp_path, "jsonl")
    (root / "train/metadata.csv").write_text("file_name\n0.png\n")
    with pytest.raises(SourceError, match=r"has metadata.csv and metadata.jsonl; keep"):
        find_source(root, format="hf_folder")
    (root / "train/metadata.jsonl").unlink()
    with pytest.raises(SourceError, match="Pack one folder at a time"):
        find_source(root, fields=TEXT)


def test_a_changed_row_is_noticed(tmp_path: Path) -> None:
    root = copy(tmp_path, "jsonl")
    before = find_source(root, fields=TEXT).fingerprints()
    path = root / "test/metadata.jsonl"
    path.write_text(path.read_text().replace("[1.0, 2.0, 5.0, 4.5]", "[1.0, 2.0, 5.0, 4.0]", 1))
    assert (find_source(root, fields=TEXT).fingerprints() != before).sum() == 1
