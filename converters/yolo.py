"""YOLO: images, and a text file for each with a line for every object.

::

    data.yaml                     names, train, val
    images/train/000000000009.jpg
    labels/train/000000000009.txt     45 0.479492 0.688771 0.955609 0.5955

Source: https://docs.ultralytics.com/datasets/ and ``ultralytics/data`` (8.4), which trains on them;
Darknet's lists, and Roboflow's and CVAT's exports.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import ArrayField, Field

from .reading.annotations.shapes import object_fields
from .reading.annotations.yolo_labels import YoloReader
from .reading.annotations.yolo_layout import is_yolo, label_of, listed_images, yolo_layout
from .reading.class_names import read_class_names
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.options import ClassFile, Option, PaintedMasks, SplitOption

__all__ = ["YoloSource"]


class YoloSource(ImageListSource):
    """Images with the boxes and classes of their objects."""

    name = "yolo"
    summary = "YOLO: data.yaml, images and labels (boxes, polygons, oriented boxes, keypoints)"
    parts = ("*.yaml|classes.txt|obj.names", "**/labels/**/*.txt")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_yolo(location)

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        oriented: Annotated[
            bool, Option("lines of 8 numbers are oriented boxes: add their corners")
        ] = False,
        classes: ClassFile = None,
        root: Annotated[
            str | None, Option("the folder that names in data.yaml are relative to")
        ] = None,
    ) -> dict[str, Field]:
        layout = yolo_layout(location, root or "")
        self.root = layout.root
        splits = self.choose_splits(list(layout.splits), split)
        self.beside = layout.beside
        if layout.absent:
            self.notes.append(f"test, which {layout.beside[0].name} names, is not there")
        names = read_class_names(classes) if classes else layout.classes
        keypoints = layout.keypoints
        found = object_fields(masks, names)
        if keypoints:
            found["keypoints"] = ArrayField("float32", (None, keypoints[0], 3))
        if oriented:
            found["corners"] = ArrayField("float32", (None, 4, 2))
        count = None if names is None else len(names)
        self.reader = YoloReader(count, masks, keypoints, oriented)
        self._unlabelled = 0
        for name in splits:
            for place in layout.splits[name]:
                self._add_all(place, self.split_number(name))
        self._check_counts(bool(masks or oriented or keypoints))
        if names is None:
            self.notes.append("no names of classes (--option classes=FILE gives them)")
        if keypoints or oriented:
            self.notes.append(
                f"{'keypoints' if keypoints else 'corners'} are fractions of the width and height "
                "of the whole picture: crops and flips do not move them"
            )
        return {**found, **self.split_field()}

    def _add_all(self, place: str, split: dict[str, int]) -> None:
        """Add the images of a folder, or of a list."""
        path = self.root / place
        if path.is_dir():
            for name in filter(is_image_name, files_below(self.root, place)):
                self._add(name, split)
            return
        if is_image_name(place):
            self._add(place, split)
            return
        self.beside.append(path)
        for line, name, problem in listed_images(self.root, path):
            if problem:
                self.reject(f"{name} ({path.name}, line {line})", problem)
            elif is_image_name(name):
                self._add(name, split)

    def _add(self, name: str, split: dict[str, int]) -> None:
        label = label_of(name)
        self._unlabelled += not os.path.isfile(os.path.join(self.root, label))
        self.add(name, label, **split)

    def _check_counts(self, drawn: bool) -> None:
        if not self.num_samples:
            raise SourceError(f"{self.root}: no images where its description says")
        if self._unlabelled == self.num_samples:
            raise SourceError(
                f"{self.root}: none of {self.num_samples:,} images has a label file; of "
                f"{self.names_of(0)[0]} expected {self.names_of(0)[1]}"
            )
        if self._unlabelled:
            self.notes.append(
                f"{self._unlabelled:,} of {self.num_samples:,} images have no label file and are "
                "taken for images without objects"
            )
        counts = self._widths()
        if not drawn and any(count > 5 for count in counts):
            what = "; --option oriented=true adds the corners" if set(counts) == {9} else ""
            self.notes.append(
                f"of polygons their boxes are taken (--option masks=classes paints them{what})"
            )

    def _widths(self) -> Counter[int]:
        """Return how many numbers the first lines of the first label files have."""
        widths: Counter[int] = Counter()
        for index in range(min(self.num_samples, 50)):
            if index not in self._rejects:
                widths[_width_of(self.root / self.names_of(index)[1])] += 1
        del widths[0]
        return widths


def _width_of(path: Path) -> int:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return len(file.readline(1 << 16).split())
    except OSError:
        return 0
