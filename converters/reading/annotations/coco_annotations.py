"""The annotations of COCO's: each a row of numbers, which a worker makes into values.

A row has the place of the annotation too.  Captions and regions, which are no numbers, are
read again from there.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.regular_files import open_regular

from ...base import Deferred
from ..spans import read_at
from .annotated import Frame, frame_of
from .coco_panoptic import panoptic_values
from .regions import paint

__all__ = ["FEDERATED", "ROW", "AnnotatedImage", "Plan", "pack_row"]

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


class Plan(NamedTuple):
    """What all images of an annotation file share."""

    path: str  # the annotation file
    fields: tuple[str, ...]  # in the schema's order
    masks: str  # "", "classes", "instances"
    check_size: bool
    # ids of the classes from 0 on, where entries are read again that name them
    categories: tuple[int, ...] = ()
    keypoints: int = 0  # how many an object has at most
    segments: str = ""  # the folder of panoptic masks; "" where there are none
    split: int = 0


class AnnotatedImage(Deferred):
    """An image file, the rows of its annotations, and where its own entry is."""

    def __init__(
        self,
        image: str,
        number: int,
        size: tuple[int, int],
        rows: bytes,
        place: tuple[int, int],
        plan: Plan,
    ) -> None:
        self.image, self.number, self.size, self.rows, self.plan = image, number, size, rows, plan
        self.place = place

    def load(self) -> tuple[Any, ...]:
        """Read the image, and what is no number of its annotations."""
        with open(self.image, "rb", opener=open_regular) as file:
            data = file.read()
        values: dict[str, Any] = {"image": data, "image_id": self.number, "split": self.plan.split}
        rows = np.frombuffer(self.rows, ROW)
        if self.plan.segments:
            values |= self._segments(data, rows)
            return tuple(values[name] for name in self.plan.fields)
        if {"boxes", "label", "labels"} & set(self.plan.fields):
            for row in rows[rows["label"] < 0][:1]:
                raise self._bad(row, "its category_id is none of the categories")
        values["labels"] = rows["label"]
        if "label" in self.plan.fields:
            values["label"] = rows["label"][0]
        if "boxes" in self.plan.fields:
            said = self.size if all(self.size) else None
            frame = frame_of(data, said, self.plan.check_size)
            values["boxes"] = frame.boxes(rows["box"])
            values["crowd"], values["areas"] = rows["crowd"], rows["area"]
            if self.plan.keypoints:
                values["keypoints"] = self._keypoints(rows, frame)
            if self.plan.masks:
                values["mask"] = self._mask(rows, frame)
        if "captions" in self.plan.fields:
            values["captions"] = "\n".join(map(self._caption, rows))
        if "negatives" in self.plan.fields:
            values |= self._federated()
        return tuple(values[name] for name in self.plan.fields)

    def _segments(self, data: bytes, rows: NDArray[Any]) -> dict[str, Any]:
        """Return what the one panoptic annotation of an image has."""
        if len(rows) != 1:
            raise ValueError(f"it has {len(rows)} panoptic annotations, not one")
        frame = frame_of(data, self.size if all(self.size) else None, self.plan.check_size)
        try:
            return panoptic_values(
                self._entry(rows[0]), self.plan.segments, self.plan.categories, frame,
                self.plan.masks == "instances",
            )  # fmt: skip
        except ValueError as error:
            raise self._bad(rows[0], error) from None

    def _keypoints(self, rows: NDArray[Any], frame: Frame) -> NDArray[np.float32]:
        """Return x, y and visibility of the points of each object, zeros where it has none."""
        found = np.zeros((len(rows), self.plan.keypoints, 3), np.float64)
        for k, row in enumerate(rows):
            points = self._entry(row).get("keypoints") or []
            fits = (
                isinstance(points, list) and len(points) % 3 == 0 and all(map(_is_number, points))
            )
            if not fits or len(points) > 3 * self.plan.keypoints:
                raise self._bad(
                    row, f"its keypoints are no x, y, v of {self.plan.keypoints} points"
                )
            given = np.array(points, np.float64).reshape(-1, 3)
            given[:, :2] = frame.fractions(given[:, :2])
            found[k, : len(given)] = np.where(given[:, 2:] == 0, 0, given)
        return found.astype(np.float32)

    def _federated(self) -> dict[str, Any]:
        """Return the classes that LVIS says are not in an image, and those not all marked."""
        entry = _parsed(read_at(self.plan.path, *self.place))
        values = {}
        for field, member in FEDERATED.items():
            ids = entry.get(member) or []
            if not isinstance(ids, list) or not set(map(str, ids)) <= set(self._ids):
                raise ValueError(f"its {member} are none of the categories: {ids!r:.80}")
            values[field] = np.array([self._ids[str(number)] for number in ids], np.int64)
        return values

    @property
    def _ids(self) -> dict[str, int]:
        return {str(number): k for k, number in enumerate(self.plan.categories)}

    def _bad(self, row: Any, reason: object) -> ValueError:
        file = Path(self.plan.path).name
        return ValueError(f"the annotation at byte {row['start']:,} of {file}: {reason}")

    def _entry(self, row: Any) -> dict[str, Any]:
        try:
            return _parsed(read_at(self.plan.path, int(row["start"]), int(row["length"])))
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
        instances = self.plan.masks == "instances"
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
    """Return an annotation as a row, and what is wrong with its numbers, if anything is."""
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
