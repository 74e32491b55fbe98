"""Transforms: geometry against plain loops, pixels against PIL."""

from __future__ import annotations

import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_data import MemoryData
from PIL import Image
from samples import encode, photo, psnr, write_shard

from fastdata import loader
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.random import Draws, SampleKeys
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.transforms import render as render_module
from fastdata.transforms.fill import Fill
from fastdata.transforms.geometry import Geometry, Window
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.pixel import PixelTable, as_words
from fastdata.transforms.render import render

SCHEMA = Schema({"image": ImageField(), "label": ScalarField()})
WITH_MASK = Schema({"image": ImageField(), "mask": ImageField(channels=1, mask=True)})
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

sides = st.integers(1, 40)

BEYOND: list[dict[str, Any]] = [
    {"fill": Fill((7,), (9,))},
    {"fill": Fill((1, 2, 3), (9,))},
    *({"mode": mode} for mode in ("edge", "reflect", "symmetric")),
]
"""What windows find beyond an image, besides zero."""


def draws_for(count: int = 1, seed: int = 0) -> Draws:
    return Draws(seed, 0, 1, np.arange(count))


def plan(transform: Any, height: Any, width: Any, seed: int = 0) -> Geometry:
    start = Geometry.of(np.atleast_1d(height), np.atleast_1d(width))
    return transform.plan(start, draws_for(len(start), seed))


def run(geometry: Geometry, image: np.ndarray, *, at: int = 0, mask: bool = False) -> np.ndarray:
    size = (int(geometry.height[at]), int(geometry.width[at]), image.shape[2])
    out = np.full(size, 77, np.uint8)
    before = image.copy()
    render(geometry.programs()[at], image, out, mask=mask)
    np.testing.assert_array_equal(image, before)
    return out


# -- geometry -----------------------------------------------------------------------


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    kinds = st.one_of(
        st.tuples(
            st.just("window"),
            st.integers(-9, 9),
            st.integers(-9, 9),
            sides,
            sides,
            st.sampled_from([{}, *BEYOND]),
        ),
        st.sampled_from([("flip",), ("flip rows",), *(("turn", k) for k in range(-1, 5))]),
    )
    return draw(st.lists(kinds, max_size=5))


def padded_window(
    image: np.ndarray, top: int, left: int, rows: int, columns: int, beyond: dict[str, Any]
) -> np.ndarray:
    """A window of the image as `numpy.pad` makes it larger."""
    sides = [(60, 60), (60, 60), (0, 0)]
    mode = beyond.get("mode", "constant")
    if mode == "constant":
        fill = beyond.get("fill", Fill()).image
        padded = np.stack([np.pad(image[..., 0], sides[:2])] * 3, -1)
        padded[:] = fill
        padded[60:-60, 60:-60] = image
    else:
        padded = np.pad(image, sides, mode)
    return padded[top + 60 : top + 60 + rows, left + 60 : left + 60 + columns]


def turned(
    geometry: Geometry, image: np.ndarray, operation: tuple[Any, ...]
) -> tuple[Geometry, np.ndarray]:
    if operation[0] == "turn":
        return geometry.turn(operation[1]), np.rot90(image, operation[1])
    if operation[0] == "flip":
        return geometry.mirror(np.array([True])), image[:, ::-1]
    return geometry.mirror_vertically(np.array([True])), image[::-1]


@given(height=sides, width=sides, todo=operations())
def test_windows_and_flips_are_exact_in_any_order(
    height: int, width: int, todo: list[tuple[Any, ...]]
) -> None:
    image = photo(height, width)
    geometry = Geometry.of([height], [width])
    expected = image
    for operation in todo:
        if operation[0] != "window":
            geometry, expected = turned(geometry, expected, operation)
        else:
            _, top, left, rows, columns, beyond = operation
            geometry = geometry.window(top, left, rows, columns, **beyond)
            expected = padded_window(expected, top, left, rows, columns, beyond)
    np.testing.assert_array_equal(run(geometry, image), expected)


@given(height=sides, width=sides, todo=operations())
def test_region_is_all_that_is_read(height: int, width: int, todo: list[tuple[Any, ...]]) -> None:
    geometry = Geometry.of([height], [width])
    for operation in todo:
        if operation[0] == "window":
            geometry = geometry.window(*operation[1:5], **operation[5])
        else:
            geometry, _ = turned(geometry, np.zeros((1, 1)), operation)
    top, left, rows, columns = (int(part[0]) for part in geometry.region)
    assert 0 <= top <= top + rows <= height
    assert 0 <= left <= left + columns <= width
    image = photo(height, width)
    elsewhere = 255 - image
    elsewhere[top : top + rows, left : left + columns] = image[
        top : top + rows, left : left + columns
    ]
    np.testing.assert_array_equal(run(geometry, image), run(geometry, elsewhere))


def test_crops_fold_into_one_window() -> None:
    geometry = Geometry.of([50, 60], [70, 80]).window(3, 4, 40, 50).window(1, 2, 30, 30)
    assert [p.operations for p in geometry.programs()] == [(Window(4, 6, 30, 30),)] * 2


def test_nothing_to_do_is_no_operation() -> None:
    geometry = Geometry.of([50, 50], [70, 70])
    assert geometry.window(0, 0, 50, 70).resize(50, 70).identity
    assert not geometry.mirror(np.array([False, True])).identity


def test_windows_within_reflected_ones_fold_into_them() -> None:
    geometry = Geometry.of([50], [70]).window(-4, -4, 58, 78, mode="reflect").window(1, 2, 30, 30)
    assert geometry.programs()[0].operations == (Window(-3, -2, 30, 30, mode="reflect"),)
    inside = Geometry.of([50], [70]).window(1, 2, 30, 30, mode="edge", fill=Fill((3,)))
    assert inside.programs()[0].operations == (Window(1, 2, 30, 30),)


# -- random resized crop ------------------------------------------------------------


def reference_random_resized_crop(
    height: int, width: int, scale: Any, ratio: Any, draws: Draws
) -> tuple[int, int, int, int]:
    """torchvision's get_params in plain Python, on our random numbers."""
    uniform = draws.uniform(20)[0].tolist()
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(10):
        target_area = area * (scale[0] + (scale[1] - scale[0]) * uniform[attempt])
        low, high = log_ratio
        aspect = math.exp(low + (high - low) * uniform[10 + attempt])
        w = round(math.sqrt(target_area * aspect))
        h = round(math.sqrt(target_area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(draws.integers(height - h + 1, first=20)[0, 0])
            left = int(draws.integers(width - w + 1, first=21)[0, 0])
            return top, left, h, w
    in_ratio = width / height
    if in_ratio < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif in_ratio > ratio[1]:
        h, w = height, round(height * ratio[1])
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@given(
    height=st.integers(1, 600),
    width=st.integers(1, 600),
    scale=st.sampled_from([(0.08, 1.0), (0.9, 1.0), (1.0, 1.0), (0.001, 0.01)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.1, 0.2), (3.0, 5.0)]),
    seed=st.integers(0, 2**64),
)
def test_random_resized_crop_is_torchvisions(
    height: int, width: int, scale: Any, ratio: Any, seed: int
) -> None:
    geometry = plan(T.RandomResizedCrop(7, scale, ratio), height, width, seed)
    found = tuple(int(part[0]) for part in geometry.region)
    expected = reference_random_resized_crop(height, width, scale, ratio, draws_for(1, seed))
    if expected[2] and expected[3]:  # a fallback may round to nothing; then ours is 1 pixel
        assert found == expected
    assert (geometry.height[0], geometry.width[0]) == (7, 7)


def test_a_batch_is_planned_as_its_samples_are() -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 500, (2, 300))
    for transform in (T.RandomResizedCrop(9), T.RandomCrop(9, padding=9), T.RandomHorizontalFlip()):
        start = Geometry.of(heights, widths)
        batch = transform.plan(start, draws_for(300)).programs()
        for at in range(0, 300, 7):
            one = Geometry.of(heights[at : at + 1], widths[at : at + 1])
            draws = Draws(0, 0, 1, np.array([at]))
            assert transform.plan(one, draws).programs() == [batch[at]]


def test_crop_area_and_ratio_have_the_documented_distributions() -> None:
    n = 20_000
    geometry = plan(T.RandomResizedCrop(9), np.full(n, 2000), np.full(n, 2000))
    _, _, height, width = geometry.region
    # In a square image a try fits unless it is large and long: look at small areas.
    share = height * width / 4e6
    small = share < 0.5
    counts, _ = np.histogram(share[small], 10, (0.08, 0.5))
    assert abs(counts / counts.mean() - 1).max() < 0.15
    log_ratio = np.log(width / height)[small]
    counts, _ = np.histogram(log_ratio, 10, (math.log(3 / 4), math.log(4 / 3)))
    assert abs(counts / counts.mean() - 1).max() < 0.15


# -- the other crops and sizes ------------------------------------------------------


def reference_center_crop(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """torchvision's center_crop, step by step."""
    rows, columns = image.shape[:2]
    if width > columns or height > rows:
        left = (width - columns) // 2 if width > columns else 0
        top = (height - rows) // 2 if height > rows else 0
        right = (width - columns + 1) // 2 if width > columns else 0
        bottom = (height - rows + 1) // 2 if height > rows else 0
        image = np.pad(image, ((top, bottom), (left, right), (0, 0)))
        rows, columns = image.shape[:2]
    top, left = round((rows - height) / 2.0), round((columns - width) / 2.0)
    return image[top : top + height, left : left + width]


@given(height=sides, width=sides, size=st.tuples(sides, sides))
def test_center_crop_is_torchvisions(height: int, width: int, size: tuple[int, int]) -> None:
    image = photo(height, width)
    result = run(plan(T.CenterCrop(size), height, width), image)
    np.testing.assert_array_equal(result, reference_center_crop(image, *size))


@given(
    height=sides,
    width=sides,
    padding=st.one_of(
        st.integers(0, 9),
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        st.tuples(*[st.integers(0, 9)] * 4),
    ),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_random_crop_is_a_crop_of_the_padded_image(
    height: int, width: int, padding: Any, seed: int, data: st.DataObject
) -> None:
    if isinstance(padding, int):
        left = top = right = bottom = padding
    elif len(padding) == 2:
        (left, top), (right, bottom) = padding, padding
    else:
        left, top, right, bottom = padding
    image = photo(height, width)
    padded = np.pad(image, ((top, bottom), (left, right), (0, 0)))
    rows = data.draw(st.integers(1, padded.shape[0]))
    columns = data.draw(st.integers(1, padded.shape[1]))
    result = run(plan(T.RandomCrop((rows, columns), padding), height, width, seed), image)
    y, x = draws_for(1, seed).integers(
        [padded.shape[0] - rows + 1, padded.shape[1] - columns + 1], 2
    )[0]
    np.testing.assert_array_equal(result, padded[y : y + rows, x : x + columns])


@pytest.mark.parametrize("lists", [False, True])
def test_images_of_one_pixel_are_made_in_planes(tmp_path: Path, lists: bool) -> None:
    image = photo(4, 6)
    record = Record("a", (encode(image, "raw"), 0))
    path = write_shard(tmp_path / "a.lmdb", [record], SCHEMA)
    for transform in (
        T.Resize((1, 1), "nearest"),
        [T.CenterCrop(1), T.RandomHorizontalFlip(1)],
        [T.CenterCrop(1), T.RandomVerticalFlip(1)],
        [T.CenterCrop(1), T.RandomRotation((90, 90))],
        [T.CenterCrop(1), T.RandomAffine(0, scale=(0.9, 0.9))],
        [T.CenterCrop(1), T.Pad(1), T.CenterCrop(1)],
    ):
        [batch] = loader(path, transform=transform, image_lists=lists, num_workers=0)
        pixel = batch.image[0]
        assert pixel.shape == (3, 1, 1)
        assert pixel.flatten().tolist() in image.reshape(-1, 3).tolist(), transform


def test_random_crop_reaches_every_place() -> None:
    geometry = plan(T.RandomCrop(30, padding=1), np.full(500, 32), np.full(500, 30))
    places = {program.operations[0][:2] for program in geometry.programs()}
    assert places == {(y, x) for y in range(-1, 4) for x in range(-1, 2)}


def test_random_crop_of_too_small_an_image_is_refused() -> None:
    with pytest.raises(OptionError, match=r"32 x 32 pixels, but sample 1 has 30 x 42 .*Resize"):
        plan(T.RandomCrop(32, padding=1), [40, 28], [40, 40])


@pytest.mark.parametrize(
    ("size", "max_size", "before", "after"),
    [
        (256, None, (300, 400), (256, 341)),
        (256, None, (400, 300), (341, 256)),
        (256, None, (300, 300), (256, 256)),
        (256, None, (100, 199), (256, 509)),
        (256, 300, (300, 400), (225, 300)),
        (256, 300, (1000, 300), (300, 90)),
        (256, 300, (300, 310), (256, 264)),
        ((20, 30), None, (300, 400), (20, 30)),
        ([64], None, (128, 256), (64, 128)),
    ],
)
def test_resize_gives_torchvisions_sizes(
    size: Any, max_size: int | None, before: tuple[int, int], after: tuple[int, int]
) -> None:
    geometry = plan(T.Resize(size, max_size=max_size), *before)
    assert (geometry.height[0], geometry.width[0]) == after


def test_flip_mirrors_with_its_probability() -> None:
    assert plan(T.RandomHorizontalFlip(1.0), [5] * 9, [5] * 9).flip.all()
    assert not plan(T.RandomHorizontalFlip(0.0), [5] * 9, [5] * 9).flip.any()
    share = plan(T.RandomHorizontalFlip(0.3), [5] * 9999, [5] * 9999).flip.mean()
    assert abs(share - 0.3) < 0.02


@pytest.mark.parametrize("channels", [1, 3])
def test_a_flip_behind_a_resize_mirrors_its_result(channels: int) -> None:
    image = photo(50, 70, channels)
    plain = Geometry.of([50], [70]).window(5, 6, 40, 50).resize(33, 34)
    mirrored = plain.mirror(np.array([True]))
    np.testing.assert_array_equal(run(mirrored, image), run(plain, image)[:, ::-1])


# -- pixels of a resize -------------------------------------------------------------

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def pil_resize(image: np.ndarray, height: int, width: int, name: str = "bilinear") -> np.ndarray:
    planes = [
        np.asarray(Image.fromarray(image[..., c]).resize((width, height), FILTERS[name]))
        for c in range(image.shape[2])
    ]
    return np.stack(planes, 2)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("source", [(60, 80), (150, 190), (240, 330), (700, 500)])
def test_antialias_gives_pils_pixels(name: Any, channels: int, source: tuple[int, int]) -> None:
    image = photo(source[0] + 10, source[1] + 20, channels)
    geometry = Geometry.of([source[0] + 10], [source[1] + 20]).window(4, 7, *source)
    result = run(geometry.resize(112, 96, name, True), image)
    crop = image[4 : 4 + source[0], 7 : 7 + source[1]]
    assert psnr(result, pil_resize(crop, 112, 96, name)) > 60


@pytest.mark.parametrize(
    "source", [(80, 90), (112, 156), (156, 150), (100, 157), (157, 100), (400, 300)]
)
def test_the_automatic_filter_is_close_to_pils_at_any_shrink(source: tuple[int, int]) -> None:
    image = photo(*source)
    geometry = Geometry.of([source[0]], [source[1]])
    expected = pil_resize(image, 112, 112)
    automatic = run(geometry.resize(112, 112), image)
    assert psnr(automatic, expected) > 50
    exact = run(geometry.resize(112, 112, "bilinear", True), image)
    assert abs(automatic.astype(int) - exact).max() <= 2


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resizing as it is where fastdata's library was not compiled."""
    monkeypatch.setattr(render_module, "compiled", lambda: False)


@pytest.mark.usefixtures("uncompiled")
def test_every_thread_makes_the_same_pixels_and_keeps_its_switch_of_ipp() -> None:
    image = photo(100, 110)
    geometry = Geometry.of([100], [110]).resize(112, 112)

    def work(switch: bool) -> tuple[np.ndarray, bool]:
        cv2.ipp.setUseIPP_NotExact(switch)
        before = cv2.ipp.useIPP_NotExact()  # always false without IPP
        return run(geometry, image), cv2.ipp.useIPP_NotExact() == before

    with ThreadPoolExecutor(1) as other:
        expected = other.submit(run, geometry, image).result()
        assert not other.submit(cv2.ipp.useIPP_NotExact).result()
        for switch in (True, False):
            for pixels, kept in (other.submit(work, switch).result(), work(switch)):
                np.testing.assert_array_equal(pixels, expected)
                assert kept


@pytest.mark.usefixtures("uncompiled")
def test_the_switch_is_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(cv2, "resize", fail)
    with pytest.raises(MemoryError, match="no room"):
        run(Geometry.of([50], [50]).resize(60, 60), photo(50, 50))
    assert not cv2.ipp.useIPP_NotExact()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.skipif("disabled" in cv2.ipp.getIppVersion(), reason="OpenCV without IPP")
def test_linear_enlarging_is_ipps() -> None:
    image = photo(100, 110)
    result = run(Geometry.of([100], [110]).resize(112, 128), image)
    own = cv2.resize(image, (128, 112), interpolation=cv2.INTER_LINEAR)
    assert (result != own).any()
    assert abs(result.astype(int) - own).max() <= 1


def test_bicubic_enlarging_is_opencvs() -> None:
    image = photo(100, 110)
    result = run(Geometry.of([100], [110]).resize(112, 128, "bicubic"), image)
    expected = cv2.resize(image, (128, 112), interpolation=cv2.INTER_CUBIC)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("uncompiled")
def test_builds_of_opencv_without_ipp_use_its_own_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_module, "_IPP", None)
    image = photo(100, 110)
    result = run(Geometry.of([100], [110]).resize(112, 128), image)
    np.testing.assert_array_equal(
        result, cv2.resize(image, (128, 112), interpolation=cv2.INTER_LINEAR)
    )


@given(height=sides, width=sides, size=st.tuples(sides, sides))
def test_masks_are_resized_by_nearest_neighbour(
    height: int, width: int, size: tuple[int, int]
) -> None:
    mask = np.random.default_rng(0).integers(0, 255, (height, width, 1), np.uint8)
    result = run(Geometry.of([height], [width]).resize(*size), mask, mask=True)
    rows = (np.arange(size[0]) + 0.5) * height / size[0]
    columns = (np.arange(size[1]) + 0.5) * width / size[1]
    # Where a centre falls on a border between pixels, rounding may go either way.
    clear_rows = abs(rows - rows.round()) > 1e-3
    clear_columns = abs(columns - columns.round()) > 1e-3
    expected = mask[rows.astype(int)][:, columns.astype(int)]
    clear = np.ix_(clear_rows, clear_columns)
    np.testing.assert_array_equal(result[clear], expected[clear])
    assert set(result.ravel()) <= set(mask.ravel())


def test_images_that_cannot_be_written_to_are_resized() -> None:
    image = photo(60, 60)
    image.flags.writeable = False
    for antialias in (True, False):
        geometry = Geometry.of([60], [60]).window(1, 1, 50, 50).resize(20, 20, antialias=antialias)
        assert run(geometry, image).shape == (20, 20, 3)


# -- pixel values -------------------------------------------------------------------


def test_normalize_takes_uint8_as_zero_to_one() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    result = T.Normalize(MEAN, STD)(images)
    expected = images.double() / 255
    for channel in range(3):
        expected[:, channel] = (expected[:, channel] - MEAN[channel]) / STD[channel]
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))],
        [T.Normalize((0.0,), (255.0,))],
        [T.ColorJitter(), T.Normalize((127.5,), (127.5,))],
        [T.ToDtype(torch.float16), T.Normalize((127.5,), (127.5,))],
        [T.Views(2, [T.Normalize((127.5,), (127.5,))])],
        [torch.clone, T.Normalize((127.5,), (127.5,))],
        [torch.clone, T.ToDtype(torch.float32), T.Normalize((127.5,), (127.5,))],
        [torch.clone, T.ColorJitter(), T.Normalize((127.5,), (127.5,))],
        [T.Normalize((127.5,), (127.5,)), torch.clone],
    ],
)
def test_normalize_warns_once_of_numbers_for_values_up_to_255(transforms: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        options = {"batch_size": 4, "num_workers": 0, "transform": transforms}
        with loader(MemoryData(9, size=(8, 8)), **options) as it:
            list(it)
            list(it)
    (warning,) = caught
    assert warning.category is UserWarning
    assert "mean and std are in 0..1" in str(warning.message)
    assert "divide mean and std by 255, too" in str(warning.message)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "transforms",
    [
        [T.Normalize((1.0, 0.0, -3.0), (1.0, 0.2, 0.2))],
        [T.ToDtype(torch.float32, scale=False), T.Normalize((127.5,), (127.5,))],
        [T.Normalize(MEAN, STD), T.Normalize((2.0,), (3.0,))],
        [torch.Tensor.float, T.Normalize((127.5,), (127.5,))],
        [torch.Tensor.float, T.ToDtype(torch.float16), T.Normalize((127.5,), (127.5,))],
        [torch.Tensor.float, T.RandomErasing(), T.Normalize((127.5,), (127.5,))],
    ],
)
def test_normalize_does_not_warn_where_numbers_may_be_right(transforms: Any) -> None:
    data = MemoryData(9, size=(8, 8))
    with loader(data, batch_size=4, num_workers=0, transform=transforms) as it:
        list(it)


def test_to_dtype_scales_uint8_only() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert T.ToDtype(torch.float64)(images).tolist() == pytest.approx([0, 0.2, 1])
    assert T.ToDtype(torch.float32, scale=False)(images).tolist() == [0, 51, 255]
    assert T.ToDtype(torch.float16)(torch.tensor([2.0])).tolist() == [2]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "chain",
    [
        [T.Normalize((0.5,), (0.25,))],
        [T.ToDtype(torch.float16)],
        [T.ToDtype(torch.bfloat16, scale=False)],
        [T.ToDtype(torch.float64), T.Normalize((0.1,), (2.0,)), T.ToDtype(torch.float16)],
    ],
)
def test_a_table_gives_the_values_of_its_chain(channels: int, chain: list[Any]) -> None:
    image = photo(20, 30, channels)
    table = PixelTable(chain, channels)
    expected = torch.from_numpy(image).permute(2, 0, 1)
    for transform in chain:
        expected = transform(expected)
    out = torch.empty((20, 30, channels), dtype=table.dtype)
    assert out.dtype == expected.dtype
    table.apply(image[None], as_words(out)[None])
    assert torch.equal(out.permute(2, 0, 1), expected)


# -- pipelines ----------------------------------------------------------------------


def test_transforms_of_one_class_draw_independently() -> None:
    pipeline = Pipeline([T.RandomHorizontalFlip(), T.RandomHorizontalFlip()], SCHEMA)
    assert pipeline.geometry is not None
    start = Geometry.of([9] * 1000, [9] * 1000)
    flip = pipeline.geometry.plan(start, 0, SampleKeys(0, np.arange(1000))).flip
    assert 0.4 < flip.mean() < 0.6  # the same draws twice would never flip


def sample(height: int = 12, width: int = 16, label: int = 3) -> Any:
    image = torch.from_numpy(photo(height, width)).permute(2, 0, 1)
    return SCHEMA.sample_type(image, label)


def through(transforms: Any, value: Any, schema: Schema = SCHEMA) -> Any:
    return Pipeline(transforms, schema).run([value], 0, SampleKeys(0, np.array([5])))[0]


def test_own_transforms_may_follow_a_callable() -> None:
    before = sample()
    after = through([lambda image: 255 - image, T.CenterCrop(8), T.ToDtype(torch.float32)], before)
    torch.testing.assert_close(after.image, (255 - before.image[:, 2:10, 4:12]) / 255)


def test_a_callable_may_follow_pixel_transforms() -> None:
    after = through([T.Normalize(MEAN, STD), lambda image: image.mean(0, keepdim=True)], sample())
    assert after.image.shape == (1, 12, 16)
    assert after.image.dtype == torch.float32


class _Albumentation:
    """Looks like an object of the albumentations package, and insists on its conventions."""

    __module__ = "albumentations.augmentations"

    def __call__(self, *, image: np.ndarray, masks: Any = None) -> dict[str, Any]:
        assert image.dtype == np.uint8
        assert image.ndim == 3
        result = {"image": image[:, ::-1]}
        if masks is not None:
            result["masks"] = [mask[:, ::-1] for mask in masks]
        return result


def test_albumentations_get_arrays_and_masks() -> None:
    before = sample()
    assert torch.equal(through(_Albumentation(), before).image, before.image.flip(-1))
    masked = WITH_MASK.sample_type(before.image, before.image[:1])
    after = through(_Albumentation(), masked, WITH_MASK)
    assert torch.equal(after.image, before.image.flip(-1))
    assert torch.equal(after.mask, before.image[:1].flip(-1))


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (lambda image: None, "returned NoneType; expected is a torch tensor of shape"),
        (lambda image: image[0], r"returned Tensor of shape \(12, 16\)"),
        (
            [lambda image: image / 255, T.CenterCrop(4)],
            "CenterCrop takes uint8 images .* torch.float32; put CenterCrop before it",
        ),
        (T.PerSample(lambda s: s.image), "expects a named tuple with the fields image, label"),
    ],
)
def test_callables_that_return_something_else_are_named(transforms: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        through(transforms, sample())


def test_images_of_a_sample_must_agree_in_size() -> None:
    value = WITH_MASK.sample_type(
        torch.zeros(3, 9, 9, dtype=torch.uint8), torch.zeros(1, 9, 8, dtype=torch.uint8)
    )
    with pytest.raises(OptionError, match="sample 5 has 'image' of 9 x 9 and 'mask' of 9 x 8"):
        through(T.CenterCrop(4), value, WITH_MASK)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomResizedCrop(0), "size=0 is not an integer from 1 to 65,500"),
        (lambda: T.RandomResizedCrop((1, 2, 3)), "pair"),
        (lambda: T.RandomResizedCrop(9, scale=(0.5, 0.1)), "0 < low <= high"),
        (lambda: T.RandomResizedCrop(9, ratio=3), "ratio is a pair"),
        (lambda: T.RandomResizedCrop(9, interpolation="area"), "one of bilinear, bicubic, nearest"),
        (lambda: T.RandomResizedCrop(9, interpolation=Image.Resampling.LANCZOS), r"not .*lanczos"),
        (lambda: T.Resize(9, interpolation=4), r"bilinear, bicubic, nearest, not 4 \(box\)"),
        (lambda: T.Resize(9, interpolation=6), "bilinear, bicubic, nearest, not 6"),
        (lambda: T.Resize(9, interpolation=True), "bilinear, bicubic, nearest, not True"),
        (lambda: T.Resize(9, interpolation=None), "bilinear, bicubic, nearest, not None"),
        (lambda: T.RandAugment(interpolation=3), r"nearest, bilinear, not 3 \(bicubic\)"),
        (lambda: T.RandomResizedCrop(9, antialias="yes"), "antialias is True, False or None"),
        (lambda: T.CenterCrop("9"), "is not an integer from 1"),
        (lambda: T.RandomCrop(9, padding=-1), "padding=-1 is not an integer from 0"),
        (lambda: T.RandomCrop(9, padding=(1, 2, 3)), "a pair or four ints"),
        (lambda: T.Resize(9, max_size=9), "greater than size"),
        (lambda: T.Resize((9, 9), max_size=12), "leave it out"),
        (lambda: T.RandomHorizontalFlip(1.5), "probability from 0 to 1"),
        (lambda: T.Normalize((0.5,), (0.0,)), "has a zero"),
        (lambda: T.Normalize((0.5,), (1, 1)), "one number a channel each, not 1 and 2"),
        (lambda: T.Resize(9, interpolation=False), "interpolation is one of .*not False"),
        (lambda: T.Normalize(0.5, (1,)), "mean is a list of numbers, one a channel, not 0.5"),
        (lambda: T.ToDtype(torch.int64), "floating torch.dtype, not torch.int64"),
        (lambda: T.PerSample(3), "PerSample takes a callable, not 3"),
    ],
)
def test_bad_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


class InterpolationMode(Enum):
    """torchvision's enum of this name, which tests may not have."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (InterpolationMode.NEAREST, "nearest"),
        (InterpolationMode.NEAREST_EXACT, "nearest"),
        (InterpolationMode.BILINEAR, "bilinear"),
        (InterpolationMode.BICUBIC, "bicubic"),
        (Image.Resampling.NEAREST, "nearest"),
        (Image.Resampling.BICUBIC, "bicubic"),
        (0, "nearest"),
        (2, "bilinear"),
        (3, "bicubic"),
        ("nearest-exact", "nearest"),
    ],
)
def test_filters_are_taken_as_torchvision_and_pil_name_them(given: Any, name: Any) -> None:
    assert T.Resize(9, given) == T.Resize(9, name)
    assert T.RandomResizedCrop(9, interpolation=given) == T.RandomResizedCrop(9, interpolation=name)
    if name != "bicubic":
        assert T.RandAugment(interpolation=given) == T.RandAugment(interpolation=name)
        automatic = T.TrivialAugmentWide(interpolation=given)
        assert automatic == T.TrivialAugmentWide(interpolation=name)


def test_nearest_neighbour_is_that_of_pil() -> None:
    image = photo(60, 45)
    for size in ((23, 31), (97, 80)):
        pixels = run(plan(T.Resize(size, Image.Resampling.NEAREST), 60, 45), image)
        expected = Image.fromarray(image).resize(size[::-1], Image.Resampling.NEAREST)
        np.testing.assert_array_equal(pixels, np.asarray(expected))


@pytest.mark.parametrize(
    "transform",
    [
        T.RandomResizedCrop(224),
        T.CenterCrop((4, 5)),
        T.RandomCrop(32, padding=4),
        T.Resize(256, max_size=300),
        T.RandomHorizontalFlip(),
        T.Normalize(MEAN, STD),
        T.ToDtype(torch.float16),
    ],
)
def test_transforms_are_values(transform: Any) -> None:
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert repr(transform).startswith(type(transform).__name__ + "(")


@pytest.mark.parametrize("transform", [T.RandomResizedCrop(8), T.Normalize(MEAN, STD), abs])
def test_a_transform_of_images_is_refused_where_there_are_none(transform: Any) -> None:
    schema = Schema({"vector": ArrayField("float32", (9,)), "label": ScalarField()})
    with pytest.raises(OptionError, match="but the dataset has none: its fields are vector, label"):
        Pipeline([transform], schema)
    Pipeline([T.PerSample(dict)], schema)
