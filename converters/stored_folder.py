"""Class folders in a store of objects: what ``folder.py`` finds in a copy of them on a disk.

The store is listed once, to choose the format; workers read each image by a request of its own.  An
image that was written anew since it was listed is a reject, and no other image in its place.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import Field
from fastdata.storage import Store

from .base import Deferred
from .reading.class_folders import class_fields, is_annotation
from .reading.fingerprints import Hashes, hash_samples
from .reading.image_files import is_image_name
from .reading.image_list import DeferredSample, ImageListSource
from .reading.locations import printable
from .reading.mirror import Listing
from .reading.named_folders import class_layout, doubt_of_layout, refuse_empty, take_in_order
from .reading.options import SplitFolder
from .reading.selection import joined
from .reading.small_memory import StringTable

__all__ = ["StoredFolderSource"]

_REMEDY = "Other layouts are packed of files on a disk: copy them there first."


class StoredFolderSource(ImageListSource):
    """Class folders below the URL of a `Store`; fields ``image`` and ``label``."""

    name = "folder"
    reads_by_network = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False  # it is chosen by the kind of location

    def open_location(self, location: Any) -> Path:
        self._listing: Listing = location
        return Path()

    def list_samples(self, location: Path, *, split: SplitFolder = "auto") -> dict[str, Field]:
        images, others = StringTable(), []
        sizes, self._tags = array("q"), StringTable()
        for entry in self._listing:
            if not is_image_name(entry.key):
                others.append(entry.key)
                continue
            images.append(entry.key)
            sizes.append(entry.size)
            self._tags.append(entry.tag)
        place = self._listing.url
        if not len(images):
            raise SourceError(
                f"{place}: no images there. It is a folder of class folders that is asked for, "
                "s3://BUCKET/FOLDER/CLASS/IMAGE"
            )
        layout = class_layout(place, images, split, _REMEDY, top=0)
        names = map(images.__getitem__, range(len(images)))
        annotations = [name for name in others if is_annotation(name.rpartition("/")[2])]
        shown = joined(map(printable, annotations), 5)
        if split != "none":
            self.doubt = doubt_of_layout(layout, names)
            if annotations:
                self.doubt = self.doubt or f"{shown} may say what the images are"
        if annotations:
            self.notes.append(f"{shown} not read: the folders are the classes")
        refuse_empty(place, layout, others, _REMEDY)
        taken = take_in_order(layout, images, others)
        self.notes += taken.notes
        for row in taken.rows:
            name = images[row]
            self.add(name, row=row, bytes=sizes[row], **(layout.numbers(name) or {}))
        self.reader = _ObjectReader(self._listing.store)
        return class_fields(layout.classes, list(layout.splits), self.notes)

    def values(self, files: list[str], numbers: dict[str, int]) -> tuple[Any, ...] | Deferred:
        assert self.reader is not None
        known = {**numbers, "tag": self._tags[numbers["row"]]}
        return DeferredSample(self.reader, self._fields, files, known)

    def fingerprints(self, limit: int | None = None) -> Hashes:
        def parts(index: int) -> tuple[Any, ...]:
            numbers = self.numbers_of(index)
            tag = self._tags[numbers.pop("row")]
            return *self.names_of(index), *numbers.values(), tag

        return hash_samples(self.num_samples, limit, parts)


@dataclass(frozen=True)
class _ObjectReader:
    """How a worker reads an image."""

    store: Store

    def read(self, files: list[str], known: dict[str, Any]) -> Mapping[str, Any]:
        """Return the image file."""
        key = files[0].removeprefix("./")  # which is the folder of keys
        return {"image": bytes(self.store.read(key, tag=known["tag"]))}
