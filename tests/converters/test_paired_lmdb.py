"""Two LMDBs side by side: pairs by key, what is missing in one, and which is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_lmdb import write_lmdb
from case_paired_lmdb import small, write_pair
from cases import Picture, make_pictures
from pack_helpers import pixels

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.paired_lmdb import PairedLmdbSource
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return fastdata.open(path), report


def test_pairs_keep_their_own_sizes(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "in").mkdir()
    data, _ = pack(write_pair(tmp_path / "in", pictures), tmp_path / "a.lmdb")
    assert dict(data.schema) == {"gt": ImageField(), "lq": ImageField()}
    assert list(data.keys) == [p.name for p in pictures]
    for sample, picture in zip(data, pictures, strict=True):
        assert np.array_equal(pixels(sample.gt), picture.pixels)
        assert np.array_equal(pixels(sample.lq), picture.pixels[::2, ::2])


def test_what_only_one_has_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    good, bad = pictures[:4], [*pictures[1:3], *pictures[4:]]
    write_lmdb(tmp_path / "gt", ((p.name.encode(), p.data) for p in good))
    write_lmdb(tmp_path / "lq", ((p.name.encode(), small(p)) for p in bad))
    (tmp_path / "gt" / "meta_info.txt").write_text("000002.png (1,1,3) 1\n000009.png (1,1,3) 1\n")
    (tmp_path / "lq" / "meta_info.txt").write_text("000003.png (1,1,3) 1\n000009.png (1,1,3) 1\n")
    data, report = pack(tmp_path, tmp_path / "a.lmdb")
    assert list(data.keys) == ["000001", "000002"]
    assert {r.key: r.reason for r in report.rejects} == {
        "000000": "lq has no such key",
        "000003": "lq has no such key",
        "000004": "gt has no such key",
        "000005": "gt has no such key",
        "000009": "meta_info.txt names this key, which neither database has",
    }


def test_which_is_which_can_be_said(tmp_path: Path, pictures: list[Picture]) -> None:
    write_pair(tmp_path, pictures)
    name = "DIV2K_train_LR_bicubic_X4_sub.lmdb"
    write_lmdb(tmp_path / name, ((p.name.encode(), small(p)) for p in pictures[:3]))
    with pytest.raises(OptionError, match=r"2 of its databases, .* may be lq.*lq=FOLDER"):
        find_source(tmp_path)
    source = find_source(tmp_path, options={"lq": name})
    assert sum(hasattr(sample, "reason") for sample in source) == 3
    assert any("X2_sub.lmdb" in note and "left out" in note for note in source.notes)
    with pytest.raises(OptionError, match="lq=X8: no folder with an LMDB"):
        find_source(tmp_path, options={"lq": "X8"})


def test_databases_elsewhere(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "a").mkdir()
    write_pair(tmp_path / "a", pictures, ("one", "two"))
    assert not PairedLmdbSource.recognises(tmp_path / "a")
    options = {"gt": "one", "lq": str(tmp_path / "a" / "two")}
    assert find_source(tmp_path / "a", format="paired_lmdb", options=options).num_samples == 6


def test_other_databases_side_by_side_are_not_pairs(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_pair(tmp_path, pictures, ("bedroom_train_lmdb", "bedroom_val_lmdb"))
    assert not PairedLmdbSource.recognises(tmp_path)
    (tmp_path / "b").mkdir()
    write_lmdb(tmp_path / "b" / "HR", ((b"a" + p.name.encode(), p.data) for p in pictures))
    write_lmdb(tmp_path / "b" / "LR", ((b"b" + p.name.encode(), p.data) for p in pictures))
    with pytest.raises(SourceError, match="have no key in common"):
        find_source(tmp_path / "b")


def test_packed_datasets_side_by_side_are_not_taken(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    (tmp_path / "in").mkdir()
    write_pair(tmp_path / "in", pictures)
    (tmp_path / "out").mkdir()
    for name in ("HR", "LR"):
        pack(tmp_path / "in", tmp_path / "out" / f"{name}.lmdb")
    assert not PairedLmdbSource.recognises(tmp_path / "out")
