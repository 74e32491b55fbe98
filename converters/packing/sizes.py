"""The size of an image on its way into a shard, and which sizes are too large."""

from __future__ import annotations

from typing import NamedTuple

from fastdata.codecs.limits import check_memory, check_pixels
from fastdata.codecs.resize import centre_of, target_size
from fastdata.errors import ImageError

from .boxes import Placement
from .options import EncodeOptions

__all__ = ["Sizes", "resized_size"]

_THIN = 16
"""How many times its crop a resized image must be for only the crop to be made: an image of 1,000 x
2 pixels is 112,000 x 224 before it is cut.  The compiled library, which makes all, is ten times as
fast as NumPy, which makes the crop."""


def resized_size(height: int, width: int, options: EncodeOptions) -> tuple[int, int]:
    """Return height and width after resizing, before the crop."""
    return target_size(height, width, options.size, options.resize, options.enlarge)


def _area(size: tuple[int, int]) -> int:
    """Return the pixels of a height and width."""
    return size[0] * size[1]


class Sizes(NamedTuple):
    """Heights and widths of an image on its way into a shard."""

    upright: tuple[int, int]
    target: tuple[int, int]
    """Upright and resized."""
    wanted: tuple[int, int]
    """Resized, and not upright yet: the other way round would turn more pixels."""
    window: tuple[int, int, int, int] | None
    """The crop of the upright, resized image: top, left, height, width."""

    @classmethod
    def of(cls, size: tuple[int, int], orientation: int, options: EncodeOptions) -> Sizes:
        upright = size[::-1] if orientation >= 5 else size
        target = resized_size(*upright, options)
        window = None
        if options.resize == "crop":
            window = (*centre_of(target, options.size), *options.size)
        return cls(upright, target, target[::-1] if orientation >= 5 else target, window)

    def placement(self, orientation: int) -> Placement:
        """Return where the pixels go; `orientation` has turned them."""
        return Placement(self.upright, orientation, self.target, self.window)

    @property
    def is_thin(self) -> bool:
        """Whether only the crop is made, as it is a small part of the resized image."""
        return self.window is not None and _area(self.target) >= _THIN * _area(self.window[2:])

    def check(self, options: EncodeOptions, channels: int) -> None:
        """Refuse a resized image that is too large; one of `size` is not, as the user chose it.

        One that is cropped is not either: it is thin, or it has at most `_THIN` times that size.
        """
        if self.window is not None or _area(self.target) <= _area(options.size):
            return
        try:
            check_pixels(*self.target, options.max_pixels)
            check_memory(self.target, channels)
        except ImageError as error:
            rows, columns = self.upright
            raise ImageError(
                f"{columns} x {rows} pixels would be resized to {self.target[1]} x "
                f"{self.target[0]}: {error}"
            ) from None
