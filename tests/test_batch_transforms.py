"""Transforms of whole batches, against what torchvision makes of single images.

`references/transforms.npz` is torchvision's part (`scripts/make_transform_references.py`).
Tolerances are those that `docs/transforms.md` states.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from samples import photo
from torch.nn import functional

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms import color, image_tensors
from fastdata.transforms.automatic import DRAWN, OPERATIONS, SIGNED
from fastdata.transforms.distributions import beta
from fastdata.transforms.image_tensors import per_image

LEVEL, FLOAT = 1, 1e-5
"""Tolerances: uint8, float32."""

ALL: list[T.BatchTransform] = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    T.RandomGrayscale(0.5),
    T.GaussianBlur((5, 3), p=0.5),
    T.RandomErasing(value=(1, 2, 3)),
    T.MixUp(0.4, num_classes=7, p=0.5),
    T.CutMix(num_classes=7),
    T.RandAugment(3),
    T.TrivialAugmentWide(interpolation="bilinear", fill=(1, 2, 3)),
    T.AutoAugment("svhn"),
    T.AugMix(),
    T.RandomSolarize(100),
    T.RandomAdjustSharpness(2.0),
    T.RandomEqualize(),
]


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "references" / "transforms.npz") as file:
        return dict(file)


@pytest.fixture(params=[torch.uint8, torch.float32], ids=["uint8", "float32"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def images_of(theirs: dict[str, np.ndarray], kind: torch.dtype = torch.uint8) -> torch.Tensor:
    images = torch.from_numpy(theirs["images"])
    return images if kind == torch.uint8 else images / 255


def pixels(count: int = 24, size: tuple[int, int] = (20, 26), channels: int = 3) -> torch.Tensor:
    shape = (count, channels, *size)
    return torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def draws_for(count: int, seed: int = 0, epoch: int = 0) -> Draws:
    return Draws(seed, epoch, 5, np.arange(count))


def run(transform: T.BatchTransform, images: torch.Tensor, seed: int = 0) -> torch.Tensor:
    parameters = transform.draw(draws_for(len(images), seed), tuple(images.shape))
    return transform.apply(images, parameters)


def assert_close(ours: torch.Tensor, expected: np.ndarray, levels: int = LEVEL) -> None:
    assert ours.numpy().dtype == expected.dtype
    assert tuple(ours.shape) == expected.shape
    difference = np.abs(ours.numpy().astype(np.float64) - expected)
    assert difference.max() <= (levels if expected.dtype == np.uint8 else FLOAT)


# -- against torchvision ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function", "numbers"),
    [
        ("brightness", color.adjust_brightness, "factors"),
        ("contrast", color.adjust_contrast, "factors"),
        ("saturation", color.adjust_saturation, "factors"),
        ("hue", color.adjust_hue, "turns"),
    ],
)
def test_colour_agrees_with_torchvision(
    theirs: dict[str, np.ndarray],
    kind: torch.dtype,
    name: str,
    function: Callable[..., torch.Tensor],
    numbers: str,
) -> None:
    images = images_of(theirs, kind)
    ours = function(images, per_image(theirs[numbers], images))
    assert_close(ours, theirs[f"{name}/{str(kind)[6:]}"])


def test_grey_agrees_with_torchvision(theirs: dict[str, np.ndarray], kind: torch.dtype) -> None:
    images = images_of(theirs, kind)
    some = np.array([True, False, True, True, False])
    ours = T.RandomGrayscale().apply(images, {"applied": some})
    expected = np.where(
        some[:, None, None, None], theirs[f"grayscale/{str(kind)[6:]}"], images.numpy()
    )
    assert_close(ours, expected)


def test_blur_agrees_with_torchvision(theirs: dict[str, np.ndarray], kind: torch.dtype) -> None:
    images = images_of(theirs, kind)
    ours = T.GaussianBlur((7, 5)).apply(
        images, {"sigma": theirs["sigmas"], "applied": np.ones(5, bool)}
    )
    assert_close(ours, theirs[f"blur/{str(kind)[6:]}"])


def test_jitter_adjusts_in_the_order_of_each_image(theirs: dict[str, np.ndarray]) -> None:
    images = images_of(theirs)
    steps = list(color.ADJUSTMENTS)
    parameters = {
        "brightness": theirs["factors"],
        "contrast": theirs["factors"][::-1].copy(),
        "saturation": theirs["factors"],
        "hue": theirs["turns"],
        "order": np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [0, 3, 1, 2]]),
        "applied": np.array([True, True, True, False, True]),
    }
    ours = T.ColorJitter().apply(images, parameters)
    for at in range(len(images)):
        image = images[at : at + 1]
        for step in parameters["order"][at] if parameters["applied"][at] else ():
            factor = per_image(parameters[steps[step]][at : at + 1], image)
            image = color.ADJUSTMENTS[steps[step]](image, factor)
        assert torch.equal(ours[at], image[0])


def test_erasing_agrees_with_torchvision(theirs: dict[str, np.ndarray]) -> None:
    images = images_of(theirs, torch.float32)
    box = np.tile([3, 5, 12, 19], (5, 1))
    ours = T.RandomErasing(value=(0.1, 0.5, 0.9)).apply(images, {"box": box})
    assert_close(ours, theirs["erase"])
    box[2:] = 0
    ours = T.RandomErasing(value=(0.1, 0.5, 0.9)).apply(images, {"box": box})
    assert torch.equal(ours[2:], images[2:])


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixing_agrees_with_torchvision(theirs: dict[str, np.ndarray], name: str) -> None:
    images = images_of(theirs, torch.float32)
    transform = {"mixup": T.MixUp(num_classes=4), "cutmix": T.CutMix(num_classes=4)}[name]
    share = 0.3 if name == "mixup" else 1 - (20 - 4) * (15 - 2) / (15 * 21)
    parameters = {
        "partner": np.roll(np.arange(5), 1),  # torchvision's partners
        "share": np.full(5, share),
        "box": np.tile([2, 4, 15, 20], (5, 1)),
    }
    assert_close(transform.apply(images, parameters), theirs[f"{name}/images"])
    labels = torch.from_numpy(theirs["labels"])
    assert_close(transform.mix_labels(labels, parameters, 4), theirs[f"{name}/labels"])


def test_augmentations_agree_with_torchvision(theirs: dict[str, np.ndarray]) -> None:
    images = images_of(theirs)
    seen = set()
    for name, expected in theirs.items():
        if not name.startswith("augment/"):
            continue
        _, operation, interpolation, filled = name.split("/")
        fill = (10, 200, 60) if filled == "filled" else None
        transform = T.RandAugment(interpolation=interpolation, fill=fill)  # type: ignore[arg-type]
        seen.add(operation)
        for magnitude, made in zip(theirs[f"magnitudes/{operation}"], expected, strict=True):
            parameters = {
                "operation": np.full((5, 1), OPERATIONS.index(operation)),
                "magnitude": np.full((5, 1), magnitude),
            }
            ours = transform.apply(images, parameters)
            assert ours.dtype == torch.uint8
            wrong = np.abs(ours.numpy().astype(int) - made) > LEVEL
            # A look-up in the middle of two pixels may take either.
            assert wrong.mean() <= (0.001 if interpolation == "nearest" else 0), name
    assert seen == set(DRAWN)


@pytest.mark.parametrize("kind_of", [T.RandAugment, T.TrivialAugmentWide])
@pytest.mark.parametrize("bins", [31, 11])
def test_magnitudes_are_those_of_torchvision(
    theirs: dict[str, np.ndarray], kind_of: Any, bins: int
) -> None:
    drawn: dict[str, set[float]] = {name: set() for name in DRAWN}
    for magnitude in range(bins) if kind_of is T.RandAugment else [None]:
        options = {} if magnitude is None else {"magnitude": magnitude}
        transform = kind_of(num_magnitude_bins=bins, **options)
        parameters = transform.draw(draws_for(20_000), (20_000, 3, 96, 224))
        for operation, number in zip(
            parameters["operation"].ravel(), parameters["magnitude"].ravel(), strict=True
        ):
            drawn[OPERATIONS[operation]].add(float(number))
    for at, name in enumerate(DRAWN):
        assert SIGNED[at] == theirs[f"signed/{name}"]
        values = theirs.get(f"space/{kind_of.__name__}/{bins}/{name}", np.zeros(1))
        expected = {float(value) for value in values}
        if SIGNED[at]:
            expected |= {-value for value in expected}
        assert drawn[name] == expected


# -- by tables of values -----------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("adjust_brightness", np.array([0, 0.3, 1, 1.7, 300])),
        ("adjust_contrast", np.array([0, 0.3, 1, 1.7, 300])),
        ("solarize", np.array([0, 0.5, 100, 254.5, 255])),
        ("autocontrast", None),
    ],
)
def test_tables_make_of_values_what_arithmetic_makes(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    numbers: np.ndarray | None,
    memory_format: torch.memory_format,
    channels: int,
) -> None:
    images = pixels(5, channels=channels).contiguous(memory_format=memory_format)
    images[3] = 17
    images[4] = images[4] // 4 + 60
    arguments = [] if numbers is None else [per_image(numbers, images)]
    ours = getattr(color, name)(images, *arguments)
    assert ours.stride() == images.stride()
    monkeypatch.setattr(color, "by_value", lambda change, images: change(images))
    assert torch.equal(ours, getattr(color, name)(images, *arguments))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_mean_of_large_images_is_exact(threads: int) -> None:
    images = torch.full((1, 1, 300, 300), 200, dtype=torch.uint8)
    images[0, 0, 0, 0] = 199  # the sum is odd and above 2**24, so no float32
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = run(T.ColorJitter(contrast=(0, 0)), images)
    finally:
        torch.set_num_threads(before)
    assert ours.unique().tolist() == [199]


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32], ids=["uint8", "float32"])
def test_boxes_are_erased_and_mixed_as_by_plain_loops(kind: torch.dtype) -> None:
    images = pixels(6).to(kind)
    box = np.array(
        [
            [0, 0, 0, 0],
            [0, 0, 20, 26],
            [3, 4, 9, 20],
            [19, 25, 20, 26],
            [5, 0, 6, 26],
            [0, 7, 20, 8],
        ]
    )
    partner = np.array([1, 2, 3, 4, 5, 0])
    erased, mixed = images.clone(), images.clone()
    for at, (top, left, bottom, right) in enumerate(box.tolist()):
        for y in range(top, bottom):
            for x in range(left, right):
                erased[at, :, y, x] = torch.tensor([7, 8, 9]).to(kind)
                mixed[at, :, y, x] = images[partner[at], :, y, x]
    erasing, mixing = T.RandomErasing(value=(7, 8, 9)), T.CutMix(num_classes=2)
    assert torch.equal(erasing.apply(images, {"box": box, "key": np.zeros(6, np.int64)}), erased)
    assert torch.equal(mixing.apply(images, {"box": box, "partner": partner}), mixed)


# -- promises of all ---------------------------------------------------------------------


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)
def test_a_batch_transform_keeps_its_promises(transform: T.BatchTransform) -> None:
    images = pixels()
    before = images.clone()
    ours = run(transform, images)
    assert torch.equal(images, before)
    assert ours.dtype == images.dtype
    assert ours.shape == images.shape
    assert not torch.equal(ours, images)
    assert torch.equal(ours, run(pickle.loads(pickle.dumps(transform)), images))
    assert not torch.equal(ours, run(transform, images, seed=1))
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(ours, run(transform, channels_last))
    part_of_larger = functional.pad(images, (1, 2, 3, 4))[:, :, 3:-4, 1:-2]
    assert torch.equal(ours, run(transform, part_of_larger))


@pytest.mark.parametrize(
    "transform",
    [*ALL, T.AutoAugment(), T.AugMix(), T.Grayscale(3), T.RandomEqualize(), T.RandomSolarize(99)],
    ids=lambda transform: type(transform).__name__,
)
def test_few_threads_and_many_make_the_same(
    transform: T.BatchTransform, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = pixels()
    made = []
    for few in (1_000, 0):  # images one by one, and all together
        monkeypatch.setattr(image_tensors, "FEW_THREADS", few)
        made.append(run(transform, images))
    assert torch.equal(*made)
    assert made[1].is_contiguous()


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)
def test_what_becomes_of_an_image_depends_on_it_alone(transform: T.BatchTransform) -> None:
    if isinstance(transform, (T.MixUp, T.CutMix)):
        pytest.skip("it depends on its partner, too")
    images = pixels()
    whole = run(transform, images)
    for part in (slice(0, 1), slice(5, 9)):
        draws = Draws(0, 0, 5, np.arange(len(images))[part])
        some = images[part]
        ours = transform.apply(some, transform.draw(draws, tuple(some.shape)))
        # Sums over an image may be taken in another order.
        assert (ours.int() - whole[part].int()).abs().max() <= LEVEL


@pytest.mark.parametrize(
    ("transform", "dtype"),
    [
        *((transform, dtype) for transform in ALL[:6] for dtype in (torch.float16, torch.float32)),
        *((transform, dtype) for transform in ALL[:3] for dtype in (torch.bfloat16, torch.float64)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch.dtype) else type(value).__name__,
)
def test_floating_images_stay_what_they_are(
    transform: T.BatchTransform, dtype: torch.dtype
) -> None:
    images = (pixels() / 255).to(dtype)
    if isinstance(transform, T.RandomErasing):
        transform = T.RandomErasing(value=(0.1, 0.2, 0.3))
    ours = run(transform, images)
    assert ours.dtype == dtype
    exact = run(transform, images.double())
    assert (ours.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps + 1e-6


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)
def test_grey_images_are_taken(transform: T.BatchTransform) -> None:
    if isinstance(transform, (T.RandomErasing, T.TrivialAugmentWide)):
        transform = type(transform)()
    images = pixels(channels=1)
    assert run(transform, images).shape == images.shape


@pytest.mark.parametrize("size", [(2, 2), (1, 9), (9, 1)])
def test_tiny_images_are_taken(size: tuple[int, int]) -> None:
    for transform in ALL:
        if not isinstance(transform, T.GaussianBlur):
            assert run(transform, pixels(8, size)).shape == (8, 3, *size)
    with pytest.raises(OptionError, match="smaller kernel_size"):
        run(T.GaussianBlur(23), pixels(8, size))


# -- draws ---------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 4.0, 50.0])
def test_beta_has_its_distribution(alpha: float) -> None:
    numbers = beta(draws_for(40_000), alpha)
    assert ((numbers >= 0) & (numbers <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(numbers.mean() - 0.5) < 5 * np.sqrt(variance / 40_000)
    assert abs(numbers.var() / variance - 1) < 0.05
    if alpha == 1:  # uniform
        share, _ = np.histogram(numbers, 20, (0, 1))
        assert abs(share / 2000 - 1).max() < 0.1


def test_partners_are_one_ring() -> None:
    for count in (1, 2, 7, 100):
        partner = T.MixUp().draw(draws_for(count), (count, 3, 4, 4))["partner"]
        at, seen = 0, set()
        for _ in range(count):
            at = int(partner[at])
            seen.add(at)
        assert seen == set(range(count))
    assert (partner != np.roll(np.arange(count), 1)).any()


def test_cutmix_shares_are_areas() -> None:
    count, rows, columns = 400, 20, 30
    drawn = T.CutMix(p=0.7).draw(draws_for(count), (count, 3, rows, columns))
    images = torch.arange(count, dtype=torch.float32)[:, None, None, None].expand(
        count, 1, rows, columns
    )
    mixed = T.CutMix().apply(images, drawn)
    own = (mixed == images).float().mean((1, 2, 3)).numpy()
    np.testing.assert_allclose(own, drawn["share"], atol=1e-6)
    top, left, bottom, right = drawn["box"].T
    within = (top > 0) & (left > 0) & (bottom < rows) & (right < columns) & (bottom > top)
    assert within.sum() > 20
    height, width = ((bottom - top) / rows)[within], ((right - left) / columns)[within]
    assert np.abs(height - width).max() <= 2 / rows  # of the shape of the image
    assert 0.25 < (drawn["share"] == 1).mean() < 0.45  # p, and rectangles of no area
    other = torch.from_numpy(drawn["partner"])[:, None, None, None]
    assert ((mixed == images) | (mixed == other)).all()


def test_erased_rectangles_have_their_areas_and_ratios() -> None:
    transform = T.RandomErasing(0.6, scale=(0.1, 0.2), ratio=(0.5, 2.0))
    box = transform.draw(draws_for(3000), (3000, 3, 200, 300))["box"]
    height, width = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
    erased = height > 0
    assert abs(erased.mean() - 0.6) < 0.05
    height, width = height[erased], width[erased]
    area, ratio = height * width / 60_000, height / width
    assert 0.098 < area.min() < 0.11
    assert 0.19 < area.max() < 0.202
    assert 0.49 < ratio.min() < 0.55
    assert 1.8 < ratio.max() < 2.04
    assert (box[:, :2] >= 0).all()
    assert (box[:, 2] <= 200).all()
    assert (box[:, 3] <= 300).all()


def test_erasing_noise_is_normal_and_its_own() -> None:
    transform = T.RandomErasing(1.0, scale=(0.3, 0.3), value="random")
    images = torch.full((50, 3, 60, 60), 9.0)
    ours = run(transform, images)
    noise = ours[ours != 9].numpy()
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((np.abs(noise) < 1).mean() - 0.6827) < 0.01
    planes = ours.reshape(150, -1)
    erased = (planes != 9).all(0)
    if erased.any():
        correlation = np.corrcoef(planes[:, erased].numpy())
        assert np.abs(correlation - np.eye(150)).max() < 0.9


def test_jitter_draws_every_order() -> None:
    drawn = T.ColorJitter(0.4, (0.5, 2), 0.1, 0.2).draw(draws_for(5000), (5000, 3, 4, 4))
    orders, counts = np.unique(drawn["order"], axis=0, return_counts=True)
    assert len(orders) == 24
    assert counts.min() > 100
    for name, (low, high) in {
        "brightness": (0.6, 1.4),
        "contrast": (0.5, 2.0),
        "saturation": (0.9, 1.1),
        "hue": (-0.2, 0.2),
    }.items():
        assert low <= drawn[name].min() < low + 0.01 * (high - low)
        assert high >= drawn[name].max() > high - 0.01 * (high - low)


def test_equalized_images_are_those_of_pillow() -> None:
    images = np.stack([photo(70, 90, seed=seed) // (1 + seed) for seed in range(4)])
    ours = color.equalize(torch.from_numpy(images).permute(0, 3, 1, 2))
    for image, made in zip(images, ours.permute(0, 2, 3, 1).numpy(), strict=True):
        expected = np.asarray(ImageOps.equalize(Image.fromarray(image)))
        np.testing.assert_array_equal(made, expected)


def test_tones_of_flat_images_stay() -> None:
    flat = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(color.autocontrast(flat), flat)
    assert torch.equal(color.equalize(flat), flat)


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.ColorJitter(brightness=-0.1), "brightness is a number from 0 up.*not -0.1"),
        (lambda: T.ColorJitter(contrast=(2, 1)), r"contrast.*not \(2, 1\)"),
        (lambda: T.ColorJitter(hue=0.6), "hue.*not 0.6"),
        (lambda: T.ColorJitter(saturation="x"), "saturation.*not 'x'"),  # type: ignore[arg-type]
        (lambda: T.RandomGrayscale(1.5), "p is a probability.*1.5"),
        (lambda: T.GaussianBlur(4), "kernel_size is odd, not 4"),
        (lambda: T.GaussianBlur(3, 0), "sigma.*0 < low"),
        (lambda: T.RandomErasing(scale=(0.1, 1.2)), "scale is a share"),
        (lambda: T.RandomErasing(value="noise"), "value is a number"),  # type: ignore[arg-type]
        (lambda: T.MixUp(0), "alpha is a number above 0, not 0"),
        (lambda: T.CutMix(num_classes=0), "num_classes=0 is not an integer from 1"),
        (lambda: T.RandAugment(magnitude=31), "magnitude is an int from 0 to .* 30, not 31"),
        (lambda: T.RandAugment(interpolation="x"), "interpolation is"),  # type: ignore[arg-type]
        (lambda: T.TrivialAugmentWide(fill="x"), "fill is a number"),  # type: ignore[arg-type]
        (lambda: T.TrivialAugmentWide(fill=300), "fill is a number from 0 to 255"),
        (lambda: T.RandAugment(fill=[]), "fill is a number from 0 to 255"),
        (lambda: T.RandomErasing(value=np.nan), "value is a number"),
    ],
)
def test_options_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_erased_values_are_those_of_the_images() -> None:
    T.RandomErasing(value=[0, 255, 300]).check(3, floating=True)
    T.RandomErasing(value=[0, 255, 3]).check(3, floating=False)
    for value in (-1, 255.5, [0, 1, 300]):
        with pytest.raises(OptionError, match="images are uint8: put it after Normalize"):
            T.RandomErasing(value=value).check(3, floating=False)


def test_labels_beyond_the_classes_are_refused() -> None:
    drawn = T.MixUp().draw(draws_for(3), (3, 3, 4, 4))
    for wrong in (4, -1):
        with pytest.raises(OptionError, match=f"num_classes=4 met the label {wrong}"):
            T.MixUp().mix_labels(torch.tensor([0, wrong, 2]), drawn, 4)


def test_augmentations_refuse_floating_images() -> None:
    with pytest.raises(OptionError, match="takes uint8 images, not torch"):
        run(T.RandAugment(), pixels() / 255)
