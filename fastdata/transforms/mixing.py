"""MixUp and CutMix: each image, and its label, becomes partly another one of its batch.

The partner of each image is drawn for the whole batch: a random ring through all of it, so that
no image is its own partner unless it is alone.  This depends on seed, epoch and the
batch's samples, and not on a sample alone as all other draws do.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.schema import ScalarField, Schema
from fastdata.transforms.base import (
    BatchTransform,
    Parameters,
    Shape,
    parse,
    pictures_of,
    positive_int,
    positive_number,
    probability,
)
from fastdata.transforms.distributions import BETA_DRAWS, beta
from fastdata.transforms.image_tensors import (
    by_piece,
    paste,
    per_image,
    take,
    to_device,
    to_dtype_of,
    to_float,
)

__all__ = ["CutMix", "MixTransform", "MixUp"]

FIRST_OF_BETA = 2
"""Draws 0 and 1 are the ring and the choice of images; those of the share begin here."""


@dataclass(frozen=True)
class MixTransform(BatchTransform):
    """The base of MixUp and CutMix: partners, shares and labels.  Masks and boxes are refused.

    Parameters
    ----------
    alpha : float
        The share that an image keeps is of Beta(alpha, alpha); drawn for each image, where
        torchvision draws one a batch.
    num_classes : int, optional
        By default as many as the field of labels has names of classes.
    labels : str, optional
        The field of class numbers: by default the only one with names of classes, else the
        only one of whole numbers.
    p : float
        Probability that an image is mixed.

    Notes
    -----
    Labels become float32 [N, num_classes], as in torchvision: a share for each class.
    """

    moves_pixels: ClassVar[bool] = True

    alpha: float = 1.0
    num_classes: int | None = None
    labels: str | None = None
    p: float = 1.0

    def __post_init__(self) -> None:
        parse(self, alpha=positive_number, p=probability)
        if self.num_classes is not None:
            parse(self, num_classes=positive_int)

    def label_of(self, schema: Schema) -> tuple[str, int]:
        """Return the field of labels that is mixed, and its number of classes.

        Raises `OptionError` if the fields are not such as can be mixed.
        """
        kind = type(self).__name__
        if not pictures_of(schema):
            raise OptionError(f"{kind} mixes images, but the dataset has none; leave it out")
        numbers = {
            name: field
            for name, field in schema.items()
            if isinstance(field, ScalarField) and "int" in field.dtype
        }
        names = [name for name, field in numbers.items() if field.classes] or list(numbers)
        if self.labels is not None:
            names = [self.labels]
        if len(names) != 1 or names[0] not in numbers:
            raise OptionError(
                f"{kind} mixes the labels of one field of whole numbers, not of "
                f"{' or '.join(map(repr, names)) or 'none'}; name one with labels= "
                f"(there are: {', '.join(numbers) or 'none'})"
            )
        classes = self.num_classes or len(numbers[names[0]].classes or ())
        if not classes:
            raise OptionError(
                f"{kind} needs to know how many classes there are, and field {names[0]!r} has "
                "no names of classes; give it num_classes"
            )
        return names[0], classes

    @abstractmethod
    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        """Return "partner", int [n], "share", float [n], and what else there is."""

    def partners(self, draws: Draws) -> NDArray[np.int64]:
        """Return the place of each image's partner, int64 [n]."""
        ring = draws.uniform()[:, 0].argsort(kind="stable")
        partner = np.empty_like(ring)
        partner[ring] = np.roll(ring, -1)
        return partner

    def shares(self, draws: Draws) -> NDArray[np.float64]:
        """Return what each image is to keep of itself, float64 [n]."""
        mixed = draws.uniform(first=1)[:, 0] < self.p
        return np.where(mixed, beta(draws, self.alpha, first=FIRST_OF_BETA), 1.0)

    def check_labels(self, labels: torch.Tensor, num_classes: int) -> None:
        """Raise `OptionError` if a label, int [n], is no class number."""
        if not len(labels):
            return
        low, high = (int(end) for end in torch.aminmax(labels))
        if low < 0 or high >= num_classes:
            raise OptionError(
                f"{type(self).__name__} with num_classes={num_classes} met the label "
                f"{low if low < 0 else high}; labels go from 0 to num_classes - 1"
            )

    def shares_of(self, labels: torch.Tensor, num_classes: int) -> torch.Tensor:
        """Return labels as shares of classes, float [n, num_classes].

        `labels` are class numbers, int [n], or shares already.  Raises `OptionError` if a label is
        no class number.
        """
        if labels.ndim != 1:
            return labels
        if labels.device.type == "cpu":  # elsewhere it would be a wait
            self.check_labels(labels, num_classes)
        classes = torch.arange(num_classes, device=labels.device)
        return (labels[:, None] == classes).float()

    def mix_labels(
        self, labels: torch.Tensor, parameters: Parameters, num_classes: int
    ) -> torch.Tensor:
        """Return labels as shares of classes, mixed as the images are: float [n, num_classes].

        `labels` and errors are as for `shares_of`.
        """
        labels = self.shares_of(labels, num_classes)
        share = per_image(parameters["share"], labels)[:, :, 0, 0].to(labels.dtype)
        partner = to_device(parameters["partner"], labels.device)
        return labels * share + labels[partner] * (1 - share)


@dataclass(frozen=True)
class MixUp(MixTransform):
    """Blend each image with another of its batch, and their labels alike.

    Notes
    -----
    uint8 images are blended in float32 and rounded; torchvision takes floating ones only.

    Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        return {"partner": self.partners(draws), "share": self.shares(draws)}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return each image times "share", and its "partner" times the rest.

        Values may be of any range.
        """
        share, partner = per_image(parameters["share"], images), parameters["partner"]

        def mix(at: slice) -> torch.Tensor:
            values, others = to_float(images[at]), to_float(take(images, partner[at]))
            mixed = values * share[at] + others * (1 - share[at])
            if images.is_floating_point():  # perhaps normalised: not to be cut off at 0 and 1
                return mixed.to(images.dtype)
            return to_dtype_of(mixed, images, rounded=True)

        return by_piece(mix, torch.empty_like(images))


@dataclass(frozen=True)
class CutMix(MixTransform):
    """Put a rectangle of another image of the batch into each; labels follow the areas.

    Notes
    -----
    After the draws of the share come two for the centre of the rectangle.

    Yun et al., "CutMix: Regularization strategy to train strong classifiers with
    localizable features", ICCV 2019.
    """

    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        rows, columns = shape[2:]
        share = self.shares(draws)
        y, x = draws.integers([rows, columns], 2, first=FIRST_OF_BETA + BETA_DRAWS).T
        half = 0.5 * np.sqrt(1 - share)
        half_rows, half_columns = (half * rows).astype(np.int64), (half * columns).astype(np.int64)
        top, bottom = np.maximum(y - half_rows, 0), np.minimum(y + half_rows, rows)
        left, right = np.maximum(x - half_columns, 0), np.minimum(x + half_columns, columns)
        return {
            "partner": self.partners(draws),
            "share": 1 - (bottom - top) * (right - left) / (rows * columns),
            "box": np.stack([top, left, bottom, right], axis=1),
        }

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images with the "box" of their "partner": top, left, bottom, right, int [n, 4]."""
        return paste(images, parameters["box"], images, parameters["partner"])
