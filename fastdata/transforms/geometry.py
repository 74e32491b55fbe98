"""Where pixels go: the geometry of a whole batch as a struct of arrays.

Geometric transforms build up a `Geometry` with array operations, one call a
batch, before any image is decoded.  Three facts keep it small:

- Cropping and padding are one operation, a *window*: a rectangle that may reach beyond the image.
  Pixels there are zero unless a fill or a mode says otherwise.  Windows within
  windows fold into one.
- Flips and transpositions are kept apart and done last; later steps are turned instead.
- The first window is in coordinates of the source image, so `region` tells
  which pixels of each file matter before it is opened.

Images of a batch that take different transforms are its *parts*, each with a geometry of its own.

`Geometry.crops` cuts the arrays into one short list of operations an image,
which `fastdata.transforms.render` carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastdata.errors import OptionError
from fastdata.transforms.fill import ZERO, Fill
from fastdata.transforms.warps import (
    Displacement,
    Ints,
    Matrices,
    Warp,
    WarpInterpolation,
    Warps,
    upright,
)

__all__ = [
    "CentreCut",
    "Crop",
    "Geometry",
    "Interpolation",
    "Ints",
    "PaddingMode",
    "Program",
    "Scale",
    "Scales",
    "Window",
    "Windows",
    "antialiases",
    "inside_places",
]

Interpolation: TypeAlias = Literal["bilinear", "bicubic", "nearest"]

PaddingMode: TypeAlias = Literal["constant", "edge", "reflect", "symmetric"]
"""What lies beyond an image: as of `numpy.pad`, for any distance."""

REDUCTION_MARGIN = 3
"""How many times its target a picture must still be, in both directions, to be decoded reduced.

A JPEG can be decoded at 1/2, 1/4 or 1/8 for less, but then the resize gets means of 2 x 2, 4 x 4 or
8 x 8 pixels.  With this margin that is 48 dB and more from the resize of all pixels, 43 dB
at the lowest, with 2 it is 43 to 46 dB (``docs/design/loading.md``).
"""

MOST_WARPED = 32_767
"""Pixels on a side of the largest images that OpenCV can look up."""

SMALLEST_REDUCED = 8
"""Every decoder can reduce a JPEG with this many pixels on a side, or more."""


class Window(NamedTuple):
    """Take a rectangle; pixels outside the image are zero, `fill`, or as `mode` says."""

    top: int
    left: int
    height: int
    width: int
    fill: Fill | None = None
    mode: PaddingMode = "constant"


class Scale(NamedTuple):
    """Resize to height x width."""

    height: int
    width: int
    interpolation: Interpolation
    antialias: bool | None


class Program(NamedTuple):
    """What happens to one image: operations in order, then its orientation.

    It is transposed, then mirrored left to right (`flip`) and top to bottom (`flip_rows`).
    """

    operations: tuple[Window | Scale | Warp, ...]
    flip: bool
    flip_rows: bool = False
    transpose: bool = False


class Crop(NamedTuple):
    """What to read of one image, and what happens to that.

    `window` is (top, left, height, width) inside the image.  It is empty if no pixel is used.  Its
    pixels may be reduced by `factor`, 1, 2, 4 or 8, while they are decoded.
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
    """Images that are cut to a window, resized, cut and mirrored, no more.

    `windows` are (top, left, height, width), int64 [n] each, and may reach beyond the image.
    `resize` is None where none is resized.
    """

    windows: tuple[Ints, Ints, Ints, Ints]
    resize: PlainResize | None


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One window an image, int64 [n] each; beyond the images as in `Window`."""

    top: Ints
    left: Ints
    height: Ints
    width: Ints
    fill: Fill | None = None
    mode: PaddingMode = "constant"

    @property
    def zero(self) -> bool:
        """Whether pixels beyond the images are zero."""
        return self.fill is None and self.mode == "constant"

    def rows(self) -> list[Window]:
        columns = (self.top, self.left, self.height, self.width)
        rows = zip(*(c.tolist() for c in columns), strict=True)
        if self.zero:
            return [Window(*row) for row in rows]
        return [Window(*row)._replace(fill=self.fill, mode=self.mode) for row in rows]


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


class CentreCut(NamedTuple):
    """A crop that boxes with a centre outside do not survive.

    `which`, bool [n], are the images that are cropped, and `windows`, int64 [n, 4], the rectangles
    in coordinates of the geometry `before` the crop.
    """

    which: NDArray[np.bool_]
    before: Geometry
    windows: Ints


@dataclass(frozen=True, eq=False)
class Geometry:
    """Planned geometry of n images; every method returns a new one.

    Attributes
    ----------
    source_height, source_width : ndarray of int64, shape [n]
        Sizes of the images as they are stored.
    height, width : ndarray of int64, shape [n]
        Sizes after all planned steps.
    flip : ndarray of bool, shape [n]
        Images to be mirrored left to right, after all steps and `transpose`.
    steps : tuple of Windows, Scales or Warps
        In coordinates before the orientation.
    flip_rows : ndarray of bool, shape [n], or None
        Images to be mirrored top to bottom, after all steps and `transpose`; None: none is.
    transpose : ndarray of bool, shape [n], or None
        Images whose rows become columns, after all steps; None: none is transposed.
    parts : tuple of (ndarray of int64, Geometry)
        Groups of images that take the same steps: their places, and their geometry.  The whole
        then has no steps and no `transpose`.  Empty if all images take the same steps.
    boxes : ndarray of object, shape [n], or None
        The boxes of each stored image, float64 [k, 4], if a transform needs them.
    centred : tuple of CentreCut
        Crops that set boxes with a centre outside to zero.
    """

    source_height: Ints
    source_width: Ints
    height: Ints
    width: Ints
    flip: NDArray[np.bool_]
    steps: tuple[Windows | Scales | Warps, ...] = ()
    flip_rows: NDArray[np.bool_] | None = None
    transpose: NDArray[np.bool_] | None = None
    parts: tuple[tuple[Ints, Geometry], ...] = ()
    boxes: NDArray[np.object_] | None = None
    centred: tuple[CentreCut, ...] = ()

    @classmethod
    def of(cls, height: ArrayLike, width: ArrayLike) -> Geometry:
        """Return the geometry that leaves images of these sizes as they are."""
        rows, columns = np.asarray(height, np.int64), np.asarray(width, np.int64)
        return cls(rows, columns, rows, columns, np.zeros(len(rows), np.bool_))

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[Ints, Geometry]]) -> Geometry:
        """Return the geometry of images from those of its parts."""
        if len(parts) == 1:
            return parts[0][1]

        def column(name: str, dtype: Any = np.int64) -> Any:
            whole = np.zeros(sum(len(places) for places, _ in parts), dtype)
            for places, part in parts:
                values = getattr(part, name)
                if values is not None:
                    whole[places] = values
            return whole

        return cls(
            source_height=column("source_height"),
            source_width=column("source_width"),
            height=column("height"),
            width=column("width"),
            flip=column("flip", np.bool_),
            flip_rows=_if_any(column("flip_rows", np.bool_)),
            parts=tuple(parts),
        )

    def by_part(self) -> Sequence[tuple[Any, Geometry]]:
        """Return the places of images that take the same steps, and their geometry."""
        return self.parts or ((slice(None), self),)

    def some(self, places: Ints) -> Geometry:
        """Return the geometry of some images; it has no parts."""
        cuts = [
            CentreCut(cut.which[places], cut.before.some(places), cut.windows[places])
            for cut in self.centred
        ]
        steps = tuple(_rows_of(step, places) for step in self.steps)
        geometry: Geometry = _rows_of(self, places)
        flip_rows, transpose = map(_if_any, (geometry.flip_rows, geometry.transpose))
        return geometry._after(
            steps=steps, centred=tuple(cuts), flip_rows=flip_rows, transpose=transpose
        )

    def _after(self, **changes: Any) -> Geometry:
        """Return the geometry with some attributes changed."""
        if self.parts:
            raise OptionError(
                "images of this geometry take different steps, as some were warped: let a warp be "
                "the last step of a transform, or plan each of Geometry.by_part()"
            )
        made = object.__new__(Geometry)  # `dataclasses.replace` takes longer
        made.__dict__.update(self.__dict__, **changes)
        return made

    def __len__(self) -> int:
        return len(self.height)

    def with_boxes(self, boxes: Sequence[NDArray[np.float64]]) -> Geometry:
        """Tell transforms the boxes of the n images as they are stored, float64 [k, 4] each."""
        column = np.empty(len(self), np.object_)
        for at, some in enumerate(boxes):
            column[at] = some
        return self._after(boxes=column)

    def window(
        self,
        top: ArrayLike,
        left: ArrayLike,
        height: ArrayLike,
        width: ArrayLike,
        *,
        fill: Fill | None = None,
        mode: PaddingMode = "constant",
        centres: NDArray[np.bool_] | None = None,
    ) -> Geometry:
        """Take a rectangle of each image as it is now; each argument is int or int [n].

        The rectangle may reach beyond the image on any side; pixels there are zero, or `fill`,
        or with another `mode` those of the image.  If `centres`, bool [n], is true for an image,
        its boxes become empty whose centre is not inside the rectangle.
        """
        top, left, height, width = (
            np.broadcast_to(np.asarray(a, np.int64), self.height.shape)
            for a in (top, left, height, width)
        )
        if centres is not None and centres.any():
            windows = np.stack([top, left, height, width], 1)
            cut = CentreCut(centres, self._after(centred=()), windows)
            cropped = self.window(top, left, height, width, fill=fill, mode=mode)
            return cropped._after(centred=(*self.centred, cut))
        # The orientation comes last, so a rectangle of a mirrored image is taken from
        # the other side.
        size = height, width
        left = np.where(self.flip, self.width - left - width, left)
        if self.flip_rows is not None:
            top = np.where(self.flip_rows, self.height - top - height, top)
        within = (
            (top >= 0) & (left >= 0) & (top + height <= self.height) & (left + width <= self.width)
        ).all()
        if self.transpose is not None:
            (top, left), (height, width) = self.before(top, left), self.before(height, width)
        steps = self.steps
        last = steps[-1] if steps else None
        if isinstance(last, Windows) and within:
            # A rectangle within the rectangle before: one of their source.
            top, left, fill, mode = last.top + top, last.left + left, last.fill, last.mode
            steps = steps[:-1]
        elif within and (size[0] == self.height).all() and (size[1] == self.width).all():
            return self
        elif within:
            fill, mode = None, "constant"
        elif fill == ZERO or mode != "constant":
            fill = None
        step = Windows(top, left, height, width, fill, mode)
        return self._after(height=size[0], width=size[1], steps=(*steps, step))

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
        step = Scales(*self.before(height, width), interpolation, antialias)
        return self._after(height=height, width=width, steps=(*self.steps, step))

    def mirror(self, which: NDArray[np.bool_]) -> Geometry:
        """Flip images left to right if their `which`, bool [n], is true."""
        return self._after(flip=self.flip ^ which)

    def mirror_vertically(self, which: NDArray[np.bool_]) -> Geometry:
        """Flip images top to bottom if their `which`, bool [n], is true."""
        return self._after(flip_rows=_changed(self.flip_rows, which))

    def turn(self, quarters: ArrayLike) -> Geometry:
        """Turn images counter-clockwise by quarter turns, int or int [n]; exact."""
        turns = np.broadcast_to(np.asarray(quarters, np.int64) % 4, self.height.shape)
        odd = turns % 2 == 1
        flip_rows = np.zeros_like(odd) if self.flip_rows is None else self.flip_rows
        # The transpose of a mirrored image is mirrored the other way.
        return self._after(
            height=np.where(odd, self.width, self.height),
            width=np.where(odd, self.height, self.width),
            flip=np.where(odd, flip_rows, self.flip) ^ (turns >= 2),
            flip_rows=_changed(np.where(odd, self.flip, flip_rows), (turns == 1) | (turns == 2)),
            transpose=_changed(self.transpose, odd),
        )

    def before(self, rows: Ints, columns: Ints) -> tuple[Ints, Ints]:
        """Return numbers of rows and columns, int64 [n], as they are before `transpose`."""
        if self.transpose is None:
            return rows, columns
        swapped = np.where(self.transpose, columns, rows), np.where(self.transpose, rows, columns)
        return swapped

    @property
    def flips_before(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which images to mirror left to right, and top to bottom, if `transpose` comes last."""
        rows = np.zeros_like(self.flip) if self.flip_rows is None else self.flip_rows
        if self.transpose is None:
            return self.flip, rows
        return np.where(self.transpose, rows, self.flip), np.where(self.transpose, self.flip, rows)

    def warp(
        self,
        matrix: Matrices,
        which: NDArray[np.bool_],
        height: ArrayLike,
        width: ArrayLike,
        *,
        interpolation: WarpInterpolation,
        fill: Fill = ZERO,
        displacement: Displacement | None = None,
        keys: NDArray[np.uint64] | None = None,
    ) -> Geometry:
        """Look up the images selected by `which`, bool [n]; parameters as of `Warps`.

        Images that stay are a part by themselves.  Raises `OptionError` if an image has too many
        pixels on a side.
        """
        if not which.any():
            return self
        height, width = (
            np.broadcast_to(np.asarray(a, np.int64), self.height.shape) for a in (height, width)
        )
        if not which.all():
            at, stays = np.flatnonzero(which), np.flatnonzero(~which)
            warped = self.some(at).warp(
                matrix[at],
                which[at],
                height[at],
                width[at],
                interpolation=interpolation,
                fill=fill,
                displacement=displacement,
                keys=None if keys is None else keys[at],
            )
            return Geometry.of_parts([(at, warped), (stays, self.some(stays))])
        sides = np.stack([self.height, self.width, height, width])
        if (sides > MOST_WARPED).any():
            raise OptionError(
                f"images of up to {MOST_WARPED:,} pixels on a side can be turned or distorted, but "
                f"one has {sides.max():,}; put a T.Resize or a crop before"
            )
        # The matrix takes the orientation in.
        turned = upright(self.height, self.width, self.flip, self.flip_rows, self.transpose)
        keys = np.zeros(len(self), np.uint64) if keys is None else keys
        step = Warps(turned @ matrix, height, width, interpolation, fill, displacement, keys)
        return self._after(
            height=height,
            width=width,
            flip=np.zeros_like(self.flip),
            flip_rows=None,
            transpose=None,
            steps=(*self.steps, step),
        )

    @property
    def identity(self) -> bool:
        """Whether every image stays as it is."""
        turned = self.flip_rows is not None or self.transpose is not None
        return not (self.steps or self.parts or turned or self.flip.any())

    @property
    def region(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The source pixels that matter: (top, left, height, width), int64 [n] each.

        Always inside the image; empty where a window misses it altogether.
        """
        if not self.steps or not isinstance(self.steps[0], Windows):
            zeros = np.zeros_like(self.source_height)
            return zeros, zeros, self.source_height, self.source_width
        first = self.steps[0]
        if first.mode != "constant":
            beyond = (first.top < 0) | (first.left < 0)
            beyond |= first.top + first.height > self.source_height
            beyond |= first.left + first.width > self.source_width
            inside = np.where(beyond, 0, (first.top, first.left, first.height, first.width))
            return (
                inside[0],
                inside[1],
                np.where(beyond, self.source_height, inside[2]),
                np.where(beyond, self.source_width, inside[3]),
            )
        top = np.clip(first.top, 0, self.source_height)
        left = np.clip(first.left, 0, self.source_width)
        bottom = np.clip(first.top + first.height, top, self.source_height)
        right = np.clip(first.left + first.width, left, self.source_width)
        return top, left, bottom - top, right - left

    @property
    def begins_inside(self) -> NDArray[np.bool_]:
        """Whether each image contains the window that is its first step, bool [n].

        True if the first step is another one.
        """
        if not self.steps or not isinstance(self.steps[0], Windows):
            return np.ones_like(self.flip)
        first = self.steps[0]
        window = first.top, first.left, first.height, first.width
        return np.logical_and.reduce(np.equal(window, self.region))  # type: ignore[no-any-return]

    def crops(self) -> list[Crop]:
        """Return what to read of each image, and what to do with it, in order."""
        if self.may_be_reduced:
            return self._alike()._in_order(Geometry._crops)
        return self._in_order(Geometry._crops)

    def _alike(self) -> Geometry:
        """Return the geometry in parts whose steps change all of their images.

        So JPEGs are reduced or not, whatever is in their batch.  Windows inside of the images and
        windows that reach beyond them are apart, too.
        """
        parts = []
        for places, part in self.by_part():
            every = np.arange(len(self))[places]
            kinds = np.zeros(len(part), np.int64)
            height, width = part.source_height, part.source_width
            for step in part.steps:
                changes = (step.height != height) | (step.width != width)
                if isinstance(step, Windows):
                    changes |= (step.top != 0) | (step.left != 0)
                kinds = 2 * kinds + changes
                height, width = step.height, step.width
            for kind in np.unique(kinds):
                at = np.flatnonzero(kinds == kind)
                own = part.some(at)._replayed()
                inside = own.begins_inside
                for which in map(np.flatnonzero, (inside, ~inside)):
                    if len(which):
                        parts.append((every[at][which], own.some(which)))
        return replace(self, parts=tuple(parts), steps=())

    def _replayed(self) -> Geometry:
        """Return the geometry without steps that change no image."""
        made = Geometry.of(self.source_height, self.source_width)
        for step in self.steps:
            size = step.height, step.width
            if isinstance(step, Windows):
                made = made.window(step.top, step.left, *size, fill=step.fill, mode=step.mode)
            elif isinstance(step, Scales):
                made = made.resize(*size, step.interpolation, step.antialias)
            else:
                made = made._after(height=size[0], width=size[1], steps=(*made.steps, step))
        return self._after(steps=made.steps)

    def _crops(self) -> list[Crop]:
        steps = self.steps
        region = self.region
        if steps and isinstance(steps[0], Windows):
            first = steps[0]
            if self.begins_inside.all():
                steps = steps[1:]  # inside the image: what is read is the window
            else:
                moved = replace(first, top=first.top - region[0], left=first.left - region[1])
                steps = (moved, *steps[1:])
        windows = zip(*(part.tolist() for part in region), strict=True)
        rest = self._after(steps=steps).programs()
        factors = self._reductions(steps, region[2], region[3]).tolist()
        return list(map(Crop, windows, factors, rest))

    @property
    def may_be_reduced(self) -> bool:
        """Whether JPEGs may be decoded reduced, if only a window comes before the resize."""
        if self.parts:
            return any(part.may_be_reduced for _, part in self.parts)
        for step in self.steps:
            if isinstance(step, Scales):
                factors = self._reductions((step,), self.source_height, self.source_width)
                return bool((factors > 1).any())
        return False

    @property
    def plain_crops(self) -> PlainCrops | None:
        """The windows, resizes and windows of those, one a sample, if they are all but flips.

        None if there is more, or ``antialias=True`` asks for another library's pixels.
        """
        if self.parts or self.transpose is not None:
            return None
        steps = self.steps
        top = left = np.zeros_like(self.source_height)
        windows = top, left, self.source_height, self.source_width
        if steps and isinstance(steps[0], Windows):
            first, steps = steps[0], steps[1:]
            if not first.zero:
                return None
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

    def _reductions(
        self, steps: tuple[Windows | Scales | Warps, ...], height: Ints, width: Ints
    ) -> Ints:
        """Return how many times smaller images of these sizes may be decoded before `steps`.

        The first resize must leave room for it, and the user must not insist on a filter.
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
        if self.parts:
            return self._in_order(Geometry.programs)
        rows: list[Any] = [step.rows() for step in self.steps]
        operations: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(self)
        turns = [self.flip]
        if self.flip_rows is not None or self.transpose is not None:
            turns += [
                np.zeros_like(self.flip) if part is None else part
                for part in (self.flip_rows, self.transpose)
            ]
        return list(map(Program, operations, *(part.tolist() for part in turns)))

    def _in_order(self, values: Callable[[Geometry], list[Any]]) -> list[Any]:
        """Return the values of all images, from those of the parts."""
        if not self.parts:
            return values(self)
        found: dict[int, Any] = {}
        for places, part in self.parts:
            found |= zip(places.tolist(), values(part), strict=True)
        return [found[at] for at in range(len(self))]


def _changed(before: NDArray[np.bool_] | None, which: NDArray[np.bool_]) -> Any:
    """Return `before`, None for none, with those of `which` inverted; None if none is left."""
    return _if_any(which if before is None else before ^ which)


def _if_any(values: NDArray[np.bool_] | None) -> Any:
    """Return values, None for none, or None if none is true."""
    return None if values is None or not values.any() else values


def _rows_of(value: Any, places: Ints) -> Any:
    """Return a geometry or a step with the arrays of some images."""
    columns = ((field.name, getattr(value, field.name)) for field in fields(value))
    return replace(value, **{n: one[places] for n, one in columns if isinstance(one, np.ndarray)})


def antialiases(rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """Return where ``antialias=None`` antialiases: where rows x columns shrink in a direction."""
    return (rows > height) | (columns > width)


def inside_places(at: Any, length: Any, mode: PaddingMode) -> Any:
    """Return for places on an axis, perhaps beyond `length`, the places that they are like.

    Arrays or tensors of int64; `length` is from 1 up.
    """
    if mode == "edge":
        at = at.clip(0)
        return at - (at >= length) * (at - length + 1)
    if mode == "reflect":
        period = 2 * (length - 1)
        at = at % (period + (period == 0)) * (period > 0)  # one pixel is all there is
        return at + (at >= length) * (period - 2 * at)
    at = at % (2 * length)
    return at + (at >= length) * (2 * length - 1 - 2 * at)


def _is_inside(window: Windows, scale: Scales) -> bool:
    """Return whether windows lie inside the resized images."""
    low = np.minimum(window.top, window.left)
    bottom, right = window.top + window.height, window.left + window.width
    return bool(((low >= 0) & (bottom <= scale.height) & (right <= scale.width)).all())
