"""Small pictures with the relations of real datasets: masks are flat, pairs show the same scene.

A `Pic` describes a picture: the number of a scene, an effect, and the size.  Pictures of
one scene show the same; pictures of two scenes have nothing in common.
"""

from __future__ import annotations

import functools
import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

__all__ = ["MASKS", "Pic", "encoded", "pixels_of"]

MASKS = ("mask", "binary", "ids", "colours", "palette", "fov")
"""Kinds that are masks: few values, in flat areas."""

_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "ppm": "PPM", "pgm": "PPM"}
_COLOURS = np.array(
    [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128], [255, 0, 255]], np.uint8
)


class Pic(NamedTuple):
    """A picture of a scene.

    frame: of a clip, by how many steps its object has moved; `background`, if not -1, is a scene
    that is behind the object instead of the scene's own.
    """

    scene: int
    kind: str = "photo"
    size: tuple[int, int] = (48, 36)
    frame: int = 0
    background: int = -1


def pixels_of(pic: Pic) -> NDArray[np.uint8]:
    """Return the pixels of a picture, H x W or H x W x 3."""
    return np.asarray(_drawn(pic))


@functools.lru_cache(maxsize=50_000)
def encoded(pic: Pic, suffix: str) -> bytes:
    """Return a picture as a file of the format that a suffix names."""
    suffix = suffix.lower()
    image = _drawn(pic)
    kind = _FORMATS.get(suffix, suffix.upper())
    if kind == "PPM" and image.mode == "P":
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 92} if kind == "JPEG" else {}))
    return file.getvalue()


@functools.lru_cache(maxsize=50_000)
def _drawn(pic: Pic) -> Image.Image:
    width, height = pic.size
    photo = _photo(pic)
    plain = photo.astype(np.float64)
    rng = np.random.default_rng(1_000_003 * pic.scene + len(pic.kind) + pic.frame)
    match pic.kind:
        case "photo":
            return Image.fromarray(photo)
        case "blur":
            return Image.fromarray(photo).filter(ImageFilter.GaussianBlur(1.2))
        case "noise":
            return _image(plain + rng.normal(0, 25, plain.shape))
        case "dark":
            return _image(plain * 0.2)
        case "haze":
            return _image(plain * 0.5 + 110)
        case "rain":
            drops = rng.random(plain.shape[:2]) > 0.97
            drops = drops | np.roll(drops, 1, 0) | np.roll(drops, 2, 0)
            return _image(plain + 120 * drops[:, :, None])
        case "warm":
            return _image(plain * [1.15, 1.0, 0.75] + [15, 5, -5])
        case "night":
            return _image(plain * [0.3, 0.35, 0.6])
        case "gray":
            return Image.fromarray(photo).convert("L")
        case "edges":
            gray = Image.fromarray(photo).convert("L").filter(ImageFilter.FIND_EDGES)
            return gray.point(lambda value: 0 if value > 40 else 255)
        case "right":
            return Image.fromarray(np.roll(photo, -3, 1))
        case "half":
            return Image.fromarray(photo).resize((width // 2, height // 2))
        case "changed":
            return _image(np.where(_shapes(pic, 1)[:, :, None] > 0, 255 - plain, plain * 0.95 + 8))
        case "depth":
            ramp = np.linspace(30, 220, height)[:, None] + np.linspace(0, 20, width)
            shaped = np.where(_shapes(pic) > 0, ramp * 0.6 + 20, ramp)
            return _image(shaped).filter(ImageFilter.GaussianBlur(1.5))
        case "mask" | "ids":
            return Image.fromarray(_shapes(pic))
        case "binary":
            return Image.fromarray((_shapes(pic) > 0).astype(np.uint8) * 255)
        case "fov":
            y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
            return Image.fromarray(((x**2 + y**2) < 0.9).astype(np.uint8) * 255)
        case "colours":
            return Image.fromarray(_COLOURS[_shapes(pic)])
        case "palette":
            image = Image.fromarray(_shapes(pic), "P")
            image.putpalette(_COLOURS.ravel().tolist())
            return image
        case "pair":  # pix2pix: two pictures side by side in one file
            return Image.fromarray(np.hstack([photo, _COLOURS[_shapes(pic)]]))
    raise ValueError(pic.kind)


def _image(values: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))


@functools.lru_cache(maxsize=4096)
def _photo(pic: Pic) -> NDArray[np.uint8]:
    """Return soft areas of colour, objects with texture, and the grain of a camera."""
    width, height = pic.size
    back = np.random.default_rng(pic.scene if pic.background < 0 else 7_000 + pic.background)
    coarse = Image.fromarray(back.integers(30, 225, (4, 5, 3), np.uint8))
    photo = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    rng = np.random.default_rng(50_000 + pic.scene)
    shapes = _shapes(pic)
    for value in range(1, 4):
        inside = shapes == value
        texture = rng.normal(0, 12, (height, width, 1))
        photo[inside] = (rng.integers(20, 235, 3) + texture)[inside]
    grain = np.random.default_rng((pic.scene, pic.frame, 9)).normal(0, 4, photo.shape)
    return np.clip(photo + grain, 0, 255).astype(np.uint8)


def _shapes(pic: Pic, which: int = 0) -> NDArray[np.uint8]:
    """Return where a scene's objects are: 1, 2 and 3; 0 is the background."""
    width, height = pic.size
    rng = np.random.default_rng((pic.scene, 77, which))
    shapes = np.zeros((height, width), np.uint8)
    y, x = np.mgrid[:height, :width]
    for value in (1, 2, 3):
        middle = rng.integers(width // 5, width * 4 // 5) + 2 * pic.frame % (width // 4)
        center = rng.integers(height // 5, height * 4 // 5)
        across = rng.integers(width // 10, width // 4)
        down = rng.integers(height // 10, height // 4)
        if value == 2:
            inside = (abs(x - middle) < across) & (abs(y - center) < down)
        else:
            inside = ((x - middle) / across) ** 2 + ((y - center) / down) ** 2 < 1
        shapes[inside] = value
    return shapes
