"""Vertical flips and quarter turns through the loader: exact, by every way that makes images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import encode, mask, photo, write_shard
from worker_helpers import TurnByIndex, unchanged

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import rendering
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.schema import ImageField, ScalarField, Schema

SCHEMA = Schema(
    {"image": ImageField(), "mask": ImageField(channels=1, mask=True), "number": ScalarField()}
)
FLOATS = [T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))]


@pytest.fixture(scope="module", params=["raw 32", "raw 120", "jpeg 120", "png 50"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    codec, side = request.param.split()
    rows, columns = int(side), int(side) + 8
    records = [
        Record(
            str(k),
            (
                encode(photo(rows, columns, seed=k), codec),
                encode(mask(rows, columns, seed=k), "raw" if codec == "jpeg" else codec),
                k,
            ),
        )
        for k in range(26)
    ]
    return write_shard(tmp_path_factory.mktemp("turned") / "a.lmdb", records, SCHEMA)


@pytest.fixture(params=["compiled", "python"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(rendering, "compiled", lambda: False)
    return str(request.param)


def batches(path: Path, transform: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5, "num_workers": 0}
    with fastdata.loader(path, transform=transform, **{**defaults, **options}) as loader:
        return list(loader)


def orient(images: torch.Tensor, numbers: torch.Tensor, how: Callable[[Any, int], Any]) -> Any:
    return torch.stack([how(image, k) for image, k in zip(images, numbers.tolist(), strict=True)])


def by_index(image: torch.Tensor, index: int) -> torch.Tensor:
    turned = torch.rot90(image, index, (-2, -1))
    return turned.flip(-1) if index // 4 % 2 else turned


WAYS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "direct": ([], {}),
    "planes": ([], {"memory_format": torch.contiguous_format}),
    "floats": (FLOATS, {}),
    "planes of floats": (FLOATS, {"memory_format": torch.contiguous_format}),
    "bfloat16": (FLOATS, {"dtype": torch.bfloat16}),
    "threads": ([], {"num_workers": 2, "batch_size": 26}),
    "callables": ([T.ImageOnly(unchanged)], {}),
    "cached": (FLOATS, {"cache": "device"}),
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("turn", "how"),
    [
        (T.RandomVerticalFlip(1.0), lambda image, _: image.flip(-2)),
        (TurnByIndex(), by_index),
    ],
    ids=["vertical", "turned"],
)
@pytest.mark.parametrize(
    "crop", [T.CenterCrop(28), T.RandomCrop(32, padding=4), T.CenterCrop(130), T.Resize((30, 30))]
)
def test_pixels_are_those_of_a_turned_batch(
    shard: Path, way: str, turn: Any, how: Callable[[Any, int], Any], crop: Any
) -> None:
    more, options = WAYS[way]
    expected = batches(shard, [crop, *more], **options)
    for one, batch in zip(expected, batches(shard, [crop, turn, *more], **options), strict=True):
        assert torch.equal(batch.number, one.number)
        for name in ("image", "mask"):
            images, straight = getattr(batch, name), getattr(one, name)
            assert images.stride() == straight.stride()
            assert torch.equal(images, orient(straight, one.number, how)), name


def test_half_of_the_images_are_upside_down(shard: Path) -> None:
    straight = batches(shard, T.CenterCrop(30), batch_size=26)[0]
    batch = batches(shard, [T.CenterCrop(30), T.RandomVerticalFlip()], batch_size=26)[0]
    count = 0
    for one, other in zip(straight.image, batch.image, strict=True):
        upside_down = torch.equal(other, one.flip(-2))
        assert upside_down or torch.equal(other, one)
        count += upside_down
    assert 5 < count < 21


def test_views_turn_each_in_their_own_way(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "number": ScalarField()})
    records = [Record(str(k), (encode(photo(40, 44, seed=k), "raw"), k)) for k in range(9)]
    path = write_shard(tmp_path / "a.lmdb", records, schema)
    views = T.Views((1, [T.CenterCrop(32)]), (1, [T.CenterCrop(32), TurnByIndex()]))
    for batch in batches(path, views):
        straight, turned = batch.image
        assert torch.equal(turned, orient(straight, batch.number, by_index))


def test_a_later_crop_is_of_the_turned_image(shard: Path) -> None:
    whole = batches(shard, [T.CenterCrop(30), TurnByIndex()])
    cut = batches(shard, [T.CenterCrop(30), TurnByIndex(), T.CenterCrop((30, 12))])
    for one, other in zip(whole, cut, strict=True):
        assert torch.equal(other.image, one.image[..., 9:21])


def test_a_turned_image_keeps_its_sides(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField()})
    image = photo(20, 30)
    path = write_shard(tmp_path / "a.lmdb", [Record("0", (encode(image, "raw"),))], schema)

    class Turn(T.GeometricTransform):
        def plan(self, geometry: Any, draws: Any) -> Any:
            return geometry.turn(1)

    [batch] = batches(path, Turn())
    np.testing.assert_array_equal(batch.image[0].permute(1, 2, 0), np.rot90(image))


@pytest.mark.parametrize("p", [-0.1, 1.5, "half"])
def test_a_probability_is_checked(p: Any) -> None:
    with pytest.raises(OptionError, match="probability"):
        T.RandomVerticalFlip(p)
