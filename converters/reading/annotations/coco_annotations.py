"""COCO's annotations: each is a row of numbers, from which a worker makes values.

A row also has the place of the annotation, from which captions and regions are read again.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.regular_files import read_regular

from ..spans import read_at
from .annotated import Frame, frame_of
from .regions import MOST_VALUES, paint

__all__ = ["ROW", "CocoReader", "Id", "Ids", "pack_row"]

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

Id: TypeAlias = int | str
_TEXTS = 1 << 62
_PACKED = struct.Struct("<qq5f?QI")
_NO_CATEGORY = -(2**63)
_NOWHERE = (math.nan,) * 4
"""The box of an annotation that is of the whole image."""


@dataclass(frozen=True)
class CocoReader:
    """Reads an image, and the captions and regions of its annotations, in a worker."""

    path: str  # the annotation file
    fields: tuple[str, ...]
    masks: str | None
    check_size: bool

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name the annotation's place.

        known: ``size``, height and width of its entry, or 0; ``annotations``, of dtype `ROW`.
        """
        data = read_regular(files[0])
        values: dict[str, Any] = {"image": data}
        rows = np.frombuffer(known["annotations"], ROW)
        stated = known["size"] if all(known["size"]) else None
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
            if self.masks:
                values["mask"] = self._mask(rows, frame)
        if "captions" in self.fields:
            values["captions"] = "\n".join(map(self._caption, rows))
        return values

    def _bad(self, row: Any, reason: object) -> ValueError:
        file = Path(self.path).name
        return ValueError(f"the annotation at byte {row['start']:,} of {file}: {reason}")

    def _entry(self, row: Any) -> dict[str, Any]:
        try:
            entry = json.loads(read_at(self.path, int(row["start"]), int(row["length"])))
        except (ValueError, RecursionError) as error:
            raise self._bad(row, f"is no JSON any more: {error}") from error
        if not isinstance(entry, dict):
            raise self._bad(row, "is no JSON object any more")
        return entry

    def _caption(self, row: Any) -> str:
        """Return a caption on one line."""
        text = self._entry(row).get("caption")
        if not isinstance(text, str):
            raise self._bad(row, f"its caption is {text!r:.40}, not text")
        return " ".join(text.split())

    def _mask(self, rows: NDArray[Any], frame: Frame) -> NDArray[np.uint8]:
        """Paint all regions: crowds below, and of the rest the larger below the smaller."""
        instances = self.masks == "instances"
        if instances and len(rows) > MOST_VALUES:
            raise ValueError(f"a mask holds {MOST_VALUES} instances; here are {len(rows)}")
        flat = frame.blank().reshape(-1)
        for k in np.lexsort((-rows["area"], ~rows["crowd"])).tolist():
            value = k if instances else int(rows["label"][k])
            region = self._entry(rows[k]).get("segmentation")
            try:
                paint(flat, frame.height, frame.width, region, value + 1)
            except ValueError as error:
                raise self._bad(rows[k], error) from None
        return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))


class Ids:
    """Ids of a file as numbers: whole numbers are themselves, and other texts get numbers."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def of(self, entry: Any, name: str) -> Id:
        """Return an id of an entry; ValueError if it is none."""
        value = entry.get(name) if isinstance(entry, dict) else None
        if isinstance(value, str) and value:
            whole = value.isdecimal() and len(value) < 19 and str(int(value)) == value
            return int(value) if whole else value
        if type(value) is not int or abs(value) >= _TEXTS:
            raise ValueError(f"its {name} is {value!r:.80}, neither an int of 63 bits nor text")
        return value

    def number(self, entry: Any, name: str) -> int:
        """Return an id of an entry as a number."""
        value = self.of(entry, name)
        if isinstance(value, int):
            return value
        return self.texts.setdefault(value, -_TEXTS - len(self.texts))


def pack_row(
    entry: Any, images: Ids, categories: Ids, start: int, length: int
) -> tuple[bytes, str]:
    """Return an annotation as a row, and an error of its numbers or ""."""
    image = images.number(entry, "image_id")
    if "caption" in entry and "bbox" not in entry and "category_id" not in entry:
        return _PACKED.pack(image, _NO_CATEGORY, 0, 0, 0, 0, 0, False, start, length), ""
    try:
        of_image = "bbox" not in entry and "segmentation" not in entry
        box = _NOWHERE if of_image and "category_id" in entry else _box(entry)
        category = categories.number(entry, "category_id")
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
