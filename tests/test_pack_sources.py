"""What sources yield: one contract for all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pack_helpers import Pictures, image_folder, jpegs, like_image_folder, png
from PIL import Image
from samples import photo
from torch.utils.data import Subset

from fastdata.converters.base import (
    IndexedSource,
    Reject,
    Sample,
    Source,
)
from fastdata.converters.finding import find_source
from fastdata.converters.folder import FolderSource
from fastdata.converters.packing.chunk import encode_chunk
from fastdata.converters.packing.options import EncodeOptions
from fastdata.errors import OptionError, SourceError
from fastdata.formats.writer import Record
from fastdata.schema import (
    Schema,
)


def a_manifest(folder: Path) -> Path:
    image_folder(folder / "images", 5)
    rows = [f"images/{p.relative_to(folder / 'images')},{p.parent.name}" for p in jpegs(folder)]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows, "gone.jpg,ant"]))
    return folder / "list.csv"


SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "folder": (lambda folder: image_folder(folder, 7), "folder"),
    "manifest": (a_manifest, "manifest"),
    "dataset": (lambda folder: Pictures(), "dataset"),
    "list": (lambda folder: [(Image.fromarray(photo(70, 71)), k) for k in range(20)], "dataset"),
    "rows of bytes": (lambda folder: [(png(k), k) for k in range(20)], "imagefolder"),
    "rows of paths": (
        lambda folder: [
            {"path": str(p), "label": p.parent.name} for p in jpegs(image_folder(folder))
        ],
        "imagefolder",
    ),
    "array": (lambda folder: np.zeros((5, 70, 71, 3), np.uint8), "dataset"),
    "subset": (lambda folder: Subset(Pictures(), [3, 1, 2]), "dataset"),
    "generator": (lambda folder: ((png(k), k) for k in range(20)), "iterable"),
    "image folder": (like_image_folder, "imagefolder"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_keeps_the_contract(tmp_path: Path, name: str) -> None:
    make, expected = SOURCES[name]
    location = make(tmp_path / "source") if name != "manifest" else make(tmp_path)
    check_source(location, expected)


def check_source(location: Any, name: str) -> None:
    """Check what `Source` promises."""
    source = find_source(location)
    assert type(source).name == name
    assert isinstance(source, Source)
    assert isinstance(source.schema, Schema)
    assert source.schema.images
    assert all(isinstance(note, str) for note in source.notes)
    assert Schema.from_json(source.schema.to_json()) == source.schema

    if source.worker_setup is not None:
        pickle.dumps(source.worker_setup)
        source.worker_setup()
    samples = list(source)
    for sample in samples:
        assert isinstance(sample, (Sample, Reject))
        sample.key.encode()
        pickle.dumps(sample)
    assert len({sample.key for sample in samples}) == len(samples)
    assert source.num_samples in (None, len(samples))

    prints = source.fingerprints()
    assert prints.dtype == np.uint64
    assert len(prints) in (0, 1, len(samples))
    if isinstance(source, IndexedSource):
        assert [source[index] for index in range(len(samples))] == samples
        assert [source.key_at(index) for index in (0, len(samples) - 1)]
        again = find_source(location)
        np.testing.assert_array_equal(again.fingerprints(), prints)
        np.testing.assert_array_equal(source.fingerprints(2), prints[:2])
        assert again.schema == source.schema
        with pytest.raises(IndexError, match=r"\d|out of range"):
            source[len(samples)]

    grey = find_source(location, channels=1) if isinstance(source, IndexedSource) else source
    for asked in (source, grey):
        result = encode_chunk(samples, asked.schema, EncodeOptions(size=(16, 16)))
        assert len(result) == len(samples)
        assert sum(isinstance(record, Record) for record in result) >= 3
    if isinstance(source, IndexedSource):
        assert {field.channels for field in grey.schema.images.values()} == {1}


def test_a_source_is_chosen_by_name_or_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    assert isinstance(find_source(folder, format="folder"), FolderSource)
    assert isinstance(find_source(str(folder)), FolderSource)
    with pytest.raises(OptionError, match=r"format 'tar' is not one of .*dataset, .*folder"):
        find_source(folder, format="tar")
    with pytest.raises(SourceError, match="nowhere: no such file or directory"):
        find_source(tmp_path / "nowhere")
    for pattern in ("nowhere-*.tar", "nowhere-{0..3}.tar"):
        with pytest.raises(SourceError, match=r"nowhere-.*tar: no file is called so"):
            find_source(tmp_path / pattern)


@pytest.mark.parametrize(
    "location", [{"a": 1}, b"bytes", bytearray(3), 7, None, object(), torch.nn.Identity()]
)
def test_what_is_no_source_is_refused(location: Any) -> None:
    with pytest.raises(SourceError, match="not recognised"):
        find_source(location)


def test_files_that_are_no_source_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(png())
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("a")
    for location in (tmp_path / "texts", tmp_path / "a.jpg"):
        with pytest.raises(SourceError, match="not recognised"):
            find_source(location)
    (tmp_path / "texts" / "list.csv").write_text("path\n../a.jpg\n")
    with pytest.raises(SourceError, match=r"fastdata pack \S+/list.csv list.lmdb"):
        find_source(tmp_path / "texts")
