"""`dataset.transform`: what is done to each sample; and the form samples are handed out in."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import EVERY_KIND, make_records, write_shard, write_shards
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, random_split

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema

LABELS = [0, 1, 2, 0, 1, 2]
"""Of what `make_records` makes."""


@pytest.fixture
def dataset(tmp_path: Path) -> fastdata.Dataset:
    return fastdata.open(write_shard(tmp_path / "shard.lmdb", make_records()))


def plus_one(image: torch.Tensor) -> torch.Tensor:
    assert image.shape[0] == 3, "channels come first"
    return image + 1


# -- the transform ------------------------------------------------------------------


def test_a_transform_is_applied_however_samples_are_read(dataset: fastdata.Dataset) -> None:
    plain = [sample.image for sample in dataset]
    assert dataset.transform is None
    dataset.transform = plus_one
    assert dataset.transform is plus_one
    view = dataset[1:]
    for images in (
        [dataset[i].image for i in range(6)],
        [sample.image for sample in dataset],
        [sample.image for sample in dataset.__getitems__(range(6))],
        [dataset[0].image, *(sample.image for sample in view)],
        [dataset[0].image, *(sample.image for sample in Subset(view, range(5)))],
    ):
        for image, stored in zip(images, plain, strict=True):
            assert torch.equal(image, stored + 1)
    dataset.transform = None
    assert torch.equal(dataset[2].image, plain[2])
    assert torch.equal(view[0].image, plain[1] + 1), "a view keeps the transform it was made with"


def test_several_transforms_run_in_turn(dataset: fastdata.Dataset) -> None:
    plain = dataset[0].image
    dataset.transform = [T.CenterCrop(8), plus_one, T.PerSample(lambda s: s._replace(label="x"))]
    assert isinstance(dataset.transform, tuple), "one that can be appended to would go unseen"
    sample = dataset[0]
    assert sample.image.dtype == torch.uint8
    top, left = ((side - 8) // 2 for side in plain.shape[1:])
    assert torch.equal(sample.image, plain[:, top : top + 8, left : left + 8] + 1)
    assert sample.label == "x"
    dataset.transform = ()
    assert torch.equal(dataset[0].image, plain)


@pytest.mark.parametrize(
    "of", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d)), lambda d: d[:]]
)
def test_copies_carry_the_transform_and_the_format(tmp_path: Path, of: Any) -> None:
    dataset = fastdata.open(
        write_shard(tmp_path / "shard.h5", make_records()),
        transform=[T.CenterCrop(8), plus_one],
        batch_format="dict",
        names={"image": "pixel_values"},
    )
    again = of(dataset)
    assert again.transform == dataset.transform
    assert again.record_format == dataset.record_format
    assert torch.equal(again[3]["pixel_values"], dataset[3]["pixel_values"])
    again.transform = None
    assert dataset[3]["pixel_values"].shape == (3, 8, 8)


def test_a_transform_is_checked_when_it_is_set(dataset: fastdata.Dataset, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a transform is one of fastdata\.transforms or a c"):
        dataset.transform = 3
    wrong = [T.Normalize([0.5] * 3, [0.5] * 3), T.CenterCrop(8)]
    with pytest.raises(OptionError, match="CenterCrop comes after Normalize"):
        dataset.transform = wrong
    with pytest.raises(OptionError, match="field 'image': Normalize has 2 means, but images have"):
        dataset.transform = T.Normalize((0.5, 0.5), (1, 1))
    assert dataset.transform is None
    with pytest.raises(OptionError, match="CenterCrop comes after Normalize"):
        fastdata.open(dataset.paths[0], transform=wrong)


def test_transforms_of_batches_are_refused_for_a_sample(dataset: fastdata.Dataset) -> None:
    dataset.transform = [T.RandomResizedCrop(8), T.MixUp(3)]
    with pytest.raises(OptionError, match=r"MixUp takes whole batches, .* fastdata\.loader\(data"):
        dataset[0]
    assert len(dataset[1:3]) == 2


def test_an_error_of_a_transform_says_of_which_sample(dataset: fastdata.Dataset) -> None:
    def fail(image: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    dataset.transform = fail
    view = dataset[2:]
    for read in (lambda: view[1], lambda: view.__getitems__([1])):
        with pytest.raises(ValueError, match="no") as error:
            read()
        if sys.version_info >= (3, 11):
            assert "sample 1 (" in error.value.__notes__[0]
            assert repr(view.keys[1]) in error.value.__notes__[0]


def test_packing_again_does_not_drop_a_transform(dataset: fastdata.Dataset, tmp_path: Path) -> None:
    dataset.transform = T.CenterCrop(8)
    for copied in (
        lambda: fastdata.pack(dataset, tmp_path / "copy.lmdb", progress=False),
        lambda: fastdata.subset(dataset, tmp_path / "copy.lmdb", indices=[0], progress=False),
        lambda: fastdata.export(dataset, tmp_path / "files", progress=False),
    ):
        with pytest.raises(OptionError, match="copied as they are, without the dataset's transfor"):
            copied()
    fastdata.pack(iter(dataset), tmp_path / "cropped.lmdb", num_workers=0, progress=False)
    assert fastdata.open(tmp_path / "cropped.lmdb")[0].image.shape == (3, 8, 8)


# -- random transforms ----------------------------------------------------------------


@pytest.fixture
def random_crops(tmp_path: Path) -> fastdata.Dataset:
    """Samples of one large image, so that what differs is the crop."""
    record = make_records(count=1, size=(200, 240))[0]
    records = [Record(f"{n}", record.values) for n in range(24)]
    return fastdata.open(write_shard(tmp_path / "crops.lmdb", records), transform=T.RandomCrop(16))


def crops_of(samples: Any) -> list[bytes]:
    return [sample.image.numpy().tobytes() for sample in samples]


def test_torchs_generator_governs_random_transforms(random_crops: fastdata.Dataset) -> None:
    def drawn(seed: int) -> list[bytes]:
        torch.manual_seed(seed)
        return crops_of([random_crops[0], random_crops[0], *random_crops.__getitems__([0, 0])])

    assert drawn(5) == drawn(5)
    assert len({*drawn(5), *drawn(6)}) == 8, "the same sample draws again each time"


def test_without_a_transform_no_random_number_is_used(random_crops: fastdata.Dataset) -> None:
    random_crops.transform = None
    torch.manual_seed(5)
    random_crops[0], random_crops.__getitems__([1, 2])
    after = torch.rand(())
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(()))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_workers_of_a_stock_dataloader_draw_differently(
    random_crops: fastdata.Dataset, batch_size: int | None
) -> None:
    loader = DataLoader(
        random_crops,
        batch_size=batch_size,
        num_workers=2,
        multiprocessing_context="fork",
        collate_fn=crops_of if batch_size else None,
    )

    def epoch() -> list[bytes]:
        batches = list(loader)
        return crops_of(batches) if batch_size is None else list(itertools.chain(*batches))

    torch.manual_seed(3)
    first, second = epoch(), epoch()
    assert len({*first, *second}) == 48
    torch.manual_seed(3)
    assert epoch() == first


# -- named tuples and dicts -----------------------------------------------------------


def test_samples_can_be_dicts_with_other_names(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard.lmdb", make_records(size=(20, 30)))
    plain = fastdata.open(path)
    names = {"image": "pixel_values", "label": "labels"}
    dataset = fastdata.open(path, batch_format="dict", names=names)
    assert list(dataset[1]) == ["pixel_values", "labels"]
    assert torch.equal(dataset[1]["pixel_values"], plain[1].image)
    assert [sample["labels"] for sample in dataset[2:]] == LABELS[2:]
    (batch,) = DataLoader(dataset, batch_size=6)
    assert type(batch) is dict
    assert batch["labels"].tolist() == LABELS
    renamed = fastdata.open(path, names=names)[1]
    assert renamed._fields == ("pixel_values", "labels")
    assert renamed.labels == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": {"picture": "x"}}, "no field 'picture'; the fields are image, label"),
        ({"names": {"image": "label"}}, "'image' and 'label' would both be called 'label'"),
        ({"batch_format": "list"}, "'tuple' or 'dict', not 'list'"),
    ],
)
def test_formats_are_checked_on_opening(
    dataset: fastdata.Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.open(dataset.paths[0], **options)


# -- the attributes of torch's datasets --------------------------------------------------


def test_a_dataset_is_a_torch_dataset(dataset: fastdata.Dataset) -> None:
    assert isinstance(dataset, torch.utils.data.Dataset)
    both = dataset + dataset[:2]
    assert [sample.label for sample in both] == [*LABELS, 0, 1]


def test_labels_are_read_as_from_an_image_folder(tmp_path: Path) -> None:
    records = make_records()
    dataset = fastdata.open(write_shards(tmp_path / "many", [records[:3], records[3:]]))
    assert dataset.targets == LABELS
    assert isinstance(dataset.targets, list)
    assert dataset.targets is dataset.targets, "read once"
    assert dataset[[5, 0]].targets == [2, 0]
    assert {type(target) for target in dataset.targets} == {int}
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "newt": 2}
    keys = [record.key for record in records]
    assert list(dataset.samples) == list(zip(keys, LABELS, strict=True))
    assert dataset.samples[-1] == (keys[-1], 2)
    assert dataset.samples[1:3] == [(keys[1], 1), (keys[2], 2)]
    assert len(dataset[1:].samples) == 5
    assert repr(dataset.samples).startswith(f"Samples(({keys[0]!r}, 0), ")


def test_targets_serve_as_weights(dataset: fastdata.Dataset) -> None:
    part = dataset[:5]
    counts = Counter(part.targets)
    assert counts == {0: 2, 1: 2, 2: 1}
    of_classes = torch.tensor([1 / counts[number] for number in range(3)])
    expected = [0.5, 0.5, 1, 0.5, 0.5]
    assert of_classes[part.targets].tolist() == expected
    assert of_classes.numpy()[part.targets].tolist() == expected
    assert torch.tensor(part.targets).tolist() == LABELS[:5]
    assert np.flatnonzero(np.array(part.targets) == 1).tolist() == [1, 4]
    sampler = WeightedRandomSampler([expected[i] for i in range(5)], 10)
    assert set(sampler) <= set(range(5))
    assert pickle.loads(pickle.dumps(part.targets)) == LABELS[:5]
    assert copy.deepcopy(part.targets) == LABELS[:5]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.append(1),
        lambda t: t.__setitem__(0, 1),
        lambda t: t.__delitem__(0),
        lambda t: t.sort(reverse=True),
        lambda t: t.__iadd__([1]),
        lambda t: t.pop(),
    ],
)
def test_targets_cannot_be_changed_to_no_effect(dataset: fastdata.Dataset, change: Any) -> None:
    with pytest.raises(TypeError, match="the targets of a packed dataset cannot be changed"):
        change(dataset.targets)
    assert dataset.targets == LABELS


def test_the_label_is_the_field_called_so_or_the_first_with_classes(tmp_path: Path) -> None:
    def opened(name: str, fields: dict[str, Any]) -> fastdata.Dataset:
        schema = Schema({"image": ImageField(), **fields})
        return fastdata.open(write_shard(tmp_path / name, make_records(schema), schema))

    animals = ScalarField(classes=("cat", "dog", "newt"))
    first = opened("a.h5", {"weight": ScalarField("float32"), "animal": animals})
    assert first.targets == LABELS
    assert first.class_to_idx["newt"] == 2
    second = opened("b.h5", {"animal": animals, "label": ScalarField("float64")})
    np.testing.assert_array_equal(second.targets, [sample.label for sample in second])
    with pytest.raises(AttributeError, match="class_to_idx: the labels of this dataset have no cl"):
        _ = second.class_to_idx
    boxes = ArrayField("int64", (None,), classes=("cat", "dog", "newt"))
    third = opened("d.h5", {"kinds": boxes})
    assert third.class_to_idx == {name: k for k, name in enumerate(third.classes or ())} != {}
    assert not hasattr(third, "targets")
    none = opened("c.h5", {"weight": ScalarField("float32")})
    for name in ("targets", "class_to_idx", "samples"):
        assert not hasattr(none, name)
        with pytest.raises(AttributeError, match=f"{name}: this dataset has no label, .*image, we"):
            getattr(none, name)


def test_every_kind_of_field_passes_a_transform(tmp_path: Path) -> None:
    records = make_records(EVERY_KIND)
    dataset = fastdata.open(
        write_shard(tmp_path / "all.h5", records, EVERY_KIND),
        transform=T.PerSample(lambda sample: sample),
    )
    plain = fastdata.open(dataset.paths[0])[5]
    for value, expected in zip(dataset[5], plain, strict=True):
        assert torch.equal(value, expected) if torch.is_tensor(value) else value == expected


@pytest.mark.parametrize("name", ["target_transform", "transforms", "targets", "classes", "gather"])
def test_other_attributes_cannot_be_set(dataset: fastdata.Dataset, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}' of a fastdata dataset cannot be set; `tr"):
        setattr(dataset, name, plus_one)
    assert dataset[0].label == 0


def test_a_transform_that_is_set_too_late_for_a_loader_is_refused(
    dataset: fastdata.Dataset,
) -> None:
    loader = fastdata.loader(dataset, num_workers=0)
    dataset.transform = T.CenterCrop(8)
    with pytest.raises(OptionError, match="was set after the loader was made"):
        iter(loader)


@pytest.mark.parametrize("nested", [False, True])
def test_that_is_seen_through_torchs_parts_and_sums(
    dataset: fastdata.Dataset, nested: bool
) -> None:
    other = fastdata.open(dataset.paths[0])
    dataset.transform, other.transform = T.CenterCrop(8), T.CenterCrop(8)
    data: Any = dataset + other if nested else dataset
    part, _ = random_split(data, [2, len(data) - 2])
    loader = fastdata.loader(part, batch_size=2, num_workers=0)
    assert next(iter(loader)).image.shape[2:] == (8, 8)
    (other if nested else dataset).transform = T.CenterCrop(9)
    with pytest.raises(OptionError, match="was set after the loader was made"):
        iter(loader)


def test_a_dataset_that_reads_samples_in_its_own_way_is_refused(
    dataset: fastdata.Dataset,
) -> None:
    class Mine(fastdata.Dataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    mine = copy.copy(dataset)
    object.__setattr__(mine, "__class__", Mine)
    with pytest.raises(OptionError, match="Mine has a __getitem__ of its own"):
        fastdata.loader(mine)
