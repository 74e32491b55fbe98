"""Class folders in a store of objects: what ``folder.py`` finds in a copy of them on a disk.

The store is listed once, to choose the format; workers read each image by a request of its own.  An
image that was written anew since it was listed is a reject, and no other image in its place.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.storage import Store

from .base import Deferred
from .detect import ClassLayout
from .folder import ClassFoldersSource, Taken
from .listing import DeferredSample
from .reading.fingerprints import Hashes, hash_samples
from .reading.mirror import StoreListing
from .reading.small_memory import StringTable
from .tree import ListedTree

__all__ = ["StoredFolderSource"]


class StoredFolderSource(ClassFoldersSource):
    """Class folders below the URL of a `Store`; fields ``image`` and ``label``."""

    name = "folder"
    reads_by_network = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False  # it is chosen by the kind of location

    def open_location(self, location: Any) -> Path:
        self._listing: StoreListing = location
        return Path()

    def open_tree(self, location: Path) -> StoreTree:
        tree = StoreTree(self._listing)
        if not tree.count(""):
            raise SourceError(
                f"{tree.place}: no images there. It is a folder of class folders that is asked "
                "for, s3://BUCKET/FOLDER/CLASS/IMAGE"
            )
        return tree

    def add_images(self, layout: ClassLayout, taken: Iterator[Taken]) -> None:
        tree: StoreTree = self.tree  # type: ignore[assignment]
        self._tags = tree.tags
        base = f"{layout.base}/" if layout.base else ""
        for place, images, rows, labels in taken:
            for name, row in zip(images, rows, strict=True):
                self.add(place + name, row=row, bytes=tree.sizes[row], **labels)
        self.reader = _ObjectReader(self._listing.store, base)

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


class StoreTree(ListedTree):
    """The keys below a URL, with sizes and tags by row."""

    def __init__(self, listing: StoreListing) -> None:
        super().__init__(listing.url)
        self._store = listing.store
        self.sizes, self.tags = array("q"), StringTable()
        for entry in listing:
            self.add(entry.key, len(self.sizes))
            self.sizes.append(entry.size)
            self.tags.append(entry.tag)
        self.finish()

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        return [bytes(self._store.read(name)) for name in names]


@dataclass(frozen=True)
class _ObjectReader:
    """How a worker reads an image; `base` stands before its name in the key."""

    store: Store
    base: str

    def read(self, files: list[str], known: dict[str, Any]) -> Mapping[str, Any]:
        """Return the image file."""
        key = self.base + files[0].removeprefix("./")  # which is the folder of keys
        return {"image": bytes(self.store.read(key, tag=known["tag"]))}
