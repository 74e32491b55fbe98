"""Geometry of whole batches: against the CPU's way, against torchvision, boxes against a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import photo, psnr

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.fill import Fill
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.render import render
from fastdata.transforms.render_device import render_on_device

sides = st.integers(1, 12)

BEYOND: list[dict[str, Any]] = [
    {"fill": Fill((1, 2, 3), (9,))},
    {"fill": Fill((7,), (9,))},
    *({"mode": mode} for mode in ("edge", "reflect", "symmetric")),
]


def draws_for(count: int) -> Draws:
    return Draws(3, 0, 1, np.arange(count))


def tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def by_render(geometry: Geometry, images: np.ndarray, mask: bool = False) -> np.ndarray:
    """What the CPU makes of images, one by one."""
    size = (int(geometry.height[0]), int(geometry.width[0]), images.shape[3])
    out = np.full((len(images), *size), 77, np.uint8)
    for program, image, target in zip(geometry.programs(), images, out, strict=True):
        render(program, image, target, mask=mask)
    return out


def ours(geometry: Geometry, images: np.ndarray, mask: bool = False) -> np.ndarray:
    before = images.copy()
    made = render_on_device(geometry, tensor(images), mask=mask)
    np.testing.assert_array_equal(images, before)
    assert made.is_contiguous(memory_format=torch.channels_last)
    return made.permute(0, 2, 3, 1).numpy()


def photos(count: int, height: int, width: int) -> np.ndarray:
    return np.stack([photo(height, width, seed=seed) for seed in range(count)])


@given(
    shape=st.tuples(st.integers(1, 4), sides, sides, st.sampled_from([1, 3])),
    windows=st.lists(st.tuples(sides, sides), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_windows_and_flips_are_those_of_the_cpu(
    shape: tuple[int, ...], windows: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(1, 256, shape, np.uint8)
    geometry = Geometry.of([shape[1]] * shape[0], [shape[2]] * shape[0])
    for height, width in windows:
        geometry = geometry.mirror(rng.random(shape[0]) < 0.5)
        geometry = geometry.mirror_vertically(rng.random(shape[0]) < rng.integers(2) / 2)
        geometry = geometry.turn(rng.integers(0, 4, shape[0]) * rng.integers(2))
        top, left = rng.integers(-14, 14, (2, shape[0]))
        beyond: Any = rng.choice(np.array([{}, *BEYOND[images.shape[3] == 1 :]]))
        geometry = geometry.window(top, left, height, width, **beyond)
    if windows:
        geometry = geometry.turn(rng.integers(0, 2, shape[0]) * 2)
    mask = bool(seed % 2) and images.shape[3] == 1
    made = ours(geometry, images, mask)
    np.testing.assert_array_equal(made, by_render(geometry, images, mask))


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("antialias", [False, None])
def test_what_is_beyond_is_resized_as_by_the_cpu(beyond: Any, antialias: bool | None) -> None:
    images = photos(6, 50, 60)
    geometry = Geometry.of([50] * 6, [60] * 6).window(1, 2, 45, 55)
    geometry = geometry.window(np.arange(6) - 3, -4, 52, 62, **beyond)
    geometry = geometry.resize(48, 52, "bilinear", antialias).turn([0, 2, 0, 2, 0, 2])
    difference = np.abs(ours(geometry, images).astype(int) - by_render(geometry, images))
    assert difference.max() <= 1


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, None])
def test_mild_resizes_are_those_of_the_cpu(interpolation: Any, antialias: bool | None) -> None:
    images = photos(6, 50, 60)
    geometry = Geometry.of([50] * 6, [60] * 6)
    top, left = np.array([[0, 3, -4, 9, 20, -30], [0, 5, -7, 0, 25, -30]])
    geometry = geometry.window(top, left, [49, 41, 47, 45, 31, 43], [59, 31, 43, 59, 37, 43])
    geometry = geometry.resize(48, 52, interpolation, antialias)
    geometry = geometry.mirror(np.arange(6) % 2 == 1).window(2, -3, 44, 44)
    geometry = geometry.turn(np.arange(6) % 4)
    difference = np.abs(ours(geometry, images).astype(int) - by_render(geometry, images))
    assert difference.max() <= {"nearest": 0, "bilinear": 1, "bicubic": 1}[interpolation]


def test_masks_are_nearest() -> None:
    # Of 32 pixels no centre lies between two of at most 50.
    rng = np.random.default_rng(1)
    masks = rng.integers(0, 256, (5, 40, 50, 1), np.uint8)
    geometry = T.RandomResizedCrop(32).plan(Geometry.of([40] * 5, [50] * 5), draws_for(5))
    made = ours(geometry, masks, mask=True)
    np.testing.assert_array_equal(made, by_render(geometry, masks, mask=True))
    assert set(np.unique(made)) <= set(np.unique(masks))


@pytest.mark.parametrize(("interpolation", "lowest"), [("bilinear", 45), ("bicubic", 40)])
@pytest.mark.parametrize("antialias", [None, True])
def test_random_resized_crops_are_close_to_those_of_the_cpu(
    interpolation: Any, lowest: float, antialias: bool | None
) -> None:
    count = 24
    images = photos(count, 150, 180)
    geometry = T.RandomResizedCrop(64, interpolation=interpolation, antialias=antialias).plan(
        Geometry.of([150] * count, [180] * count), draws_for(count)
    )
    geometry = T.RandomHorizontalFlip().plan(geometry, draws_for(count))
    made, expected = ours(geometry, images), by_render(geometry, images)
    figures = [psnr(a, b) for a, b in zip(made, expected, strict=True)]
    assert min(figures) >= lowest
    assert np.abs(made.astype(int) - expected).max() <= 3


def test_resizes_agree_with_torchvision() -> None:
    with np.load(Path(__file__).parent / "references" / "transforms.npz") as file:
        theirs = dict(file)
    images = theirs["images"].transpose(0, 2, 3, 1)
    start = Geometry.of([15] * 5, [21] * 5)
    modes = {"bilinear": "bilinear", "bicubic": "bicubic", "nearest-exact": "nearest"}
    seen = 0
    for name, expected in theirs.items():
        if not name.startswith("resized/"):
            continue
        seen += 1
        _, _, mode, antialias = name.split("/")
        geometry = start.window(2, 3, 11, 17).resize(
            *expected.shape[2:],
            modes[mode],
            antialias == "True",  # type: ignore[arg-type]
        )
        made = ours(geometry, images).transpose(0, 3, 1, 2)
        assert np.abs(made.astype(int) - expected).max() <= (0 if "nearest" in mode else 2), name
    assert seen == 12
    centred = T.CenterCrop((10, 30)).plan(start, draws_for(5))
    np.testing.assert_array_equal(ours(centred, images).transpose(0, 3, 1, 2), theirs["centred"])
    padded = start.window(1 - 4, 6 - 4, 15, 21).mirror(np.ones(5, bool))
    np.testing.assert_array_equal(ours(padded, images).transpose(0, 3, 1, 2), theirs["padded"])


def test_floating_images_are_resized_unrounded() -> None:
    images = tensor(photos(2, 20, 20)).double()
    geometry = Geometry.of([20] * 2, [20] * 2).resize(40, 30, "bilinear", False)
    made = render_on_device(geometry, images)
    expected = torch.nn.functional.interpolate(images, (40, 30), mode="bilinear")
    assert made.dtype == torch.float64
    torch.testing.assert_close(made, expected, atol=1e-4, rtol=1e-5)


def test_nothing_to_do_is_nothing_done() -> None:
    images = tensor(photos(2, 5, 5))
    assert render_on_device(Geometry.of([5, 5], [5, 5]), images) is images


def test_plans_that_do_not_fit_are_refused() -> None:
    images = tensor(photos(2, 20, 30))
    with pytest.raises(OptionError, match="planned for 2 images, but these are 2 of 20 x 30"):
        render_on_device(Geometry.of([20, 20], [30, 31]).resize(5, 5), images)
    with pytest.raises(OptionError, match="makes heights of 5 to 6 pixels"):
        render_on_device(Geometry.of([20, 20], [30, 30]).resize([5, 6], 5), images)


@pytest.mark.gpu
def test_a_gpu_renders_what_the_cpu_renders(cuda: torch.device) -> None:
    images = tensor(photos(16, 90, 100))
    for interpolation in ("nearest", "bilinear", "bicubic"):
        geometry = T.RandomResizedCrop(48, interpolation=interpolation).plan(  # type: ignore[arg-type]
            Geometry.of([90] * 16, [100] * 16), draws_for(16)
        )
        geometry = T.RandomHorizontalFlip().plan(geometry, draws_for(16))
        there = render_on_device(geometry, images.to(cuda)).cpu()
        here = render_on_device(geometry, images)
        assert (there.int() - here.int()).abs().max() <= (interpolation != "nearest")


# -- boxes -----------------------------------------------------------------------------


def one_box(geometry: Geometry, at: int, box: np.ndarray) -> list[float]:
    """Follow one box through the program of one image."""
    left, top, right, bottom = box.tolist()
    height, width = int(geometry.source_height[at]), int(geometry.source_width[at])
    program = geometry.programs()[at]
    for operation in program.operations:
        if hasattr(operation, "top"):
            left, right = (min(max(x - operation.left, 0), operation.width) for x in (left, right))
            top, bottom = (min(max(y - operation.top, 0), operation.height) for y in (top, bottom))
        else:
            left, right = (x * operation.width / width for x in (left, right))
            top, bottom = (y * operation.height / height for y in (top, bottom))
        height, width = operation.height, operation.width
    if program.flip:
        left, right = width - right, width - left
    return [left, top, right, bottom]


def test_boxes_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(5)
    count = 40
    height, width = rng.integers(50, 90, (2, count))
    counts = rng.integers(0, 5, count)
    corners = (
        rng.uniform(0, 1, (counts.sum(), 2, 2))
        * np.repeat(np.stack([width, height], 1), counts, 0)[:, None]
    )
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    geometry = Geometry.of(height, width)
    for transform in (T.RandomResizedCrop((40, 60)), T.RandomHorizontalFlip(), T.CenterCrop(50)):
        geometry = transform.plan(geometry, draws_for(count))
    before = boxes.copy()
    found = T.transform_boxes(geometry, boxes, counts)
    np.testing.assert_array_equal(boxes, before)
    of = np.repeat(np.arange(count), counts)
    expected = np.array([one_box(geometry, at, box) for at, box in zip(of, boxes, strict=True)])
    np.testing.assert_allclose(found.boxes, expected, atol=1e-9)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.kept, np.arange(len(boxes)))

    for min_side in (0, 3):
        left = T.transform_boxes(geometry, boxes, counts, drop_empty=True, min_side=min_side)
        least = max(min_side, 1e-9)
        seen = (expected[:, 2] - expected[:, 0] >= least) & (
            expected[:, 3] - expected[:, 1] >= least
        )
        assert 0 < seen.sum() < len(boxes)
        np.testing.assert_allclose(left.boxes, expected[seen], atol=1e-9)
        np.testing.assert_array_equal(left.kept, np.flatnonzero(seen))
        np.testing.assert_array_equal(left.counts, [(of[seen] == at).sum() for at in range(count)])


def test_boxes_follow_what_is_in_them() -> None:
    image = np.zeros((1, 60, 80, 1), np.uint8)
    image[0, 21:33, 34:58] = 255
    geometry = Geometry.of([60], [80]).window(10, 20, 40, 50).resize(80, 150, "nearest")
    geometry = geometry.mirror(np.array([True])).window(-3, 5, 90, 140)
    made = ours(geometry, image)[0, :, :, 0]
    rows, columns = np.flatnonzero(made.any(1)), np.flatnonzero(made.any(0))
    box = T.transform_boxes(geometry, [[34, 21, 58, 33]], [1]).boxes[0]
    np.testing.assert_array_equal(box, [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def test_no_boxes_are_no_boxes() -> None:
    geometry = Geometry.of([5, 5], [5, 5]).resize(3, 3)
    found = T.transform_boxes(geometry, np.zeros((0, 4)), [0, 0], drop_empty=True)
    assert found.boxes.shape == (0, 4)
    np.testing.assert_array_equal(found.counts, [0, 0])


@pytest.mark.parametrize(
    ("boxes", "counts"),
    [(np.zeros((3, 4)), [1, 1]), (np.zeros((3, 3)), [1, 1, 1]), (np.zeros((2, 4)), [2])],
)
def test_boxes_without_their_counts_are_refused(boxes: np.ndarray, counts: list[int]) -> None:
    with pytest.raises(OptionError, match="one count for each of 2 images"):
        T.transform_boxes(Geometry.of([5, 5], [5, 5]), boxes, counts)
