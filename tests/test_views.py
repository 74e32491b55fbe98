"""Several views of one image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData, MemoryImages, digest, image_of
from samples import write_shard
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine.contracts import Request
from fastdata.engine.delivery import arrive
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.loading import loader
from fastdata.random import Draws, operation_id
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.render import render

COUNT = 48
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP, FLIP = T.RandomResizedCrop(16), T.RandomHorizontalFlip()


def shuffle_rows(image: torch.Tensor) -> torch.Tensor:
    image[:] = image[:, torch.randperm(image.shape[1])]  # in place, which callables may
    return image


PAIR = T.Views(2, [CROP, FLIP])
MANY = T.Views((2, [CROP, FLIP]), (3, [T.RandomResizedCrop(8, scale=(0.05, 0.4))]))
CALLED = T.Views((2, [CROP, shuffle_rows]), (1, [T.RandomResizedCrop(8)]))

LISTS: dict[str, Any] = {
    "pair": PAIR,
    "many": [MANY, T.Normalize(MEAN, STD)],
    "callables": CALLED,
    "callables, floats": [CALLED, T.ToDtype(torch.float16)],
    "of batches": [T.Views(2, [CROP, T.ColorJitter(0.4)]), T.RandomErasing(0.5)],
    "cropped before": [T.CenterCrop(36), T.RandomCrop(30), PAIR],
}

WORKERS: dict[str, dict[str, Any]] = {
    "thread": {"num_workers": 3, "worker_method": "thread"},
    "one process": {"num_workers": 1, "worker_method": "process"},
    "processes": {"num_workers": 2, "worker_method": "process"},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "pictures.lmdb"
    return write_shard(path, pictures(COUNT), PICTURES)


def batches(data: Any, transform: Any, **options: Any) -> list[Any]:
    options = {"batch_size": 20, "shuffle": True, "seed": 3, "num_workers": 0, **options}
    with loader(data, transform=transform, **options) as it:
        return [batch for _ in range(2) for batch in it]


def fields(batches: list[Any]) -> list[Any]:
    """Return batches without nesting, for their digest."""
    return [(batch.label, *batch.image) for batch in batches]


# -- what a batch is ------------------------------------------------------------------


def test_an_image_field_is_a_list_of_views() -> None:
    data = MemoryData(10, size=(40, 50))
    first = batches(data, MANY, batch_size=4)[0]
    assert type(first.image) is list
    assert [tuple(view.shape) for view in first.image] == [(4, 3, 16, 16)] * 2 + [(4, 3, 8, 8)] * 3
    for view in first.image:
        assert view.dtype == torch.uint8
        assert view.is_contiguous()
    assert first.label.shape == (4,)


def test_views_are_rendered_as_planned() -> None:
    """Against a plain loop: one view, one image at a time."""
    data = MemoryData(COUNT)
    for number, batch in enumerate(batches(data, [T.CenterCrop(40), PAIR])):
        indices = batch.label.numpy() // 3
        draws = Draws(3, number // 3, 0, indices)
        for view in range(2):
            heights, widths = data.size_of(indices)
            geometry = T.CenterCrop(40).plan(Geometry.of(heights, widths), draws)
            for place, one in enumerate((CROP, FLIP)):
                operation = operation_id(1, f"view {view}/{place}/{type(one).__name__}")
                geometry = one.plan(geometry, Draws(3, number // 3, operation, indices))
            for at, program in enumerate(geometry.programs()):
                expected = np.empty((16, 16, 3), np.uint8)
                render(program, image_of(indices[at], heights[at], widths[at]), expected)
                made = batch.image[view][at].permute(1, 2, 0).numpy()
                np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("workers", "name"),
    [
        # Callables in threads draw what others draw too.
        *(("thread", name) for name in LISTS if not name.startswith("callables")),
        ("one process", "callables"),
        *(("processes", name) for name in LISTS),
    ],
)
def test_views_are_the_same_however_they_are_made(stored: Path, name: str, workers: str) -> None:
    expected = digest(fields(batches(stored, LISTS[name])))
    assert digest(fields(batches(stored, LISTS[name], **WORKERS[workers]))) == expected


@pytest.mark.parametrize("name", list(LISTS))
def test_views_and_epochs_differ(stored: Path, name: str) -> None:
    made = batches(stored, LISTS[name], batch_size=COUNT, shuffle=False)
    seen: dict[bytes, int] = {}
    views = 0
    for batch in made:
        for view in batch.image:
            views += len(view)
            for image in view:
                key = image.contiguous().numpy().tobytes()
                seen[key] = seen.get(key, 0) + 1
    assert len(seen) > 0.99 * views


def test_callables_and_the_direct_way_make_the_same_views() -> None:
    data = MemoryData(COUNT, size=(40, 50))
    by_sample = T.Views(*[(n, [*some, T.ImageOnly(lambda x: x)]) for n, some in MANY.groups])
    expected = digest(fields(batches(data, MANY)))
    assert digest(fields(batches(data, by_sample))) == expected


def test_what_comes_before_is_the_same_in_all_views() -> None:
    data = MemoryData(COUNT, size=(40, 50))
    for batch in batches(data, [T.RandomCrop(20), T.RandomHorizontalFlip(), T.Views(3, [])]):
        first, *others = batch.image
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("views", [PAIR, T.Views(2, [CROP, lambda image: image])])
def test_pixel_transforms_and_dtype_apply_to_every_view(views: T.Views) -> None:
    data = MemoryData(COUNT)
    plain = batches(data, views)
    normalize = T.Normalize(MEAN, STD)
    made = batches(data, [views, normalize], dtype=torch.float16)
    cast = batches(data, views, dtype=torch.bfloat16)
    for before, after, other in zip(plain, made, cast, strict=True):
        for view in range(2):
            expected = normalize(before.image[view]).to(torch.float16)
            assert torch.equal(after.image[view], expected)
            assert other.image[view].dtype == torch.bfloat16


def test_a_device_does_pixels_of_every_view() -> None:
    """The pixel stage where batches arrive, on the CPU in place of a device."""
    transform = [T.Views(2, [CROP, FLIP]), T.Normalize(MEAN, STD)]
    (bytes_,) = batches(MemoryData(9), PAIR, batch_size=9)[:1]
    options: Any = {"batch_size": 9, "shuffle": True, "seed": 3}
    with loader(MemoryData(9), transform=transform, **options) as it:
        expected, work = next(iter(it)), it.backend.work
    made = arrive(work, Request(0, bytes_.label.numpy() // 3), bytes_)
    assert all(map(torch.equal, made.image, expected.image))
    assert all(view.is_contiguous() for view in made.image)


def test_samples_are_counted_and_epochs_resume(stored: Path) -> None:
    expected = batches(stored, CALLED)
    options: Any = {"batch_size": 20, "shuffle": True, "seed": 3, "num_workers": 0}
    with loader(stored, transform=CALLED, **options) as it:
        epoch = iter(it)
        next(epoch)
        assert it.stats().samples == 20
        state = it.state_dict()
    with loader(stored, transform=CALLED, **options) as it:
        it.load_state_dict(state)
        assert digest(fields(list(it))) == digest(fields(expected[1:3]))


def test_a_cache_in_memory_holds_what_views_are_made_of(stored: Path) -> None:
    expected = digest(fields(batches(stored, PAIR)))
    assert digest(fields(batches(stored, PAIR, cache="ram"))) == expected


class _HalfDamaged(MemoryImages):
    """The last rows of some samples are damaged, the others are sound; each has one colour."""

    def read(self, place: int, out: Any = None) -> Any:
        pixels = super().read(place, out)
        return np.full_like(pixels, int(self.indices[place]))

    def window(self, place: int, window: Any, factor: int = 1) -> Any:
        bottom = window[0] + window[2]
        if self.indices[place] % 3 == 0 and bottom > self.heights[place] - 6:
            raise ShardCorruptError("memory: the last rows are damaged")
        return super().window(place, window, factor)


class _DamagedData(MemoryData):
    def _images(self, name: str, indices: Any, decoder: Any) -> Any:
        return _HalfDamaged(self, name, indices)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_views_are_of_the_sample_that_stands_in_for_a_corrupt_one(num_workers: int) -> None:
    """Also those that need nothing of what is damaged: two views of two images teach nonsense."""
    data = _DamagedData(COUNT, size=(40, 50))
    options: Any = {"on_corrupt": "skip", "num_workers": num_workers, "worker_method": "thread"}
    made = batches(data, T.Views(4, [T.RandomCrop(30)]), **options)
    stood_in = 0
    for batch in made:
        colours = torch.stack([view.flatten(1).float().mean(1) for view in batch.image])
        assert torch.equal(colours, (batch.label // 3).float().expand(4, -1))
        stood_in += int((batch.label // 3 % 3 != 0).sum())
    assert 2 * COUNT * 2 / 3 < stood_in < 2 * COUNT


def test_samples_of_a_dataset_have_views(stored: Path) -> None:
    dataset = fastdata.open(stored, transform=[CALLED, T.ToDtype(torch.float32)])
    image, label = dataset[3]
    assert [tuple(view.shape) for view in image] == [(3, 16, 16)] * 2 + [(3, 8, 8)]
    assert label == 3
    dataset.transform = T.Views(2, [CROP, T.ColorJitter(0.4)])
    with pytest.raises(OptionError, match="ColorJitter takes whole batches"):
        dataset[3]


def test_batches_may_be_dicts(stored: Path) -> None:
    for transform in (PAIR, CALLED):
        plain = batches(stored, transform)
        names = {"image": "pixel_values"}
        made = batches(stored, transform, batch_format="dict", names=names)
        for one, other in zip(plain, made, strict=True):
            assert isinstance(other["pixel_values"], list)
            assert all(map(torch.equal, one.image, other["pixel_values"]))


# -- what is refused ------------------------------------------------------------------

MASKED = {"image": ImageField(), "mask": ImageField(1, mask=True)}
BOXED = {"image": ImageField(), "boxes": ArrayField("float32", (None, 4), boxes=True)}
LABELLED = {"image": ImageField(), "label": ScalarField("int64", ("a", "b"))}


@pytest.mark.parametrize(
    ("transform", "fields", "message"),
    [
        (PAIR, MASKED, "the dataset has 'mask'; pack it"),
        (PAIR, BOXED, "the dataset has 'boxes'; pack it"),
        (PAIR, {"label": ScalarField()}, "the dataset has none"),
        ([shuffle_rows, PAIR], LABELLED, "function comes before Views"),
        ([T.ColorJitter(0.1), PAIR], LABELLED, "ColorJitter comes before Views"),
        ([PAIR, PAIR], LABELLED, "Views among Views"),
        (T.Views(2, [PAIR]), LABELLED, "Views among Views"),
        ([PAIR, T.MixUp()], LABELLED, "MixUp mixes labels, which all views share"),
        (T.Views(2, [T.CutMix()]), LABELLED, "CutMix mixes labels"),
        ([PAIR, T.Normalize(MEAN, STD), CROP], LABELLED, "RandomResizedCrop comes after Norm"),
    ],
)
def test_views_that_make_no_sense_are_refused(transform: Any, fields: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Pipeline(transform, Schema(fields))


@pytest.mark.parametrize(
    "given", [(), (2,), (0, [CROP]), ((2, [CROP]), 3), (2, [CROP], 8, [FLIP]), (True, [CROP])]
)
def test_views_are_numbers_and_lists(given: Any) -> None:
    with pytest.raises(OptionError, match=r"Views takes a number|views=.* is not an integer"):
        T.Views(*given)


def test_a_callable_that_changes_a_label_in_a_view_is_refused() -> None:
    relabel = T.PerSample(lambda sample: sample._replace(label=sample.label + 1))
    with pytest.raises(OptionError, match="a callable changed 'label' of a view"):
        batches(MemoryData(4), T.Views(2, [CROP, relabel]))


def test_views_of_sizes_that_differ_in_a_batch_are_refused(stored: Path) -> None:
    with pytest.raises(OptionError, match="a batch needs images of one size"):
        batches(stored, T.Views(2, [FLIP]))


def test_a_cache_on_a_device_refuses_views(stored: Path) -> None:
    with pytest.raises(OptionError, match=r'cache="device" makes one view.*cache="ram"'):
        loader(stored, transform=PAIR, cache="device")
