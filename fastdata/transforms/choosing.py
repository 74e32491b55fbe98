"""RandomApply, RandomChoice and RandomOrder: transforms of some images of a batch.

A pipeline does not run these classes.  `members_of` takes their members out: each becomes a
transform of its own, with *gates*.  A gate compares the choice of an image with one value, and a
member changes an image if all its gates hold:

    RandomApply([a, b])      a and b where the images are chosen
    RandomChoice([a, b])     a where the choice is 0, b where it is 1
    RandomOrder([a, b])      a where it is first, b where it is first, then the same for second

So each member runs where its kind does: geometry while images are decoded, colours on the batch.
All members of one class see the same decision, as it is drawn under the number of this class.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws, SampleKeys, operation_id
from fastdata.transforms.base import parse, probability

__all__ = [
    "Chooser",
    "Gate",
    "Member",
    "Outcome",
    "RandomApply",
    "RandomChoice",
    "RandomOrder",
    "chosen",
    "innermost",
    "members_of",
    "outcomes_of",
]

MOST_OUTCOMES = 64
"""Outcomes of the choices of a list that are looked at before the first batch."""

Outcome: TypeAlias = Mapping[int, tuple[int, ...]]
"""A row of `Chooser.choices` for the number of each chooser."""


@dataclass(frozen=True)
class Chooser(ABC):
    """The base of RandomApply, RandomChoice and RandomOrder: one decision for each image."""

    transforms: Sequence[Any] | torch.nn.ModuleList

    def __post_init__(self) -> None:
        name, given = type(self).__name__, self.transforms
        if isinstance(given, str) or not isinstance(given, (Sequence, torch.nn.ModuleList)):
            raise OptionError(f"{name} takes a list of transforms, not {given!r}")
        if not len(given):
            raise OptionError(f"{name} takes one transform at least, and its list is empty")
        object.__setattr__(self, "transforms", tuple(given))

    @abstractmethod
    def choices(self, draws: Draws) -> NDArray[np.int64]:
        """Return the choices of n images: int64 [n, places]."""

    @abstractmethod
    def outcomes(self) -> Iterator[tuple[int, ...]]:
        """Yield the rows that `choices` may have."""

    @abstractmethod
    def gates(self) -> Iterator[tuple[int, int, int]]:
        """Yield (place, choice, number of a member) in the order in which members run."""


@dataclass(frozen=True)
class RandomApply(Chooser):
    """Apply all transforms of a list, one after another, to an image with probability `p`.

    Parameters
    ----------
    transforms : list
        Of fastdata or callables, except `Normalize` and others that every image of a batch needs.
    p : float
        Probability that an image is transformed.

    Raises
    ------
    OptionError
        If `transforms` is not a list, or empty; if `p` is not from 0 to 1; from a loader, for a
        member that it refuses.

    Notes
    -----
    One decision for each image, also where a batch is transformed; torchvision takes one for its
    argument, be it an image or a batch.  Draw 0 is compared with `p`.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> T.RandomApply([T.ColorJitter(0.4, 0.4)], p=0.8)  # doctest: +ELLIPSIS
    RandomApply(transforms=(ColorJitter(...),), p=0.8)
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, p=probability)

    def choices(self, draws: Draws) -> NDArray[np.int64]:
        return (draws.uniform() < self.p).astype(np.int64)

    def outcomes(self) -> Iterator[tuple[int, ...]]:
        if self.p > 0:
            yield (1,)
        if self.p < 1:
            yield (0,)

    def gates(self) -> Iterator[tuple[int, int, int]]:
        for number in range(len(self.transforms)):
            yield 0, 1, number


@dataclass(frozen=True)
class RandomChoice(Chooser):
    """Apply one transform of a list to each image.

    Parameters
    ----------
    transforms : list
        As in `RandomApply`; a `RandomApply` with ``p=1`` is a member of several transforms.
    p : list of float, optional
        One weight for each transform, from 0 up; their sum may be any.  By default all are equal.

    Raises
    ------
    OptionError
        If `transforms` is not a list, or empty; if `p` does not fit it; from a loader, for a
        member that it refuses.

    Notes
    -----
    One choice for each image, also of `MixUp` and `CutMix`: those images of a batch are mixed with
    each other that take the same one.  Draw 0 chooses.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> T.RandomChoice([T.MixUp(num_classes=10), T.CutMix(num_classes=10)])  # doctest: +ELLIPSIS
    RandomChoice(transforms=(MixUp(...), CutMix(...)), p=(0.5, 0.5))
    """

    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.transforms)
        try:
            weights = [1.0] * count if self.p is None else [float(weight) for weight in self.p]
        except (TypeError, ValueError):
            weights = []
        total = sum(weights)
        sound = all(weight >= 0 for weight in weights) and 0 < total < math.inf
        if len(weights) != count or not sound:
            raise OptionError(
                f"p has a weight from 0 up for each of {count} transforms, and one above 0, not "
                f"{self.p!r}"
            )
        object.__setattr__(self, "p", tuple(weight / total for weight in weights))

    @property
    def _weights(self) -> Sequence[float]:
        assert self.p is not None, "set in __post_init__"
        return self.p

    def choices(self, draws: Draws) -> NDArray[np.int64]:
        edges = np.cumsum(self._weights)
        edges /= edges[-1]  # exactly 1 from the last member on that is ever chosen
        return np.searchsorted(edges, draws.uniform(), side="right")

    def outcomes(self) -> Iterator[tuple[int, ...]]:
        return ((number,) for number, weight in enumerate(self._weights) if weight)

    def gates(self) -> Iterator[tuple[int, int, int]]:
        for number in range(len(self.transforms)):
            yield 0, number, number


@dataclass(frozen=True)
class RandomOrder(Chooser):
    """Apply all transforms of a list, in an order of its own to each image.

    Parameters
    ----------
    transforms : list
        As in `RandomApply`.

    Raises
    ------
    OptionError
        If `transforms` is not a list, or empty; from a loader, for a member that it refuses.

    Notes
    -----
    A member draws the same numbers for an image, whatever its place.  N members take N times N
    steps, each for the images that have this member at this place.  Draws 0 to N - 1 are the order.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> T.RandomOrder([T.ColorJitter(0.4), T.GaussianBlur(3)])  # doctest: +ELLIPSIS
    RandomOrder(transforms=(ColorJitter(...), GaussianBlur(...)))
    """

    def choices(self, draws: Draws) -> NDArray[np.int64]:
        return draws.uniform(len(self.transforms)).argsort(axis=1, kind="stable")

    def outcomes(self) -> Iterator[tuple[int, ...]]:
        return itertools.permutations(range(len(self.transforms)))

    def gates(self) -> Iterator[tuple[int, int, int]]:
        every = range(len(self.transforms))
        for place, number in itertools.product(every, every):
            yield place, number, number


class Gate(NamedTuple):
    """Holds for the images whose chooser, which draws under `operation`, has this choice."""

    operation: int
    chooser: Chooser
    place: int
    choice: int


class Member(NamedTuple):
    """One transform, the number of its draws, and its gates, which must all hold."""

    operation: int
    transform: Any
    gates: tuple[Gate, ...] = ()

    def happens(self, outcome: Outcome) -> bool:
        """Return whether all gates hold with an outcome; not, if it leaves out a chooser."""
        return all(
            gate.operation in outcome and outcome[gate.operation][gate.place] == gate.choice
            for gate in self.gates
        )


def members_of(position: int, path: str, transform: Any) -> Iterator[Member]:
    """Yield the members of a chooser, and of its members, in order; or the transform itself.

    A transform draws under ``operation_id(position, path)``.  The path of a member is
    ``path/number/class``.
    """
    operation = operation_id(position, path)
    if not isinstance(transform, Chooser):
        yield Member(operation, transform)
        return
    for place, choice, number in transform.gates():
        gate = Gate(operation, transform, place, choice)
        inner = transform.transforms[number]
        below = f"{path}/{number}/{type(inner).__name__}"
        for member in members_of(position, below, inner):
            yield member._replace(gates=(gate, *member.gates))


def innermost(transforms: Iterable[Any]) -> Iterator[Any]:
    """Yield transforms; for a chooser, its members."""
    for transform in transforms:
        if isinstance(transform, Chooser):
            yield from innermost(transform.transforms)
        else:
            yield transform


def chosen(gates: Iterable[Gate], seed: int, keys: SampleKeys) -> NDArray[np.bool_]:
    """Return whether all gates hold, for each sample: bool [n]."""
    which = np.ones(len(keys), np.bool_)
    for gate in gates:
        choices = gate.chooser.choices(keys.draws(seed, gate.operation))
        which &= choices[:, gate.place] == gate.choice
    return which


def outcomes_of(gates: Iterable[Gate]) -> list[Outcome] | None:
    """Return all outcomes of the choices that gates depend on; None if they are too many."""
    choosers = {gate.operation: gate.chooser for gate in gates}
    rows: list[tuple[tuple[int, ...], ...]] = [()]
    for chooser in choosers.values():
        some = list(itertools.islice(chooser.outcomes(), MOST_OUTCOMES + 1))
        if len(rows) * len(some) > MOST_OUTCOMES:
            return None
        rows = [(*row, one) for row in rows for one in some]
    return [dict(zip(choosers, row, strict=True)) for row in rows]
