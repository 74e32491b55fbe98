"""What is special to zarr: groups, dimensions, missing blocks, damage."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_zarr import write_array
from cases import Picture, make_pictures

import fastdata
from fastdata.converters import zarr
from fastdata.converters.finding import find_source
from fastdata.converters.reading.arrays import array_source
from fastdata.errors import MissingExtraError, OptionError, SourceError

COUNT = 8


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(COUNT)


@pytest.fixture(scope="module")
def pixels(pictures: list[Picture]) -> np.ndarray[Any, Any]:
    return np.stack([p.pixels for p in pictures])


def write(folder: Path, pixels: np.ndarray[Any, Any], rows: int = 2) -> Path:
    """Write a zarr v2 group of images and labels."""
    blocks = [rows, *pixels.shape[1:]]
    options: dict[str, Any] = {"compressor": {"id": "zlib", "level": 1}}
    filled = {**options, "dtype": "|u1", "fill_value": 3}
    write_array(folder / "images", "zarr", pixels, chunks=blocks, **filled)
    labels = np.arange(len(pixels)) % 3
    write_array(folder / "labels", "zarr", labels, chunks=[rows], **options)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    return folder


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


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("planes", [False, True])
def test_dimensions_are_in_the_order_of_the_format(
    pixels: np.ndarray[Any, Any], tmp_path: Path, driver: str, planes: bool
) -> None:
    turned = pixels.transpose(0, 3, 1, 2) if planes else pixels
    block = [3, *turned.shape[1:2], 16, 16]
    metadata: dict[str, Any] = {
        "zarr": {"chunks": block, "dimension_separator": "/"},
        "zarr3": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": block}}},
    }[driver]
    write_array(tmp_path / "in/deep/group/images", driver, turned, **metadata)
    source = find_source(tmp_path / "in/deep/group")
    assert source.name == "zarr"
    pack(tmp_path / "in/deep/group", tmp_path / "a.lmdb")
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels)


def test_an_array_alone_has_the_labels_beside_it(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    folder = write(tmp_path / "in", pixels)
    write_array(folder / "x", "zarr", pixels, chunks=[2, 40, 48, 3])  # which is not asked for
    pack(folder / "images", tmp_path / "a.lmdb")
    found = fastdata.open(tmp_path / "a.lmdb")
    assert [int(sample.label) for sample in found] == [k % 3 for k in range(COUNT)]
    with pytest.raises(OptionError, match="2 may be it"):
        find_source(folder)


def test_missing_blocks_are_filled_and_said(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "in", pixels)
    (folder / "images/1.0.0.0").unlink()
    report = pack(folder, tmp_path / "a.lmdb")
    assert any("1 blocks are missing, which means that they are all 3" in n for n in report.notes)
    assert (stored(tmp_path / "a.lmdb")[2:4] == 3).all()


def test_missing_blocks_are_found_in_version_3(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    block = {"name": "regular", "configuration": {"chunk_shape": [2, 40, 48, 3]}}
    write_array(tmp_path / "in/images", "zarr3", pixels, chunk_grid=block)
    (tmp_path / "in/images/c/2/0/0/0").unlink()
    report = pack(tmp_path / "in", tmp_path / "a.lmdb")
    assert any("1 blocks are missing, which means that they are all 0" in n for n in report.notes)
    assert not stored(tmp_path / "a.lmdb")[4:6].any()


def test_n5_is_refused_with_a_remedy(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    write_array(tmp_path / "in/images", "n5", pixels.T, compression={"type": "raw"})
    for folder in (tmp_path / "in", tmp_path / "in/images"):
        with pytest.raises(
            SourceError, match=r"an array of N5, which is not read. Copy it to zarr"
        ):
            find_source(folder)


def test_an_array_without_its_blocks_is_refused(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    folder = write(tmp_path / "in", pixels)
    metadata = json.loads((folder / "images/.zarray").read_text())
    metadata["shape"][0] = 2**50
    (folder / "images/.zarray").write_text(json.dumps(metadata))
    with pytest.raises(SourceError, match="but 4 of its 562,949,953,421,312 blocks are there"):
        find_source(folder)


def test_a_damaged_block_costs_its_own_samples(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    folder = write(tmp_path / "in", pixels)
    block = folder / "images/2.0.0.0"
    block.write_bytes(block.read_bytes()[:-30])
    report = pack(folder, tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["in:images[4]", "in:images[5]"]
    assert "rows 4 to 5 cannot be read" in report.rejects[0].reason
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels[[0, 1, 2, 3, 6, 7]])


def test_absurd_blocks_and_unknown_compression_are_refused(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    folder = write(tmp_path / "in", pixels)
    original = json.loads((folder / "images/.zarray").read_text())
    for change, told in (
        ({"chunks": [2**30, 40, 48, 3], "compressor": None}, "cannot open|are believed"),
        ({"compressor": {"id": "middle-out"}}, "cannot open this array.*middle-out"),
        ({"dtype": "|O"}, r"cannot open this array.*dtype"),
    ):
        (folder / "images/.zarray").write_text(json.dumps({**original, **change}))
        with pytest.raises((SourceError, OptionError), match=told):
            find_source(folder)


def test_a_folder_of_class_folders_is_not_taken(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "attributes.json").write_text('{"author": "x"}')
        (tmp_path / name / "zarr.json").write_text("[1]")
    assert not zarr.ZarrSource.recognises(tmp_path)


def test_links_to_folders_elsewhere_are_not_followed(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    other = write(tmp_path / "other", pixels)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "in/images").symlink_to(other / "images")
    with pytest.raises(OptionError, match="there are none"):
        find_source(tmp_path / "in")


def test_changed_blocks_are_noticed(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "in", pixels)
    before = find_source(folder).fingerprints()
    assert np.array_equal(before, find_source(folder).fingerprints())
    (folder / "labels/0").write_bytes((folder / "labels/0").read_bytes() + b"x")
    assert (before != find_source(folder).fingerprints()).tolist() == [False, True]


def test_without_tensorstore_it_says_what_to_install(
    pixels: np.ndarray[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "in", pixels)
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[tensorstore\]'"):
        find_source(folder)


def test_a_large_block_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorstore

    def bytes_read() -> int:
        name = "/tensorstore/kvstore/file/bytes_read"
        (found,) = tensorstore.experimental_collect_matching_metrics(name)
        return int(found["values"][0]["value"])

    monkeypatch.setattr(array_source, "_READ_BYTES", 1 << 16)
    rows = np.arange(1200, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(rows, (1200, 16, 16, 3))
    root = write(tmp_path / "a.zarr", images, rows=1200)
    before = bytes_read()
    pack(root, tmp_path / "x.lmdb")
    assert (stored(tmp_path / "x.lmdb") == images).all()
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert bytes_read() - before <= 2 * size


BLOSC = {"cname": "lz4", "clevel": 3, "shuffle": 1}
OF_BLOSC: dict[str, dict[str, Any]] = {
    "zarr": {"compressor": {"id": "blosc", **BLOSC}, "chunks": [2, 48, 40, 3]},
    "zarr3": {
        "codecs": [
            {"name": "bytes"},
            {"name": "blosc", "configuration": {**BLOSC, "shuffle": "shuffle", "typesize": 1}},
        ],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 48, 40, 3]}},
    },
}
"""Metadata of an array in blocks of Blosc."""


@pytest.mark.parametrize("driver", OF_BLOSC)
def test_a_block_that_claims_more_than_a_block_is_rejected(driver: str, tmp_path: Path) -> None:
    """tensorstore takes that memory at once, and ends the process where there is none."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 48, 40, 3), np.uint8)
    folder = tmp_path / "in"
    write_array(folder, driver, pixels, **OF_BLOSC[driver])
    assert pack(folder, tmp_path / "whole.lmdb").num_rejected == 0
    block = max(path for path in folder.rglob("*") if path.stat().st_size > 2000 and path.is_file())
    data = bytearray(block.read_bytes())
    data[4:8] = (2**31 - 1).to_bytes(4, "little")
    block.write_bytes(data)
    report = pack(folder, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (COUNT - 2, 2)
    assert all("claims 2,147,483,647 bytes" in reject.reason for reject in report.rejects)
