"""Where pixels go: crops, resizes and flips, and what carries a row of them out.

Semantics are torchvision's (`torchvision.transforms.v2`); the random numbers are fastdata's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.random import Draws, SampleKeys
from fastdata.schema import Schema
from fastdata.transforms.base import (
    Describe,
    GeometricTransform,
    Sample,
    SizeByEpoch,
    antialias_choice,
    check_pixels,
    parse,
    positive_int,
    probability,
    range_pair,
    resize_filter,
    size_or_schedule,
    size_pair,
)
from fastdata.transforms.boxes import boxes_by_image, move_boxes
from fastdata.transforms.choosing import Gate, Member, Outcome, chosen, outcomes_of
from fastdata.transforms.fill import fill_value
from fastdata.transforms.geometry import Geometry, Interpolation, Ints, PaddingMode
from fastdata.transforms.image_tensors import as_array, one_size
from fastdata.transforms.render import render
from fastdata.transforms.render_device import render_on_device

__all__ = [
    "TRIES",
    "CenterCrop",
    "GeometryStage",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "check_sizes_agree",
    "check_sizes_equal",
    "random_rectangles",
]

TRIES = 10
"""Random rectangles that are tried for an image, as in torchvision."""

Size: TypeAlias = int | Sequence[int] | Mapping[int, int | Sequence[int]] | SizeByEpoch
"""A side or (height, width), or one from each of some epochs on: ``{0: 128, 6: 160}``."""


class _Sized(GeometricTransform):
    """A transform with a size, or with one for each part of a training."""

    size: Size

    @property
    def output_size(self) -> tuple[int, int] | None:
        return self.size if isinstance(self.size, tuple) else None

    @property
    def epochs(self) -> tuple[int, ...]:
        return self.size.epochs if isinstance(self.size, SizeByEpoch) else ()

    def size_in(self, epoch: int) -> tuple[int, int] | None:
        size = self._size_in(epoch)
        return size if isinstance(size, tuple) else None

    def _size_in(self, epoch: int) -> Any:
        """Return height and width, or a short side, in an epoch."""
        return self.size.at(epoch) if isinstance(self.size, SizeByEpoch) else self.size


class _Crop(_Sized):
    """A crop to one size: an int, for a square, or (height, width); perhaps by epoch."""

    def __post_init__(self) -> None:
        parse(self, size=size_or_schedule(size_pair))


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """Crop a random rectangle and resize it: the crop of ImageNet training.

    Area is uniform in `scale` times the image's area, the aspect ratio (width
    over height) log-uniform in `ratio`, the position uniform.  The first of 10
    tries that fits is taken; if none does, the largest centred rectangle
    with an aspect ratio within `ratio`.

    Parameters
    ----------
    size : int, (int, int) or dict
        Output size: a square side, or (height, width); by epoch, ``{0: 128, 6: 160}``.
    scale : (float, float)
        Least and greatest share of the image's area.
    ratio : (float, float)
        Least and greatest width / height of the crop.
    interpolation : {"bilinear", "bicubic", "nearest"}
        torchvision's ``InterpolationMode`` and PIL's numbers are taken, too.  "nearest" is the
        nearest of pixel centres, as in PIL; torchvision calls it "nearest-exact" on tensors.
        Masks always take it.
    antialias : bool, optional
        None: antialiased where the crop shrinks, by fastdata's own filter and decoding JPEGs
        reduced where much room is left, which is near torchvision's pixels (45 dB and more in
        the mean, ``docs/transforms.md``).  True: torchvision's pixels, which takes longer.
        False: never antialiased.

    Notes
    -----
    Draws 0 to 9 are the areas, 10 to 19 the ratios, 20 and 21 the position.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, scale=range_pair, ratio=range_pair)
        parse(self, interpolation=resize_filter, antialias=antialias_choice)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        rows, columns = geometry.height, geometry.width
        width, height = random_rectangles(
            draws.uniform(2 * TRIES), (rows * columns)[:, None], self.scale, self.ratio
        )
        fits = (width > 0) & (width <= columns[:, None]) & (height > 0) & (height <= rows[:, None])
        first = fits.argmax(axis=1)
        every = np.arange(len(geometry))
        width, height, fitted = width[every, first], height[every, first], fits[every, first]

        # The fallback: as much of the image as `ratio` lets through.
        narrow, wide = self.ratio
        aspect = columns / rows
        high_enough = np.where(aspect < narrow, np.rint(columns / narrow), rows)
        wide_enough = np.where(aspect > wide, np.rint(rows * wide), columns)
        height = np.where(fitted, height, np.maximum(high_enough, 1)).astype(np.int64)
        width = np.where(fitted, width, np.maximum(wide_enough, 1)).astype(np.int64)

        room = np.stack([rows - height, columns - width], axis=1)
        position = draws.integers(room + 1, 2, first=2 * TRIES)
        top, left = np.where(fitted[:, None], position, room // 2).T
        cropped = geometry.window(top, left, height, width)
        height, width = self._size_in(draws.epoch)
        return cropped.resize(height, width, self.interpolation, self.antialias)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Crop the centre; an image that is smaller is padded with zeros.

    Parameters
    ----------
    size : int, (int, int) or dict
        Output size: a square side, or (height, width); by epoch, ``{0: 128, 6: 160}``.
    """

    size: Size

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = self._size_in(draws.epoch)
        top, left = _centred(geometry.height - height), _centred(geometry.width - width)
        return geometry.window(top, left, height, width)


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Crop at a random place of the padded image.

    Parameters
    ----------
    size : int, (int, int) or dict
        Output size: a square side, or (height, width); by epoch, ``{0: 128, 6: 160}``.
    padding : int, (int, int) or (int, int, int, int), optional
        Pixels around the image before cropping: on every side; (left and
        right, top and bottom); or (left, top, right, bottom).
    pad_if_needed : bool
        Whether an image that is then too small is padded by the missing pixels, on both sides.
    fill, padding_mode
        What is beyond the image, as in `Pad`.

    Raises
    ------
    OptionError
        From a loader, if a padded image is smaller than `size`.

    Notes
    -----
    Draws 0 and 1 are the position.
    """

    size: Size
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Any = 0
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.padding is None:
            object.__setattr__(self, "padding", 0)
        parse(self, padding=padding_sides, fill=fill_value, padding_mode=padding_mode)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = self._size_in(draws.epoch)
        pad_left, pad_top, pad_right, pad_bottom = self.padding  # type: ignore[misc]
        rows = geometry.height + (pad_top + pad_bottom)
        columns = geometry.width + (pad_left + pad_right)
        if self.pad_if_needed:
            more_rows, more_columns = np.maximum(height - rows, 0), np.maximum(width - columns, 0)
            pad_top, rows = pad_top + more_rows, rows + 2 * more_rows
            pad_left, columns = pad_left + more_columns, columns + 2 * more_columns
        small = np.flatnonzero((rows < height) | (columns < width))
        if small.size:
            worst = small[0]
            raise OptionError(
                f"RandomCrop takes {height} x {width} pixels, but sample {draws.indices[worst]} "
                f"has {rows[worst]} x {columns[worst]} with its padding (height x width); "
                "crop less, pad more (pad_if_needed=True), or put a Resize before it"
            )
        room = np.stack([rows - height, columns - width], axis=1)
        top, left = draws.integers(room + 1, 2).T
        top, left = top - pad_top, left - pad_left
        return geometry.window(top, left, height, width, fill=self.fill, mode=self.padding_mode)


@dataclass(frozen=True)
class Pad(GeometricTransform):
    """Add pixels around each image.

    Parameters
    ----------
    padding : int, (int, int) or (int, int, int, int)
        Pixels on every side; (left and right, top and bottom); or (left, top, right, bottom).
    fill : int, sequence of int or dict
        Values from 0 to 255, for ``padding_mode="constant"``: one, or one for each channel.  A
        dict has those of images and of masks apart, ``{"image": 0, "mask": 255}``; torchvision's
        classes `Image` and `Mask` are keys as well.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}
        As of `numpy.pad`.

    Raises
    ------
    OptionError
        For other values; from a loader, if `fill` does not suit the channels.

    Notes
    -----
    Boxes are only shifted: those of reflected content are not added.
    """

    padding: int | Sequence[int]
    fill: Any = 0
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        parse(self, padding=padding_sides, fill=fill_value, padding_mode=padding_mode)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        left, top, right, bottom = self.padding  # type: ignore[misc]
        size = geometry.height + (top + bottom), geometry.width + (left + right)
        return geometry.window(-top, -left, *size, fill=self.fill, mode=self.padding_mode)


@dataclass(frozen=True)
class Resize(_Sized):
    """Resize the whole image.

    Parameters
    ----------
    size : int, (int, int) or dict
        An int is the length of the shorter side; the longer one becomes
        ``int(size * long / short)``.  A pair is (height, width).  A dict has sizes by epoch:
        ``{0: 128, 6: 160}`` is 128 in epochs 0 to 5, then 160.
    interpolation : {"bilinear", "bicubic", "nearest"}
        As in `RandomResizedCrop`.
    max_size : int, optional
        Greatest length of the longer side; both shrink where it would be
        longer.  Only with an int `size`, and greater than it.
    antialias : bool, optional
        As in `RandomResizedCrop`.

    Raises
    ------
    OptionError
        From a loader, if an image would have more than 178,956,970 pixels: a thin one, whose
        short side is enlarged.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = None

    def __post_init__(self) -> None:
        parse(
            self,
            size=size_or_schedule(_side_or_pair),
            interpolation=resize_filter,
            antialias=antialias_choice,
        )
        if self.max_size is None:
            return
        for size in map(self._size_in, self.epochs or (0,)):
            if isinstance(size, tuple):
                raise OptionError(
                    f"max_size goes with a short side, an int size; with size={size} leave it out"
                )
            if positive_int("max_size", self.max_size) <= size:
                raise OptionError(f"max_size {self.max_size} must be greater than size {size}")

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        size = self._size_in(draws.epoch)
        if isinstance(size, tuple):
            height, width = size
            return geometry.resize(height, width, self.interpolation, self.antialias)
        upright = geometry.height >= geometry.width
        short = np.minimum(geometry.height, geometry.width)
        long = np.maximum(geometry.height, geometry.width)
        new_short = np.full_like(short, size)
        new_long = (size * long / short).astype(np.int64)
        if self.max_size is not None:
            over = new_long > self.max_size
            shrunk = (self.max_size * new_short / new_long).astype(np.int64)
            new_short = np.where(over, np.maximum(shrunk, 1), new_short)
            new_long = np.where(over, self.max_size, new_long)
        pixels = 1.0 * new_long * new_short
        remedy = "Give max_size=, or leave this sample out"
        check_pixels(f"Resize({self.size})", pixels, geometry, draws, remedy)
        return geometry.resize(
            np.where(upright, new_long, new_short),
            np.where(upright, new_short, new_long),
            self.interpolation,
            self.antialias,
        )


@dataclass(frozen=True)
class _RandomFlip(GeometricTransform):
    """A flip of some images, with probability `p`."""

    keeps_size: ClassVar[bool] = True

    p: float = 0.5

    def __post_init__(self) -> None:
        parse(self, p=probability)


@dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror an image left to right, with probability `p`.

    Notes
    -----
    Draw 0, uniform in [0, 1), is compared with `p`.
    """

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.mirror(draws.uniform()[:, 0] < self.p)


@dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror an image top to bottom, with probability `p`.

    Notes
    -----
    Draw 0, uniform in [0, 1), is compared with `p`.
    """

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.mirror_vertically(draws.uniform()[:, 0] < self.p)


@dataclass(frozen=True)
class GeometryStage:
    """Geometric transforms in a row, some perhaps for some images of a batch only."""

    schema: Schema
    transforms: tuple[Member, ...]

    def plan(self, geometry: Geometry, seed: int, keys: SampleKeys) -> Geometry:
        """Return the geometry of samples, one of `geometry` each.

        It has their boxes if the stage `needs_boxes`.
        """
        every = np.arange(len(keys))
        parts = [(every, geometry)]
        for operation, transform, gates in self.transforms:
            which = chosen(gates, seed, keys)
            before, parts = parts, []
            for places, part in before:
                taken = which[places]
                if len(places) and not taken.any():
                    parts.append((places, part))
                    continue
                if not taken.all():
                    stay = np.flatnonzero(~taken)
                    parts.append((places[stay], part.some(stay)))
                    part, places = part.some(np.flatnonzero(taken)), places[taken]
                own = keys if len(places) == len(keys) else keys[places]
                planned = transform.plan(part, own.draws(seed, operation))
                parts += [(places[at], made) for at, made in planned.by_part()]
        return Geometry.of_parts(parts)

    @property
    def has_gates(self) -> bool:
        """Whether some images of a batch may take other transforms than the rest."""
        return any(member.gates for member in self.transforms)

    @property
    def size_gates(self) -> tuple[Gate, ...]:
        """The gates that the sizes of images depend on."""
        return tuple(gate for member in self._sizing for gate in member.gates)

    @property
    def _sizing(self) -> list[Member]:
        return [member for member in self.transforms if not member.transform.keeps_size]

    def given(self, outcome: Outcome) -> GeometryStage:
        """Return the stage as it changes the sizes of images with this outcome of choices."""
        if not self.has_gates:
            return self
        happening = [one._replace(gates=()) for one in self.transforms if one.happens(outcome)]
        return replace(self, transforms=tuple(happening))

    @property
    def epochs(self) -> set[int]:
        """First epochs of sizes that change with the epoch."""
        return {epoch for member in self.transforms for epoch in member.transform.epochs}

    def size_in(self, epoch: int) -> tuple[int, int] | None:
        """Height and width of all images afterwards; None where they depend on the image."""
        last: list[Member] = []  # the last that is for all images, and all behind it
        for member in reversed(self.transforms):
            if member.transform.keeps_size:
                continue
            if not (last or member.gates):
                only: tuple[int, int] | None = member.transform.size_in(epoch)
                return only
            last.append(member)
            if not member.gates:
                break
        sizes = set()
        for outcome in outcomes_of(gate for member in last for gate in member.gates) or ():
            size = (one.transform.size_in(epoch) for one in last if one.happens(outcome))
            sizes.add(next(size, None))
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def needs_boxes(self) -> bool:
        """Whether the plan depends on the boxes of the images."""
        return any(member.transform.needs_boxes for member in self.transforms)

    def random_size(self, epoch: int) -> bool:
        """Return whether images of one size may be of several sizes afterwards.

        Random choices aside.
        """
        return any(
            self.given(outcome)._last_is_random(epoch)
            for outcome in outcomes_of(self.size_gates) or ()
        )

    def _last_is_random(self, epoch: int) -> bool:
        for member in reversed(self.transforms):
            transform = member.transform
            if transform.random_size or transform.size_in(epoch) is not None:
                random: bool = transform.random_size
                return random
        return False

    def plan_sizes(
        self, height: Ints, width: Ints, seed: int, keys: SampleKeys
    ) -> tuple[Ints, Ints]:
        """Return heights and widths after the stage, int64 [n] each.

        Where sizes depend on boxes, it is that of images without any.
        """
        geometry = self._start(height, width, {})
        geometry = self.plan(geometry, seed, keys)
        return geometry.height, geometry.width

    def _start(self, height: ArrayLike, width: ArrayLike, boxes: Mapping[str, Any]) -> Geometry:
        """Return the geometry to begin with; `boxes` by field, without any: no image has one."""
        geometry = Geometry.of(height, width)
        if not self.needs_boxes:
            return geometry
        if not boxes:
            return geometry.with_boxes([np.empty((0, 4))] * len(geometry))
        return geometry.with_boxes(boxes_by_image(boxes, len(geometry)))

    def run(
        self, samples: list[Sample], seed: int, keys: SampleKeys, describe: Describe
    ) -> list[Sample]:
        """Return samples with their images, masks and boxes moved, whatever made them."""
        names = list(self.schema.images)
        if not names:
            return samples
        shapes = np.array(
            [[self._shape(sample, name) for name in names] for sample in samples], np.int64
        )
        check_sizes_agree(names, shapes[..., 0].T, shapes[..., 1].T, keys.indices)
        height, width = shapes[:, 0].T
        boxes = {name: [getattr(sample, name) for sample in samples] for name in self.schema.boxes}
        geometry = self.plan(self._start(height, width, boxes), seed, keys)
        sizes = zip(geometry.height.tolist(), geometry.width.tolist(), strict=True)
        columns = {name: move_boxes(geometry, some, name) for name, some in boxes.items()}
        made = []
        rows = zip(samples, geometry.programs(), sizes, strict=True)
        for at, (sample, program, size) in enumerate(rows):
            changed = {name: boxes[at] for name, boxes in columns.items()}
            for name, field in self.schema.images.items():
                image = getattr(sample, name)
                pixels = np.empty((*size, image.shape[0]), np.uint8)
                render(program, as_array(image), pixels, mask=field.mask)
                changed[name] = torch.from_numpy(pixels).permute(2, 0, 1)
            made.append(sample._replace(**changed))
        return made

    def _shape(self, sample: Sample, name: str) -> tuple[int, int]:
        image = getattr(sample, name)
        if not (isinstance(image, torch.Tensor) and image.ndim == 3 and image.dtype == torch.uint8):
            kind = getattr(image, "dtype", type(image).__name__)
            transform = type(self.transforms[0].transform).__name__
            raise OptionError(
                f"{transform} takes uint8 images [C, H, W], but the callable before it made "
                f"{name!r} {kind}; put {transform} before it"
            )
        return image.shape[1], image.shape[2]

    def run_on_batch(self, values: dict[str, Any], seed: int, keys: SampleKeys) -> None:
        """Replace the images, masks and boxes of a batch by moved ones."""
        sizes = {tuple(values[name].shape[2:]) for name in self.schema.images}
        if not sizes:
            return
        height, width = one_size(type(self.transforms[0].transform).__name__, sizes)
        boxes = {name: values[name] for name in self.schema.boxes}
        start = self._start([height] * len(keys), [width] * len(keys), boxes)
        geometry = self.plan(start, seed, keys)
        for name, field in self.schema.images.items():
            values[name] = render_on_device(geometry, values[name], mask=field.mask)
        for name in self.schema.boxes:
            values[name] = move_boxes(geometry, values[name], name)


def check_sizes_agree(names: Sequence[str], heights: Ints, widths: Ints, indices: Ints) -> None:
    """Raise `OptionError` unless all image fields of each sample are of one size.

    `names` are the image fields, `heights` and `widths` int64 [fields, n], and `indices`,
    int64 [n], the samples, for the message.
    """
    wrong = np.argwhere((heights != heights[0]) | (widths != widths[0]))
    if len(wrong):
        field, at = wrong[0]
        raise OptionError(
            f"sample {indices[at]} has {names[0]!r} of {heights[0, at]} x {widths[0, at]} and "
            f"{names[field]!r} of {heights[field, at]} x {widths[field, at]} pixels (height x "
            "width); geometric transforms need all images and masks of a sample in one size, "
            "so pack them with the same resize"
        )


def check_sizes_equal(
    name: str, heights: Ints, widths: Ints, shape: tuple[int, ...], indices: Ints
) -> None:
    """Raise `OptionError` unless all images of a field have the size of their batch.

    `heights` and `widths`, int64 [n], are those of the images as they go into the batch, whose
    `shape` [N, H, W, C] its first sample decided; `indices`, int64 [n], are for the message.
    """
    other = np.flatnonzero((heights != shape[1]) | (widths != shape[2]))
    if other.size:
        at = other[0]
        raise OptionError(
            f"a batch needs images of one size, but {name!r} is {shape[1]} x {shape[2]} in the "
            f"first sample of this batch and {heights[at]} x {widths[at]} in sample {indices[at]} "
            "(height x width). End the geometric transforms with T.RandomResizedCrop(size) or "
            'T.CenterCrop(size), or pack with resize="crop". Or give image_lists=True'
        )


def _side_or_pair(name: str, size: Any) -> int | tuple[int, int]:
    """Return the length of the shorter side, or (height, width)."""
    if isinstance(size, Sequence) and len(size) == 1:
        size = size[0]
    return size_pair(name, size) if isinstance(size, Sequence) else positive_int(name, size)


def padding_sides(name: str, padding: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) from an int, (left and right, top and bottom), or all."""
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,)
    sides = tuple(check_int("padding", side) for side in sides)
    if len(sides) not in (1, 2, 4):
        raise OptionError(f"{name} is an int, a pair or four ints, not {padding!r}")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


def padding_mode(name: str, mode: Any) -> PaddingMode:
    """Return a mode of padding that is known."""
    if mode not in get_args(PaddingMode):
        raise OptionError(f"{name} is one of {', '.join(get_args(PaddingMode))}, not {mode!r}")
    return mode  # type: ignore[no-any-return]


def random_rectangles(
    uniform: NDArray[np.float64],
    pixels: ArrayLike,
    scale: Sequence[float],
    ratio: Sequence[float],
) -> tuple[Ints, Ints]:
    """Return both sides of random rectangles, int64 [n, TRIES] each.

    Of `uniform`, [n, 2 * TRIES], the areas are made and then the ratios: an area is uniform in
    `scale` times the image's `pixels`, the first side over the second log-uniform in `ratio`.
    """
    (small, large), (low, high) = scale, np.log(ratio)
    area = np.asarray(pixels) * (small + (large - small) * uniform[:, :TRIES])
    aspect = np.exp(low + (high - low) * uniform[:, TRIES:])
    first = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    second = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    return first, second


def _centred(room: Ints) -> Ints:
    """Return torchvision's offset of a centred window; negative where it pads.

    Inside an image it rounds halves to even, as Python's `round` does; around
    one it puts the smaller half of the padding first.
    """
    return np.where(room >= 0, np.rint(room / 2.0).astype(np.int64), -(-room // 2))
