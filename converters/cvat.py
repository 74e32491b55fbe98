"""CVAT for images 1.1: one XML file with the objects of all images.

::

    annotations.xml      <annotations><image name="0.jpg" width="640" height="480"><box .../>...
    images/0.jpg
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, StringField

from .reading.annotations.cvat_xml import CvatIndex, CvatReader
from .reading.annotations.shapes import object_fields
from .reading.class_names import numbered, read_class_names
from .reading.image_list import ImageListSource
from .reading.locations import first_bytes, path_inside, path_of
from .reading.options import CheckSize, ClassFile, PaintedMasks, SplitOption
from .reading.selection import left_out
from .reading.splits import in_usual_order

__all__ = ["CvatSource"]

_LOOKED_AT = 20


class CvatSource(ImageListSource):
    """Images with the boxes and classes of their objects."""

    name = "cvat"
    summary = "CVAT for images 1.1: annotations.xml and images"
    parts = ("annotations.xml", "images")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = path_of(location)
        return path is not None and bool(_files_at(path))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        files = _files_at(location)
        if not files:
            raise SourceError(f"{location}: no file of CVAT's, as annotations.xml")
        if len(files) > 1:
            raise OptionError(f"{location}: pack one of {', '.join(map(str, files))}")
        path = files[0]
        index = CvatIndex(path)
        if not len(index.names):
            raise SourceError(f"{path}: has no images")
        subsets = in_usual_order({index.subsets[k] for k in range(len(index.names))})
        self.root, self.beside = path.parent, [path]
        self.choose_splits(subsets, split)
        for row in range(len(index.names)):
            if index.subsets[row] in self.splits:
                self._add(index, row)
        names = tuple(index.labels) if classes is None else read_class_names(classes)
        found = object_fields(masks, names)
        found["occluded"] = ArrayField("bool", (None,))
        if index.attributed:
            found["attributes"] = StringField()
        if index.tags:
            found["tags"] = ArrayField("int64", (None,), classes=tuple(index.tags))
        numbers, tags = numbered(names), numbered(index.tags)
        self.reader = CvatReader(str(path), numbers, tags, masks, check_size)
        shown = [f"{count:,} {kind}" for kind, count in sorted(index.left_out.items())]
        self.notes += left_out("of objects", shown)
        return {**found, **self.split_field()}

    def _add(self, index: CvatIndex, row: int) -> None:
        """Add an image, or why it cannot be."""
        name, subset = index.names[row], index.subsets[row]
        start, length = index.spans[2 * row : 2 * row + 2]
        try:
            for folder in ("images", os.path.join("images", subset), "", subset):
                if os.path.isfile(os.path.join(self.root, path_inside(folder, name))):
                    # The split's number is always there, also where there is no field of it.
                    number = self.splits.index(subset)
                    path = os.path.join(folder, name)
                    self.add(path, start=start, length=length, split=number)
                    return
            self.reject(name, f"there is no such image in {self.root / 'images'}")
        except SourceError as error:
            self.reject(name or f"image {row}", str(error))


def _files_at(path: Path) -> list[Path]:
    """Return the files of CVAT's that a location is, or has."""
    paths = [path]
    if path.is_dir():
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".xml"))
        paths = [path / name for name in names[:_LOOKED_AT]]
    found = [path for path in paths if path.is_file() and _is_cvat(path)]
    return [path for path in found if path.name == "annotations.xml"] or found


def _is_cvat(path: Path) -> bool:
    start = first_bytes(path, 1 << 16)
    return b"<annotations>" in start and any(s in start for s in (b"<version>1.", b"<meta>"))
