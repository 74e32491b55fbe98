"""Values beyond an image: the `fill` of transforms, in all the forms that torchvision takes.

A parsed `Fill` is checked against the fields of the data by `Fill.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.schema import Schema

__all__ = ["ZERO", "Fill", "fill_value"]

_KINDS = {"Image": "image", "image": "image", "Mask": "mask", "mask": "mask", "others": "others"}


class Fill(NamedTuple):
    """Values beyond images and beyond masks, from 0 to 255: one, or one for each channel.

    `mask` is None if nothing was said about masks.
    """

    image: tuple[int, ...] = (0,)
    mask: tuple[int, ...] | None = (0,)

    def values(self, channels: int, *, mask: bool) -> NDArray[np.uint8]:
        """Return the value of each channel, uint8 [C]."""
        numbers = np.array(self.mask if mask else self.image, np.uint8)
        return np.broadcast_to(numbers, (channels,))

    def check(self, transform: str, schema: Schema) -> None:
        """Raise `OptionError` if the numbers do not fit the channels of a field."""
        for name, field in schema.images.items():
            numbers = self.mask if field.mask else self.image
            if numbers is None:
                raise OptionError(
                    f"{transform}: fill says nothing about masks, but {name!r} is one; add them, "
                    'as in fill={"image": 0, "mask": 255}'
                )
            if len(numbers) in (1, field.channels):
                continue
            remedy = (
                f'say what masks are filled with: fill={{"image": {list(numbers)}, "mask": 0}}'
                if field.mask
                else "give one number, or one for each channel"
            )
            raise OptionError(
                f"{transform}: fill has {len(numbers)} numbers, but {name!r} has "
                f"{field.channels} channel{'s' * (field.channels > 1)}; {remedy}"
            )


ZERO = Fill()


def fill_value(name: str, value: Any) -> Fill:
    """Parse a number, a list with one number for each channel, None (0), or a dict.

    The keys of a dict are "image", "mask" and "others", or torchvision's classes `Image` and
    `Mask`, recognised by their names.
    """
    if isinstance(value, Fill):
        return value
    if not isinstance(value, Mapping):
        numbers = _numbers(name, value)
        return Fill(numbers, numbers)
    kinds = {}
    for key, one in value.items():
        kind = _KINDS.get(key.__name__ if isinstance(key, type) else key)
        if kind is None:
            raise OptionError(f'the keys of {name} are "image", "mask" and "others", not {key!r}')
        kinds[kind] = _numbers(name, one)
    others = kinds.get("others")
    image, mask = kinds.get("image", others), kinds.get("mask", others)
    if image is None:
        raise OptionError(f'{name} says nothing about images: add "image" to {value!r}')
    return Fill(image, mask)


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    given = value if isinstance(value, (list, tuple)) else (0 if value is None else value,)
    try:
        numbers = tuple(map(float, given))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(0 <= one <= 255 and one == int(one) for one in numbers):
        raise OptionError(
            f"{name} is a whole number from 0 to 255, as pixels are uint8, or a list of one for "
            f"each channel, not {value!r}"
        )
    return tuple(map(int, numbers))
