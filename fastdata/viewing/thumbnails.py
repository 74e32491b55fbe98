"""Small pictures for a page: JPEGs in data URIs, masks laid over their image, boxes beside."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from fastdata.codecs import Pixels
from fastdata.codecs.blobs import encode_jpeg
from fastdata.dataset import Dataset
from fastdata.errors import FastdataError
from fastdata.schema import Schema

__all__ = ["Thumbnail", "make_thumbnail"]

_QUALITY = 80
_MASK_OPACITY = 0.5


class Thumbnail(NamedTuple):
    """One image of a sample, small.

    Attributes
    ----------
    uri : str
        Of a JPEG; empty where the image cannot be read.
    width, height : int
        Of the small picture, in pixels.
    size : (int, int)
        Height and width of the image itself.
    boxes : list of (float, float, float, float)
        Left, top, width and height in percent of the picture.
    problem : str
        Why there is no picture.
    """

    uri: str
    width: int
    height: int
    size: tuple[int, int]
    boxes: list[tuple[float, float, float, float]]
    problem: str = ""


def make_thumbnail(dataset: Dataset, index: int, name: str, side: int) -> Thumbnail:
    """Return an image field of a sample as a picture of at most `side` pixels.

    The first mask of the schema is laid over the first image, and boxes belong to it.
    """
    schema = dataset.schema
    try:
        pixels = _pixels(dataset, index, name)
        mask = _mask_over(schema, name)
        over = None if mask is None else _pixels(dataset, index, mask)
        boxes = _boxes(dataset, index, name, pixels.shape[:2])
    except FastdataError as error:
        return Thumbnail("", side, side, (0, 0), [], str(error))
    height, width = pixels.shape[:2]
    scale = min(1.0, side / max(height, width))
    target = max(1, round(width * scale)), max(1, round(height * scale))
    if schema.images[name].mask:
        small: Any = cv2.resize(_coloured(pixels), target, interpolation=cv2.INTER_NEAREST)
    else:
        small = cv2.resize(_grey_to_rgb(pixels), target, interpolation=cv2.INTER_AREA)
    if over is not None:
        tint = cv2.resize(_coloured(over), target, interpolation=cv2.INTER_NEAREST)
        inside = cv2.resize(over[:, :, 0], target, interpolation=cv2.INTER_NEAREST)[..., None] > 0
        blend = cv2.addWeighted(small, 1 - _MASK_OPACITY, tint, _MASK_OPACITY, 0)
        small = np.where(inside, blend, small)
    data = base64.b64encode(encode_jpeg(np.ascontiguousarray(small), _QUALITY)).decode()
    uri = f"data:image/jpeg;base64,{data}"
    return Thumbnail(uri, target[0], target[1], (height, width), boxes)


def _pixels(dataset: Dataset, index: int, name: str) -> Pixels:
    """Return an image of a sample, H x W x C."""
    return dataset.images(name, [index]).read(0)


def _grey_to_rgb(pixels: Pixels) -> Pixels:
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _coloured(mask: Pixels) -> Pixels:
    """Return a mask with a colour a class: those of Pascal VOC's palette, black for 0."""
    picture = Image.fromarray(mask[:, :, 0], "L").convert("P")
    picture.putpalette(_palette())
    return np.asarray(picture.convert("RGB"))


def _palette() -> list[int]:
    """Return 256 colours that are far apart: Pascal VOC's (``VOClabelcolormap`` of its devkit)."""
    colours: list[int] = []
    for label in range(256):
        rgb = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                rgb[channel] |= (label >> (3 * bit + channel) & 1) << (7 - bit)
        colours += rgb
    return colours


def _mask_over(schema: Schema, name: str) -> str | None:
    pictures = [n for n, field in schema.images.items() if not field.mask]
    masks = [n for n, field in schema.images.items() if field.mask]
    return masks[0] if masks and pictures[:1] == [name] else None


def _boxes(
    dataset: Dataset, index: int, name: str, size: tuple[int, ...]
) -> list[tuple[float, float, float, float]]:
    """Return the boxes of the image, (x1, y1, x2, y2) in pixels, as percents of it."""
    schema = dataset.schema
    if not schema.boxes or next(iter(schema.images)) != name:
        return []
    found: list[tuple[float, float, float, float]] = []
    height, width = size
    for field in schema.boxes:
        corners: Any = np.asarray(dataset.gather(field, [index])[0], np.float64).reshape(-1, 4)
        corners = np.clip(np.nan_to_num(corners), 0, [width, height, width, height])
        left, top, right, bottom = (corners / [width, height, width, height] * 100).T
        found += zip(left, top, right - left, bottom - top, strict=True)
    return found
