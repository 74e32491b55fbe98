"""How images lie in memory, and that batches are containers which models and libraries can use."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, default_convert

import fastdata
from fastdata import transforms as T  # noqa: N812 - as users write it
from fastdata.errors import OptionError

COUNT, SIZE = 24, 32


def as_float(image: torch.Tensor) -> torch.Tensor:
    return image.float()


ROWS = "raw", "jpeg", "raw, one channel"
CHAINS: dict[str, list[Any]] = {
    "none": [],
    "crop": [T.RandomResizedCrop(20), T.RandomHorizontalFlip()],
    "normalised": [T.RandomResizedCrop(20), T.ToDtype(torch.float16)],
    "callable": [T.CenterCrop(20), T.ImageOnly(as_float)],
    "batch": [T.RandomResizedCrop(20), T.RandomErasing(1.0)],
    "batch, normalised": [
        T.RandomResizedCrop(20),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)]),
        T.Normalize([0.3], [0.5]),
    ],
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, rng = tmp_path_factory.mktemp("formats"), np.random.default_rng(0)
    found = {}
    for name in ROWS:
        channels = 1 if "one" in name else 3
        shape = (SIZE, SIZE, channels)
        samples = [(rng.integers(0, 256, shape, np.uint8), n % 10) for n in range(COUNT)]
        found[name] = folder / f"{name}.lmdb"
        codec = name.split(",")[0]
        fields = {"image": fastdata.schema.ImageField(channels=channels), "label": "label"}
        fastdata.pack(samples, found[name], fields=fields, codec=codec)
    return found


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("chain", list(CHAINS))
@pytest.mark.parametrize(
    "options", [{}, {"cache": "device"}, {"worker_method": "process"}], ids=str
)
def test_both_formats_have_the_same_values(
    packed: dict[str, Path], name: str, chain: str, options: dict[str, Any]
) -> None:
    if options.get("cache") and chain == "callable":
        pytest.skip("callables make no batches on a device")
    made = {}
    for memory_format in (torch.contiguous_format, torch.channels_last):
        given = {"batch_size": 8, "transform": CHAINS[chain], "num_workers": 1, **options}
        with fastdata.loader(packed[name], memory_format=memory_format, **given) as loader:
            made[memory_format] = [batch.image for _ in range(2) for batch in loader]
        for images in made[memory_format]:
            _, channels, height, width = images.shape
            plain = (channels * height * width, height * width, width, 1)
            last = (channels * height * width, 1, width * channels, channels)
            contiguous = memory_format == torch.contiguous_format or channels == 1
            assert images.stride() == (plain if contiguous else last)
    for one, other in zip(*made.values(), strict=True):
        assert torch.equal(one, other)


def test_other_formats_and_other_datasets_are_refused(packed: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="memory_format is one of"):
        fastdata.loader(packed["raw"], memory_format=torch.preserve_format)
    with pytest.raises(OptionError, match="memory_format is for packed data"):
        fastdata.loader([1, 2], memory_format=torch.channels_last)


class LeNet(nn.Module):
    """As in many tutorials: `view` needs contiguous outputs of the convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 5)
        self.last = nn.Linear(4 * 28 * 28, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.conv(images)
        return self.last(x.view(len(x), -1))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_model_that_views_its_activations_trains(
    packed: dict[str, Path], name: str, device: str | None
) -> None:
    with fastdata.loader(packed[name], 8, dtype=torch.float32, device=device) as loader:
        model = LeNet(1 if "one" in name else 3)
        for images, labels in loader:
            nn.functional.cross_entropy(model(images), labels).backward()


def batches_of(path: Path, how: str) -> Any:
    views = [T.Views(2, [T.RandomResizedCrop(16)])]
    if how == "loader":
        return fastdata.loader(path, batch_size=8, transform=views)
    return DataLoader(fastdata.open(path, transform=views), batch_size=8, num_workers=int(how[-1]))


@pytest.mark.parametrize("how", ["loader", "stock 0", "stock 2"])
def test_views_are_a_list_that_can_be_changed(packed: dict[str, Path], how: str) -> None:
    for batch in batches_of(packed["raw"], how):
        images, labels = batch
        assert type(images) is list
        images[0] = images[0].float()
        assert [view.shape for view in batch.image] == [(8, 3, 16, 16)] * 2
        assert len(labels) == 8


@pytest.mark.parametrize("how", ["loader", "stock 0", "stock 2"])
def test_a_batch_is_made_of_one_iterable_as_other_tuples_are(
    packed: dict[str, Path], how: str
) -> None:
    for batch in batches_of(packed["raw"], how):
        made = type(batch)(value for value in batch)
        assert type(made) is type(batch)
        assert made.label is batch.label
        assert type(batch)(*batch) == type(batch)(list(batch)) == batch._make(batch) == batch
        assert type(batch)(image=batch.image, label=1).label == 1
        assert batch._replace(label=2).label == 2
        with pytest.raises(TypeError):
            type(batch)([1])


def by_fastai(change: Any, value: Any) -> Any:
    """As ``fastai.torch_core.apply``, with which it moves batches."""
    if isinstance(value, (list, tuple)):
        return type(value)(by_fastai(change, one) for one in value)
    return change(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("how", ["loader", "stock 0", "stock 2"])
def test_libraries_change_the_tensors_of_a_batch(packed: dict[str, Path], how: str) -> None:
    for batch in batches_of(packed["raw"], how):
        for made in (by_fastai(torch.Tensor.float, batch), default_convert(batch)):
            assert type(made) is type(batch)
            assert torch.equal(made.image[1].byte(), batch.image[1])
            assert type(made.image) is list


def image_alone(folder: Path, views: int) -> Any:
    """Return a batch of one field: a tensor, or a list of views."""
    images = [(np.full((20, 20, 3), k, np.uint8),) for k in range(4)]
    fastdata.pack(images, folder / "x.lmdb", fields={"image": "image"}, num_workers=0)
    view = [T.CenterCrop(16)]
    transform = [T.Views(views, view)] if views else view
    [batch] = fastdata.loader(folder / "x.lmdb", batch_size=4, transform=transform, num_workers=0)
    return batch


def text_alone(folder: Path, size: int) -> Any:
    """Return a batch of one field that is a list of that many texts."""
    texts = [("abc"[k],) for k in range(size)]
    fastdata.pack(texts, folder / "x.lmdb", fields={"text": "string"}, num_workers=0)
    [batch] = fastdata.loader(folder / "x.lmdb", batch_size=size, num_workers=0)
    return batch


ONE_FIELD = {
    "image": lambda folder: image_alone(folder, 0),
    "two views": lambda folder: image_alone(folder, 2),
    "one view": lambda folder: image_alone(folder, 1),
    "texts": lambda folder: text_alone(folder, 2),
    "one text": lambda folder: text_alone(folder, 1),
}


@pytest.mark.parametrize("field", list(ONE_FIELD))
def test_a_batch_of_one_field_is_made_again_in_each_way(tmp_path: Path, field: str) -> None:
    batch = ONE_FIELD[field](tmp_path)
    value = batch[0]
    for made in (
        type(batch)(*batch),
        type(batch)([value]),
        type(batch)((value,)),
        type(batch)(one for one in batch),
        type(batch)(**batch._asdict()),
        batch._make(batch),
        batch._replace(**batch._asdict()),
        pickle.loads(pickle.dumps(batch)),
        by_fastai(torch.Tensor.clone, batch),
    ):
        assert made._fields == batch._fields
        assert type(made) is type(batch)
        assert type(made[0]) is type(value)
        assert len(made[0]) == len(value)
        assert str(made) == str(batch)


def test_a_list_that_is_no_value_of_an_only_field_is_refused(tmp_path: Path) -> None:
    batch = image_alone(tmp_path, 0)
    with pytest.raises(
        TypeError, match=r"one value, and this list has 2: .* write image=\[\.\.\.\]"
    ):
        type(batch)([batch.image, batch.image])
    assert type(batch)(image=[batch.image] * 2).image == [batch.image] * 2
