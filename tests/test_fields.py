"""``fields=`` of a loader: other columns are neither read nor decoded, and block nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from boxed import boxed_shard, check_seen
from memory_data import MemoryData
from torch.utils.data import Subset, TensorDataset
from unpacked_helpers import files_opened, packed, same_value, write_scenes
from worker_helpers import damage_image, unchanged

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError, ShardCorruptError

CROP = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
BOXES = {"boxes": "boxes"}
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "transform": CROP, "num_workers": 0}


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxed_shard(tmp_path_factory.mktemp("fields") / "boxed.lmdb")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> fastdata.Dataset:
    path = write_scenes(tmp_path_factory.mktemp("fields") / "scenes", count=10)
    return fastdata.open(path, fields=BOXES)


def batches(data: Any, **options: Any) -> list[Any]:
    with fastdata.loader(data, **{**OPTIONS, **options}) as loader:
        return list(loader)


def check_selected(data: Any, names: tuple[str, ...], **options: Any) -> list[Any]:
    """Compare the selected fields of batches with those of a loader of all fields."""
    some, every = (batches(data, fields=fields, **options) for fields in (names, None))
    for one, other in zip(some, every, strict=True):
        assert one._fields == names
        assert all(same_value(getattr(one, name), getattr(other, name)) for name in names)
    return some


WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "worker_method": "process"},
    "callables": {"transform": [*CROP, T.ImageOnly(unchanged)]},
    "ram": {"cache": "ram"},
    "device": {"cache": "device", "device": "cpu"},
    "weights": {"weights": [1.0] * 40, "shuffle": False},
    "sampler": {"sampler": [3, 5, 1, 1], "shuffle": False},
    "batch transforms": {"transform": [*CROP, T.RandomGrayscale(0.5)]},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_gives_the_fields_that_it_is_asked_for(boxed: Path, way: str) -> None:
    check_selected(boxed, ("mask", "number", "image"), **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_boxes_that_are_selected_follow_their_images(boxed: Path, way: str) -> None:
    some = check_selected(boxed, ("boxes", "image"), **WAYS[way])
    if way != "batch transforms":
        assert sum(check_seen(one.image, one.boxes, atol=3) for one in some) > 3


def test_files_that_are_not_packed_are_left_closed(files: fastdata.Dataset) -> None:
    with files_opened() as counts:
        (batch,) = batches(files, fields=("label", "image"), batch_size=10)
    assert batch._fields == ("label", "image")
    assert not [name for name in counts if "mask" in name], counts
    with files_opened() as counts:
        (batch,) = batches(files, fields=["mask"], batch_size=10)
    assert not [name for name in counts if name.endswith(".jpg")], counts
    check_selected(files, ("mask", "boxes"), batch_size=5)
    check_selected(files, ("image", "boxes", "caption"), batch_size=5)


def test_a_pack_and_its_files_give_the_same_fields(files: fastdata.Dataset, tmp_path: Path) -> None:
    pack = packed(files.paths[0], tmp_path / "scenes.lmdb", fields=BOXES)
    for names in (("mask", "boxes"), ("boxes", "image", "caption")):
        for one, other in zip(*(batches(d, fields=names) for d in (files, pack)), strict=True):
            assert all(map(same_value, one, other))


def test_a_damaged_column_is_not_read(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb")
    damage_image(path, *range(40), field="mask")
    with pytest.raises(ShardCorruptError, match="mask"):
        batches(path)
    assert len(batches(path, fields=("image", "number"))) == 5


def test_hidden_boxes_and_masks_block_nothing(boxed: Path) -> None:
    views = T.Views(2, CROP)
    with pytest.raises(OptionError, match="Views"):
        batches(boxed, transform=views)
    first = batches(boxed, transform=views, fields=("image", "number"))[0]
    assert [tuple(view.shape) for view in first.image] == [(8, 3, 32, 32)] * 2
    moving = [*CROP, T.MixUp(num_classes=40, labels="number")]
    with pytest.raises(OptionError, match="boxes"):
        batches(boxed, transform=moving)
    assert batches(boxed, transform=moving, fields=["image", "number"])[0].number.shape == (8, 40)


def test_dicts_and_new_names(boxed: Path) -> None:
    names = {"number": "labels", "image": "pixel_values"}
    options: dict[str, Any] = {"batch_format": "dict", "fields": ("number", "image")}
    assert list(batches(boxed, names=names, **options)[0]) == ["labels", "pixel_values"]
    opened = fastdata.open(boxed, names={**names, "mask": "target"})
    assert list(batches(opened, **options)[0]) == ["labels", "pixel_values"]
    with pytest.raises(OptionError, match="names: there is no field 'mask'"):
        batches(boxed, names={"mask": "target"}, fields="image")


def test_fields_of_parts_and_of_one_split(boxed: Path, tmp_path: Path) -> None:
    data = fastdata.open(boxed)
    data.transform = CROP
    (batch,) = batches(
        Subset(data, [4, 2]), fields=["number", "image"], shuffle=False, transform=None
    )
    assert batch.number.tolist() == [4, 2]
    assert len(batches(data + data, fields=["image"], transform=None)) == 10
    assert len(data.schema) == 9  # the dataset itself stays as it is


def test_a_state_does_not_depend_on_the_fields(boxed: Path) -> None:
    whole = batches(boxed)
    with fastdata.loader(boxed, fields=["image"], **OPTIONS) as loader:
        epoch = iter(loader)
        next(epoch), next(epoch)
        state = json.loads(json.dumps(loader.state_dict()))
    with fastdata.loader(boxed, fields=["number", "mask"], **OPTIONS) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert [one.number.tolist() for one in rest] == [one.number.tolist() for one in whole[2:]]


def test_a_transform_that_is_set_too_late_is_an_error(boxed: Path) -> None:
    data = fastdata.open(boxed)
    with fastdata.loader(data, batch_size=1, fields=["image"]) as loader:
        data.transform = T.CenterCrop(8)
        with pytest.raises(OptionError, match="was set after the loader was made"):
            list(loader)


def test_a_loader_shows_its_fields(boxed: Path) -> None:
    with fastdata.loader(boxed, fields=("mask", "number"), **OPTIONS) as loader:
        lines = repr(loader).splitlines()
        assert [line.split(":")[0].strip() for line in lines[1:3]] == ["mask", "number"]
        assert "image" not in repr(loader)
        assert repr(loader.dataset).splitlines()[1:] == [
            "  mask: mask, raw, the first one 60 x 110",
            "  number: int64",
        ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("image", "maks"), r"no field 'maks'; the fields are number, .*mask\. Did you mean 'mask"),
        ((), "fields is a list of names"),
        ({"mask": "mask"}, "give kinds of fields to fastdata.open"),
        (3, "fields is a list of names"),
        (["image", "image"], "fields has a name twice"),
        (["boxes", "number"], "fields has the boxes 'boxes' without their images: add 'image'"),
    ],
)
def test_other_fields_are_refused(boxed: Path, fields: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.loader(boxed, batch_size=4, fields=fields)


@pytest.mark.parametrize(
    ("fields", "transform", "message"),
    [
        (["number"], T.CenterCrop(8), r"leaves out .*image, .*without them CenterCrop changes"),
        (["image", "mask"], T.RandomIoUCrop(), "and without them RandomIoUCrop crops by the boxes"),
        (
            ["image", "boxes"],
            T.DropEmptyBoxes("boxes", "classes"),
            "leaves out .*classes, .*no field",
        ),
        (["image", "boxes"], T.DropEmptyBoxes("boxes", "class"), "^DropEmptyBoxes drops"),
    ],
)
def test_a_field_that_transforms_need_is_said_to_be_left_out(
    boxed: Path, fields: Any, transform: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.loader(boxed, batch_size=4, fields=fields, transform=transform)


def test_fields_are_for_packed_data() -> None:
    with pytest.raises(OptionError, match="fields is for packed data"):
        fastdata.loader(TensorDataset(torch.zeros(3)), fields=["image"])
    with pytest.raises(OptionError, match="fields selects among those of packed data"):
        fastdata.loader(MemoryData(4), fields=["image"])
