"""Class folders inside a ``.tar``, ``.tar.gz`` or ``.zip``, which is not unpacked.

Classes, their numbers and the images are those that ``folder.py`` finds in the extracted archive.
Workers read images from tar and zip as pieces of the file; an archive compressed as a whole can
only be read from its front.  Tar files with the members of a sample together are WebDataset's.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from .base import Deferred, IndexedSource, Reject, Sample
from .detect import ClassLayout
from .folder import FolderSource, Taken
from .reading.compression import compression_of, inflated_start
from .reading.exported import read_exported
from .reading.forward_reader import ForwardReader
from .reading.image_files import is_image_name
from .reading.locations import files_at, first_bytes, folder_at, printable
from .reading.refusals import no_files, not_seekable
from .reading.selection import joined
from .reading.small_memory import KeySet
from .reading.spans import FileSpan, close_files
from .reading.tar.archive import BLOCK, is_header, members
from .reading.zip_archive import ZipMember, is_zip, zip_members
from .tree import ListedTree

__all__ = ["ArchiveSource"]

_SUFFIXES = (".tar", ".tgz", ".zip")
_LOOKED_AT = {"tar": 20_000, "gzip": 500, "zip": 20_000}
_IMAGES = 64
"""Images to check for the kind of an archive."""


class ArchiveSource(FolderSource):
    """An archive of class folders; fields ``image`` and ``label``."""

    name = "archive"
    summary = "class folders in a .tar, .tar.gz or .zip, which is not unpacked"
    general = False

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        folder = folder_at(location)
        if not files or (folder is not None and any(p.is_dir() for p in folder.iterdir())):
            return False
        return _may_be(files[0])

    def open_tree(self, location: Path) -> ArchiveTree:
        files = files_at(location, _SUFFIXES)
        if not files:
            raise no_files(location, "archives")
        if len(files) > 1:
            names = joined((printable(path.name) for path in files), 4)
            raise SourceError(
                f"{location}: {len(files):,} archives ({names}), whose classes may differ. Pack "
                "each for itself and join them: fastdata merge; or --format webdataset, if members "
                "of one name are a sample"
            )
        self.root, self.beside = files[0], files
        self._kind = archive_kind(self.root)
        if not self._kind:
            raise SourceError(f"{self.root}: neither a tar file, gzip'd or not, nor a zip file")
        tree = ArchiveTree(self.root, self._kind)
        if self._kind == "zip":
            self.reader = ZipReader(str(self.root))
        else:
            refuse_groups(tree.place, *tree.all_names())
        return tree

    def add_images(self, layout: ClassLayout, taken: Iterator[Taken]) -> None:
        tree: ArchiveTree = self.tree  # type: ignore[assignment]
        self._places = tree.places
        found = (
            (row, place + name, labels, images.count(name) > 1 if twice else False)
            for place, images, rows, labels in taken
            for twice in [len(set(images)) < len(images)]
            for name, row in zip(images, rows, strict=True)
        )
        if self._kind == "gzip":
            listed = list(found)
            found = (image for image in sorted(listed, key=lambda image: image[0]))
            if any(a[0] > b[0] for a, b in itertools.pairwise(listed)):
                self.notes.append(
                    "samples are in the order of the archive, which can be read only from its "
                    "front; class folders would be sorted"
                )
        for row, name, labels, repeated in found:
            problem = tree.problems.get(row, "")
            if problem := "the archive has its name twice" if repeated else problem:
                self._rejects[self.num_samples] = problem
            self.add(name, row=row, **labels)

    def numbers_of(self, index: int) -> dict[str, int]:
        numbers = super().numbers_of(index)
        return {**self._places[numbers.pop("row")], **numbers}

    def values(self, files: list[str], numbers: dict[str, int]) -> tuple[Any, ...] | Deferred:
        if self.reader is not None:
            return super().values(files, numbers)
        place = FileSpan(str(self.root), numbers["offset"], numbers["length"])
        return place, *(numbers[name] for name in self._fields[1:])

    def indexed(self) -> IndexedSource:
        if self._kind == "gzip":
            raise not_seekable(self.root)
        return self

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        if self._kind != "gzip":
            yield from super().start_at(start)
            return
        with ForwardReader(self.root, compressed=True) as front:
            for index in range(start, self.num_samples):
                sample = self.get(index)
                if isinstance(sample, Reject) or isinstance(sample.values, Deferred):
                    yield sample
                    continue
                (_, offset, length), *labels = sample.values
                try:
                    data = front.read(offset, length)
                except (OSError, SourceError) as error:
                    yield Reject.of(sample.key, error)
                else:
                    yield Sample(sample.key, (data, *labels))


@dataclass(frozen=True)
class ZipReader:
    """How a worker reads an image of a zip archive: it inflates it."""

    path: str

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the image file."""
        member = ZipMember(*(known[name] for name in ZipMember._fields))
        return {"image": member.read(self.path)}


class Places:
    """The numbers that a worker needs to read a file, by row; a dict takes ten times the memory."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields, self._numbers = fields, array("q")

    def append(self, numbers: Iterable[int]) -> int:
        """Add a file and return its row."""
        self._numbers.extend(numbers)
        return len(self._numbers) // len(self._fields) - 1

    def __getitem__(self, row: int) -> dict[str, int]:
        start = row * len(self._fields)
        numbers = self._numbers[start : start + len(self._fields)]
        return dict(zip(self._fields, numbers, strict=True))


class ArchiveTree(ListedTree):
    """The names in an archive.

    places: the place of each file in the archive, by row.
    problems: why images cannot be read, by row.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(os.fspath(path))
        self._path, self._kind = path, kind
        self.places = Places(ZipMember._fields if kind == "zip" else FileSpan._fields[1:])
        self.problems: dict[int, str] = {}
        for name, problem, numbers in archive_entries(path, kind):
            row = self.places.append(numbers)
            if ".." in name.split("/"):
                raise SourceError(
                    f"{path}: the name {printable(name)} leads out of the archive. Extract it by a "
                    "tool that leaves such names out, and pack the folder"
                )
            self.add(name, row)
            if problem:
                self.problems[row] = problem
        self.finish()

    def all_names(self) -> tuple[list[str], list[str]]:
        """Return the names of all images, and of all other files."""
        images, others = [], []
        for path in self.below(""):
            found, place = self.folder(path), f"{path}/" if path else ""
            images += [place + name for name in found.images]
            others += [place + name for name in found.others]
        return images, others

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        rows = [self.row_of(name) for name in names]
        found: dict[int, bytes] = {}
        with ForwardReader(self._path, compressed=self._kind == "gzip") as front:
            for row in sorted(set(rows)):
                place = self.places[row]
                try:
                    if self._kind == "zip":
                        found[row] = ZipMember(**place).read(self._path)
                    else:
                        found[row] = front.read(place["offset"], place["length"])
                except (OSError, SourceError):
                    continue
        close_files()
        return [found.get(row) for row in rows]


def _may_be(path: Path) -> bool:
    """Tell whether an archive has images in folders, and is none of WebDataset's."""
    kind = archive_kind(path)
    if not kind or (kind != "zip" and read_exported([path], "webdataset") is not None):
        return False
    images: list[str] = []
    others, in_folders = [], True
    try:
        for name, _, _ in itertools.islice(archive_entries(path, kind), _LOOKED_AT[kind]):
            if not is_image_name(name):
                others.append(name)
                continue
            images.append(name)
            in_folders &= "/" in name
            if len(images) == _IMAGES:
                break
        if kind != "zip":
            refuse_groups("", images, others)
    except SourceError:
        # No other format reads a zip: opening it raises an error with the reason.
        return kind == "zip" and path.suffix.lower() == ".zip"
    finally:
        close_files()
    return len(images) > 0 and (kind == "zip" or in_folders)


# -- the content of an archive of any kind: names, problems and places -------------------


def archive_kind(path: Path) -> str:
    """Return the kind of an archive: "tar", "gzip" (of tar), "zip", or "" for none."""
    start = first_bytes(path)
    if is_zip(start):
        return "zip"
    if is_header(start[:BLOCK]):
        return "tar"
    is_gzip = compression_of(start) == "gzip" and is_header(inflated_start(start, BLOCK))
    return "gzip" if is_gzip else ""


def archive_entries(path: Path, kind: str) -> Iterator[tuple[str, str, Iterable[int]]]:
    """Yield files and folders: name, why it cannot be read (empty if it can), and place.

    Names have no ``./``; that of a folder ends in a slash.
    """
    for name, problem, place in _zipped(path) if kind == "zip" else _tarred(path, kind):
        *folders, last = name.split("/")
        yield "/".join([*(part for part in folders if part not in ("", ".")), last]), problem, place


def _zipped(path: Path) -> Iterator[tuple[str, str, Iterable[int]]]:
    for name, member in zip_members(path):
        yield name, member.problem(), member


def _tarred(path: Path, kind: str) -> Iterator[tuple[str, str, Iterable[int]]]:
    with ForwardReader(path, compressed=kind == "gzip") as front:
        for member in members(front):
            name, place = os.fsdecode(member.name), (member.offset, member.size)
            if member.kind == "folder":
                yield name.rstrip("/") + "/", "", place
            elif member.kind != "end":
                is_file = member.kind == "file"
                yield name, "" if is_file else f"a {member.kind}, which is not read", place


def refuse_groups(place: str, images: Sequence[str], others: Sequence[str]) -> None:
    """Refuse a tar file with names that differ only by suffix, and may be one sample."""
    keys, names = KeySet(), KeySet()
    beside = {_key(name) for name in others}
    for name in images:
        key = _key(name)
        # A name that stands twice is another matter.
        is_new = names.add(os.fsencode(name))
        if key in beside or (is_new and not keys.add(os.fsencode(key))):
            folder = images[0].split("/")[0] if "/" in images[0] else "."
            raise SourceError(
                f"{place}: there are several members called {printable(key)}, with one suffix and "
                "another. If they are one sample: --format webdataset. If one is a picture of a "
                "class folder and the other something beside it, extract the archive and pack the "
                f"folder {printable(folder)}"
            )


def _key(name: str) -> str:
    """Return the name before its first dot, as in WebDataset, or before a number."""
    folder, _, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    if any(letter.isdigit() for letter in suffix):  # img.0001.jpg: none of WebDataset's
        stem = os.path.splitext(file)[0]
    return f"{folder}/{stem}" if stem else name
