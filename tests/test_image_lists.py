"""``image_lists=True``: images of several sizes in a batch, as lists of tensors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard, check_seen
from memory_data import MemoryData, digest, image_of
from samples import make_records, put_blob, write_shard
from simulated_device import SimulatedStreams
from torch.utils.data import TensorDataset
from unpacked_helpers import check_same_batches, packed, same_value, write_scenes
from worker_helpers import damage_image, unchanged

import fastdata
from fastdata import options as loader_options
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import delivery
from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.epoch import request_of
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.schema import ImageField, ScalarField, Schema

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 5, "image_lists": True}
PICTURES = Schema({"image": ImageField(), "label": ScalarField()})

TRANSFORMS: dict[str, list[Any]] = {
    "none": [],
    "flip": [T.RandomHorizontalFlip()],
    "resize": [T.Resize(50, max_size=80), T.RandomHorizontalFlip()],
    "normalize": [T.Resize(50), T.Normalize(MEAN, STD)],
    "one size": [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
    "whole batches": [
        T.Resize(40),
        T.ColorJitter(0.4),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32),
    ],
    "callables": [T.Resize(40), T.ImageOnly(unchanged), T.RandomHorizontalFlip()],
}
WAYS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "threads": {"num_workers": 3},
    "processes": {"num_workers": 2, "worker_method": "process"},
    "ram": {"num_workers": 0, "cache": "ram"},
    "channels last": {"num_workers": 0, "memory_format": torch.channels_last},
    "cpu": {"num_workers": 0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxed_shard(tmp_path_factory.mktemp("lists") / "boxed.lmdb", count=30)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = make_records(PICTURES, 20, ["jpeg", "png", "raw"])
    return write_shard(tmp_path_factory.mktemp("lists") / "a.h5", records, PICTURES)


def batches(data: Any, transform: Any, **options: Any) -> list[Any]:
    with fastdata.loader(data, transform=transform, **{**OPTIONS, **options}) as loader:
        return list(loader)


def by_one(data: Any, transform: Any) -> list[Any]:
    """Return the batches of one sample each, whose images need no list."""
    return batches(data, transform, batch_size=1, image_lists=False, num_workers=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("data", ["boxed", "jpegs"])
def test_each_image_is_that_of_a_batch_of_one(
    data: str, name: str, way: str, request: pytest.FixtureRequest
) -> None:
    path, transform = request.getfixturevalue(data), TRANSFORMS[name]
    alone = by_one(path, transform)
    found = batches(path, transform, **WAYS[way])
    sizes = set()
    at = 0
    for batch in found:
        images = [name for name in ("image", "mask") if hasattr(batch, name)]
        assert all(type(getattr(batch, name)) is list for name in images)
        for place in range(len(batch.image)):
            for field in batch._fields:
                value, expected = getattr(batch, field)[place], getattr(alone[at], field)[0]
                assert same_value(torch.as_tensor(value), torch.as_tensor(expected)), field
                if field in images:
                    sizes.add(tuple(value.shape[1:]))
                    dense = value[None].is_contiguous(memory_format=torch.channels_last)
                    assert dense if way == "channels last" else value.is_contiguous()
            at += 1
    assert at == len(alone)
    assert len(sizes) > 1 or name == "one size"


def test_boxes_follow(boxed: Path) -> None:
    for way in WAYS.values():
        seen = 0
        for batch in batches(boxed, [T.Resize(90, "nearest"), T.RandomHorizontalFlip()], **way):
            for image, boxes in zip(batch.image, batch.boxes, strict=True):
                seen += check_seen(image[None], [boxes], atol=2)
        assert seen > 20


def test_masks_are_uint8_and_images_of_a_batch_share_memory(boxed: Path) -> None:
    first = batches(boxed, None, num_workers=0)[0]
    assert {mask.dtype for mask in first.mask} == {torch.uint8}
    pairs = zip(first.image, first.mask, strict=True)
    assert all(mask.shape == (1, *image.shape[1:]) for image, mask in pairs)
    assert len({image.untyped_storage().data_ptr() for image in first.image}) == 1
    assert {one.data_ptr() % 64 for one in [*first.image, *first.mask]} == {0}


def test_data_in_memory_without_transforms() -> None:
    (batch,) = batches(MemoryData(5), None, batch_size=5, shuffle=False)
    for index, image in enumerate(batch.image):
        expected = image_of(index, 20 + index % 7, 20 + index % 5)
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_views_are_lists_of_lists() -> None:
    views = T.Views((2, [T.Resize(10), T.RandomHorizontalFlip()]), (1, [T.CenterCrop(6)]))
    (batch,) = batches(MemoryData(5), views, batch_size=5, num_workers=2)
    one = [made.image for made in by_one(MemoryData(5), views)]
    assert [len(view) for view in batch.image] == [5, 5, 5]
    for view in range(3):
        for at, image in enumerate(batch.image[view]):
            assert torch.equal(image, one[at][view][0])


@pytest.mark.parametrize("transform", [None, [T.Resize(50), T.RandomHorizontalFlip()]])
def test_files_that_are_not_packed(tmp_path: Path, transform: Any) -> None:
    fields = {"boxes": "boxes"}
    files = fastdata.open(write_scenes(tmp_path / "scenes", 9), fields=fields)
    pack = packed(files.paths[0], tmp_path / "a.lmdb", fields=fields)
    for workers in WAYS["threads"], WAYS["ram"]:
        options = {**OPTIONS, **workers, "transform": transform}
        assert check_same_batches(*(fastdata.loader(d, **options) for d in (files, pack))) == 4


@pytest.mark.parametrize("way", ["caller", "threads", "processes"])
@pytest.mark.parametrize("transform", [[], [T.Resize(50)], [T.ImageOnly(unchanged)]])
def test_a_substitute_may_be_larger(tmp_path: Path, transform: Any, way: str) -> None:
    path = boxed_shard(tmp_path / "a.lmdb", count=30)
    damage_image(path, *range(0, 30, 3))
    with pytest.raises(ShardCorruptError, match="checksum"):
        batches(path, transform)
    found = batches(path, transform, on_corrupt="skip", **WAYS[way])
    whole = {
        int(one.number): one for one in by_one(boxed_shard(tmp_path / "b.lmdb", 30), transform)
    }
    numbers = [number for batch in found for number in batch.number.tolist()]
    assert len(numbers) == 30
    assert not set(numbers) & set(range(0, 30, 3))
    for batch in found:
        for at, number in enumerate(batch.number.tolist()):
            for name in ("image", "mask", "boxes"):
                assert torch.equal(getattr(batch, name)[at], getattr(whole[number], name)[0]), name


def test_a_column_with_a_wrong_size_is_an_error(tmp_path: Path) -> None:
    records = make_records(PICTURES, 8, "jpeg", size=(30, 40))
    path = write_shard(tmp_path / "a.lmdb", records, PICTURES)
    put_blob(path, 3, records[3].values[0].data, height=31)
    for transform in (None, T.Resize(20), T.RandomHorizontalFlip(1.0)):
        with pytest.raises(ShardCorruptError, match="sample 3"):
            batches(path, transform, num_workers=0)
        found = batches(path, transform, num_workers=2, on_corrupt="skip")
        assert sum(len(batch.image) for batch in found) == 8


def test_an_epoch_and_a_state_are_those_of_any_loader(boxed: Path) -> None:
    whole = batches(boxed, TRANSFORMS["resize"])
    with fastdata.loader(boxed, transform=TRANSFORMS["resize"], **OPTIONS) as loader:
        epoch = iter(loader)
        next(epoch), next(epoch)
        state = loader.state_dict()
    with fastdata.loader(boxed, transform=TRANSFORMS["resize"], **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert digest(list(loader)) == digest(whole[2:])


def test_lists_travel_to_a_device(boxed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = TRANSFORMS["resize"]
    expected = batches(boxed, transform)
    device = SimulatedStreams(5)
    monkeypatch.setattr(loader_options, "streams_of", lambda name: device)
    monkeypatch.setattr(delivery, "streams_of", lambda name: device)
    seen: list[list[bytes]] = []

    def look(memory: list[np.ndarray[Any, Any]]) -> None:
        seen.append([part.tobytes() for part in memory])

    with fastdata.loader(boxed, transform=transform, device="cuda", **OPTIONS) as loader:
        for batch in loader:
            device.launch(look, *batch.image, *batch.mask)
            del batch
    device.finish()
    images = [[*batch.image, *batch.mask] for batch in expected]
    assert seen == [[one.numpy().tobytes() for one in some] for some in images]


def test_a_device_changes_images_one_by_one(boxed: Path) -> None:
    """By the CPU here: uint8 images arrive, and then the pixel and batch stages run."""
    transform = [T.Resize(50), T.Normalize(MEAN, STD), T.RandomErasing(), T.RandomGrayscale(0.5)]
    expected = batches(boxed, transform, num_workers=0)
    with fastdata.loader(boxed, transform=transform, num_workers=0, **OPTIONS) as loader:
        work = dataclasses.replace(loader.backend.work, pixels=False)
        order = loader.batches.in_epoch(0)
        requests = [request_of(order, 0, number) for number in range(len(order))]
    maker = BatchMaker(work, pieces=2, buffers=BufferPool(2))
    for request, wanted in zip(requests, expected, strict=True):
        job = maker.prepare(request)
        memory = job.slot.memory if job.slot else None
        made = job.finish([work(task, memory) for task in job.tasks()])
        assert {image.dtype for image in made.image} == {torch.uint8}
        arrived = delivery.arrive(work, request, made)
        for field in arrived._fields:
            assert same_value(getattr(arrived, field), getattr(wanted, field)), field


@pytest.mark.gpu
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_lists_on_a_gpu(boxed: Path, cuda: torch.device, workers: str) -> None:
    transform = [T.Resize(50), T.Normalize(MEAN, STD), T.RandomErasing()]
    expected = batches(boxed, transform, num_workers=0)
    found = batches(boxed, transform, device=cuda, **WAYS[workers])
    for one, other in zip(found, expected, strict=True):
        for field in ("image", "mask", "boxes"):
            for a, b in zip(getattr(one, field), getattr(other, field), strict=True):
                assert a.is_cuda
                torch.testing.assert_close(a.cpu(), b, rtol=0, atol=1e-6)


def test_a_loader_shows_lists(boxed: Path) -> None:
    with fastdata.loader(boxed, transform=[T.Resize(50)], num_workers=0, **OPTIONS) as loader:
        assert "  image: list of 7 tensors, uint8 [3, H, W]\n" in repr(loader)
        assert "  mask: list of 7 tensors, uint8 [1, H, W]\n" in repr(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "dali"}, 'image_lists: DALI makes images of one size.*backend="cpu"'),
        ({"cache": "device"}, 'image_lists: cache="device" .* or use cache="ram"'),
        ({"image_lists": "yes"}, "image_lists is one of True, False, not 'yes'"),
        (
            {"transform": [T.Resize(9), T.MixUp(num_classes=90, labels="label")]},
            "image_lists: MixUp mixes the images of a batch",
        ),
        (
            {"transform": [T.Resize(9), T.ImageOnly(unchanged), T.CutMix(num_classes=90)]},
            "image_lists: CutMix mixes the images of a batch",
        ),
    ],
)
def test_what_needs_one_size_is_refused(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.loader(MemoryData(4), **{**OPTIONS, **options})


def test_errors_about_several_sizes_name_the_option(boxed: Path) -> None:
    with pytest.raises(OptionError, match="give image_lists=True for lists"):
        fastdata.loader(boxed, batch_size=4)
    with pytest.raises(OptionError, match="image_lists=True"):
        batches(boxed, None, batch_sampler=[[0, 1]], batch_size=1, shuffle=False, image_lists=False)
    with pytest.raises(OptionError, match="image_lists=True"):
        batches(boxed, T.ImageOnly(unchanged), image_lists=False, num_workers=0)
    with pytest.raises(OptionError, match="image_lists is for packed data"):
        fastdata.loader(TensorDataset(torch.zeros(3)), image_lists=True)
    with pytest.raises(OptionError, match="image_lists="):
        fastdata.loader(boxed, batch_size=4, collate_fn=list)


def test_a_profile_counts_the_images_of_a_list(boxed: Path) -> None:
    with fastdata.loader(boxed, num_workers=0, **OPTIONS, fields=["image"]) as loader:
        assert fastdata.profile(loader, seconds=0.5).batch_size in (2, 7)  # the last has 2
