"""AutoAugment and AugMix: operations against Pillow, policies, and what they draw."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from samples import photo

from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.automatic import BLENDED, OPERATIONS
from fastdata.transforms.distributions import dirichlet
from fastdata.transforms.policies import POLICIES

Picture = Image.Image


def draws_for(count: int) -> Draws:
    return Draws(0, 0, 5, np.arange(count))


def warped(*numbers: float) -> Callable[[Picture], Picture]:
    """Return the affine transform of Pillow with these numbers, by nearest neighbour."""
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, numbers, Image.Resampling.NEAREST
    )


# Operation, its magnitude, and what Pillow makes of an image of 64 x 48.
BY_PILLOW: list[tuple[str, float, Callable[[Picture], Picture]]] = [
    ("Identity", 0, lambda image: image),
    ("ShearX", 0.3, warped(1, 0.3, 0, 0, 1, 0)),
    ("ShearX", -0.3, warped(1, -0.3, 0, 0, 1, 0)),
    ("ShearY", 0.3, warped(1, 0, 0, 0.3, 1, 0)),
    ("TranslateX", 9.7, warped(1, 0, -9, 0, 1, 0)),
    ("TranslateY", -9.7, warped(1, 0, 0, 0, 1, 9)),
    ("Rotate", 30, lambda image: image.rotate(30)),
    ("Rotate", -13, lambda image: image.rotate(-13)),
    ("Brightness", 0.9, lambda image: ImageEnhance.Brightness(image).enhance(1.9)),
    ("Brightness", -0.5, lambda image: ImageEnhance.Brightness(image).enhance(0.5)),
    ("Color", 0.9, lambda image: ImageEnhance.Color(image).enhance(1.9)),
    ("Color", -0.5, lambda image: ImageEnhance.Color(image).enhance(0.5)),
    ("Contrast", 0.9, lambda image: ImageEnhance.Contrast(image).enhance(1.9)),
    ("Contrast", -0.5, lambda image: ImageEnhance.Contrast(image).enhance(0.5)),
    ("Sharpness", 0.9, lambda image: ImageEnhance.Sharpness(image).enhance(1.9)),
    ("Sharpness", -0.5, lambda image: ImageEnhance.Sharpness(image).enhance(0.5)),
    ("Posterize", 4, lambda image: ImageOps.posterize(image, 4)),
    ("Solarize", 0.6, lambda image: ImageOps.solarize(image, 153)),
    ("AutoContrast", 0, ImageOps.autocontrast),
    ("Equalize", 0, ImageOps.equalize),
    ("Invert", 0, ImageOps.invert),
]


@pytest.mark.parametrize(
    ("operation", "magnitude", "pillow"), BY_PILLOW, ids=[f"{n}-{m}" for n, m, _ in BY_PILLOW]
)
def test_operations_are_those_of_pillow(
    operation: str, magnitude: float, pillow: Callable[[Picture], Picture]
) -> None:
    image = photo(48, 64)
    images = torch.from_numpy(image).permute(2, 0, 1)[None]
    parameters = {
        "operation": np.array([[OPERATIONS.index(operation)]]),
        "magnitude": np.array([[magnitude]]),
    }
    ours = T.AutoAugment().apply(images, parameters)[0].permute(1, 2, 0).numpy()
    difference = np.abs(ours.astype(int) - np.asarray(pillow(Image.fromarray(image))).astype(int))
    # Pillow rounds the grey to whole numbers; a look-up in the middle may take either pixel.
    assert (difference > (3 if operation in BLENDED else 1)).mean() <= 0.002
    if operation != "Identity":
        assert (ours != image).mean() > 0.1


def test_all_operations_are_compared() -> None:
    assert {name for name, _, _ in BY_PILLOW} == set(OPERATIONS)


# -- AutoAugment ---------------------------------------------------------------------------


class AutoAugmentPolicy(Enum):
    """torchvision's enum of this name, which tests may not have."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


@pytest.mark.parametrize("policy", AutoAugmentPolicy)
def test_policies_are_taken_as_torchvision_names_them(policy: Any) -> None:
    assert T.AutoAugment(policy) == T.AutoAugment(policy.value)
    assert T.AutoAugment() == T.AutoAugment("imagenet", "nearest", None)


@pytest.mark.parametrize(
    ("policy", "at", "pair"),
    [
        ("imagenet", 0, (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))),
        ("imagenet", 13, (("Invert", 0.6, 0), ("Equalize", 1.0, 0))),
        ("imagenet", 24, (("Equalize", 0.8, 0), ("Equalize", 0.6, 0))),
        ("cifar10", 3, (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))),
        ("cifar10", 24, (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0))),
        ("svhn", 0, (("ShearX", 0.9, 4), ("Invert", 0.2, 0))),
        ("svhn", 22, (("ShearX", 0.7, 9), ("TranslateY", 0.8, 3))),
    ],
)
def test_policies_have_the_published_pairs(policy: str, at: int, pair: Any) -> None:
    assert POLICIES[policy][at] == pair


@pytest.mark.parametrize("policy", POLICIES)
def test_drawn_operations_are_the_pairs_of_the_policy(policy: Any) -> None:
    pairs = POLICIES[policy]
    assert len(pairs) == 25
    count, height, width = 50_000, 96, 224
    drawn = T.AutoAugment(policy).draw(draws_for(count), (count, 3, height, width))
    found: dict[Any, int] = {}
    for operation, magnitude in zip(
        drawn["operation"].tolist(), drawn["magnitude"].round(4).tolist(), strict=True
    ):
        key = tuple(zip((OPERATIONS[at] for at in operation), magnitude, strict=True))
        found[key] = found.get(key, 0) + 1
    expected: dict[Any, float] = {}
    for first, second in pairs:
        for one, chance in outcomes(first, height, width):
            for other, second_chance in outcomes(second, height, width):
                key = one, other
                expected[key] = expected.get(key, 0) + chance * second_chance / 25
    assert set(found) <= set(expected)
    for key, chance in expected.items():
        deviation = np.sqrt(count * chance * (1 - chance))
        assert abs(found.get(key, 0) - count * chance) < 5 * deviation + 1, key


def outcomes(step: Any, height: int, width: int) -> list[tuple[tuple[str, float], float]]:
    """Return what may become of a step of a policy, and how likely it is."""
    name, chance, place = step
    share = place / 9
    magnitude = {
        "ShearX": 0.3 * share,
        "ShearY": 0.3 * share,
        "TranslateX": 150 / 331 * width * share,
        "TranslateY": 150 / 331 * height * share,
        "Rotate": 30 * share,
        "Posterize": 8 - round(4 * share),
        "Solarize": 1 - share,
        **dict.fromkeys(BLENDED, 0.9 * share),
    }.get(name, 0.0)
    ways = [magnitude]
    if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", *BLENDED):
        ways = [magnitude, -magnitude] if magnitude else [0.0]
    made = [((name, round(way, 4)), chance / len(ways)) for way in ways if chance]
    return [*made, (("Identity", 0.0), 1 - chance)] if chance < 1 else made


# -- AugMix --------------------------------------------------------------------------------


def test_augmix_is_the_sum_of_its_chains() -> None:
    images = torch.stack(
        [torch.from_numpy(photo(30, 40, seed=seed)).permute(2, 0, 1) for seed in range(6)]
    )
    transform = T.AugMix(severity=10, mixture_width=2, chain_depth=2)
    drawn = transform.draw(draws_for(6), tuple(images.shape))  # type: ignore[arg-type]
    ours = transform.apply(images, drawn)
    single = T.AutoAugment(interpolation="bilinear")
    for at in range(6):
        mixed = drawn["share"][at, 0] * images[at].numpy()
        for chain in range(2):
            image = images[at : at + 1]
            for step in range(2):
                parameters = {
                    name: drawn[name][at : at + 1, chain, step : step + 1]
                    for name in ("operation", "magnitude")
                }
                image = single.apply(image, parameters)
            mixed = mixed + drawn["share"][at, 1 + chain] * image[0].numpy()
        assert np.abs(ours[at].numpy() - np.floor(mixed)).max() <= 1
    assert not torch.equal(ours, images)


@pytest.mark.parametrize("all_ops", [True, False])
def test_augmix_draws_what_its_options_say(all_ops: bool) -> None:
    count = 20_000
    shape = (count, 3, 30, 60)
    drawn = T.AugMix(severity=4, mixture_width=5, all_ops=all_ops).draw(draws_for(count), shape)
    operation, magnitude = drawn["operation"], drawn["magnitude"]
    assert operation.shape == magnitude.shape == (count, 5, 3)
    names = {OPERATIONS[at] for at in np.unique(operation)}
    left_out = {"Invert"} if all_ops else {"Invert", *BLENDED}
    assert names == set(OPERATIONS) - left_out  # Identity is what is beyond the end of a chain
    length = (operation != 0).sum(2)
    assert (length == np.where(operation == 0, 0, np.arange(1, 4)).max(2)).all()
    for steps in (1, 2, 3):
        assert abs((length == steps).mean() - 1 / 3) < 0.01

    def of(name: str) -> set[float]:
        return set(magnitude[operation == OPERATIONS.index(name)].round(4).tolist())

    def places(greatest: float) -> set[float]:
        return {round(sign * greatest * place / 9, 4) for place in range(4) for sign in (1, -1)}

    assert of("TranslateX") == places(20)
    assert of("TranslateY") == places(10)
    assert of("Rotate") == places(30)
    assert of("ShearX") == places(0.3)
    assert of("Posterize") == {4, 3}  # 4 - (0, 4 / 9, 8 / 9, 12 / 9)
    assert of("Solarize") == {1, 0.8889, 0.7778, 0.6667}
    assert of("AutoContrast") == of("Equalize") == {0}
    assert of("Contrast") == (places(0.9) if all_ops else set())
    np.testing.assert_allclose(drawn["share"].sum(1), 1)
    assert abs(drawn["share"][:, 0].mean() - 0.5) < 0.01
    assert np.abs(drawn["share"][:, 1:].mean(0) - 0.1).max() < 0.01


def test_augmix_takes_chains_of_one_length() -> None:
    drawn = T.AugMix(chain_depth=4).draw(draws_for(100), (100, 3, 30, 60))
    assert drawn["operation"].shape == (100, 3, 4)
    assert (drawn["operation"] != 0).all()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_dirichlet_has_its_distribution(alpha: float, count: int) -> None:
    shares = dirichlet(draws_for(40_000), alpha, count)
    assert shares.shape == (40_000, count)
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(1), 1)
    mean = 1 / count
    variance = mean * (1 - mean) / (count * alpha + 1)
    covariance = -(mean**2) / (count * alpha + 1)
    measured = np.cov(shares.T).reshape(count, count)
    expected = np.where(np.eye(count), variance, covariance if count > 1 else 0)
    assert np.abs(shares.mean(0) - mean).max() < 5 * np.sqrt(variance / 40_000) + 1e-9
    assert np.abs(measured - expected).max() < 0.05 * variance + 1e-9


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.AutoAugment("imagenet22k"), "policy is one of imagenet, cifar10, svhn, not"),  # type: ignore[arg-type]
        (lambda: T.AutoAugment(None), "policy is one of .* not None"),  # type: ignore[arg-type]
        (lambda: T.AutoAugment(interpolation="bicubic"), "interpolation is one of nearest, bil"),  # type: ignore[arg-type]
        (lambda: T.AutoAugment(fill="x"), "fill is a number"),  # type: ignore[arg-type]
        (lambda: T.AugMix(severity=0), "severity is an int from 1 to 10, not 0"),
        (lambda: T.AugMix(severity=11), "severity is an int from 1 to 10, not 11"),
        (lambda: T.AugMix(mixture_width=0), "mixture_width=0 is not an integer from 1"),
        (lambda: T.AugMix(chain_depth=1.5), "chain_depth=1.5 is not an integer from -1"),  # type: ignore[arg-type]
        (lambda: T.AugMix(alpha=0), "alpha is a number above 0, not 0"),
    ],
)
def test_options_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("transform", [T.AutoAugment(fill=(1, 2, 3)), T.RandAugment(fill=(1, 2))])
def test_a_fill_of_other_channels_is_refused(transform: Any) -> None:
    with pytest.raises(OptionError, match=r"fill is one number or one a channel, .* 1 channel"):
        transform.check(1, False)
