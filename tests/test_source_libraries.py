"""Rows of images in what Python's libraries hold them in: frames, Datasets, DataLoaders."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pack_helpers import image_folder, jpegs, like_image_folder
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import FormatError, SourceError
from fastdata.schema import ImageField, ScalarField

QUICK: dict[str, Any] = {"num_workers": 0, "progress": False}


class Column(list[Any]):
    """As pandas and Polars have it, as far as it is used."""

    def to_list(self) -> list[Any]:
        return list(self)


class Frame:
    """A frame of pandas, as far as it is used; without `iloc`, with `get_column`, one of Polars."""

    iloc: Any = None

    def __init__(self, content: dict[str, list[Any]]) -> None:
        self._content = content
        self.columns = list(content)

    def __getitem__(self, name: str) -> Column:
        return Column(self._content[name])

    def __len__(self) -> int:
        return len(next(iter(self._content.values())))


def content_of(root: Path, **more: list[Any]) -> dict[str, list[Any]]:
    files = jpegs(image_folder(root, 6, classes=("cat", "dog")))
    labels = [f" {path.parent.name}" for path in files]
    return {**more, "image path": list(map(str, files)), "label": labels}


def fake(content: dict[str, list[Any]]) -> Any:
    return Frame(content)


def pandas(content: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(content)


def polars(content: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(content)


@pytest.mark.parametrize("make", [fake, pandas, polars])
def test_a_frame_with_paths_is_packed_and_opened(
    tmp_path: Path, make: Callable[[dict[str, list[Any]]], Any]
) -> None:
    numbers = {"Unnamed: 0": list(range(6)), "__index_level_0__": list(range(6))}
    frame = make(content_of(tmp_path / "images", **numbers))
    report = fastdata.pack(frame, tmp_path / "x.lmdb", codec="keep", shuffle=True, **QUICK)
    assert report.notes == ("columns of row numbers left out: Unnamed: 0, __index_level_0__",)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=("cat", "dog")),
    }
    assert [dataset.classes[s.label] for s in dataset] == [k.split("/")[0] for k in dataset.keys]
    (shard,) = dataset.shards
    assert shard.header.blob_bytes == sum(p.stat().st_size for p in jpegs(tmp_path / "images"))
    opened = fastdata.open(frame)
    assert sorted(opened.keys) == sorted(dataset.keys)
    assert len(next(iter(fastdata.loader(frame, 6))).label) == 6


@pytest.mark.parametrize("make", [fake, pandas, polars])
def test_a_frame_without_paths_is_refused(make: Callable[[dict[str, list[Any]]], Any]) -> None:
    for use in (find_source, fastdata.open):
        with pytest.raises(
            SourceError, match=r"2 rows has no column of paths.*its columns are a, b"
        ):
            use(make({"a": [1, 2], "b": ["x", "y"]}))


# -- Hugging Face's datasets ------------------------------------------------------------


@dataclasses.dataclass
class FakeImage:
    """The feature of images, as ``datasets`` has it."""

    decode: bool = True


FakeImage.__name__ = "Image"


class Hub:
    """A dataset of Hugging Face's, as far as it is used."""

    _fingerprint = "a1b2"
    format: Mapping[str, Any] = {"type": None}

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        self.rows, self.features = rows, features

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = dict(self.rows[index])
        if self.features["image"].decode:
            row["image"] = Image.open(io.BytesIO(row["image"]["bytes"]))
        return row

    def with_format(self, kind: None) -> Hub:
        return self

    def cast_column(self, name: str, feature: Any) -> Hub:
        return Hub(self.rows, {**self.features, name: feature})


def hub(root: Path) -> Hub:
    rows = [
        {"image": {"bytes": path.read_bytes(), "path": None}, "label": k % 2}
        for k, path in enumerate(jpegs(image_folder(root, 6)))
    ]
    return Hub(rows, {"image": FakeImage(), "label": SimpleNamespace(names=["ant", "bee"])})


def test_a_dataset_of_hugging_face_is_packed_undecoded(tmp_path: Path) -> None:
    data = hub(tmp_path / "images")
    fastdata.pack(data, tmp_path / "x.lmdb", codec="keep", **QUICK)
    assert data.features["image"].decode
    dataset = fastdata.open(tmp_path / "x.lmdb")
    (shard,) = dataset.shards
    assert shard.header.blob_bytes == sum(len(row["image"]["bytes"]) for row in data.rows)
    assert dataset.classes == ["ant", "bee"]
    opened = fastdata.open(data)
    for mine, theirs in zip(opened, dataset, strict=True):
        assert torch.equal(mine.image, theirs.image)
        assert mine.label == theirs.label


def test_a_dataset_with_a_transform_of_its_own_is_called(tmp_path: Path) -> None:
    data = hub(tmp_path / "images")
    data.format = {"type": "custom"}
    assert find_source(data).name == "dataset"


# -- torchvision and torch --------------------------------------------------------------


class Folder(Dataset[Any]):
    """Like ``torchvision.datasets.ImageFolder``, or like those with ``imgs``."""

    def __init__(self, root: Path, names: str = "samples") -> None:
        listed = like_image_folder(root)
        self.root, self.classes, self.transform = listed.root, listed.classes, None
        self.targets = [label for _, label in listed.samples]
        setattr(self, names, listed.samples)
        self.files = [path for path, _ in listed.samples]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return Image.open(self.files[index]).convert("RGB"), self.targets[index]


@pytest.mark.parametrize("names", ["samples", "imgs"])
def test_files_of_a_torchvision_dataset_are_packed_byte_for_byte(
    tmp_path: Path, names: str
) -> None:
    data = Folder(tmp_path / "images", names)
    fastdata.pack(data, tmp_path / "x.lmdb", codec="keep", **QUICK)
    dataset = fastdata.open(tmp_path / "x.lmdb")
    (shard,) = dataset.shards
    assert shard.header.blob_bytes == sum(path.stat().st_size for path in map(Path, data.files))
    assert [sample.label for sample in dataset] == data.targets
    assert list(dataset.keys) == [str(Path(f).relative_to(data.root)) for f in data.files]
    assert list(fastdata.open(data).keys) == list(dataset.keys)


class Indexed(Folder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


class Binary(Folder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label == 1


@pytest.mark.parametrize("kind", [Indexed, Binary])
def test_a_dataset_that_yields_something_else_is_called(tmp_path: Path, kind: type[Folder]) -> None:
    assert find_source(kind(tmp_path / "images")).name == "dataset"


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((np.full((9, 9, 3), k, np.uint8), k) for k in range(4))


IMAGES = [(np.full((9, 9, 3), k, np.uint8), k) for k in range(4)]


@pytest.mark.parametrize("data", [IMAGES, Numbers()])
def test_a_dataloader_is_refused_with_a_remedy(data: Any) -> None:
    for use in (find_source, fastdata.open):
        with pytest.raises(SourceError, match=r"yields batches.* fastdata.pack\(loader.dataset"):
            use(DataLoader(data, batch_size=3))


def test_batches_are_no_images() -> None:
    batch = torch.zeros(4, 3, 20, 20), torch.zeros(4)
    with pytest.raises(SourceError, match=r"shape \(4, 3, 20, 20\) is not an image"):
        find_source(iter([batch, batch]))


class Streamed(Numbers):
    """A stream of Hugging Face's, as far as it is used."""

    features: Mapping[str, Any] = {}
    cast_column = None


def test_what_can_only_be_iterated_or_called_is_not_opened(tmp_path: Path) -> None:
    data = hub(tmp_path / "images")
    data.format = {"type": "custom"}
    with pytest.raises(FormatError, match="'dataset' is not loaded as it lies"):
        fastdata.open(data)
    with pytest.raises(FormatError, match="is not loaded as it lies"):
        fastdata.open(Streamed())
