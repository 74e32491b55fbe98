"""Files of masks, read by workers: indices, grey values and colours become class numbers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fastdata.codecs.image import MAX_PIXELS, decode_image, is_jpeg
from fastdata.errors import ImageError, SourceError
from fastdata.regular_files import open_regular, read_regular

from ...base import Deferred
from .class_colours import to_numbers

__all__ = ["MaskPlan", "MaskedImage", "colours_of", "modes_of"]

_MOST = 256
_COLOURED = ("RGB", "RGBA")
_VOID = 255


class MaskPlan(NamedTuple):
    """What all masks of a dataset share."""

    # of the classes from 0 on, as (256 R + G) 256 + B; empty where pixels are numbers
    colours: tuple[int, ...]
    classes: int | None  # how many there are, where they have names
    lossy: bool  # whether a JPEG is taken


class MaskedImage(Deferred):
    """Paths of an image and its mask, and the number of its split, if there are splits."""

    def __init__(self, image: str, mask: str, split: list[int], plan: MaskPlan) -> None:
        self.image, self.mask, self.split, self.plan = image, mask, split, plan

    def load(self) -> tuple[Any, ...]:
        """Read both."""
        data = read_regular(self.mask)
        try:
            mask = class_numbers(data, self.plan)
        except ValueError as error:
            raise ImageError(f"{Path(self.mask).name}: {error}") from None
        return Path(self.image), mask, *self.split


def class_numbers(data: bytes, plan: MaskPlan) -> NDArray[np.uint8]:
    """Return the class numbers of a mask, H x W."""
    if is_jpeg(data) and not plan.lossy:
        raise ImageError(
            "a JPEG, whose colours are not what was painted (--option lossy=true takes it as it is)"
        )
    with _opened(data) as image:
        colours = image.mode in _COLOURED or (image.mode == "P" and bool(plan.colours))
        if colours:
            return _by_colour(image, plan)
    try:
        numbers = decode_image(data, 1, mask=True).pixels[:, :, 0]
    except ImageError as error:
        if "do not fit 8 bits" in str(error):
            raise ImageError(f"{error}. {_INSTANCES}") from None
        raise
    return _checked(numbers, plan)


_INSTANCES = (
    "These are numbers of instances, which a mask of classes does not hold: pack class masks, as "
    "with --option which=labelIds of Cityscapes"
)


def _checked(numbers: NDArray[np.uint8], plan: MaskPlan) -> NDArray[np.uint8]:
    if plan.classes is not None:
        beyond = numbers[(numbers >= plan.classes) & (numbers != _VOID)]
        if len(beyond):
            raise ImageError(f"has the class {beyond[0]}, and there are {plan.classes} names")
    return numbers


def _by_colour(image: Image.Image, plan: MaskPlan) -> NDArray[np.uint8]:
    if image.mode == "P":
        # Of the palette only what is used; 255, which no table has, stays what it is.
        indices = np.asarray(image)
        palette = image.getpalette("RGB") or []
        used = np.unique(indices)
        used = used[used != _VOID]
        packed = _packed(np.array([*palette, *[0] * 768][:768]).reshape(256, 3))
        numbers = np.full(256, _VOID, np.uint8)
        numbers[used] = to_numbers(packed[used], plan.colours)
        found: NDArray[np.uint8] = numbers[indices]
        return found
    packed = _packed(np.asarray(ImageOps.exif_transpose(image).convert("RGB")))
    if plan.colours:
        return to_numbers(packed, plan.colours)
    if _is_grey(packed).all():
        return _checked((packed & 255).astype(np.uint8), plan)
    raise ImageError("has colours, and no table says of which classes (--option classes=TABLE)")


def _opened(data: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        return image
    except ImageError:
        raise
    except Exception as error:  # PIL's plugins raise nearly anything on damaged files
        raise ImageError(f"cannot be read: {type(error).__name__}: {error}") from error


def _packed(pixels: NDArray[Any]) -> NDArray[np.uint32]:
    """Return colours, [..., 3], as numbers."""
    wide = pixels.astype(np.uint32)
    found = (wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2]
    return np.asarray(found, np.uint32)


def _is_grey(packed: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.asarray(packed == (packed & 255) * 0x010101, np.bool_)


# -- before packing ----------------------------------------------------------------------


def modes_of(paths: Iterable[Path]) -> set[str]:
    """Return which modes of PIL's masks are in; "JPEG" of a JPEG, nothing of what is damaged."""
    modes = set()
    for path in paths:
        try:
            with open(path, "rb", opener=open_regular) as file, Image.open(file) as image:
                modes.add("JPEG" if image.format == "JPEG" else image.mode)
        except Exception:  # a worker says what is the matter
            continue
    return modes


def colours_of(paths: Iterable[Path]) -> tuple[int, ...]:
    """Return the colours that occur in masks, sorted; none where all are grey."""
    found: set[int] = set()
    for path in paths:
        try:
            with open(path, "rb", opener=open_regular) as file, Image.open(file) as image:
                if image.mode not in _COLOURED or image.width * image.height > MAX_PIXELS:
                    continue
                found.update(np.unique(_packed(np.asarray(image.convert("RGB")))).tolist())
        except Exception:  # a worker says what is the matter
            continue
        if len(found) > _MOST:
            raise SourceError(
                f"{path}: with it masks have more than {_MOST} colours, so these are no classes. "
                "If they are, a table says of which colour each is: --option classes=TABLE"
            )
    colours = np.array(sorted(found), np.uint32)
    return () if _is_grey(colours).all() else tuple(colours.tolist())
