"""The geometry of a batch whose images take different transforms.

`some` takes images out of a `Geometry`, and `joined` puts two kinds of images together: steps of
one kind become one step, and a step that only some images take leaves the others as they are.  So
a mixed batch is planned, decoded and rendered as any other.

What is made of an image must not depend on which others are in its batch.  So where steps decide
how far a JPEG is reduced, or where boxes are cut off, `parts` takes the kinds apart again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.transforms.geometry import CentreCut, Crop, Geometry, Ints, Scales, Windows
from fastdata.transforms.warps import Warps

__all__ = ["crops_of", "joined", "parts", "some"]

Step: TypeAlias = Windows | Scales | Warps


def some(geometry: Geometry, which: NDArray[Any]) -> Geometry:
    """Return the geometry of some of n images: bool [n], or their places.

    Steps without effect on them are dropped.
    """
    columns = {name: values[which] for name, values in _columns(geometry).items()}
    height, width = columns["source_height"], columns["source_width"]
    steps: list[Step] = []
    for whole in geometry.steps:
        step = replace(whole, **{name: v[which] for name, v in _columns(whole).items()})
        if not _is_idle(step, height, width).all():
            steps[-1:] = _folded(steps[-1], step) if steps else [step]
        height, width = step.height, step.width
    numbers = np.full(len(geometry), -1)
    numbers[which] = np.arange(len(height))
    centred = tuple(_renumbered(cut, numbers) for cut in geometry.centred)
    return replace(geometry, steps=tuple(steps), centred=centred, **columns)


def _renumbered(cut: CentreCut, numbers: Ints) -> CentreCut:
    """Return a cut with other numbers of its images; without those of number -1."""
    images = numbers[cut.images]
    here = images >= 0
    return CentreCut(images[here], cut.rows[here], cut.before, cut.windows[here])


def joined(which: NDArray[np.bool_], chosen: Geometry, others: Geometry) -> Geometry:
    """Return the geometry of n images: `chosen` for those in `which`, bool [n], else `others`."""

    def join(here: Any, there: Any) -> Any:
        if here is None and there is None:
            return None
        like: NDArray[Any] = there if here is None else here
        values = np.zeros((len(which), *like.shape[1:]), like.dtype)
        for places, part in ((which, here), (~which, there)):
            if part is not None:
                values[places] = part
        return values

    steps = []
    sizes = chosen.source_height, chosen.source_width
    other_sizes = others.source_height, others.source_width
    pairs = _aligned(chosen.steps, others.steps)
    for here, there in pairs:
        step, other = here or _idle(there, *sizes), there or _idle(here, *other_sizes)
        columns = _columns(other)
        together = {name: join(values, columns[name]) for name, values in _columns(step).items()}
        steps.append(replace(step, **together))
        sizes, other_sizes = (step.height, step.width), (other.height, other.width)
    others_too = ("steps", "mixed", "centred")
    names = [field.name for field in fields(chosen) if field.name not in others_too]
    together = {name: join(getattr(chosen, name), getattr(others, name)) for name in names}
    mixed = chosen.mixed or others.mixed or any(None in pair for pair in pairs)
    centred = tuple(
        _renumbered(cut, np.flatnonzero(places))
        for places, part in ((which, chosen), (~which, others))
        for cut in part.centred
    )
    return replace(chosen, steps=tuple(steps), mixed=mixed, centred=centred, **together)


def parts(geometry: Geometry) -> Iterator[tuple[Ints, Geometry]]:
    """Yield the places of images that take the same steps, and their geometry, for each kind.

    Windows inside of the images and windows that reach beyond them are of two kinds.
    """
    kinds = np.zeros(len(geometry), np.int64)
    height, width = geometry.source_height, geometry.source_width
    for step in geometry.steps:
        kinds = 2 * kinds + _is_idle(step, height, width)
        height, width = step.height, step.width
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        part = replace(some(geometry, places), mixed=False)
        inside = part.begins_inside
        for which in (inside, ~inside):
            if which.any():
                yield places[which], part if which.all() else some(part, which)


def crops_of(geometry: Geometry) -> list[Crop]:
    """Return what to read of each image, and what to do with it, in order."""
    if not (geometry.mixed or geometry.may_be_reduced):
        return geometry.crops()
    found: dict[int, Crop] = {}
    for places, part in parts(geometry):
        found |= zip(places.tolist(), part.crops(), strict=True)
    return [found[at] for at in range(len(geometry))]


def _columns(value: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a `Geometry` or of a step, one value an image, by name."""
    every = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: part for name, part in every if isinstance(part, np.ndarray)}


def _idle(step: Any, height: Ints, width: Ints) -> Any:
    """Return a step of the same kind without effect on images of such sizes."""
    columns: dict[str, NDArray[Any]] = {
        name: np.zeros((len(height), *values.shape[1:]), values.dtype)
        for name, values in _columns(step).items()
    }
    if isinstance(step, Warps):
        columns["matrix"] += np.eye(3)
    return replace(step, **{**columns, "height": height, "width": width})


def _is_idle(step: Step, height: Ints, width: Ints) -> NDArray[np.bool_]:
    """Return the images that a step does not change: bool [n]; these are their sizes."""
    if isinstance(step, Warps):
        return ~step.applied
    idle = _columns(_idle(step, height, width))
    same: NDArray[np.bool_] = np.logical_and.reduce(
        [idle[name] == values for name, values in _columns(step).items()]
    )
    return same


def _folded(first: Step, second: Step) -> list[Step]:
    """Return two steps as one where they are windows within windows, else both."""
    if isinstance(first, Windows) and isinstance(second, Windows):
        low = np.minimum(second.top, second.left)
        bottom, right = second.top + second.height, second.left + second.width
        if ((low >= 0) & (bottom <= first.height) & (right <= first.width)).all():
            top, left = first.top + second.top, first.left + second.left
            return [replace(first, top=top, left=left, height=second.height, width=second.width)]
    return [first, second]


def _aligned(some: tuple[Step, ...], others: tuple[Step, ...]) -> list[tuple[Any, Any]]:
    """Return pairs of steps of one kind, in order; None for a step that has no like.

    As few as possible.  A window at the beginning stays there, since it decides how much of a file
    is read.
    """

    def kind(step: Step) -> list[Any]:
        arrays = _columns(step)
        names = (field.name for field in fields(step) if field.name not in arrays)
        return [type(step), *(getattr(step, name) for name in names)]

    @cache
    def pairs(mine: int, theirs: int) -> list[tuple[Any, Any]]:
        if mine == len(some):
            return [(None, step) for step in others[theirs:]]
        if theirs == len(others):
            return [(step, None) for step in some[mine:]]
        here, there = some[mine], others[theirs]
        if kind(here) == kind(there):
            return [(here, there), *pairs(mine + 1, theirs + 1)]
        first = [(here, None), *pairs(mine + 1, theirs)]
        second = [(None, there), *pairs(mine, theirs + 1)]
        if isinstance(there, Windows):
            first, second = second, first
        leading = mine == theirs == 0 and isinstance(here, Windows) != isinstance(there, Windows)
        return first if leading or len(first) <= len(second) else second

    return pairs(0, 0)
