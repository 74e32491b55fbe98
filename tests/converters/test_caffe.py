"""What is special to Caffe's Datum: channels, labels, and values that are none."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_lmdb import datum, number, write_lmdb
from case_tfrecord import message
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.records.datum import datum_class
from fastdata.errors import MissingExtraError, OptionError, SourceError

COUNT = 6


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(COUNT)


def pack(location: Path, path: Path, **options: Any) -> Any:
    return fastdata.pack(
        location,
        path,
        codec="raw",
        resize="none",
        num_workers=0,
        progress=False,
        source_options=options,
    )


def stored(path: Path) -> np.ndarray[Any, Any]:
    return np.stack([sample.image.permute(1, 2, 0).numpy() for sample in fastdata.open(path)])


def database(path: Path, values: list[bytes]) -> Path:
    return write_lmdb(path, ((f"{k:08}".encode(), value) for k, value in enumerate(values)))


def planes(array: np.ndarray[Any, Any], label: int | None = 0) -> bytes:
    """Return a Datum of C x H x W bytes."""
    head = b"".join(number(1 + k, n) for k, n in enumerate(array.shape))
    return head + message(4, array.tobytes()) + (number(5, label) if label is not None else b"")


def raw(channels: int, height: int, width: int, data: bytes) -> bytes:
    """Return a Datum that says what it likes."""
    head = number(1, channels) + number(2, height) + number(3, width)
    return head + message(4, data) + number(5, 1)


def test_channels_are_blue_first_unless_said(pictures: list[Picture], tmp_path: Path) -> None:
    path = database(tmp_path / "a", [datum(p, encoded=False) for p in pictures])
    wanted = np.stack([p.pixels for p in pictures])
    pack(path, tmp_path / "a.lmdb")
    assert np.array_equal(stored(tmp_path / "a.lmdb"), wanted)
    pack(path, tmp_path / "b.lmdb", order="rgb")
    assert np.array_equal(stored(tmp_path / "b.lmdb"), wanted[..., ::-1])
    with pytest.raises(OptionError, match="order=gbr: expected bgr or rgb"):
        find_source(path, options={"order": "gbr"})


def test_one_channel_is_grey(pictures: list[Picture], tmp_path: Path) -> None:
    grey = [p.pixels[None, ..., 1] for p in pictures]
    path = database(tmp_path / "a", [planes(g, 3) for g in grey])
    pack(path, tmp_path / "a.lmdb")
    assert np.array_equal(stored(tmp_path / "a.lmdb")[..., 0], np.concatenate(grey))


def test_negative_labels_are_kept_without_names(pictures: list[Picture], tmp_path: Path) -> None:
    values = [datum(p, encoded=True, label=k - 1) for k, p in enumerate(pictures)]
    path = database(tmp_path / "a", values)
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    pack(path, tmp_path / "a.lmdb")
    pack(path, tmp_path / "b.lmdb", classes=str(tmp_path / "names.txt"))
    plain, named = (fastdata.open(tmp_path / name) for name in ("a.lmdb", "b.lmdb"))
    assert [int(sample.label) for sample in plain] == [-1, 0, 1, 2, 3, 4]
    assert [int(sample.label) for sample in named] == [0, 1, 2, 3, 4]
    assert named.schema.classes == ("a", "b", "c", "d", "e")


def test_without_labels_there_is_no_field(pictures: list[Picture], tmp_path: Path) -> None:
    pixels = [p.pixels.transpose(2, 0, 1) for p in pictures]
    path = database(tmp_path / "a", [planes(p, None) for p in pixels])
    assert list(find_source(path).schema) == ["image"]
    some = database(
        tmp_path / "b", [planes(p, None if k == 2 else k) for k, p in enumerate(pixels)]
    )
    report = pack(some, tmp_path / "b.lmdb")
    assert [(r.key, r.reason) for r in report.rejects] == [("00000002", "the Datum has no label")]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\x08\x03\x22", "no Datum of Caffe's"),
        (number(5, 1), "neither data nor float_data"),
        (number(1, 3) + message(6, struct.pack("<f", 0.5)) + number(5, 1), "float_data"),
        (raw(3, 4, 4, bytes(47)), "has 47 bytes"),
        (raw(2, 4, 4, bytes(32)), "no picture"),
        (raw(3, 2**31 - 1, 2**31 - 1, b"x"), "has 1 bytes"),
        (raw(3, -4, -4, bytes(48)), "no picture"),
        (message(4, b"nothing") + number(5, 1) + number(7, 1), "image"),
    ],
)
def test_a_bad_datum_costs_itself(
    pictures: list[Picture], tmp_path: Path, value: bytes, told: str
) -> None:
    values = [datum(p, encoded=True) for p in pictures]
    values[4] = value
    report = pack(database(tmp_path / "a", values), tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["00000004"]
    assert told in report.rejects[0].reason


def test_values_that_are_no_datums_are_refused(pictures: list[Picture], tmp_path: Path) -> None:
    path = database(tmp_path / "a", [p.data for p in pictures])
    assert find_source(path).name == "lmdb"
    with pytest.raises(SourceError, match="none of its first values is a Datum"):
        find_source(path, format="caffe")


def test_without_protobuf_it_says_what_to_install(
    pictures: list[Picture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "a", [datum(p, encoded=False) for p in pictures])
    datum_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[caffe\]'"):
        find_source(path)
