"""labelme: one JSON file an image, with its shapes.

``{"shapes": [{"label": "cat", "shape_type": "polygon", "points": [[x, y], ...]}], "imagePath":
"0.jpg", "imageData": null, "imageHeight": 480, "imageWidth": 640}``, as https://labelme.io does it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import Field

from .reading.annotations.labelme_files import (
    AREAS,
    LabelmeReader,
    area_shapes,
    embedded,
    kind_of,
    read_labelme,
)
from .reading.annotations.shapes import object_fields
from .reading.class_names import classes_of_texts, numbered, read_class_names
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import folder_at, path_inside, printable, start_of_first
from .reading.options import CheckSize, ClassFile, PaintedMasks, SplitOption
from .reading.selection import left_out
from .reading.splits import split_folders_in

__all__ = ["LabelmeSource"]

_SHAPES = re.compile(rb'"shapes"\s*:\s*\[')
_OWN = re.compile(rb'"(shape_type|imagePath|points|flags)"\s*:')
_PEEK = 1 << 16


class LabelmeSource(ImageListSource):
    """Images with the boxes and classes of their shapes."""

    name = "labelme"
    summary = "labelme: a JSON file of polygons, rectangles, circles and masks for each image"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        if folder is None:
            return False
        inner = [*split_folders_in(folder), "annotations", "labels", "json", "jsons"]
        return any(_holds_shapes(folder / name) for name in ("", *inner))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        root = location
        if not root.is_dir():
            raise SourceError(f"{root}: not a folder")
        names = [name for name in split_folders_in(root) if any(_jsons(root, name))] or [""]
        splits = self.choose_splits(names, split)
        labels: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._taken = 0
        for name in splits:
            for path in _jsons(root, name):
                labels |= self._add(path, self.split_number(name))
        if not self.num_samples:
            raise SourceError(f"{root}: no JSON files of labelme in it")
        known = (
            classes_of_texts(labels, str(root)) if classes is None else read_class_names(classes)
        )
        self.reader = LabelmeReader(numbered(known), masks, check_size)
        shown = [f"{count:,} shapes of kind {kind}" for kind, count in self._kinds.items()]
        self.notes += left_out("of annotations", [*sorted(shown), "flags", "group_id"])
        images = sum(is_image_name(file) for name in splits for file in files_below(root, name))
        if images > self._taken:
            self.notes.append(f"{images - self._taken:,} images without a JSON file left out")
        return {**object_fields(masks, known), **self.split_field()}

    def _add(self, path: str, split: dict[str, int]) -> set[str]:
        """Add what a file is of; return the labels of its shapes."""
        try:
            content = read_labelme(self.root / path)
            image = self._image_of(path, content)
            self._taken += image != path
            self.add(image, path, **split)
        except (OSError, SourceError) as error:
            self.reject(path, str(error))
            return set()
        for entry in content["shapes"]:
            if kind_of(entry) not in AREAS:
                self._kinds[printable(kind_of(entry)[:40])] += 1
        labels = (entry.get("label") for _, entry in area_shapes(content))
        return {label for label in labels if isinstance(label, str)}

    def _image_of(self, path: str, content: dict[str, Any]) -> str:
        """Return the image of a file, relative to the root; the file where it is in there."""
        said = content.get("imagePath")
        if isinstance(said, str) and said:
            relative = os.path.join(os.path.dirname(path), said.replace("\\", "/"))
            beside = os.path.join(os.path.dirname(path), re.split(r"[/\\]", said)[-1])
            for name in (os.path.normpath(relative), beside):
                try:
                    if os.path.isfile(path_inside(self.root, name)):
                        return name
                except SourceError:  # outside of the folder: the next is inside
                    continue
        if embedded(content) is None:
            raise SourceError(f"its image {said!r:.200} is not in {self.root}, and not in the file")
        return path


def _jsons(root: Path, place: str) -> Iterator[str]:
    return (name for name in files_below(root, place) if name.endswith(".json"))


def _holds_shapes(folder: Path) -> bool:
    """Tell whether the first JSON file of a folder has shapes."""
    start = start_of_first(folder, ".json", _PEEK)
    return bool(_SHAPES.search(start) and _OWN.search(start))
