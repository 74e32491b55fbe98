"""Class folders: ``root/<class>/.../<image>``, as ``torchvision.datasets.ImageFolder``.

Classes, their numbers, the files taken and their order are exactly
torchvision's: every folder in `root` is a class, numbered in sorted order;
below it all files with an image suffix are taken, sorted, links followed.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField, Schema

from .base import FieldSpec, IndexedSource, Sample, hash_fields
from .reading.locations import printable, stat_of
from .reading.table import StringTable

__all__ = ["FolderSource", "is_image_name"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""``torchvision.datasets.folder.IMG_EXTENSIONS``."""


def is_image_name(name: str) -> bool:
    """Tell whether torchvision would take a file of this name for an image."""
    return name.lower().endswith(SUFFIXES)


class FolderSource(IndexedSource):
    """A folder of class folders; fields ``image`` and ``label``."""

    name = "folder"
    summary = "class folders, as torchvision's ImageFolder takes them"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return (
            isinstance(location, (str, os.PathLike))
            and Path(location).is_dir()
            and any(entry.is_dir() for entry in Path(location).iterdir())
        )

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        if fields:
            raise OptionError(
                "class folders have the fields image and label; fields= cannot change them"
            )
        self.root: Path = Path(location)
        self.notes = []
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder")
        classes = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        if not classes:
            raise SourceError(
                f"{self.root}: no class folders in it. Expected {self.root}/<class>/<image>; for "
                "images without classes write a manifest: a .csv with the column path."
            )
        self._paths = StringTable()
        self._labels = array("q")
        ignored: Counter[str] = Counter()
        empty = []
        for number, name in enumerate(classes):
            before = len(self._paths)
            for folder, _, files in sorted(os.walk(self.root / name, followlinks=True)):
                for file in sorted(files):
                    if is_image_name(file):
                        self._paths.append(os.path.relpath(os.path.join(folder, file), self.root))
                        self._labels.append(number)
                    else:
                        ignored[Path(file).suffix or file] += 1
            if len(self._paths) == before:
                empty.append(name)
        if empty:
            raise SourceError(
                f"{self.root}: no image in the class folder{'s' * (len(empty) > 1)} "
                f"{', '.join(empty[:5])}{' ...' * (len(empty) > 5)}. Images have one of the "
                f"suffixes {', '.join(SUFFIXES)}. Fill or remove these folders."
            )
        if ignored:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in ignored.most_common(5))
            self.notes.append(
                f"{sum(ignored.values())} files without an image suffix left out: {kinds}"
            )
        self.num_samples = len(self._paths)
        self.schema = Schema(
            {
                "image": ImageField(channels=channels),
                "label": ScalarField(classes=tuple(map(printable, classes))),
            }
        )

    def __getitem__(self, index: int) -> Sample:
        path = self._paths[index]
        return Sample(printable(path), (self.root / path, self._labels[index]))

    def key_at(self, index: int) -> str:
        return printable(self._paths[index])

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        count = self.num_samples if limit is None else min(limit, self.num_samples)
        result = np.empty(count, np.uint64)
        for index in range(count):
            path = self._paths[index]
            result[index] = hash_fields(path, self._labels[index], *stat_of(self.root / path))
        return result
