"""Files of format version 1, written once, must open for ever; ``golden/make.py`` made them."""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from PIL import Image
from samples import SUFFIXES, write_shard

import fastdata
from fastdata.formats.layout import CODECS
from fastdata.formats.writer import EncodedImage, Record
from fastdata.schema import Schema
from fastdata.verifying import verify

GOLDEN = Path(__file__).parent / "golden" / "v1"
CONTENT: dict[str, Any] = json.loads((GOLDEN / "content.json").read_text(encoding="utf-8"))
DATASETS = [(name, file) for name, entry in CONTENT.items() for file in entry["datasets"]]


def stored(value: dict[str, Any]) -> bytes:
    """Return the bytes of an image as they lie in the shard."""
    return (GOLDEN / "content" / value["file"]).read_bytes()


def pixels_of(value: dict[str, Any], channels: int) -> np.ndarray[Any, Any]:
    """Return the pixels of an image, by PIL."""
    data, shape = stored(value), (value["height"], value["width"], channels)
    if value["codec"] == "raw":
        return np.frombuffer(data, np.uint8).reshape(shape)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == ("RGB" if channels == 3 else "L")
        return np.array(image).reshape(shape)


def check_value(found: Any, expected: Any, dtype: str | None) -> None:
    """Compare an entry that is no image with what ``content.json`` says of it."""
    if not isinstance(expected, dict):
        assert type(found) is type(expected)
        assert found == expected
    elif "hex" in expected:
        assert found == bytes.fromhex(expected["hex"])
    elif "float" in expected:
        wanted = np.dtype(dtype).type(float.fromhex(expected["float"])).item()
        assert struct.pack("d", found) == struct.pack("d", wanted)
    else:
        assert str(found.dtype) == f"torch.{expected['dtype']}"
        values = np.array(expected["values"], expected["dtype"]).reshape(expected["shape"])
        np.testing.assert_array_equal(found.numpy(), values, strict=True)


@pytest.mark.parametrize(("name", "file"), DATASETS)
def test_golden_files_read_as_ever(name: str, file: str) -> None:
    expected = CONTENT[name]
    dataset = fastdata.open(GOLDEN / file)
    assert dataset.digest == expected["digest"]
    assert dataset.schema.to_json() == expected["schema"]
    assert list(dataset.keys) == [sample["key"] for sample in expected["samples"]]
    for sample, wanted in zip(dataset, expected["samples"], strict=True):
        assert list(sample._fields) == [field["name"] for field in expected["schema"]]
        for field in sample._fields:
            found = getattr(sample, field)
            image = dataset.schema.images.get(field)
            if image is None:
                check_value(found, wanted[field], getattr(dataset.schema[field], "dtype", None))
                continue
            assert found.dtype == torch.uint8
            pixels = pixels_of(wanted[field], image.channels)
            difference = found.permute(1, 2, 0).numpy().astype(int) - pixels
            # Decoders of JPEG may round differently; all else is exact.
            assert np.abs(difference).max() <= (2 if wanted[field]["codec"] == "jpeg" else 0)


@pytest.mark.parametrize(("name", "file"), DATASETS)
def test_golden_files_verify(name: str, file: str) -> None:
    report = verify(GOLDEN / file, progress=False)
    assert report.damage == ()
    assert report.num_samples == len(CONTENT[name]["samples"])


def test_golden_files_lie_at_any_place(tmp_path: Path) -> None:
    """Nothing in them depends on their names or on the files beside them."""
    shutil.copy(GOLDEN / "everything.lmdb", tmp_path / "renamed")
    assert fastdata.open(tmp_path / "renamed").digest == CONTENT["everything"]["digest"]
    shutil.copytree(GOLDEN / "shards", tmp_path / "folder")
    assert len(fastdata.open(tmp_path / "folder")) == 3


def value_from(name: str, entry: Any) -> Any:
    """Return what a writer takes for an entry of ``content.json``."""
    if not isinstance(entry, dict):
        return entry
    if "file" in entry:
        data = stored(entry)
        codec = CODECS.index(entry["codec"])
        checksum = xxhash.xxh3_64_intdigest(data)
        return EncodedImage(data, codec, entry["height"], entry["width"], checksum)
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    if "float" in entry:
        return float.fromhex(entry["float"])
    return np.array(entry["values"], entry["dtype"]).reshape(entry["shape"])


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("container", SUFFIXES)
def test_the_same_content_has_the_same_digest_today(
    tmp_path: Path, container: str, name: str
) -> None:
    schema = Schema.from_json(CONTENT[name]["schema"])
    records = [
        Record(sample["key"], tuple(value_from(field, sample[field]) for field in schema))
        for sample in CONTENT[name]["samples"]
    ]
    path = write_shard(tmp_path / f"again{SUFFIXES[container]}", records, schema)
    assert fastdata.open(path).digest == CONTENT[name]["digest"]


def test_every_codec_and_container_has_a_golden_file() -> None:
    files = {file for _, file in DATASETS}
    assert files == {
        *(f"{name}{s}" for name in ("jpeg", "png", "raw", "everything") for s in (".lmdb", ".h5")),
        "shards",
    }
    images = [v for s in CONTENT["everything"]["samples"] for v in s.values() if "file" in str(v)]
    assert {image["codec"] for image in images} == set(CODECS)
