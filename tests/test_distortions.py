"""Rotations and distortions through the loader, against torchvision's formulas in plain NumPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import visible
from samples import encode, mask, photo, psnr, write_shard
from worker_helpers import unchanged

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.random import Draws, SampleKeys, operation_id
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema
from fastdata.transforms import displacement, render_warp
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.render import render
from fastdata.transforms.render_device import render_canvas, render_on_device
from fastdata.transforms.warps import Displacement

SCHEMA = Schema(
    {
        "image": ImageField(),
        "mask": ImageField(channels=1, mask=True),
        "number": ScalarField(),
    }
)
COUNT = 6
SEED = 4

Places = Callable[[Any, Any], tuple[Any, Any]]
"""From places in the result, from its top left corner, to places in the image."""


class Still(T.BatchTransform):
    """Does nothing, on whole batches."""

    def draw(self, draws: Draws, shape: Any) -> dict[str, Any]:
        return {}

    def apply(self, images: torch.Tensor, parameters: Any) -> torch.Tensor:
        return images


@pytest.fixture(scope="module", params=["raw 70 x 91", "jpeg 120 x 120", "png 61 x 50"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    codec, rows, _, columns = request.param.split()
    rows, columns = int(rows), int(columns)
    records = []
    for k in range(COUNT):
        own = encode(mask(rows, columns, seed=k), "raw" if codec == "jpeg" else codec)
        values = encode(photo(rows, columns, seed=k), codec), own, k
        records.append(Record(str(k), values))
    return write_shard(tmp_path_factory.mktemp("warped") / "a.lmdb", records, SCHEMA)


def batch_of(path: Path, transform: Any, **options: Any) -> Any:
    options = {"batch_size": COUNT, "seed": SEED, "num_workers": 0, **options}
    with fastdata.loader(path, transform=transform, **options) as loader:
        (batch,) = loader
    return batch


def arrays(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def draws_of(transform: Any, position: int = 0, count: int = COUNT) -> Draws:
    operation = operation_id(position, type(transform).__name__)
    return SampleKeys(0, np.arange(count)).draws(SEED, operation)


# -- torchvision's formulas ------------------------------------------------------------


def looked_up(
    image: np.ndarray, size: tuple[int, int], places: Places, nearest: bool, fill: Any = 0
) -> np.ndarray:
    """Sample an image as `grid_sample` with zeros beyond it, and fill as torchvision does."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    x, y = places(x, y)
    x, y = x - 0.5, y - 0.5
    values = np.dstack([image.astype(np.float64), np.ones(image.shape[:2])])

    def at(row: Any, column: Any) -> np.ndarray:
        there = (row >= 0) & (row < image.shape[0]) & (column >= 0) & (column < image.shape[1])
        found = values[row.clip(0, image.shape[0] - 1), column.clip(0, image.shape[1] - 1)]
        return found * there[..., None]

    if nearest:
        found = at(np.rint(y).astype(int), np.rint(x).astype(int))
        share = found[..., -1:]
        return np.where(share < 0.5, fill, found[..., :-1]).astype(np.uint8)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, across = (y - top)[..., None], (x - left)[..., None]
    found = (1 - down) * ((1 - across) * at(top, left) + across * at(top, left + 1))
    found += down * ((1 - across) * at(top + 1, left) + across * at(top + 1, left + 1))
    share = found[..., -1:]
    return np.rint((found[..., :-1] - fill) * share + fill).astype(np.uint8)


def affine(
    height: int, width: int, angle: float, shift: Any, scale: float, shear: Any, center: Any = None
) -> Places:
    """`_get_inverse_affine_matrix`, about the middle of the image."""
    turn, sx, sy = (math.radians(part) for part in (angle, *shear))
    cx, cy = (0, 0) if center is None else (center[0] - width / 2, center[1] - height / 2)
    a = math.cos(turn - sy) / math.cos(sy)
    b = -math.cos(turn - sy) * math.tan(sx) / math.cos(sy) - math.sin(turn)
    c = math.sin(turn - sy) / math.cos(sy)
    d = -math.sin(turn - sy) * math.tan(sx) / math.cos(sy) + math.cos(turn)

    def places(x: Any, y: Any) -> tuple[Any, Any]:
        x, y = x - width / 2 - shift[0] - cx, y - height / 2 - shift[1] - cy
        return (
            (d * x - b * y) / scale + cx + width / 2,
            (-c * x + a * y) / scale + cy + height / 2,
        )

    return places


def perspective(height: int, width: int, corners: Any) -> Places:
    """`_get_perspective_coeffs` of the corners that those of the image go to."""
    rows, right = [], []
    starts = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
    for (x, y), (u, v) in zip(corners, starts, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    a, b, c, d, e, f, g, h = np.linalg.solve(np.array(rows, float), np.array(right, float))

    def places(x: Any, y: Any) -> tuple[Any, Any]:
        depth = g * x + h * y + 1
        return (a * x + b * y + c) / depth, (d * x + e * y + f) / depth

    return places


def splitmix(word: int) -> int:
    """Return the finaliser of SplitMix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


@functools.cache
def noise_of(key: int, height: int, width: int) -> np.ndarray:
    """Return uniform noise in -1..1: four numbers of 16 bits from each word; [2, H, W]."""
    state, numbers = splitmix(key), []
    for word in range(-(-height * width // 2)):
        bits = splitmix((state + (word + 1) * 0x9E3779B97F4A7C15) % 2**64)
        numbers += [(bits >> 16 * part & 0xFFFF) for part in range(4)]
    signed = np.array(numbers, np.uint16).view(np.int16)[: 2 * height * width]
    return signed.reshape(height, width, 2).transpose(2, 0, 1) / 2**15


def blurred(noise: np.ndarray, alpha: Any, sigma: Any) -> np.ndarray:
    """Return the field of `noise` in pixels, one axis after the other."""
    made = []
    for plane, factor, own in zip(noise, alpha, sigma, strict=True):
        size = int(8 * own + 1)
        reach = (size + (size % 2 == 0)) // 2
        kernels = [np.exp(-0.5 * (np.arange(-reach, reach + 1) / one) ** 2) for one in sigma]
        across, down = (kernel / kernel.sum() for kernel in kernels)
        padded = np.pad(plane, reach, mode="reflect")
        tall = np.apply_along_axis(lambda row, k=across: np.convolve(row, k, "valid"), 1, padded)
        field = np.apply_along_axis(lambda column, k=down: np.convolve(column, k, "valid"), 0, tall)
        made.append(field * factor / 2)
    return np.stack(made)


def rotation_places(transform: Any, draws: Draws, at: int, height: int, width: int) -> Places:
    low, high = transform.degrees
    angle = low + (high - low) * draws.uniform()[at, 0]
    return affine(height, width, -angle, (0, 0), 1, (0, 0), transform.center)


def affine_places(transform: Any, draws: Draws, at: int, height: int, width: int) -> Places:
    uniform = draws.uniform(6)[at]

    def between(low: float, high: float, draw: int) -> float:
        return low + (high - low) * uniform[draw]

    shift = [
        round(between(-share * side, share * side, draw))
        for share, side, draw in zip(transform.translate, (width, height), (1, 2), strict=True)
    ]
    angle, scale = between(*transform.degrees, 0), between(*transform.scale, 3)
    shear = [between(*ends, draw) for ends, draw in zip(transform.shear, (4, 5), strict=True)]
    return affine(height, width, angle, shift, scale, shear, transform.center)


def perspective_places(transform: Any, draws: Draws, at: int, height: int, width: int) -> Places:
    most = [int(transform.distortion_scale * (side // 2)) for side in (width, height)]
    moved = [int(draws.integers(most[k % 2] + 1, 1, first=1 + k)[at, 0]) for k in range(8)]
    signs = (1, 1), (-1, 1), (-1, -1), (1, -1)
    starts = (0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)
    corners = [
        (start[0] + sign[0] * moved[2 * k], start[1] + sign[1] * moved[2 * k + 1])
        for k, (start, sign) in enumerate(zip(starts, signs, strict=True))
    ]
    return perspective(height, width, corners)


def elastic_places(transform: Any, draws: Draws, at: int, height: int, width: int) -> Places:
    noise = noise_of(int(draws.bits()[at, 0]), height, width)
    across, down = blurred(noise, transform.alpha, transform.sigma)
    return lambda x, y: (x + across, y + down)


KINDS: dict[str, tuple[Any, Callable[..., Places]]] = {
    "rotation": (lambda **k: T.RandomRotation(50, **k), rotation_places),
    "rotation about a point": (
        lambda **k: T.RandomRotation((10, 30), center=(20, 11.5), **k),
        rotation_places,
    ),
    "affine": (
        lambda **k: T.RandomAffine(25, (0.1, 0.2), (0.7, 1.4), (-9, 12, -4, 20), **k),
        affine_places,
    ),
    "perspective": (lambda **k: T.RandomPerspective(0.6, 1.0, **k), perspective_places),
    "elastic": (lambda **k: T.ElasticTransform(90, 4, **k), elastic_places),
    "uneven elastic": (
        lambda **k: T.ElasticTransform((40, 90), (2, 3.5), **k),
        elastic_places,
    ),
}

WAYS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "direct": lambda transforms: transforms,
    "callables": lambda transforms: [T.PerSample(unchanged), *transforms],
    "whole batches": lambda transforms: [Still(), *transforms],
    "cached": lambda transforms: transforms,
}


def check(made: np.ndarray, expected: np.ndarray, nearest: bool) -> None:
    assert made.shape == expected.shape
    if nearest:  # ties may go either way, and are not told from places near them in float32
        assert (made != expected).any(-1).sum() <= max(3, 2e-3 * made[..., 0].size)
    else:
        assert psnr(made, expected) > 45


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_torchvisions_formulas(
    shard: Path, kind: str, way: str, interpolation: str
) -> None:
    make, places_of = KINDS[kind]
    fill = {"image": (0, 90, 255), "mask": 77}
    transform = make(interpolation=interpolation, fill=fill)
    options = {"cache": "device"} if way == "cached" else {}
    transforms = WAYS[way]([transform])
    batch = batch_of(shard, transforms, **options)
    plain = batch_of(shard, None)
    draws = draws_of(transform, len(transforms) - 1)
    nearest = interpolation == "nearest"
    for at in range(COUNT):
        image, own = arrays(plain.image)[at], arrays(plain.mask)[at]
        size = image.shape[:2]
        places = places_of(transform, draws, at, *size)
        check(
            arrays(batch.image)[at], looked_up(image, size, places, nearest, (0, 90, 255)), nearest
        )
        check(arrays(batch.mask)[at], looked_up(own, size, places, True, 77), True)


def test_expanded_images_are_as_large_as_torchvisions() -> None:
    count = 40
    transform = T.RandomRotation(180, "bilinear", expand=True)
    draws = draws_of(transform, count=count)
    geometry = transform.plan(Geometry.of([50] * count, [71] * count), draws)
    image = photo(50, 71)
    for at, program in enumerate(geometry.programs()):
        angle = math.radians(-180 + 360 * draws.uniform()[at, 0])
        c, s = math.cos(angle), math.sin(angle)
        x = [c * u + s * v + 35.5 for u in (-35.5, 35.5) for v in (-25, 25)]
        y = [-s * u + c * v + 25 for u in (-35.5, 35.5) for v in (-25, 25)]
        height, width = (math.ceil(max(z)) - math.floor(min(z)) for z in (y, x))
        assert (geometry.height[at], geometry.width[at]) == (height, width)
        made = np.empty((height, width, 3), np.uint8)
        render(program, image, made)
        inner = affine(50, 71, -math.degrees(angle), (0, 0), 1, (0, 0))

        def places(x: Any, y: Any, inner: Any = inner, h: int = height, w: int = width) -> Any:
            return inner(x - w / 2 + 35.5, y - h / 2 + 25)

        check(made, looked_up(image, (height, width), places, False), False)


def test_half_turns_about_any_point_keep_the_size() -> None:
    heights, widths = np.indices((60, 60)).reshape(2, -1) + 1
    draws = draws_of(None, count=len(heights))
    transform = T.RandomRotation((180, 180), expand=True, center=(-30, 70.5))
    geometry = transform.plan(Geometry.of(heights, widths), draws)
    assert (geometry.height == heights).all()
    assert (geometry.width == widths).all()


def test_expanded_images_of_many_sizes_need_a_crop(shard: Path) -> None:
    transform = T.RandomRotation(45, expand=True)
    with pytest.raises(OptionError, match=r"CenterCrop|Resize"):
        batch_of(shard, transform)
    batch = batch_of(shard, [transform, T.CenterCrop(40)])
    assert batch.image.shape == (COUNT, 3, 40, 40)


# -- exact ones ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        T.RandomRotation(0, "bilinear"),
        T.RandomRotation((360, 360), "bilinear", center=(3, 4)),
        T.RandomAffine(0, (0, 0), (1, 1), 0, "bilinear"),
        T.RandomPerspective(0.9, p=0),
        T.RandomPerspective(0, p=1),
        T.ElasticTransform(0, 2),
    ],
    ids=repr,
)
def test_nothing_to_do_gives_the_same_pixels(shard: Path, transform: Any) -> None:
    batch, plain = batch_of(shard, transform), batch_of(shard, None)
    assert torch.equal(batch.image, plain.image)
    assert torch.equal(batch.mask, plain.mask)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("quarters", [-1, 1, 2, 3, 5])
def test_quarter_turns_are_exact(shard: Path, quarters: int, interpolation: Any, way: str) -> None:
    plain = batch_of(shard, None)
    options = {"cache": "device"} if way == "cached" else {}
    angle = (90 * quarters, 90 * quarters)
    turned = T.RandomRotation(angle, interpolation, expand=True)
    batch = batch_of(shard, WAYS[way]([turned]), **options)
    for name in ("image", "mask"):
        expected = torch.rot90(getattr(plain, name), quarters, (2, 3))
        assert torch.equal(getattr(batch, name), expected)
    rows, columns = plain.image.shape[2:]
    if (rows - columns) % 2 and quarters % 2 and interpolation == "bilinear":
        return
    kept = T.RandomRotation(angle, interpolation, fill=(9, 8, 7))
    with pytest.raises(OptionError, match=r"fill has 3 numbers, but 'mask' has 1 channel"):
        batch_of(shard, [kept])
    kept = T.RandomRotation(angle, interpolation, fill={"image": (9, 8, 7), "mask": 5})
    batch = batch_of(shard, WAYS[way]([kept]), **options)
    for name, fill in (("image", (9, 8, 7)), ("mask", (5,))):
        before, made = arrays(getattr(plain, name)), arrays(getattr(batch, name))
        turned_images = np.rot90(before, quarters, (1, 2))
        expected = np.full_like(before, 0) + np.array(fill, np.uint8)
        high, wide = turned_images.shape[1:3]
        for y in range(rows):
            for x in range(columns):
                v, u = y + (high - rows) // 2, x + (wide - columns) // 2
                if 0 <= v < high and 0 <= u < wide:
                    expected[:, y, x] = turned_images[:, v, u]
        np.testing.assert_array_equal(made, expected)


# -- with other geometry ---------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_warps_stand_anywhere_among_other_geometry(shard: Path, way: str) -> None:
    turn = T.RandomRotation((90, 90), expand=True)
    first, second = T.RandomRotation(40, "bilinear"), T.RandomPerspective(0.4, 1, "bilinear", 30)
    transforms = WAYS[way](
        [
            T.RandomVerticalFlip(1),
            turn,
            T.RandomHorizontalFlip(1),
            T.CenterCrop((44, 80)),
            first,
            second,
            T.RandomHorizontalFlip(1),
            T.CenterCrop((40, 39)),
            turn,
        ]
    )
    before = len(transforms) - 9
    batch = batch_of(shard, transforms, **({"cache": "device"} if way == "cached" else {}))
    plain = batch_of(
        shard, [*transforms[before : before + 1], turn, *transforms[before + 2 : before + 4]]
    )
    draws = [draws_of(one, before + at) for one, at in ((first, 4), (second, 5))]
    for name in ("image", "mask"):
        nearest = name == "mask"
        for at in range(COUNT):
            image = arrays(getattr(plain, name))[at]
            places = rotation_places(first, draws[0], at, 44, 80)
            image = looked_up(image, (44, 80), places, nearest)
            places = perspective_places(second, draws[1], at, 44, 80)
            image = looked_up(image, (44, 80), places, nearest, 30)
            image = image[:, ::-1][2:42, 20:59]
            if (80 - 39) / 2 % 1:  # halves are rounded to even
                assert round((80 - 39) / 2) == 20
            check(arrays(getattr(batch, name))[at], np.rot90(image), nearest)


def test_some_of_a_batch_are_warped_and_others_stay_turned(shard: Path) -> None:
    flip, warp = T.RandomVerticalFlip(0.5), T.RandomPerspective(0.5, 0.5)
    plain = arrays(batch_of(shard, None).image)
    for before in ([], [Still()]):
        made = arrays(batch_of(shard, [*before, flip, warp]).image)
        flipped = draws_of(flip, len(before)).uniform()[:, 0] < 0.5
        draws = draws_of(warp, len(before) + 1)
        warped = draws.uniform()[:, 0] < 0.5
        for at in range(COUNT):
            image = plain[at][::-1] if flipped[at] else plain[at]
            if warped[at]:
                size = image.shape[:2]
                places = perspective_places(warp, draws, at, *size)
                check(made[at], looked_up(image, size, places, False), False)
            else:
                np.testing.assert_array_equal(made[at], image)


def test_a_crop_before_a_warp_is_all_that_is_read() -> None:
    geometry = Geometry.of([500] * 20, [400] * 20)
    for transform in (T.RandomResizedCrop(64, scale=(0.01, 0.05)), T.RandomRotation(30)):
        geometry = transform.plan(geometry, draws_of(transform, count=20))
    _, _, height, width = geometry.region
    assert (height * width < 0.06 * 500 * 400).all()
    assert geometry.plain_crops is None


def test_batches_do_not_depend_on_who_makes_them(shard: Path) -> None:
    transforms = [
        T.RandomRotation(30, "bilinear"),
        T.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5),
        T.RandomPerspective(p=0.5),
        T.ElasticTransform(sigma=3),
        T.Normalize((0.5,) * 3, (0.5,) * 3),
    ]

    def epochs(**options: Any) -> list[Any]:
        options = {"batch_size": 3, "shuffle": True, "seed": 1, "num_workers": 0, **options}
        with fastdata.loader(shard, transform=transforms, **options) as loader:
            return [*loader, *loader]

    expected = epochs()
    assert not torch.equal(expected[0].image, expected[2].image)
    for options in ({"worker_method": "thread"}, {"worker_method": "process"}):
        for one, other in zip(expected, epochs(num_workers=2, **options), strict=True):
            assert torch.equal(one.image, other.image)
            assert torch.equal(one.mask, other.mask)
    first = {
        int(n): image for b in expected[:2] for n, image in zip(b.number, b.image, strict=True)
    }
    other_seed = epochs(seed=2)[:2]
    for batch in other_seed:
        for number, image in zip(batch.number, batch.image, strict=True):
            assert not torch.equal(image, first[int(number)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_makes_what_the_cpu_makes(kind: str) -> None:
    # Six channels: more than OpenCV takes at once.
    transform = KINDS[kind][0](interpolation="bilinear", fill=(1, 20, 40, 60, 80, 250))
    images = np.stack([photo(64, 75, 6, seed=k) for k in range(COUNT)])
    geometry = transform.plan(Geometry.of([64] * COUNT, [75] * COUNT), draws_of(transform))
    geometry = geometry.mirror(np.arange(COUNT) % 2 == 0)
    there = render_on_device(geometry, torch.from_numpy(images).permute(0, 3, 1, 2))
    for at, program in enumerate(geometry.programs()):
        made = np.empty((64, 75, 6), np.uint8)
        render(program, images[at], made)
        assert psnr(made, arrays(there)[at]) > 60


@pytest.mark.parametrize("kind", KINDS)
def test_images_on_a_canvas_are_warped_as_those_of_their_own_size(kind: str) -> None:
    height, width = np.array([40, 50, 44]), np.array([60, 43, 51])
    canvas = np.full((3, 64, 64, 3), 255, np.uint8)
    for at in range(3):
        canvas[at, : height[at], : width[at]] = photo(height[at], width[at], seed=at)
    transform = KINDS[kind][0](interpolation="bilinear", fill=9)
    draws = draws_of(transform, count=3)
    geometry = transform.plan(Geometry.of(height, width), draws).window(0, 0, 38, 40)
    made = render_canvas(geometry, torch.from_numpy(canvas)).numpy()
    for at, program in enumerate(geometry.programs()):
        expected = np.empty((38, 40, 3), np.uint8)
        render(program, canvas[at, : height[at], : width[at]], expected)
        assert psnr(made[at], expected) > 60


def test_large_images_are_looked_up_in_bands() -> None:
    transform = T.RandomAffine(20, interpolation="bilinear")
    image = photo(300, 700)
    draws = draws_of(transform, count=1)
    geometry = transform.plan(Geometry.of([300], [700]), draws)
    made = np.empty_like(image)
    render(geometry.programs()[0], image, made)
    angle = -20 + 40 * draws.uniform()[0, 0]
    places = affine(300, 700, angle, (0, 0), 1, (0, 0))
    check(made, looked_up(image, (300, 700), places, False), False)


def test_bands_of_a_displaced_image_are_parts_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = T.ElasticTransform(40, 3)
    geometry = transform.plan(Geometry.of([60], [50]), draws_of(transform, count=1))
    image = photo(60, 50)
    whole, banded = np.empty_like(image), np.empty_like(image)
    render(geometry.programs()[0], image, whole)
    monkeypatch.setattr(render_warp, "BAND_PIXELS", 350)
    render(geometry.programs()[0], image, banded)
    np.testing.assert_array_equal(whole, banded)


# -- displacements ---------------------------------------------------------------------


def test_a_field_is_the_same_wherever_it_is_made() -> None:
    keys = np.array([5, 2**63 + 9], np.uint64)
    height, width = np.array([31, 40]), np.array([45, 33])
    kind = Displacement((60.0, 90.0), (3.0, 2.0))
    there = displacement.fields(keys, height, width, (40, 45), kind, torch.device("cpu"))
    for at in range(2):
        rows, columns = int(height[at]), int(width[at])
        across, down = displacement.field(int(keys[at]), rows, columns, kind)
        expected = blurred(noise_of(int(keys[at]), rows, columns), kind.alpha, kind.sigma)
        np.testing.assert_allclose(np.stack([across, down]), expected, atol=1e-4)
        found = there[at, :rows, :columns].permute(2, 0, 1).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)
        places = torch.tensor([[0, 0], [columns - 1, rows - 1], [7, 20]])
        of = np.full(3, at)
        some = displacement.at_places(keys[of], height[of], width[of], places, kind)
        for (x, y), one in zip(places.tolist(), some.tolist(), strict=True):
            np.testing.assert_allclose(one, expected[:, y, x], atol=1e-4)


# -- boxes -----------------------------------------------------------------------------

BOXED = Schema(
    {
        "image": ImageField(),
        "mask": ImageField(channels=1, mask=True),
        "boxes": ArrayField("float64", (None, 4), boxes=True),
    }
)
BOX = [[60, 50, 95, 70], [70, 58, 78, 66], [20, 30, 20, 60]]
"""The last one is empty."""


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = np.zeros((120, 160, 3), np.uint8)
    for channel, (left, top, right, bottom) in enumerate(BOX[:2]):
        image[top:bottom, left:right, channel] = 255
    values = encode(image, "raw"), encode(image[..., :1], "raw"), np.array(BOX, float)
    records = [Record(str(k), values) for k in range(12)]
    return write_shard(tmp_path_factory.mktemp("boxed") / "a.lmdb", records, BOXED)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "transform",
    [
        T.RandomRotation(40),
        T.RandomRotation((10, 40), center=(50, 40)),
        T.RandomRotation((90, 90)),
        T.RandomAffine(20, (0.1, 0.05), (0.8, 1.2), 10),
        T.RandomPerspective(0.4, 1, "nearest"),
        T.ElasticTransform(30, interpolation="nearest"),
    ],
    ids=repr,
)
def test_boxes_are_where_images_and_masks_show_them(boxes: Path, transform: Any, way: str) -> None:
    transforms = WAYS[way](
        [T.RandomHorizontalFlip(), T.RandomCrop((112, 152)), transform, T.RandomVerticalFlip()]
    )
    options = {"cache": "device"} if way == "cached" else {}
    batch = batch_of(boxes, transforms, batch_size=12, **options)
    places = []
    for image, own, moved in zip(batch.image, batch.mask, batch.boxes, strict=True):
        for channel in range(2):
            found = visible(image[channel].numpy())
            np.testing.assert_allclose(moved[channel], found, atol=2)
        np.testing.assert_allclose(moved[0], visible(own[0].numpy()), atol=2)
        assert (moved[2, 2:] - moved[2, :2]).min() == 0  # empty ones stay empty
        places.append(tuple(moved[0].tolist()))
    assert len(set(places)) == 12 or isinstance(transform, T.RandomRotation)


def test_boxes_of_images_that_are_left_out_stay(boxes: Path) -> None:
    turn = T.RandomApply([T.RandomRotation((30, 30)), T.CenterCrop((90, 120))], 0.5)
    transforms = [turn, T.CenterCrop((80, 110))]
    batch = batch_of(boxes, transforms, batch_size=12)
    turned = 0
    for image, moved in zip(batch.image, batch.boxes, strict=True):
        np.testing.assert_allclose(moved[0], visible(image[0].numpy()), atol=1.5)
        turned += bool((moved[0] != torch.tensor([35.0, 30, 70, 50])).any())
    assert 0 < turned < 12


def test_boxes_follow_into_an_expanded_image(boxes: Path) -> None:
    transform = T.RandomRotation((25, 25), expand=True)
    batch = batch_of(boxes, transform, batch_size=12)
    for image, moved in zip(batch.image, batch.boxes, strict=True):
        np.testing.assert_allclose(moved[0], visible(image[0].numpy()), atol=1)


def test_boxes_of_the_wildest_perspectives_stay_in_their_images() -> None:
    transform = T.RandomPerspective(1, 1)
    count = 2000
    height, width = np.random.default_rng(0).integers(2, 9, (2, count))
    geometry = transform.plan(Geometry.of(height, width), draws_of(transform, count=count))
    whole = np.stack([np.zeros(count), np.zeros(count), width, height], 1)
    found = T.transform_boxes(geometry, whole, np.ones(count, int)).boxes
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (found <= whole[:, [2, 3, 2, 3]]).all()
    for at in range(0, count, 50):
        image = np.full((height[at], width[at], 3), 200, np.uint8)
        render(geometry.programs()[at], image, np.empty_like(image))


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomRotation(-3), "degrees is a number from 0 up, or a pair"),
        (lambda: T.RandomRotation((1, 2, 3)), r"degrees is a number, or a pair .*not \(1, 2, 3\)"),
        (lambda: T.RandomRotation(3, "bicubic"), "interpolation is one of nearest, bilinear"),
        (lambda: T.RandomRotation(3, center=4), r"center is a pair \(x, y\), in pixels"),
        (lambda: T.RandomRotation(3, fill=300), "fill is a whole number from 0 to 255"),
        (lambda: T.RandomAffine(3, translate=(0.1, 1.1)), "translate is a share from 0 to 1"),
        (lambda: T.RandomAffine(3, translate=0.1), "translate is a pair of shares"),
        (lambda: T.RandomAffine(3, scale=(0, 1)), "scale is a pair of factors above 0"),
        (lambda: T.RandomAffine(3, scale=(2, 1)), "scale is a pair of factors above 0, low and"),
        (lambda: T.RandomAffine((2, 1)), "degrees has a low end above its high one"),
        (lambda: T.RandomAffine(3, shear=(1, 2, 2, 1)), "shear has a low end above its high one"),
        (lambda: T.RandomAffine(3, center=(1e300, 0)), r"center is a pair \(x, y\)"),
        (lambda: T.RandomAffine(3, shear=(1, 2, 3)), "shear is a number, or 2 or 4 ends"),
        (lambda: T.RandomPerspective(1.2), "distortion_scale is a share from 0 to 1"),
        (lambda: T.RandomPerspective(p=2), "p is a probability"),
        (lambda: T.ElasticTransform(alpha="x"), "alpha is a number or a pair"),
        (lambda: T.ElasticTransform(sigma=-1), "sigma is above 0"),
        (lambda: T.ElasticTransform(sigma=(0, 1)), "sigma is above 0"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_images_too_small_or_too_large_are_refused() -> None:
    elastic = T.ElasticTransform()
    draws = draws_of(elastic, count=2)
    elastic.plan(Geometry.of([21, 40], [30, 21]), draws)
    with pytest.raises(OptionError, match=r"over 41 pixels and needs .* sample 1 has 40 x 20 .*"):
        elastic.plan(Geometry.of([21, 40], [30, 20]), draws)
    with pytest.raises(OptionError, match=r"up to 32,767 pixels .* one has 40,000; put a T.Resize"):
        T.RandomAffine(3).plan(Geometry.of([40_000, 20], [3, 20]), draws)


def test_defaults_are_torchvisions() -> None:
    assert repr(T.RandomRotation(3)).startswith(
        "RandomRotation(degrees=(-3.0, 3.0), interpolation='nearest', expand=False, center=None"
    )
    assert T.RandomPerspective() == T.RandomPerspective(0.5, 0.5, "bilinear", 0)
    assert T.ElasticTransform() == T.ElasticTransform(50.0, 5.0, "bilinear", 0)
    assert T.RandomAffine(5) == T.RandomAffine((-5, 5), None, None, None, "nearest", 0, None)
