"""RandomZoomOut and RandomIoUCrop: against torchvision's steps, and by finding boxes again."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard, boxes_of, draw, visible
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import encode, write_shard
from worker_helpers import damage_image

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.engine import rendering
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.random import Draws
from fastdata.schema import ArrayField, ImageField, Schema
from fastdata.transforms.detection import OPTIONS, ROUNDS
from fastdata.transforms.geometry import Geometry

RESIZE = T.Resize((80, 90), "nearest")


def torchvisions_crop(
    height: int, width: int, boxes: Any, draws: Draws, crop: T.RandomIoUCrop
) -> tuple[int, int, int, int] | None:
    """torchvision's RandomIoUCrop.make_params, step by step, on our draws."""
    options = OPTIONS if crop.sampler_options is None else crop.sampler_options
    for number in range(ROUNDS):
        first = number * (1 + 4 * crop.trials)
        least = options[int(draws.integers(len(options), first=first)[0, 0])]
        if least >= 1.0:
            return None
        for r in draws.uniform(4 * crop.trials, first=first + 1)[0].reshape(-1, 4):
            scale = crop.min_scale + (crop.max_scale - crop.min_scale) * r[:2]
            new_w, new_h = int(width * scale[0]), int(height * scale[1])
            if not (new_w and new_h):
                continue
            if not crop.min_aspect_ratio <= new_w / new_h <= crop.max_aspect_ratio:
                continue
            left, top = int((width - new_w) * r[2]), int((height - new_h) * r[3])
            right, bottom = left + new_w, top + new_h
            ious = []
            for x1, y1, x2, y2 in boxes:
                if left < (x1 + x2) / 2 < right and top < (y1 + y2) / 2 < bottom:
                    across = max(0, min(x2, right) - max(x1, left))
                    down = max(0, min(y2, bottom) - max(y1, top))
                    both = across * down
                    ious.append(both / ((x2 - x1) * (y2 - y1) + new_w * new_h - both))
            if not ious or max(ious) < least:
                continue
            return top, left, new_h, new_w
    return None


def crops_of(crop: T.RandomIoUCrop, sizes: Any, boxes: Any, seed: int) -> list[Any]:
    heights, widths = np.array(sizes).T
    geometry = Geometry.of(heights, widths).with_boxes(boxes)
    planned = crop.plan(geometry, Draws(seed, 0, 1, np.arange(len(sizes))))
    regions = np.stack(planned.region, 1).tolist()
    cut = {int(row) for one in planned.centred for row in np.flatnonzero(one.which)}
    return [tuple(region) if at in cut else None for at, region in enumerate(regions)]


CROPS = [
    T.RandomIoUCrop(),
    T.RandomIoUCrop(0.1, 0.6, 0.8, 1.3, [0.3, 0.5], 13),
    T.RandomIoUCrop(0.3, 1.0, sampler_options=[0.9], trials=2),
    T.RandomIoUCrop(0.01, 0.05, sampler_options=[0.0]),
]


@pytest.mark.parametrize("crop", CROPS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_crop_is_torchvisions(crop: T.RandomIoUCrop, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = seed % 2  # centres of boxes are often at the edge of a crop
    sizes = rng.integers(1, 12 if whole else 300, (5, 2))
    boxes = []
    for at, (height, width) in enumerate(sizes.tolist()):
        corners = np.sort(rng.random((at % 4, 2, 2)), 1) * [width, height]
        corners = np.rint(corners) if whole else corners
        boxes.append(corners.reshape(-1, 4))
    made = crops_of(crop, sizes, boxes, seed)
    for at, ((height, width), own) in enumerate(zip(sizes.tolist(), boxes, strict=True)):
        draws = Draws(seed, 0, 1, np.array([at]))
        assert made[at] == torchvisions_crop(height, width, own.tolist(), draws, crop)


def test_a_centre_at_the_edge_of_a_crop_is_outside() -> None:
    crop = Geometry.of([20], [20]).window(5, 5, 10, 10, centres=np.array([True]))
    boxes = [[0, 6, 10, 12], [0, 6, 11, 12], [6, 10, 12, 20], [6, 9, 12, 20]]
    moved = T.transform_boxes(crop, boxes, [4]).boxes.tolist()
    assert moved == [[0] * 4, [0, 1, 6, 7], [0] * 4, [1, 4, 7, 10]]


def test_all_options_are_drawn() -> None:
    boxes = [np.array([[10.0, 10, 90, 90]])] * 2000
    made = crops_of(T.RandomIoUCrop(), [(100, 100)] * 2000, boxes, 1)
    whole = sum(one is None for one in made)
    assert 200 < whole < 450  # a seventh, and some of which no crop was good enough
    areas = [one[2] * one[3] for one in made if one is not None]
    assert min(areas) < 2000
    assert max(areas) > 8000


def zoomed(zoom: T.RandomZoomOut, sizes: Any, seed: int) -> Geometry:
    heights, widths = np.array(sizes).T
    return zoom.plan(Geometry.of(heights, widths), Draws(seed, 0, 1, np.arange(len(sizes))))


@given(seed=st.integers(0, 2**32), p=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_canvas_is_torchvisions(seed: int, p: float) -> None:
    sizes = np.random.default_rng(seed).integers(1, 200, (9, 2))
    zoom = T.RandomZoomOut(7, (1.0, 3.0), p)
    planned = zoomed(zoom, sizes, seed)
    for at, (height, width) in enumerate(sizes.tolist()):
        r = Draws(seed, 0, 1, np.array([at])).uniform(4)[0]
        side = 1.0 + r[1] * 2.0 if r[0] < p else 1.0
        canvas = int(height * side), int(width * side)
        assert (planned.height[at], planned.width[at]) == canvas
        left, top = int((canvas[1] - width) * r[2]), int((canvas[0] - height) * r[3])
        window = planned.programs()[at].operations
        assert not window or window[0][:4] == (-top, -left, *canvas)


# -- through the loader ---------------------------------------------------------------------


def unchanged(sample: Any) -> Any:
    return sample


class Still(T.BatchTransform):
    """Does nothing, on whole batches."""

    def draw(self, draws: Draws, shape: Any) -> dict[str, Any]:
        return {}

    def apply(self, images: torch.Tensor, parameters: Any) -> torch.Tensor:
        return images


@pytest.fixture(scope="module", params=["many sizes", "one size"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = (72, 84) if request.param == "one size" else None
    return boxed_shard(tmp_path_factory.mktemp("boxed") / "a.lmdb", size=size)


def batches(path: Path, transform: Any, **options: Any) -> list[Any]:
    defaults: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 0}
    with fastdata.loader(path, transform=transform, **{**defaults, **options}) as loader:
        return list(loader)


LISTS: dict[str, list[Any]] = {
    "zoom out": [T.RandomZoomOut(side_range=(1.0, 2.0), p=0.7), RESIZE],
    "iou crop": [T.RandomIoUCrop(), RESIZE],
    "ssd": [
        T.RandomZoomOut(p=0.6, side_range=(1.0, 1.6)),
        T.RandomVerticalFlip(),
        T.RandomIoUCrop(min_scale=0.5),
        T.RandomHorizontalFlip(),
        RESIZE,
    ],
    "twice": [T.RandomIoUCrop(min_scale=0.6), T.RandomIoUCrop(min_scale=0.6), RESIZE],
}
WAYS: dict[str, Any] = {
    "direct": (lambda some: some, {}),
    "python": (lambda some: some, {}),
    "threads": (lambda some: some, {"num_workers": 2, "worker_method": "thread"}),
    "processes": (lambda some: some, {"num_workers": 2, "worker_method": "process"}),
    "callable": (lambda some: [T.PerSample(unchanged), *some], {}),
    "batches": (lambda some: [T.CenterCrop((70, 80)), Still(), *some], {}),
    "cache": (lambda some: some, {"cache": "device"}),
}


def samples_of(batch: Any) -> list[Any]:
    return [batch._make(values) for values in zip(*batch, strict=True)]


def seen_with_centre(samples: list[Any], atol: float) -> int:
    """Find each box that is not empty in its image; return how many."""
    count = 0
    for image, own in ((sample.image, sample.boxes) for sample in samples):
        for channel, box in enumerate(own.tolist()):
            if box == [0, 0, 0, 0]:
                continue
            found = visible(image[channel].numpy())
            if found is None:
                assert min(box[2] - box[0], box[3] - box[1]) <= atol
                continue
            np.testing.assert_allclose(box, found, atol=atol)
            count += 1
    return count


@pytest.mark.parametrize(
    ("way", "name"),
    [(w, n) for w in WAYS for n in LISTS if n == "ssd" or w not in ("threads", "processes")],
)
def test_boxes_and_masks_are_where_images_show_them(
    shard: Path, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "python":
        monkeypatch.setattr(rendering, "compiled", lambda: False)
    change, options = WAYS[way]
    made = batches(shard, change(LISTS[name]), **options)
    assert sum(seen_with_centre(samples_of(batch), 2.5) for batch in made) >= 20
    empty = 0
    for batch in made:
        torch.testing.assert_close(batch.mask, batch.image.amax(1, keepdim=True))
        for boxes, whole, number in zip(batch.boxes, batch.whole, batch.number, strict=True):
            assert len(boxes) == len(whole) == int(number) % 4
            empty += int((boxes == 0).all(1).sum())
            assert (whole[(boxes == 0).all(1)] == 0).all()
    assert (empty > 3) == (name != "zoom out")
    dropped = batches(
        shard, [*change(LISTS[name]), T.DropEmptyBoxes("boxes", "classes")], **options
    )
    for one, batch in zip(made, dropped, strict=True):
        assert torch.equal(one.image, batch.image)
        for boxes, left, classes in zip(one.boxes, batch.boxes, batch.classes, strict=True):
            stays = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
            assert torch.equal(boxes[stays], left)
            assert len(left) == len(classes)


def test_batches_do_not_depend_on_who_makes_them(shard: Path) -> None:
    expected = batches(shard, LISTS["ssd"])
    for way in ("threads", "processes", "callable"):
        options = WAYS[way][1]
        # A callable has a place of its own, so it comes last here.
        some = LISTS["ssd"] if way != "callable" else [*LISTS["ssd"], T.PerSample(unchanged)]
        for one, other in zip(expected, batches(shard, some, **options), strict=True):
            assert torch.equal(one.image, other.image)
            for a, b in zip(one.boxes, other.boxes, strict=True):
                assert torch.equal(a, b)


def test_a_sample_that_comes_again_is_cropped_anew(shard: Path) -> None:
    options = {"shuffle": False, "sampler": [1, 2, 3, 5, 6, 7] * 3}
    batch = batches(shard, LISTS["iou crop"], batch_size=18, **options)[0]
    alone = batches(shard, LISTS["iou crop"], batch_size=1, **options)
    assert torch.equal(batch.image, torch.cat([one.image for one in alone]))
    assert not torch.equal(batch.image[:6], batch.image[6:12])


def test_a_box_whose_centre_is_cut_away_is_empty(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "boxes": ArrayField("float32", (None, 4), boxes=True)})
    boxes = np.float32([[2, 2, 30, 30], [20, 20, 62, 60], [50, 5, 62, 20]])
    image = encode(draw(boxes.astype(int), 64, 64), "raw")
    path = write_shard(
        tmp_path / "a.lmdb", [Record(str(k), (image, boxes)) for k in range(200)], schema
    )
    crop = T.RandomIoUCrop(sampler_options=[0.0, 0.3])
    seen = set()
    heights = np.full(200, 64)
    operation = fastdata.random.operation_id(0, "RandomIoUCrop")
    planned = crop.plan(
        Geometry.of(heights, heights).with_boxes([boxes.astype(float)] * 200),
        Draws(3, 0, operation, np.arange(200)),
    )
    [batch] = batches(path, [crop, T.Resize((64, 64))], batch_size=200, shuffle=False)
    for at, made in enumerate(batch.boxes):
        top, left, height, width = (int(part[at]) for part in planned.region)
        for (x1, y1, x2, y2), box in zip(boxes.tolist(), made.tolist(), strict=True):
            inside = left < (x1 + x2) / 2 < left + width and top < (y1 + y2) / 2 < top + height
            assert inside == (box != [0, 0, 0, 0])
            seen.add(inside)
    assert seen == {True, False}


def test_a_canvas_is_filled(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "a.lmdb", size=(40, 50))
    zoom = T.RandomZoomOut({"image": (1, 2, 3), "mask": 9}, (2.0, 2.0), 1.0)
    for batch in batches(path, [zoom, T.Resize((80, 100), "nearest")]):
        assert (batch.image == torch.tensor([1, 2, 3])[:, None, None]).all(1).any(-1).any(-1).all()
        beyond = (batch.image == torch.tensor([1, 2, 3])[:, None, None]).all(1)
        assert (beyond.sum((-2, -1)) == 80 * 100 - 40 * 50).all()
        assert torch.equal(beyond[:, None], batch.mask == 9)


def test_a_stand_in_of_a_corrupt_sample_is_cropped_by_its_own_boxes(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "damaged.lmdb", size=(72, 84))
    damage_image(path, 2, 3, 9, 22, 31)
    for workers in ({}, WAYS["threads"][1], WAYS["processes"][1]):
        made = batches(path, LISTS["iou crop"], on_corrupt="skip", **workers)
        assert sum(seen_with_centre(samples_of(batch), 1.0) for batch in made) > 15


def test_sizes_without_a_resize_are_refused(shard: Path) -> None:
    for transform in ([T.RandomZoomOut()], [T.RandomIoUCrop()], [T.RandomIoUCrop(), T.Resize(50)]):
        with pytest.raises(OptionError, match=r"makes several: put T.Resize\(\(height, width"):
            batches(shard, transform)
    for transform in ([T.RandomZoomOut(), RESIZE], [T.RandomIoUCrop(), RESIZE]):
        with fastdata.loader(shard, batch_size=4, transform=transform, num_workers=0) as loader:
            assert "80, 90" in repr(loader)
    with fastdata.loader(shard, batch_size=1, transform=T.RandomZoomOut()) as loader:
        assert "H, W" in repr(loader)
    sizes = {tuple(b.image.shape[2:]) for b in batches(shard, T.RandomIoUCrop(), batch_size=1)}
    assert len(sizes) > 10


@pytest.mark.parametrize("library", ["compiled", "python"])
@pytest.mark.parametrize("options", [{}, WAYS["threads"][1], WAYS["processes"][1]])
def test_images_of_many_sizes_are_lists(
    shard: Path, library: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "python":
        monkeypatch.setattr(rendering, "compiled", lambda: False)
    transform = LISTS["ssd"][:-1]
    made = batches(shard, transform, image_lists=True, **options)
    samples = [sample for batch in made for sample in samples_of(batch)]
    assert seen_with_centre(samples, 1.0) > 20
    assert len({sample.image.shape for sample in samples}) > 20
    single = batches(shard, transform, batch_size=1)
    for sample, batch in zip(samples, single, strict=True):
        assert torch.equal(sample.image, batch.image[0])
        assert torch.equal(sample.mask, batch.mask[0])
        assert torch.equal(sample.boxes, batch.boxes[0])


def test_single_samples_are_cropped_by_their_boxes(shard: Path) -> None:
    dataset = fastdata.open(shard, transform=[T.RandomIoUCrop(), RESIZE])
    torch.manual_seed(1)
    samples = [dataset[k] for k in range(40)]
    assert sum(bool((sample.boxes == 0).all(1).any()) for sample in samples) > 2
    assert seen_with_centre(samples, 2.5) > 10


# -- what is refused ------------------------------------------------------------------------


def test_data_without_boxes_are_refused(tmp_path: Path) -> None:
    path = write_shard(
        tmp_path / "a.lmdb",
        [Record("0", (encode(draw(boxes_of(3, 40, 50), 40, 50), "raw"),))],
        Schema({"image": ImageField()}),
    )
    with pytest.raises(OptionError, match="the dataset has none: pack them with"):
        batches(path, [T.RandomIoUCrop(), RESIZE])
    with pytest.raises(OptionError, match="with_boxes"):
        T.RandomIoUCrop().plan(Geometry.of([4], [5]), Draws(0, 0, 0, np.arange(1)))


def test_a_canvas_has_a_limit() -> None:
    side = int(MAX_PIXELS**0.5) // 3
    zoomed(T.RandomZoomOut(side_range=(1, 3)), [(side, side)], 0)
    for seed, p in itertools.product(range(3), (0.01, 1.0)):
        with pytest.raises(OptionError, match="Put a Resize before it"):
            zoomed(T.RandomZoomOut(p=p), [(9, 9), (side, side)], seed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomZoomOut(side_range=(0.5, 2)), "side_range"),
        (lambda: T.RandomZoomOut(side_range=(3, 2)), "side_range"),
        (lambda: T.RandomZoomOut(p=2), "probability"),
        (lambda: T.RandomZoomOut(fill=0.5), "whole number"),
        (lambda: T.RandomIoUCrop(0.5, 0.3), "min_scale"),
        (lambda: T.RandomIoUCrop(0.5, 1.3), "max_scale is at most 1"),
        (lambda: T.RandomIoUCrop(min_aspect_ratio=0), "min_aspect_ratio"),
        (lambda: T.RandomIoUCrop(sampler_options=[]), "sampler_options"),
        (lambda: T.RandomIoUCrop(sampler_options=0.3), "sampler_options"),
        (lambda: T.RandomIoUCrop(trials=0), "trials"),
    ],
)
def test_other_parameters_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()
