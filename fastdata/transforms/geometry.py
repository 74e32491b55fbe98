"""Where pixels go: the geometry of a whole batch as a struct of arrays.

Geometric transforms build up a `Geometry` with array operations, one call a
batch, before any image is decoded.  Three facts keep it small:

- Cropping and padding are one operation, a *window*: a rectangle that may
  reach beyond the image, where it is zero.  Windows on windows fold into one.
- Flips are kept apart and done last; later windows are mirrored instead.
- The first window is in coordinates of the source image, so `region` tells
  which pixels of each file matter before it is opened.

`Geometry.crops` cuts the arrays into one short list of operations an image,
which `fastdata.transforms.render` carries out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Crop",
    "Geometry",
    "Interpolation",
    "Ints",
    "Program",
    "Scale",
    "Scales",
    "Window",
    "Windows",
    "antialiases",
]

Ints: TypeAlias = NDArray[np.int64]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "nearest"]

REDUCTION_MARGIN = 3
"""How many times its target a picture must still be, in both directions, to be decoded reduced.

A JPEG can be decoded at 1/2, 1/4 or 1/8 for less, but then means of 2 x 2, 4 x 4 or 8 x 8 pixels
are what is resized.  With this margin that is 48 dB and more from the resize of all pixels, 43 dB
at the lowest, with 2 it is 43 to 46 dB (``docs/design/loading.md``).
"""

SMALLEST_REDUCED = 8
"""Pixels on a side from which on every decoder can reduce a JPEG."""


class Window(NamedTuple):
    """Take a rectangle; what lies outside the image is zero."""

    top: int
    left: int
    height: int
    width: int


class Scale(NamedTuple):
    """Resize to height x width."""

    height: int
    width: int
    interpolation: Interpolation
    antialias: bool | None


class Program(NamedTuple):
    """What happens to one image: operations in order, then perhaps a flip."""

    operations: tuple[Window | Scale, ...]
    flip: bool


class Crop(NamedTuple):
    """What to read of one image, and what happens to that.

    `window` is (top, left, height, width) inside the image, empty where none of it is wanted;
    its pixels may be reduced by `factor`, 1, 2, 4 or 8, while they are decoded.
    """

    window: tuple[int, int, int, int]
    factor: int
    program: Program


class PlainResize(NamedTuple):
    """A bilinear resize of every image, and the part of the result that is wanted.

    `target` are height and width of the result, `part` top and left of what is wanted, which is
    inside it; int64 [n] each.  `factors`, int64 [n], say by how much a JPEG is reduced while it is
    decoded.  `antialiased`, bool [n], says which resizes are antialiased; None where none is.
    """

    target: tuple[Ints, Ints]
    part: tuple[Ints, Ints]
    factors: Ints
    antialiased: NDArray[np.bool_] | None


class PlainCrops(NamedTuple):
    """Images that are cut to a window, resized, cut and flipped, no more.

    `windows` are (top, left, height, width), int64 [n] each, and may reach beyond the image.
    `resize` is None where none is resized.
    """

    windows: tuple[Ints, Ints, Ints, Ints]
    resize: PlainResize | None


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One window an image, int64 [n] each."""

    top: Ints
    left: Ints
    height: Ints
    width: Ints

    def rows(self) -> list[Window]:
        columns = (self.top, self.left, self.height, self.width)
        return [Window(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """One target size an image, int64 [n] each."""

    height: Ints
    width: Ints
    interpolation: Interpolation
    antialias: bool | None

    def rows(self) -> list[Scale]:
        sizes = zip(self.height.tolist(), self.width.tolist(), strict=True)
        return [Scale(*size, self.interpolation, self.antialias) for size in sizes]


Step: TypeAlias = Windows | Scales


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Planned geometry of n images; every method returns a new one.

    Attributes
    ----------
    source_height, source_width : ndarray of int64, shape [n]
        Sizes of the images as they are stored.
    height, width : ndarray of int64, shape [n]
        Sizes after what is planned so far.
    flip : ndarray of bool, shape [n]
        Images to be mirrored after all steps.
    """

    source_height: Ints
    source_width: Ints
    height: Ints
    width: Ints
    flip: NDArray[np.bool_]
    steps: tuple[Windows | Scales, ...] = ()
    mixed: bool = False
    """Whether images may take some of the steps only, the others leaving them as they are."""

    @classmethod
    def of(cls, height: ArrayLike, width: ArrayLike) -> Geometry:
        """Return the geometry that leaves images of these sizes as they are."""
        rows, columns = np.asarray(height, np.int64), np.asarray(width, np.int64)
        return cls(rows, columns, rows, columns, np.zeros(len(rows), np.bool_))

    def __len__(self) -> int:
        return len(self.height)

    def window(
        self, top: ArrayLike, left: ArrayLike, height: ArrayLike, width: ArrayLike
    ) -> Geometry:
        """Take a rectangle of each image as it is now; each argument is int or int [n].

        The rectangle may reach beyond the image on any side; pixels there are
        zero.
        """
        top, left, height, width = (
            np.broadcast_to(np.asarray(a, np.int64), self.height.shape)
            for a in (top, left, height, width)
        )
        # Flips come last, so a rectangle of a mirrored image is taken from
        # the other side.
        left = np.where(self.flip, self.width - left - width, left)
        within = (
            (top >= 0) & (left >= 0) & (top + height <= self.height) & (left + width <= self.width)
        ).all()
        steps = self.steps
        if steps and isinstance(steps[-1], Windows) and within:
            # A rectangle within the rectangle before: one of their source.
            top, left = steps[-1].top + top, steps[-1].left + left
            steps = steps[:-1]
        elif within and (height == self.height).all() and (width == self.width).all():
            return self
        step = Windows(top, left, height, width)
        return replace(self, height=height, width=width, steps=(*steps, step))

    def resize(
        self,
        height: ArrayLike,
        width: ArrayLike,
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = None,
    ) -> Geometry:
        """Resize each image; sizes are int or int [n]."""
        height, width = (
            np.broadcast_to(np.asarray(a, np.int64), self.height.shape) for a in (height, width)
        )
        if (height == self.height).all() and (width == self.width).all():
            return self
        step = Scales(height, width, interpolation, antialias)
        return replace(self, height=height, width=width, steps=(*self.steps, step))

    def mirror(self, which: NDArray[np.bool_]) -> Geometry:
        """Flip those images left to right for which `which`, bool [n], is true."""
        return replace(self, flip=self.flip ^ which)

    def some(self, which: NDArray[np.bool_]) -> Geometry:
        """Return the geometry of the images for which `which`, bool [n], is true.

        It has no step that leaves all of these as they are.
        """
        columns = {name: values[which] for name, values in _columns(self).items()}
        height, width = columns["source_height"], columns["source_width"]
        steps: list[Step] = []
        for whole in self.steps:
            step = replace(whole, **{name: v[which] for name, v in _columns(whole).items()})
            if not _is_idle(step, height, width).all():
                steps[-1:] = _folded(steps[-1], step) if steps else [step]
            height, width = _size_after(step, height, width)
        return replace(self, steps=tuple(steps), **columns)

    def joined(self, which: NDArray[np.bool_], others: Geometry) -> Geometry:
        """Return the geometry of a batch of two kinds of images.

        `which`, bool [n], says which images take this geometry; the rest takes `others`.  A step
        that only one of them has leaves the images of the other as they are.
        """

        def join(mine: Any, theirs: Any) -> Any:
            if mine is None and theirs is None:
                return None
            mine, theirs = (
                np.zeros(count, other.dtype) if part is None else part
                for part, other, count in (
                    (mine, theirs, len(self)),
                    (theirs, mine, len(others)),
                )
            )
            values = np.empty((len(which), *mine.shape[1:]), mine.dtype)
            values[which], values[~which] = mine, theirs
            return values

        steps = []
        sizes = self.source_height, self.source_width
        other_sizes = others.source_height, others.source_width
        pairs = _aligned(self.steps, others.steps)
        for mine, theirs in pairs:
            step, other = mine or _idle(theirs, *sizes), theirs or _idle(mine, *other_sizes)
            there = _columns(other)
            columns = {name: join(here, there[name]) for name, here in _columns(step).items()}
            steps.append(replace(step, **columns))
            sizes, other_sizes = _size_after(step, *sizes), _size_after(other, *other_sizes)
        names = (field.name for field in fields(self) if field.name not in ("steps", "mixed"))
        columns = {name: join(getattr(self, name), getattr(others, name)) for name in names}
        mixed = self.mixed or others.mixed or any(None in pair for pair in pairs)
        return replace(self, steps=tuple(steps), mixed=mixed, **columns)

    def parts(self) -> list[tuple[Any, Geometry]]:
        """Return the places of images that take the same steps, and their geometry, by kind."""
        if not self.mixed:
            return [(slice(None), self)]
        kinds = np.zeros(len(self), np.int64)
        height, width = self.source_height, self.source_width
        for step in self.steps:
            kinds = 2 * kinds + _is_idle(step, height, width)
            height, width = _size_after(step, height, width)
        return [
            (np.flatnonzero(kinds == kind), replace(self.some(kinds == kind), mixed=False))
            for kind in np.unique(kinds)
        ]

    @property
    def identity(self) -> bool:
        """Whether every image stays as it is."""
        return not self.steps and not self.flip.any()

    @property
    def region(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The source pixels that matter: (top, left, height, width), int64 [n] each.

        Always inside the image; empty where a window misses it altogether.
        """
        if not self.steps or not isinstance(self.steps[0], Windows):
            zeros = np.zeros_like(self.source_height)
            return zeros, zeros, self.source_height, self.source_width
        first = self.steps[0]
        top = np.clip(first.top, 0, self.source_height)
        left = np.clip(first.left, 0, self.source_width)
        bottom = np.clip(first.top + first.height, top, self.source_height)
        right = np.clip(first.left + first.width, left, self.source_width)
        return top, left, bottom - top, right - left

    def crops(self) -> list[Crop]:
        """Return what to read of each image, and what to do with it, in order."""
        if self.mixed:
            found: dict[int, Crop] = {}
            for which, part in self.parts():
                found |= zip(which.tolist(), part.crops(), strict=True)
            return [found[at] for at in range(len(self))]
        steps = self.steps
        region = self.region
        if steps and isinstance(steps[0], Windows):
            first = steps[0]
            top, left, height, width = region
            if (first.height == height).all() and (first.width == width).all():
                steps = steps[1:]  # inside the image: what is read is the window
            else:
                moved = replace(first, top=first.top - top, left=first.left - left)
                steps = (moved, *steps[1:])
        windows = zip(*(part.tolist() for part in region), strict=True)
        rest = replace(self, steps=steps).programs()
        factors = self._reductions(steps, region[2], region[3]).tolist()
        return list(map(Crop, windows, factors, rest))

    @property
    def plain_crops(self) -> PlainCrops | None:
        """The windows, resizes and windows of those, one a sample, if they are all but flips.

        None if there is more, or ``antialias=True`` asks for another library's pixels.
        """
        steps = self.steps
        top = left = np.zeros_like(self.source_height)
        windows = top, left, self.source_height, self.source_width
        if steps and isinstance(steps[0], Windows):
            first, steps = steps[0], steps[1:]
            windows = first.top, first.left, first.height, first.width
        if not steps:
            return PlainCrops(windows, None)
        scale, *others = steps
        if not isinstance(scale, Scales) or scale.interpolation != "bilinear" or scale.antialias:
            return None
        part = np.zeros_like(top), np.zeros_like(top)
        if others:
            last, *more = others
            if more or not isinstance(last, Windows) or not _is_inside(last, scale):
                return None
            part = last.top, last.left
        antialiased = None
        if scale.antialias is None:
            antialiased = antialiases(*windows[2:], scale.height, scale.width)
        factors = self._reductions(steps, *windows[2:])
        target = scale.height, scale.width
        return PlainCrops(windows, PlainResize(target, part, factors, antialiased))

    def _reductions(self, steps: tuple[Windows | Scales, ...], height: Ints, width: Ints) -> Ints:
        """Return by how much pixels of these sizes may be reduced before `steps`.

        As far as the first resize leaves room for, unless the user insists on a filter.
        """
        first = steps[0] if steps else None
        if (
            not isinstance(first, Scales)
            or first.antialias is not None
            or first.interpolation == "nearest"
        ):
            return np.ones_like(height)
        room = np.minimum(
            height // np.maximum(REDUCTION_MARGIN * first.height, 1),
            width // np.maximum(REDUCTION_MARGIN * first.width, 1),
        )
        room[np.minimum(self.source_height, self.source_width) < SMALLEST_REDUCED] = 1
        factors: Ints = np.select([room >= 8, room >= 4, room >= 2], [8, 4, 2], 1)
        return factors

    def programs(self) -> list[Program]:
        """Return what to do with each whole image, in order."""
        rows = [step.rows() for step in self.steps]
        operations = list(zip(*rows, strict=True)) if rows else [()] * len(self)
        return list(map(Program, operations, self.flip.tolist()))


def _columns(value: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a `Geometry` or of a step, one value an image, by name."""
    every = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: part for name, part in every if isinstance(part, np.ndarray)}


def _size_after(step: Step, height: Ints, width: Ints) -> tuple[Ints, Ints]:
    """Return heights and widths after a step, from those before."""
    return step.height, step.width


def _idle(step: Any, height: Ints, width: Ints) -> Any:
    """Return a step of the kind of `step` that leaves images of these sizes as they are."""
    sizes = {"height": height, "width": width}
    columns = {
        name: sizes.get(name, np.zeros((len(height), *values.shape[1:]), values.dtype))
        for name, values in _columns(step).items()
    }
    return replace(step, **columns)


def _is_idle(step: Step, height: Ints, width: Ints) -> NDArray[np.bool_]:
    """Return which images, of these sizes, a step leaves as they are."""
    idle = _columns(_idle(step, height, width))
    return np.logical_and.reduce([idle[name] == v for name, v in _columns(step).items()])


def _folded(first: Step, second: Step) -> list[Step]:
    """Return two steps as one where they are windows within windows, else both."""
    if not (isinstance(first, Windows) and isinstance(second, Windows)):
        return [first, second]
    if not _is_inside(second, first):
        return [first, second]
    return [replace(second, top=first.top + second.top, left=first.left + second.left)]


def _aligned(some: tuple[Step, ...], others: tuple[Step, ...]) -> list[tuple[Any, Any]]:
    """Return pairs of steps of one kind, in order; None for a step that has no like.

    As few as possible.  A window that comes first stays first, as it says what is read of a file.
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


def antialiases(rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """Return where ``antialias=None`` antialiases: where rows x columns shrink in a direction."""
    return (rows > height) | (columns > width)


def _is_inside(window: Windows, before: Step) -> bool:
    """Return whether windows are inside of what a step made of the images."""
    low = np.minimum(window.top, window.left)
    bottom, right = window.top + window.height, window.left + window.width
    return bool(((low >= 0) & (bottom <= before.height) & (right <= before.width)).all())
