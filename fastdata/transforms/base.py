"""The kinds of transform that fastdata runs, and the checks of their parameters.

A parameter is checked when a transform is made, by one of the functions below: they raise
`OptionError` with the parameter's name and the value that was given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from numpy.typing import NDArray

from fastdata.bounds import check_int
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.errors import OptionError
from fastdata.random import NO_EPOCH, Draws
from fastdata.schema import Schema
from fastdata.transforms.fill import Fill
from fastdata.transforms.geometry import Geometry, Interpolation

__all__ = [
    "BatchTransform",
    "Describe",
    "GeometricTransform",
    "Parameters",
    "PixelTransform",
    "Sample",
    "SampleFunction",
    "SampleTransform",
    "Shape",
    "SizeByEpoch",
    "antialias_choice",
    "channel_numbers",
    "check_pixels",
    "kind_of",
    "name_of",
    "names_tuple",
    "parse",
    "pictures_of",
    "positive_int",
    "positive_number",
    "probability",
    "range_pair",
    "resize_filter",
    "size_or_schedule",
    "size_pair",
    "warp_filter",
]

Parameters: TypeAlias = dict[str, NDArray[Any]]
"""What was drawn for n images, by name: arrays whose first axis is n."""

Shape: TypeAlias = tuple[int, int, int, int]
"""Of a batch of images: (n, channels, height, width)."""

Sample: TypeAlias = Any
"""A named tuple of the schema's fields; its type is made at run time."""

SampleFunction: TypeAlias = Callable[[Sample], Sample]

Describe: TypeAlias = Callable[[int], str]
"""Names the sample of an index, in errors of callables."""

PIL_FILTERS = "nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"
"""The names of `PIL.Image.Resampling`, whose members are the places in this."""


class GeometricTransform(ABC):
    """Moves pixels; the same way in the image and the masks of a sample.

    It is planned for a whole batch before any image is decoded.  A subclass is immutable and
    picklable.
    """

    keeps_size: ClassVar[bool] = False
    """Whether images are as large afterwards as they were."""

    random_size: ClassVar[bool] = False
    """Whether images of one size may be of several sizes afterwards."""

    needs_boxes: ClassVar[bool] = False
    """Whether the plan depends on the boxes of the images (`Geometry.boxes`)."""

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of every image afterwards; None where they depend on the image."""
        return None

    @property
    def epochs(self) -> tuple[int, ...]:
        """First epochs of the sizes of a schedule; none if sizes are the same in all epochs."""
        return ()

    def size_in(self, epoch: int) -> tuple[int, int] | None:
        """Return `output_size` in an epoch."""
        return self.output_size

    def check_fields(self, schema: Schema) -> None:
        """Raise `OptionError` if the images, masks and boxes of a schema cannot be moved.

        By default, a parameter `fill` that `fill_value` parsed is checked.
        """
        fill = getattr(self, "fill", None)
        if isinstance(fill, Fill):
            fill.check(type(self).__name__, schema)

    @abstractmethod
    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        """Return `geometry` with this transform appended, for n images at once.

        Parameters
        ----------
        geometry : Geometry
            What happens to the n images before.
        draws : Draws
            Random numbers of this transform for the same n samples.
        """


class PixelTransform(ABC):
    """Maps each value of each channel by itself; not applied to masks.

    A subclass is immutable and picklable.
    """

    @abstractmethod
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the transform of images [..., C, H, W], on their device."""

    def check_channels(self, channels: int) -> None:  # noqa: B027
        """Raise `OptionError` if images of this many channels cannot be transformed."""


class BatchTransform(ABC):
    """Changes the images of a batch, each by numbers of its own; masks and boxes stay.

    It runs where the batch has arrived.  Numbers are drawn on the CPU, so that they are the same
    on any device; what is made of them may differ in the last bits from device to device.

    A subclass is immutable and picklable, and safe in any number of threads.
    """

    moves_pixels: ClassVar[bool] = False
    """Whether the content of an image may move; refused where there are masks or boxes."""

    @abstractmethod
    def draw(self, draws: Draws, shape: Shape) -> Parameters:
        """Return the parameters of n images of this shape.

        Parameters
        ----------
        draws : Draws
            Random numbers of this transform for the n samples.
        shape : tuple of int
            (n, channels, height, width).
        """

    @abstractmethod
    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return images [n, C, H, W] transformed: of their size, dtype and device.

        They have `channels_after` channels.

        Parameters
        ----------
        images : torch.Tensor of uint8 or of a floating dtype, shape [n, C, H, W]
            uint8 values are from 0 to 255, others from 0 to 1 unless the transform says
            otherwise.  Never written to.
        parameters : dict of ndarray
            As `draw` returns them.
        """

    def check(self, channels: int, floating: bool) -> None:  # noqa: B027
        """Raise `OptionError` if such images cannot be transformed.

        `floating` says whether a transform before makes values floating.
        """

    def channels_after(self, channels: int) -> int:
        """Return how many channels, 1 or 3, images of this many channels have afterwards."""
        return channels

    def check_size(self, height: int, width: int) -> None:  # noqa: B027
        """Raise `OptionError` if images of this size cannot be transformed."""


class SampleTransform(ABC):
    """How a callable is given a sample.

    A subclass is immutable, and picklable if the callable is.
    """

    @abstractmethod
    def bind(self, schema: Schema) -> SampleFunction:
        """Return the function on samples of these fields, which are checked."""


def pictures_of(schema: Schema) -> tuple[str, ...]:
    """Return the names of the image fields except masks."""
    return tuple(name for name, field in schema.images.items() if not field.mask)


def name_of(function: object) -> str:
    """Return the name of a callable, for messages."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def check_pixels(
    transform: object, pixels: NDArray[Any], geometry: Geometry, draws: Draws, remedy: str
) -> None:
    """Raise `OptionError` if a transform makes too many `pixels` of an image, float64 [n]."""
    if not (pixels > MAX_PIXELS).any():
        return
    worst = int(pixels.argmax())
    raise OptionError(
        f"{transform} makes {int(pixels[worst]):,} pixels of sample {draws.indices[worst]}, which "
        f"has {geometry.height[worst]} x {geometry.width[worst]} (height x width): more than the "
        f"limit of {MAX_PIXELS:,}. {remedy}"
    )


def kind_of(value: object) -> str:
    """Return type and shape of a value, for messages."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")


def parse(transform: object, **parsers: Callable[[str, Any], Any]) -> None:
    """Replace parameters of a frozen dataclass by what their parsers, as below, return."""
    for name, parser in parsers.items():
        value = getattr(transform, name)
        try:
            parsed = parser(name, value)
        except OptionError:
            raise
        except (ArithmeticError, RuntimeError, TypeError, ValueError):  # as arrays raise them
            raise OptionError(f"{name} cannot be {value!r}") from None
        object.__setattr__(transform, name, parsed)


def probability(name: str, value: Any) -> float:
    """Return `value` as float, from 0 to 1."""
    chance = _float(value)
    if not 0 <= chance <= 1:
        raise OptionError(f"{name} is a probability from 0 to 1, not {value!r}")
    return chance


def positive_number(name: str, value: Any) -> float:
    """Return `value` as float, above 0 and finite."""
    number = _float(value)
    if not 0 < number < math.inf:
        raise OptionError(f"{name} is a number above 0, not {value!r}")
    return number


def positive_int(name: str, value: Any) -> int:
    """Return `value` as int, from 1 up to the bound of this name."""
    return check_int(name, value)


def size_pair(name: str, value: Any) -> tuple[int, int]:
    """Return (height, width) from an int (square) or a pair."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) not in (1, 2):
            raise OptionError(f"{name} is an int or a pair (height, width), not {value!r}")
        return positive_int(name, value[0]), positive_int(name, value[-1])
    side = positive_int(name, value)
    return side, side


@dataclass(frozen=True)
class SizeByEpoch:
    """A size for each part of a training: pairs of a first epoch, from 0 on, and a size."""

    sizes: tuple[tuple[int, Any], ...]

    @property
    def epochs(self) -> tuple[int, ...]:
        """First epoch of each size, ascending."""
        return tuple(first for first, _ in self.sizes)

    def at(self, epoch: int) -> Any:
        """Return the size in an epoch; `OptionError` for `NO_EPOCH`."""
        if epoch >= NO_EPOCH:
            raise OptionError(
                f"the size {self} depends on the epoch, which a dataset does not know: give the "
                "transform to fastdata.loader, or give one size"
            )
        return next(size for first, size in reversed(self.sizes) if first <= epoch)

    def __repr__(self) -> str:
        return repr(dict(self.sizes))


def size_or_schedule(parser: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a parser that also takes ``{first epoch: size}``, and returns a `SizeByEpoch`."""

    def parsed(name: str, value: Any) -> Any:
        if isinstance(value, SizeByEpoch):
            return value
        if not isinstance(value, Mapping):
            return parser(name, value)
        epochs = list(value)
        if any(type(epoch) is not int or epoch < 0 for epoch in epochs) or 0 not in epochs:
            raise OptionError(
                f"{name} by epoch is {{first epoch: size}} with epochs from 0 on, such as "
                f"{{0: 128, 6: 160}}, not {value!r}"
            )
        return SizeByEpoch(tuple((epoch, parser(name, value[epoch])) for epoch in sorted(epochs)))

    return parsed


def range_pair(name: str, value: Any) -> tuple[float, float]:
    """Return a pair of finite floats 0 < low <= high."""
    try:
        low, high = (float(end) for end in value)
    except (TypeError, ValueError):
        raise OptionError(f"{name} is a pair (low, high), not {value!r}") from None
    if not (0 < low <= high and math.isfinite(high)):
        raise OptionError(f"{name} is a pair with 0 < low <= high, not {value!r}")
    return low, high


def resize_filter(name: str, value: Any) -> Interpolation:
    """Return the filter of a resize by its name, torchvision's enum or PIL's number.

    Nearest neighbour is that of pixel centres, which torchvision calls nearest-exact.
    """
    found: Interpolation = _filter(name, value, ("bilinear", "bicubic", "nearest"))
    return found


def warp_filter(name: str, value: Any) -> Literal["nearest", "bilinear"]:
    """Return the filter of a warp, given as for `resize_filter`."""
    found: Literal["nearest", "bilinear"] = _filter(name, value, ("nearest", "bilinear"))
    return found


def _filter(name: str, value: Any, accepted: tuple[str, ...]) -> Any:
    found = getattr(value, "value", value)  # of torchvision's and PIL's enums
    if type(found) is int and found in range(len(PIL_FILTERS)):
        found = PIL_FILTERS[found]
    if found == "nearest-exact":
        found = "nearest"
    if not (isinstance(found, str) and found in accepted):
        meant = f" ({found})" if isinstance(found, str) and found != value else ""
        raise OptionError(f"{name} is one of {', '.join(accepted)}, not {value!r}{meant}")
    return found


def antialias_choice(name: str, value: Any) -> bool | None:
    """Return whether a resize is antialiased; None leaves it to fastdata."""
    if value not in (None, True, False):
        raise OptionError(f"{name} is True, False or None, not {value!r}")
    return None if value is None else bool(value)


def channel_numbers(value: Any) -> tuple[float, ...] | None:
    """Return a colour, which is a number or a list of one a channel; None if it is neither."""
    try:
        numbers = tuple(map(float, value if isinstance(value, (list, tuple)) else (value,)))
    except (TypeError, ValueError):
        return None
    return numbers if numbers and all(map(math.isfinite, numbers)) else None


def names_tuple(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of fields that a user gave, one or several."""
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(one, str) for one in names):
        raise OptionError(f"{name} has names of fields, not {value!r}")
    return names


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
