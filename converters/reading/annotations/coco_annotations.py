"""COCO's annotations: each is a row of numbers, from which a worker makes values.

A row also has the place of the annotation, from which captions and regions are read again.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image, row_bands
from fastdata.errors import ImageError
from fastdata.regular_files import read_regular

from ..locations import path_inside
from ..spans import read_at
from .annotated import Frame, frame_of
from .regions import paint
from .shapes import numbers

__all__ = ["FEDERATED", "ROW", "CocoReader", "pack_row"]

ROW = np.dtype(
    [
        ("image", "<i8"),
        ("label", "<i8"),
        ("box", "<f4", (4,)),
        ("area", "<f4"),
        ("crowd", "?"),
        ("start", "<u8"),
        ("length", "<u4"),
    ]
)
"""An annotation: number of its image, its category's id, later its class's number (-1 where
there is none), left, top, right, bottom, pixels, and where in the file it is."""

FEDERATED = {"negatives": "neg_category_ids", "not_exhaustive": "not_exhaustive_category_ids"}
"""Fields of LVIS, and what its images call them."""

_PACKED = struct.Struct("<qq5f?QI")
_NO_CATEGORY = -(2**63)
_MOST_INSTANCES = 254
_NOWHERE = (math.nan,) * 4
"""The box of an annotation that is of the whole image."""


@dataclass(frozen=True)
class CocoReader:
    """Reads an image, and the captions and regions of its annotations, in a worker."""

    path: str  # the annotation file
    fields: tuple[str, ...]
    masks: str | None
    check_size: bool
    categories: tuple[int, ...] = ()  # ids of classes from 0 on, where entries read again name them
    keypoints: int = 0  # how many an object has at most
    segments: str = ""  # the folder of panoptic masks; "" where there are none

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name the annotation's place.

        known: ``size``, height and width of its entry, or 0; ``place``, offset and length of that
            entry in bytes; ``annotations``, of dtype `ROW`.
        """
        data = read_regular(files[0])
        values: dict[str, Any] = {"image": data}
        rows = np.frombuffer(known["annotations"], ROW)
        stated = known["size"] if all(known["size"]) else None
        if self.segments:
            return values | self._segments(frame_of(data, stated, self.check_size), rows)
        if {"boxes", "label", "labels"} & set(self.fields):
            for row in rows[rows["label"] < 0][:1]:
                raise self._bad(row, "its category_id is none of the categories")
        values["labels"] = rows["label"]
        if "label" in self.fields:
            values["label"] = rows["label"][0]
        if "boxes" in self.fields:
            frame = frame_of(data, stated, self.check_size)
            values["boxes"] = frame.boxes(rows["box"])
            values["crowd"], values["areas"] = rows["crowd"], rows["area"]
            if self.keypoints:
                values["keypoints"] = self._keypoints(rows, frame)
            if self.masks:
                values["mask"] = self._mask(rows, frame)
        if "captions" in self.fields:
            values["captions"] = "\n".join(map(self._caption, rows))
        if "negatives" in self.fields:
            values |= self._federated(known["place"])
        return values

    def _segments(self, frame: Frame, rows: NDArray[Any]) -> dict[str, Any]:
        """Return the values of an image's panoptic annotation."""
        if len(rows) != 1:
            raise ValueError(f"it has {len(rows)} panoptic annotations, not one")
        entry, instances = self._entry(rows[0]), self.masks == "instances"
        try:
            return panoptic_values(entry, self.segments, self.categories, frame, instances)
        except ValueError as error:
            raise self._bad(rows[0], error) from None

    def _keypoints(self, rows: NDArray[Any], frame: Frame) -> NDArray[np.float32]:
        """Return x, y and visibility of the points of each object, zeros where it has none."""
        found = np.zeros((len(rows), self.keypoints, 3), np.float64)
        for k, row in enumerate(rows):
            points = self._entry(row).get("keypoints") or []
            fits = (
                isinstance(points, list) and len(points) % 3 == 0 and all(map(_is_number, points))
            )
            if not fits or len(points) > 3 * self.keypoints:
                raise self._bad(row, f"its keypoints are no x, y, v of {self.keypoints} points")
            given = np.array(points, np.float64).reshape(-1, 3)
            given[:, :2] = frame.fractions(given[:, :2])
            found[k, : len(given)] = np.where(given[:, 2:] == 0, 0, given)
        return found.astype(np.float32)

    def _federated(self, place: tuple[int, int]) -> dict[str, Any]:
        """Return the classes that LVIS says are not in an image, and those not all marked."""
        entry = _parsed(read_at(self.path, *place))
        known = {str(number): k for k, number in enumerate(self.categories)}
        values = {}
        for field, member in FEDERATED.items():
            ids = entry.get(member) or []
            if not isinstance(ids, list) or not set(map(str, ids)) <= set(known):
                raise ValueError(f"its {member} are none of the categories: {ids!r:.80}")
            values[field] = np.array([known[str(number)] for number in ids], np.int64)
        return values

    def _bad(self, row: Any, reason: object) -> ValueError:
        file = Path(self.path).name
        return ValueError(f"the annotation at byte {row['start']:,} of {file}: {reason}")

    def _entry(self, row: Any) -> dict[str, Any]:
        try:
            return _parsed(read_at(self.path, int(row["start"]), int(row["length"])))
        except ValueError as error:
            raise self._bad(row, error) from error

    def _caption(self, row: Any) -> str:
        """Return a caption on one line."""
        text = self._entry(row).get("caption")
        if not isinstance(text, str):
            raise self._bad(row, f"its caption is {text!r:.40}, not text")
        return " ".join(text.split())

    def _mask(self, rows: NDArray[Any], frame: Frame) -> NDArray[np.uint8]:
        """Paint all regions: crowds below, and of the rest the larger below the smaller."""
        instances = self.masks == "instances"
        if instances and len(rows) > _MOST_INSTANCES:
            raise ValueError(f"a mask holds {_MOST_INSTANCES} instances; here are {len(rows)}")
        flat = frame.blank().reshape(-1)
        for k in np.lexsort((-rows["area"], ~rows["crowd"])).tolist():
            value = k if instances else int(rows["label"][k])
            region = self._entry(rows[k]).get("segmentation")
            try:
                paint(flat, frame.height, frame.width, region, value + 1)
            except ValueError as error:
                raise self._bad(rows[k], error) from None
        return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON any more: {error}") from error
    if not isinstance(entry, dict):
        raise ValueError("is no JSON object any more")
    return entry


def pack_row(entry: Any, start: int, length: int) -> tuple[bytes, str]:
    """Return an annotation as a row, and an error of its numbers or ""."""
    image = entry.get("image_id") if isinstance(entry, dict) else None
    if type(image) is not int or abs(image) >= 1 << 63:
        raise ValueError(f"its image_id is {image!r:.80}, not an int of 64 bits")
    plain = "bbox" not in entry and "category_id" not in entry
    if plain and ("caption" in entry or "segments_info" in entry):
        return _PACKED.pack(image, _NO_CATEGORY, 0, 0, 0, 0, 0, False, start, length), ""
    try:
        category = entry.get("category_id")
        of_image = "bbox" not in entry and "segmentation" not in entry
        box = _NOWHERE if of_image and category is not None else _box(entry)
        if type(category) is not int or abs(category) >= 1 << 63:
            raise ValueError(f"its category_id is {category!r:.40}, not an int")
        crowd = entry.get("iscrowd", 0)
        if not isinstance(crowd, int) or crowd not in (0, 1):
            raise ValueError(f"its iscrowd is {crowd!r:.40}, neither 0 nor 1")
        area = entry.get("area")
        if area is None:
            area = 0 if of_image else (box[2] - box[0]) * (box[3] - box[1])
        elif not _is_number(area):
            raise ValueError(f"its area is {area!r:.40}, not a number")
    except ValueError as error:
        return _PACKED.pack(image, 0, 0, 0, 0, 0, 0, False, start, length), str(error)
    return _PACKED.pack(image, category, *box, area, crowd, start, length), ""


def _box(entry: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return left, top, right, bottom."""
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise ValueError(f"its bbox is {box!r:.80}, not four numbers")
    left, top, width, height = box
    if width < 0 or height < 0:
        raise ValueError(f"its bbox {box} has a negative width or height")
    return left, top, left + width, top + height


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e12


# -- panoptic annotations: an image of ids, and which class each id is of ------------------
#
# Source: https://cocodataset.org/#format-data, 4.  A pixel's id is R + 256 G + 65536 B; 0 is of
# nothing.


def panoptic_values(
    entry: dict[str, Any],
    folder: str,
    categories: tuple[int, ...],
    frame: Frame,
    instances: bool,
) -> dict[str, Any]:
    """Return boxes, labels, crowd, areas and mask of an image's annotation.

    instances: whether pixels become numbers of segments, not of classes; both from 1 on.
    """
    segments = entry.get("segments_info")
    if not isinstance(segments, list) or not all(isinstance(part, dict) for part in segments):
        raise ValueError("its segments_info is no list of objects")
    classes = {number: k for k, number in enumerate(categories)}
    labels = [classes.get(part.get("category_id"), -1) for part in segments]
    if -1 in labels:
        wrong = segments[labels.index(-1)].get("category_id")
        raise ValueError(f"the category_id {wrong!r:.40} of a segment is none of the categories")
    if instances and len(segments) > _MOST_INSTANCES:
        raise ValueError(f"a mask holds {_MOST_INSTANCES} instances; here are {len(segments)}")
    ids = [part.get("id") for part in segments]
    if not all(type(number) is int and 0 < number < 1 << 24 for number in ids):
        raise ValueError("the id of a segment is no whole number of 24 bits")
    boxes = np.zeros((len(segments), 4), np.float64)
    for k, part in enumerate(segments):
        box = part.get("bbox")
        given = numbers(box if isinstance(box, list) else [])
        if len(given) != 4:
            raise ValueError(f"the bbox of a segment is {box!r:.80}, not four numbers")
        boxes[k] = [given[0], given[1], given[0] + given[2], given[1] + given[3]]
    values = 1 + (np.arange(len(ids)) if instances else np.array(labels, np.int64))
    mask = _numbered(_ids_of(path_inside(folder, entry.get("file_name")), frame), ids, values)
    areas = [part.get("area", 0) for part in segments]
    return {
        "boxes": frame.boxes(boxes).astype(np.float32),
        "labels": np.array(labels, np.int64),
        "crowd": np.array([part.get("iscrowd") == 1 for part in segments], bool),
        "areas": numbers(areas).astype(np.float32),
        "mask": frame.mask(mask),
    }


def _ids_of(path: str, frame: Frame) -> NDArray[np.uint32]:
    name = Path(path).name
    try:
        with open_image(read_regular(path), MAX_PIXELS) as image:
            size = image.size
            if size == (frame.width, frame.height):
                image.load()
                ids = np.empty(size[::-1], np.uint32)
                for rows, band in row_bands(image):
                    pixels = np.asarray(band.convert("RGB"), np.uint32)
                    ids[rows] = pixels @ np.array([1, 256, 65536], np.uint32)
                return ids
    except (OSError, ImageError) as error:
        raise ValueError(f"its mask {name} cannot be read: {error}") from error
    raise ValueError(f"its mask {name} has {size[0]} x {size[1]} pixels, the image others")


def _numbered(
    found: NDArray[np.uint32], ids: list[Any], values: NDArray[np.int64]
) -> NDArray[np.uint8]:
    known = np.array([0, *ids], np.uint32)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], found), len(known) - 1)
    which = order[place]
    strange = found[known[which] != found]
    if len(strange):
        raise ValueError(f"its mask has the id {strange[0]}, which is of no segment")
    return np.array([0, *values], np.int64)[which].astype(np.uint8)
