"""Boxes of a loader's batches are where their images show them, whichever way they are made."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import BOXED, FIELDS, boxed_shard, boxes_of, check_seen, draw
from samples import encode, write_shard
from simulated_device import SimulatedStreams
from worker_helpers import damage_image

import fastdata
from fastdata import options as loader_options
from fastdata import transforms as T  # noqa: N812
from fastdata.engine import delivery
from fastdata.errors import FormatError, OptionError
from fastdata.formats.writer import Record
from fastdata.random import Draws
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.transforms.base import GeometricTransform
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.pipeline import Pipeline

FLIP = T.RandomHorizontalFlip()


def crop(size: Any, **options: Any) -> T.RandomResizedCrop:
    return T.RandomResizedCrop(size, interpolation="nearest", **options)


class Odd(GeometricTransform):
    """Geometry of many steps, any of them: windows inside and beyond, resizes, flips, turns."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    def output_size(self) -> tuple[int, int]:
        return 70, 65

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        random = np.random.default_rng(self.seed)
        for step in range(4):
            part = draws.integers(1000, 5, first=5 * step) / 1000
            height, width = geometry.height, geometry.width
            kind = random.integers(5)
            if kind == 0:
                rows = np.rint(height * (0.6 + 0.7 * part[:, 0])).astype(np.int64)
                columns = np.rint(width * (0.6 + 0.7 * part[:, 1])).astype(np.int64)
                top = np.rint((height - rows) * (1.6 * part[:, 2] - 0.3)).astype(np.int64)
                left = np.rint((width - columns) * (1.6 * part[:, 3] - 0.3)).astype(np.int64)
                geometry = geometry.window(top, left, rows, columns)
            elif kind == 1:
                rows, columns = random.integers(60, 140, 2)
                geometry = geometry.resize(rows, columns, "nearest")
            elif kind == 2:
                geometry = geometry.mirror(part[:, 4] < 0.5)
            elif kind == 3:
                geometry = geometry.mirror_vertically(part[:, 4] < 0.5)
            else:
                geometry = geometry.turn((part[:, 4] * 4).astype(np.int64))
        return geometry.resize(70, 65, "nearest")


GEOMETRIES: dict[str, list[Any]] = {
    "random resized crop": [crop((48, 56)), FLIP],
    "small crops": [crop(40, scale=(0.02, 0.2)), FLIP],
    "resize": [T.Resize((90, 50), "nearest")],
    "resize and centre": [T.Resize(50, "nearest"), T.CenterCrop((50, 44)), FLIP],
    "centre with padding": [T.CenterCrop((150, 90)), FLIP],
    "random crop with padding": [FLIP, T.RandomCrop((60, 50), padding=(3, 9, 5, 2))],
    "vertical flips": [crop((48, 56)), T.RandomVerticalFlip(), FLIP],
    "many": [T.RandomCrop((50, 48)), FLIP, crop((64, 60)), T.RandomCrop((50, 62), padding=4), FLIP],
    **{f"odd {seed}": [Odd(seed)] for seed in range(6)},
}


def unchanged(sample: Any) -> Any:
    return sample


class Still(T.BatchTransform):
    """Does nothing, on whole batches."""

    def draw(self, draws: Draws, shape: Any) -> dict[str, Any]:
        return {}

    def apply(self, images: torch.Tensor, parameters: Any) -> torch.Tensor:
        return images


WAYS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "direct": lambda geometry: geometry,
    "callable before": lambda geometry: [T.PerSample(unchanged), *geometry],
    "callable between": lambda geometry: [*geometry[:1], T.PerSample(unchanged), *geometry[1:]],
    "whole batches": lambda geometry: [Still(), *geometry],
    "split": lambda geometry: [T.CenterCrop((56, 58)), Still(), *geometry],
}


@pytest.fixture(scope="module")
def many_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxed_shard(tmp_path_factory.mktemp("boxed") / "many.lmdb")


@pytest.fixture(scope="module")
def one_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxed_shard(tmp_path_factory.mktemp("boxed") / "one.h5", size=(72, 84))


def batches(path: Path, transform: Any, **options: Any) -> list[Any]:
    defaults = {"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 0}
    with fastdata.loader(path, transform=transform, **{**defaults, **options}) as loader:
        return list(loader)


def check_batch(batch: Any, atol: float = 1.0, moves: int = 1) -> int:
    """Hold every field of boxes against the pixels; return how many boxes are to be seen.

    A pixel of a resize by nearest neighbour is off by half a pixel at most, and so much more
    after another resize that enlarges.  Whole numbers are rounded each time they are moved.
    """
    seen = check_seen(batch.image, batch.boxes, atol)
    grey = batch.image.amax(1, keepdim=True)
    torch.testing.assert_close(batch.mask, grey)  # the boxes follow the mask as well
    for at, boxes in enumerate(batch.boxes):
        assert boxes.dtype == torch.float64
        assert batch.whole[at].dtype == torch.int16
        if moves == 1:
            assert batch.whole[at].tolist() == boxes.round().tolist()
        torch.testing.assert_close(batch.whole[at].double(), boxes, atol=moves * 0.75, rtol=0)
        assert len(boxes) == len(batch.classes[at]) == int(batch.number[at]) % 4
        for own in (batch.first[at], batch.pair[at, 0]):
            if len(boxes):
                torch.testing.assert_close(own, boxes[0].float())
    assert batch.first.shape == (len(batch.image), 4)
    assert batch.pair.shape == (len(batch.image), 2, 4)
    assert batch.first.dtype == batch.pair.dtype == torch.float32
    return seen


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (way, name)
        for way in WAYS
        for name in GEOMETRIES
        # Geometry is planned in two ways: an image at a time, or for a batch.
        if way in ("direct", "whole batches") or name not in ("odd 2", "odd 3", "odd 4", "odd 5")
    ],
)
def test_boxes_are_where_images_show_them(
    many_sizes: Path, one_size: Path, name: str, way: str
) -> None:
    path = one_size if way == "whole batches" else many_sizes
    made = batches(path, WAYS[way](GEOMETRIES[name]))
    atol = 2.5 if name == "many" or name.startswith("odd") else 1.0
    moves = 2 if way in ("callable between", "split") else 1
    seen = sum(check_batch(batch, atol, moves) for batch in made)
    assert seen >= (5 if name == "small crops" else 10)


def test_boxes_do_not_depend_on_who_makes_a_batch(many_sizes: Path) -> None:
    transform = [crop((48, 56)), FLIP, T.Normalize((0.5,) * 3, (0.5,) * 3)]
    expected = batches(many_sizes, transform)
    for options in (
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "worker_method": "process"},
    ):
        made = batches(many_sizes, transform, **options)
        for one, other in zip(expected, made, strict=True):
            for name in BOXED.boxes:
                for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
                    assert torch.equal(a, b)
    in_samples = batches(many_sizes, [*transform, T.PerSample(unchanged)])
    for one, other in zip(expected, in_samples, strict=True):
        assert torch.equal(torch.cat(one.boxes), torch.cat(other.boxes))


@pytest.mark.parametrize("name", ["small crops", "random crop with padding", "odd 3"])
@pytest.mark.parametrize("way", ["direct", "whole batches", "split"])
def test_boxes_of_a_cache_on_a_device_are_where_its_images_show_them(
    one_size: Path, name: str, way: str
) -> None:
    transform = WAYS[way](GEOMETRIES[name])
    atol = 2.5 if name == "many" or name.startswith("odd") else 1.0
    made = batches(one_size, transform, cache="device")
    assert sum(check_batch(batch, atol, 2 if way == "split" else 1) for batch in made) >= 5
    transform = [*transform, T.DropEmptyBoxes("boxes", "classes")]
    expected = batches(one_size, transform)
    for one, other in zip(expected, batches(one_size, transform, cache="device"), strict=True):
        for field in (*BOXED.boxes, "classes"):
            for a, b in zip(getattr(one, field), getattr(other, field), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("seed", range(3))
def test_boxes_travel_to_a_device(
    one_size: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    transform = [crop(48), FLIP, T.DropEmptyBoxes("boxes", "classes")]
    expected = batches(one_size, transform)
    device = SimulatedStreams(seed)
    monkeypatch.setattr(delivery, "streams_of", lambda name: device)
    monkeypatch.setattr(loader_options, "streams_of", lambda name: device)
    seen: list[list[bytes]] = []

    def look(memory: list[np.ndarray[Any, Any]]) -> None:
        seen.append([part.tobytes() for part in memory])

    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 2}
    with fastdata.loader(one_size, **options, transform=transform, device="cuda") as loader:
        for batch in loader:
            device.launch(look, *(boxes for boxes in batch.boxes if len(boxes)))
            del batch
    device.finish()
    assert seen == [[b.numpy().tobytes() for b in batch.boxes if len(b)] for batch in expected]


def test_without_geometry_boxes_are_as_stored(one_size: Path) -> None:
    for transform in (None, [T.Normalize((0.5,) * 3, (0.5,) * 3)], [T.PerSample(unchanged)]):
        for batch in batches(one_size, transform):
            for index, boxes, whole in zip(batch.number, batch.boxes, batch.whole, strict=True):
                expected = boxes_of(int(index), 72, 84)
                assert boxes.tolist() == whole.tolist() == expected.tolist()
    sample = fastdata.open(one_size)[7]
    assert sample.boxes.tolist() == boxes_of(7, 72, 84).tolist()


def test_boxes_that_a_crop_misses_stay_in_line_with_their_classes(many_sizes: Path) -> None:
    made = batches(many_sizes, GEOMETRIES["small crops"])
    sides = torch.cat([torch.cat(b.boxes)[:, 2:] - torch.cat(b.boxes)[:, :2] for b in made])
    assert (sides >= 0).all()
    missed = (sides == 0).any(1)
    assert 10 < int(missed.sum()) < len(missed)
    corners = torch.cat([torch.cat(batch.boxes) for batch in made])
    assert corners.min() >= 0
    assert corners.max() <= 40 + 1e-9


@pytest.mark.parametrize("way", ["direct", "callable before", "whole batches"])
def test_a_stand_in_of_a_corrupt_sample_has_its_own_boxes(tmp_path: Path, way: str) -> None:
    path = boxed_shard(tmp_path / "damaged.lmdb", size=(72, 84))
    damage_image(path, 2, 3, 9, 22, 31)
    with fastdata.loader(
        path,
        batch_size=20,
        num_workers=0,
        on_corrupt="skip",
        transform=WAYS[way]([crop((60, 50), scale=(0.5, 1)), FLIP]),
    ) as loader:
        made = list(loader)
        assert loader.stats().skipped_samples == 5
    assert not {2, 3, 9, 22, 31} & set(torch.cat([batch.number for batch in made]).tolist())
    assert sum(map(check_batch, made)) > 30


def test_boxes_arrive_on_a_device_and_are_moved_there(one_size: Path) -> None:
    transform = [Still(), crop((48, 56)), FLIP]
    for batch in batches(one_size, transform, device="meta"):
        assert {boxes.device.type for boxes in batch.boxes} == {"meta"}
        assert {boxes.shape[1] for boxes in batch.boxes} == {4}
        assert batch.pair.shape == (len(batch.image), 2, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["direct", "whole batches", "split"])
def test_boxes_on_a_gpu_are_those_of_the_cpu(one_size: Path, cuda: torch.device, way: str) -> None:
    transform = [
        *WAYS[way]([crop((48, 56)), FLIP]),
        T.DropEmptyBoxes(boxes="boxes", also="classes", min_side=5),
    ]
    expected = batches(one_size, transform)
    for one, other in zip(expected, batches(one_size, transform, device=cuda), strict=True):
        for name in (*BOXED.boxes, "classes"):
            for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
                assert b.device.type == "cuda"
                assert torch.equal(a, b.cpu())


# -- boxes that go ------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("min_side", [1, 6.5, 1000])
def test_dropped_boxes_take_their_entries_along(one_size: Path, way: str, min_side: float) -> None:
    geometry = WAYS[way](GEOMETRIES["small crops"])
    drop = T.DropEmptyBoxes(boxes="boxes", also=("classes", "points"), min_side=min_side)
    before = batches(one_size, geometry)
    after = batches(one_size, [*geometry, drop, T.Normalize((0.5,) * 3, (0.5,) * 3)])
    count = 0
    for whole, left in zip(before, after, strict=True):
        for at, boxes in enumerate(whole.boxes):
            keep = [
                n for n, (a, b, c, d) in enumerate(boxes.tolist()) if min(c - a, d - b) >= min_side
            ]
            count += len(keep)
            for name in ("boxes", "classes", "points"):
                expected, found = getattr(whole, name)[at], getattr(left, name)[at]
                assert found.dtype == expected.dtype
                assert torch.equal(found, expected[keep])
            assert torch.equal(left.whole[at], whole.whole[at])  # of another field of boxes
    assert (count > 0) == (min_side < 1000)


def test_boxes_may_go_before_a_callable_sees_them(one_size: Path) -> None:
    seen: list[int] = []

    def look(sample: Any) -> Any:
        seen.extend((sample.boxes[:, 2:] - sample.boxes[:, :2]).amin(1).tolist())
        return sample

    transform = [*GEOMETRIES["small crops"], T.DropEmptyBoxes(boxes="boxes"), T.PerSample(look)]
    batches(one_size, transform)
    assert seen
    assert min(seen) >= 1


def test_a_drop_can_be_pickled(one_size: Path) -> None:
    transform = [crop(40), T.DropEmptyBoxes("boxes", "classes"), Still(), T.CenterCrop(30)]
    pipeline = Pipeline([*transform, T.DropEmptyBoxes("whole")], BOXED)
    copy = pickle.loads(pickle.dumps(pipeline))
    assert copy.drop == pipeline.drop
    assert copy.direct


ONE_FIELD = Schema({"image": ImageField(), "boxes": FIELDS["boxes"]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.DropEmptyBoxes(min_side=0), "min_side is a number above 0, not 0"),
        (lambda: T.DropEmptyBoxes(min_side="x"), "min_side is a number above 0, not 'x'"),  # type: ignore[arg-type]
        (lambda: Pipeline(T.DropEmptyBoxes(), BOXED), "not from 'boxes' or 'whole' or 'first'"),
        (lambda: Pipeline(T.DropEmptyBoxes("label"), ONE_FIELD), r"there are: boxes\)"),
        (
            lambda: Pipeline(T.DropEmptyBoxes(), Schema({"image": ImageField()})),
            "not from none; .*a field says boxes=True",
        ),
        (
            lambda: Pipeline(T.DropEmptyBoxes("first"), BOXED),
            "'first', .*whose first length varies",
        ),
        (lambda: Pipeline(T.DropEmptyBoxes("boxes", "number"), BOXED), "entries of 'number'"),
        (lambda: Pipeline(T.DropEmptyBoxes("boxes", "nothing"), BOXED), "it is no field"),
        (
            lambda: Pipeline([T.DropEmptyBoxes(), T.CenterCrop(3)], ONE_FIELD),
            "CenterCrop comes after DropEmptyBoxes.*behind the geometric",
        ),
        (lambda: Pipeline([T.RandAugment()], ONE_FIELD), "RandAugment moves .*boxes 'boxes'"),
        (lambda: Pipeline([T.TrivialAugmentWide()], ONE_FIELD), "boxes cannot follow"),
        (lambda: Pipeline([T.MixUp(num_classes=3)], ONE_FIELD), "MixUp moves .* leave MixUp out"),
    ],
)
def test_what_boxes_cannot_go_with_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_fields_of_other_lengths_are_found_out(one_size: Path) -> None:
    def shorten(sample: Any) -> Any:
        return sample._replace(classes=sample.classes[:1])

    transform = [T.PerSample(shorten), T.DropEmptyBoxes("boxes", "classes")]
    with pytest.raises(OptionError, match="sample 2 has 2 'boxes', but 1 'classes'"):
        batches(one_size, transform, shuffle=False)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda boxes: {"xyxy": boxes}, r"made dict of some: put the geometric .* before it"),
        (lambda boxes: boxes[:, :2], r"'boxes' holds boxes, .* made Tensor of shape \(0, 2\)"),
    ],
)
def test_what_a_callable_made_of_boxes_is_looked_at(
    one_size: Path, made: Callable[[Any], Any], message: str
) -> None:
    def change(sample: Any) -> Any:
        return sample._replace(boxes=made(sample.boxes))

    with pytest.raises(OptionError, match=message):
        batches(one_size, [T.PerSample(change), T.CenterCrop(30)], shuffle=False)


def test_a_callable_may_make_other_boxes(one_size: Path) -> None:
    def halve(sample: Any) -> Any:
        return sample._replace(boxes=sample.boxes[:1].half())

    for batch in batches(one_size, [T.PerSample(halve), T.CenterCrop((60, 80)), FLIP]):
        assert all(boxes.dtype == torch.float16 and len(boxes) <= 1 for boxes in batch.boxes)
        check_seen(batch.image, batch.boxes)


# -- by itself ----------------------------------------------------------------------------


def test_whole_numbers_stay_within_their_dtype() -> None:
    geometry = Geometry.of([10, 10], [10, 10]).resize(400, 1000)
    boxes = [torch.tensor([[1, 2, 3, 9]], dtype=torch.uint8), torch.zeros(0, 4, dtype=torch.uint8)]
    moved = T.move_boxes(geometry, boxes)
    assert [part.tolist() for part in moved] == [[[100, 80, 255, 255]], []]
    assert {part.dtype for part in moved} == {torch.uint8}
    assert boxes[0].tolist() == [[1, 2, 3, 9]]
    shrunk = T.move_boxes(Geometry.of([10], [10]).resize(4, 4), torch.tensor([[1, 4, 4, 9]]))
    assert shrunk.tolist() == [[0, 2, 2, 4]]  # 0.4, 1.6, 1.6, 3.6


def test_boxes_beyond_an_image_stay_so_unless_it_is_cut() -> None:
    box = torch.tensor([[[-10.0, 2, 30, 25]]])
    geometry = Geometry.of([20], [20])
    mirrored = T.move_boxes(geometry.mirror(np.array([True])), box)
    assert mirrored.tolist() == [[[-10, 2, 30, 25]]]
    assert T.move_boxes(geometry.resize(40, 10), box).tolist() == [[[-5, 4, 15, 50]]]
    assert T.move_boxes(geometry.window(5, 5, 10, 10), box).tolist() == [[[0, 0, 10, 10]]]


@pytest.mark.parametrize("transform", [T.CenterCrop(32), T.RandomZoomOut(), T.RandomIoUCrop()])
def test_boxes_beyond_an_image_do_not_depend_on_its_batch(tmp_path: Path, transform: Any) -> None:
    schema = Schema({"image": ImageField(), "boxes": ArrayField("float32", (None, 4), boxes=True)})
    boxes = np.float32([[-5, -6, 40, 50], [10, 10, 20, 20]])
    sizes = [(32, 32), (40, 50)] * 6
    records = [
        Record(str(at), (encode(draw(boxes[1:].astype(int), *size), "raw"), boxes))
        for at, size in enumerate(sizes)
    ]
    path = write_shard(tmp_path / "a.lmdb", records, schema)
    made = []
    for batch_size in (1, 12):
        options = {"batch_size": batch_size, "num_workers": 0, "image_lists": True}
        with fastdata.loader(path, transform=transform, **options) as batches:
            made.append([one for batch in batches for one in batch.boxes])
    for alone, together in zip(*made, strict=True):
        assert torch.equal(alone, together)


def test_boxes_of_any_shape_keep_it() -> None:
    geometry = Geometry.of([10, 10], [10, 10]).resize(20, 30)
    boxes = [torch.ones(2, 3, 4), torch.ones(0, 5, 4)]
    moved = T.move_boxes(geometry, boxes)
    assert [part.shape for part in moved] == [(2, 3, 4), (0, 5, 4)]
    assert moved[0][1, 2].tolist() == [3, 2, 3, 2]
    with pytest.raises(OptionError, match="'boxes' holds boxes of 1 images, not of 2"):
        T.move_boxes(geometry, boxes[:1])


# -- what a schema says -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArrayField("float32", (None, 5), boxes=True), r"ends with 4, .*\(None, 5\)"),
        (lambda: ArrayField("float32", (4, None), boxes=True), "shape ends with 4"),
        (lambda: ArrayField("bool", (None, 4), boxes=True), "this is bool of shape"),
        (lambda: ArrayField("float32", (None, 4), boxes=1), "boxes is true or false, not 1"),  # type: ignore[arg-type]
        (
            lambda: Schema({"a": ArrayField("int32", (4,), boxes=True), "b": ScalarField()}),
            "'a' holds boxes of images, but there is no image field",
        ),
    ],
)
def test_boxes_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_only_boxes_are_said_to_be_boxes() -> None:
    entries = {entry["name"]: entry for entry in BOXED.to_json()}
    assert entries["boxes"] == {
        "name": "boxes",
        "kind": "array",
        "dtype": "float64",
        "shape": [None, 4],
        "boxes": True,
    }
    assert "boxes" not in entries["classes"]
    assert Schema.from_json(BOXED.to_json()) == BOXED
    assert list(BOXED.boxes) == ["boxes", "whole", "first", "pair"]
    entries["boxes"]["shape"] = [None, 3]
    with pytest.raises(FormatError, match="bad schema: boxes are numbers"):
        Schema.from_json(list(entries.values()))


def test_classes_of_boxes_are_kept_where_there_are_any() -> None:
    named = ArrayField("int64", (None,), classes=("cat", "dog"))
    schema = Schema({"image": ImageField(), "labels": named, "other": ArrayField("int64")})
    entries = {entry["name"]: entry for entry in schema.to_json()}
    assert entries["labels"]["classes"] == ["cat", "dog"]
    assert "classes" not in entries["other"]
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.classes == ("cat", "dog")
    # A sample's own label comes first.
    labelled = Schema({**schema, "label": ScalarField(classes=("wood", "meadow"))})
    assert labelled.classes == ("wood", "meadow")
    assert ArrayField(classes=()) == ArrayField()
    with pytest.raises(OptionError, match="class names are Unicode text without NUL, not 7"):
        ArrayField(classes=("cat", 7))  # type: ignore[arg-type]
