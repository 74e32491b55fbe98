"""WIDER FACE: a text file of images, each with the number of its faces and their boxes.

::

    0--Parade/0_Parade_marchingband_1_849.jpg
    1
    449 330 122 149 0 0 0 0 0 0

The numbers are left, top, width, height, blur, expression, illumination, invalid, occlusion and
pose (the ``readme.txt`` beside it).  An image without faces has 0, and yet a line of zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ImageField, Schema

from .base import FieldSpec, IndexedSource, Sample
from .reading.fields import BOXES
from .reading.fingerprints import hash_samples
from .reading.image_files import is_image_name
from .reading.image_list import DeferredSample
from .reading.lists.box_rows import BoxTable
from .reading.lists.boxed_image import BoxForm
from .reading.lists.image_finder import folder_named
from .reading.locations import path_inside, printable, stat_of
from .reading.options import Option
from .reading.refusals import refuse_fields
from .reading.text_lines import text_lines

__all__ = ["WiderFaceSource"]

_FORM = BoxForm("xywh", "pixels")
_WORDS = 10
_INVALID = 7


class WiderFaceSource(IndexedSource):
    """Images with the boxes of their faces."""

    name = "widerface"
    summary = "WIDER FACE: wider_face_train_bbx_gt.txt, boxes of faces"
    parts = ("**/wider_face_*_bbx_gt.txt", "WIDER_train|WIDER_val")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        lines = [
            line.split() for _, line in itertools.islice(text_lines(Path(location), cut=True), 3)
        ]
        return (
            len(lines) == 3
            and is_image_name(" ".join(lines[0]))
            and len(lines[1]) == 1
            and lines[1][0].isdecimal()
            and len(lines[2]) == _WORDS
        )

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        images: Annotated[
            str | None, Option("the folder of the images; default: WIDER_train/images beside")
        ] = None,
        invalid: Annotated[bool, Option("take faces that are marked invalid")] = False,
    ) -> None:
        refuse_fields(fields, self.name)
        self.path, self.notes = Path(location), []
        self.folder = self._folder(images)
        self._table, self._skipped, self._invalid = BoxTable(), 0, invalid
        for name, boxes in self._images():
            self._table.begin(name)
            for box in boxes:
                self._table.add(box)
        self._table.group()
        self.num_samples = self._table.num_images
        if self._skipped:
            self.notes.append(
                f"{self._skipped:,} faces that are marked invalid left out (--option invalid=true)"
            )
        self.notes.append("of faces left out: blur, expression, illumination, occlusion, pose")
        self.schema = Schema({"image": ImageField(channels=channels), "boxes": BOXES})

    def _folder(self, images: str | None) -> Path:
        here = self.path.parent
        if images is not None:
            return here / folder_named(here, images)
        splits = [s for s in ("train", "val") if s in self.path.name]
        places = [p / f"WIDER_{s}/images" for s in splits for p in (here, here.parent)]
        found = [place for place in places if place.is_dir()]
        if not found:
            raise SourceError(
                f"{self.path}: no WIDER_train/images or WIDER_val/images beside it. Say where the "
                "images are: --option images=FOLDER"
            )
        return found[0]

    def _images(self) -> Iterator[tuple[str, list[list[float]]]]:
        """Yield each image with its boxes."""
        lines = text_lines(self.path)
        for number, name in lines:
            if not is_image_name(name.strip()):
                raise SourceError(f"{self.path}, line {number}: {name[:60]!r} names no image")
            place, text = next(lines, (number, ""))
            if not text.strip().isdecimal():
                raise SourceError(f"{self.path}, line {place}: {text[:40]!r} is no number of faces")
            count, boxes = int(text), []
            for _ in range(max(count, 1)):
                place, line = next(lines, (place, ""))
                words = line.split()
                if len(words) != _WORDS or not all(w.lstrip("-").isdecimal() for w in words):
                    raise SourceError(
                        f"{self.path}, line {place}: expected {_WORDS} numbers of a face, found "
                        f"{line[:60]!r}"
                    )
                keep = count > 0 and (self._invalid or words[_INVALID] == "0")
                self._skipped += count > 0 and not keep
                boxes += [[float(word) for word in words[:4]]] * keep
            yield name.strip(), boxes

    def __getitem__(self, index: int) -> Sample:
        path = path_inside(self.folder, self._table.name(index))
        boxes, _ = self._table.of(index)
        return Sample(
            self.key_at(index), DeferredSample(_FORM, ("image", "boxes"), [path], {"boxes": boxes})
        )

    def key_at(self, index: int) -> str:
        return printable(self._table.name(index))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        shared = stat_of(self.path)

        def parts(index: int) -> tuple[Any, ...]:
            name = self._table.name(index)
            return name, self._table.of(index)[0].tobytes(), stat_of(self.folder / name), shared

        return hash_samples(self.num_samples, limit, parts)
