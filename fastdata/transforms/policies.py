"""AutoAugment and AugMix: published policies, and mixtures of chains of operations.

The operations are those of automatic.py; policies and ranges are torchvision's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.automatic import (
    BLENDED,
    OPERATIONS,
    SIGNED,
    AutomaticAugment,
    magnitudes,
)
from fastdata.transforms.base import Parameters, Shape, parse, positive_int, positive_number
from fastdata.transforms.distributions import BETA_DRAWS, GAMMA_DRAWS, beta, dirichlet
from fastdata.transforms.image_tensors import by_piece, per_image, to_dtype_of
from fastdata.transforms.warping import Fill
from fastdata.transforms.warps import WarpInterpolation

__all__ = ["AugMix", "AutoAugment"]

BINS = 10
"""Steps from the weakest magnitude to the strongest, in both."""

MOST_STEPS = 3
"""Operations of a chain of random length at most, as in torchvision."""

PolicyStep: TypeAlias = tuple[str, float, int]
"""An operation, its probability, and the place of its magnitude among `BINS`."""

PolicyPair: TypeAlias = tuple[PolicyStep, PolicyStep]

POLICIES: dict[str, tuple[PolicyPair, ...]] = {
    "imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
        (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
        (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    ),
    "cifar10": (
        (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
        (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
        (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
        (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
    ),
    "svhn": (
        (("ShearX", 0.9, 4), ("Invert", 0.2, 0)),
        (("ShearY", 0.9, 8), ("Invert", 0.7, 0)),
        (("Equalize", 0.6, 0), ("Solarize", 0.6, 6)),
        (("Invert", 0.9, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.6, 0), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("AutoContrast", 0.8, 0)),
        (("ShearY", 0.9, 8), ("Invert", 0.4, 0)),
        (("ShearY", 0.9, 5), ("Solarize", 0.2, 6)),
        (("Invert", 0.9, 0), ("AutoContrast", 0.8, 0)),
        (("Equalize", 0.6, 0), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("Solarize", 0.3, 3)),
        (("ShearY", 0.8, 8), ("Invert", 0.7, 0)),
        (("Equalize", 0.9, 0), ("TranslateY", 0.6, 6)),
        (("Invert", 0.9, 0), ("Equalize", 0.6, 0)),
        (("Contrast", 0.3, 3), ("Rotate", 0.8, 4)),
        (("Invert", 0.8, 0), ("TranslateY", 0.0, 2)),
        (("ShearY", 0.7, 6), ("Solarize", 0.4, 8)),
        (("Invert", 0.6, 0), ("Rotate", 0.8, 4)),
        (("ShearY", 0.3, 7), ("TranslateX", 0.9, 3)),
        (("ShearX", 0.1, 6), ("Invert", 0.6, 0)),
        (("Solarize", 0.7, 2), ("TranslateY", 0.6, 7)),
        (("ShearY", 0.8, 4), ("Invert", 0.8, 0)),
        (("ShearX", 0.7, 9), ("TranslateY", 0.8, 3)),
        (("ShearY", 0.8, 5), ("AutoContrast", 0.7, 0)),
        (("ShearX", 0.7, 2), ("Invert", 0.1, 0)),
    ),
}
"""The policies of Cubuk et al., "AutoAugment", CVPR 2019, as torchvision has them.

Operations without a magnitude have place 0.
"""


@dataclass(frozen=True)
class AutoAugment(AutomaticAugment):
    """Put each image through a pair of operations out of a published policy.

    Parameters
    ----------
    policy : {"imagenet", "cifar10", "svhn"}
        The data that the policy was found on.  torchvision's ``AutoAugmentPolicy`` is taken, too.
    interpolation, fill
        As in `RandAugment`.

    Notes
    -----
    For uint8 images; masks and boxes are refused, as they could not follow.  Draw 0 is the pair;
    1 and 2 are compared with the probabilities of its operations, 3 and 4 are their directions.

    Cubuk et al., "AutoAugment: Learning augmentation strategies from data", CVPR 2019.
    """

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, policy=_policy)

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        height, width = shape[2:]
        moves = 0.3, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0
        table = magnitudes(BINS, moves, 0.9, (8, 4))
        pairs = POLICIES[self.policy]
        names, chances, places = (
            np.array([[step[part] for step in pair] for pair in pairs]) for part in range(3)
        )
        pair = draws.integers(len(pairs))[:, 0]
        uniform = draws.uniform(4, first=1)
        numbers = np.array([[OPERATIONS.index(name) for name in pair] for pair in names])
        operation = np.where(uniform[:, :2] < chances[pair], numbers[pair], 0)
        back = (uniform[:, 2:] < 0.5) & SIGNED[operation]
        magnitude = table[operation, places[pair]] * np.where(back, -1, 1)
        return {"operation": operation, "magnitude": magnitude}


@dataclass(frozen=True)
class AugMix(AutomaticAugment):
    """Mix each image with the results of several chains of random operations.

    Parameters
    ----------
    severity : int
        Of the operations, from 1 to 10: how far their magnitudes may go.
    mixture_width : int
        Chains an image.
    chain_depth : int
        Operations a chain; 0 or less: 1 to 3 at random.
    alpha : float
        Of the Dirichlet distribution of the chains' shares, and of the beta distribution of the
        share that the image itself keeps.
    all_ops : bool
        Whether brightness, colour, contrast and sharpness are changed, too.
    interpolation : {"bilinear", "nearest"}
        As in `RandAugment`, but bilinear by default.
    fill
        As in `RandAugment`.

    Notes
    -----
    For uint8 images; masks and boxes are refused, as they could not follow.  The draws are, one
    behind the other, those of the image's share, of the chains' shares, and of the chains'
    lengths; then the operations of all steps of all chains, their magnitudes and directions.

    Hendrycks et al., "AugMix: A simple data processing method to improve robustness and
    uncertainty", ICLR 2020.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: WarpInterpolation = "bilinear"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, mixture_width=positive_int, chain_depth=check_int, alpha=positive_number)
        if self.severity not in range(1, BINS + 1):
            raise OptionError(f"severity is an int from 1 to {BINS}, not {self.severity!r}")

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        height, width = shape[2:]
        table = magnitudes(BINS, (0.3, 0.3, width / 3, height / 3, 30.0), 0.9, (4, 0))
        left_out = ("Identity", "Invert", *(() if self.all_ops else BLENDED))
        numbers = np.array([at for at, name in enumerate(OPERATIONS) if name not in left_out])
        chains, steps = self.mixture_width, max(self.chain_depth, 0) or MOST_STEPS

        own = beta(draws, self.alpha)[:, None]
        first = BETA_DRAWS
        share = (1 - own) * dirichlet(draws, self.alpha, chains, first=first)
        first += chains * GAMMA_DRAWS
        length = draws.integers(MOST_STEPS, chains, first=first) + 1
        if self.chain_depth > 0:
            length = np.full_like(length, steps)
        first += chains

        def of_steps(bound: int, number: int) -> Any:
            """Return integers for each step of each chain, int64 [n, chains, steps]."""
            drawn = draws.integers(bound, chains * steps, first=first + number * chains * steps)
            return drawn.reshape(-1, chains, steps)

        operation = numbers[of_steps(len(numbers), 0)]
        magnitude = table[operation, of_steps(self.severity, 1)]
        back = (of_steps(2, 2) == 0) & SIGNED[operation]
        beyond = np.arange(steps) >= length[..., None]
        return {
            "share": np.concatenate([own, share], axis=1),
            "operation": np.where(beyond, 0, operation),
            "magnitude": np.where(back, -magnitude, magnitude),
        }

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images mixed with their chains; raise `OptionError` if they are not uint8.

        `parameters` are "share", float [n, 1 + chains], of the image itself and of each chain;
        "operation", int [n, chains, steps], places in `OPERATIONS`, and "magnitude", float
        [n, chains, steps], of whatever the operation takes.
        """
        share = per_image(parameters["share"], images)
        chains = [
            super(AugMix, self).apply(images, {"operation": operation, "magnitude": magnitude})
            for operation, magnitude in zip(
                parameters["operation"].swapaxes(0, 1),
                parameters["magnitude"].swapaxes(0, 1),
                strict=True,
            )
        ]

        def mix(at: slice) -> torch.Tensor:
            shares = share[at].unbind(4)
            mixed = images[at] * shares[0]
            for chain, part in zip(chains, shares[1:], strict=True):
                mixed += chain[at] * part
            return to_dtype_of(mixed, images)

        return by_piece(mix, torch.empty_like(images))


def _policy(name: str, value: Any) -> str:
    found = getattr(value, "value", value)  # of torchvision's enum
    if not (isinstance(found, str) and found in POLICIES):
        raise OptionError(f"{name} is one of {', '.join(POLICIES)}, not {value!r}")
    return found
