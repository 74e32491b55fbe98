"""The annotations of one image of COCO's, read and made into values by a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import Deferred
from .annotated import Frame, frame_of
from .regions import paint
from .spans import read_at

__all__ = ["AnnotatedImage", "Plan"]

_MOST_INSTANCES = 254


class Plan(NamedTuple):
    """What all images of an annotation file share.

    Attributes
    ----------
    path : str
        The annotation file.
    fields : tuple of str
        In the schema's order.
    classes : mapping
        From category ids to numbers from 0 on.
    masks : {"", "classes", "instances"}
    check_size : bool
    """

    path: str
    fields: tuple[str, ...]
    classes: Mapping[int, int]
    masks: str
    check_size: bool


class AnnotatedImage(Deferred):
    """An image file, and the places of its annotations."""

    def __init__(
        self,
        image: Path,
        number: int,
        size: tuple[int, int],
        spans: Sequence[tuple[int, int]],
        plan: Plan,
    ) -> None:
        self.image, self.number, self.size, self.spans, self.plan = image, number, size, spans, plan

    def load(self) -> tuple[Any, ...]:
        """Read the image and its annotations.

        Raises
        ------
        ValueError
            If an annotation is damaged; the message has its place.
        """
        data = self.image.read_bytes()
        values: dict[str, Any] = {"image": data, "image_id": self.number}
        annotations = [_Annotation(self.plan, start, length) for start, length in self.spans]
        if "boxes" in self.plan.fields:
            said = self.size if all(self.size) else None
            frame = frame_of(data, said, self.plan.check_size)
            values |= _columns(annotations, frame)
            if self.plan.masks:
                values["mask"] = _mask(annotations, frame, self.plan.masks)
        if "captions" in self.plan.fields:
            values["captions"] = "\n".join(a.caption() for a in annotations)
        return tuple(values[name] for name in self.plan.fields)


class _Annotation:
    """One entry of ``annotations``; what is asked for is checked."""

    def __init__(self, plan: Plan, start: int, length: int) -> None:
        self._place = f"the annotation at byte {start:,} of {Path(plan.path).name}"
        self._classes = plan.classes
        try:
            self._entry: dict[str, Any] = json.loads(read_at(plan.path, start, length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._place} is no JSON any more: {error}") from error

    def bad(self, reason: object) -> ValueError:
        return ValueError(f"{self._place}: {reason}")

    def box(self) -> list[float]:
        """Return left, top, right, bottom."""
        box = self._entry.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
            raise self.bad(f"its bbox is {box!r:.80}, not four numbers")
        left, top, width, height = box
        if width < 0 or height < 0:
            raise self.bad(f"its bbox {box} has a negative width or height")
        return [left, top, left + width, top + height]

    def label(self) -> int:
        number = self._entry.get("category_id")
        if type(number) is not int or number not in self._classes:
            raise self.bad(f"its category_id is {number!r:.40}, which is none of the categories")
        return self._classes[number]

    def crowd(self) -> bool:
        flag = self._entry.get("iscrowd", 0)
        if flag not in (0, 1) or not isinstance(flag, int):
            raise self.bad(f"its iscrowd is {flag!r:.40}, neither 0 nor 1")
        return bool(flag)

    def area(self) -> float:
        """Return the region's pixels; those of the box where they are not said."""
        area = self._entry.get("area")
        if area is None:
            left, top, right, bottom = self.box()
            return (right - left) * (bottom - top)
        if not _is_number(area):
            raise self.bad(f"its area is {area!r:.40}, not a number")
        return float(area)

    def caption(self) -> str:
        """Return the caption on one line."""
        text = self._entry.get("caption")
        if not isinstance(text, str):
            raise self.bad(f"its caption is {text!r:.40}, not text")
        return " ".join(text.split())

    def paint(self, flat: NDArray[np.uint8], frame: Frame, value: int) -> None:
        try:
            paint(flat, frame.height, frame.width, self._entry.get("segmentation"), value)
        except ValueError as error:
            raise self.bad(error) from None


def _columns(annotations: Sequence[_Annotation], frame: Frame) -> dict[str, Any]:
    boxes = np.array([a.box() for a in annotations], np.float64).reshape(-1, 4)
    return {
        "boxes": frame.boxes(boxes).astype(np.float32),
        "labels": np.array([a.label() for a in annotations], np.int64),
        "crowd": np.array([a.crowd() for a in annotations], bool),
        "areas": np.array([a.area() for a in annotations], np.float32),
    }


def _mask(annotations: Sequence[_Annotation], frame: Frame, kind: str) -> NDArray[np.uint8]:
    """Paint all regions: crowds below, and of the rest the larger below the smaller."""
    if kind == "instances" and len(annotations) > _MOST_INSTANCES:
        count = len(annotations)
        raise ValueError(f"a mask holds {_MOST_INSTANCES} instances, and the image has {count}")
    flat = frame.blank().reshape(-1)
    order = sorted(
        range(len(annotations)),
        key=lambda k: (not annotations[k].crowd(), -annotations[k].area()),
    )
    for k in order:
        value = k if kind == "instances" else annotations[k].label()
        annotations[k].paint(flat, frame, value + 1)
    return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9
