"""LMDB files of key -> image file, as BasicSR and LSUN have them, and text recognition.

* Every value is an image file.
* BasicSR has ``meta_info.txt`` beside ``data.mdb``, a line a key: a key there that the database
  lacks is a reject.
* Keys ``image-000000001`` and ``label-000000001`` (of CRNN, deep-text-recognition-benchmark,
  PARSeq): the text becomes the field ``text``.
"""

from __future__ import annotations

import itertools
from array import array
from pathlib import Path
from typing import Any

from fastdata.errors import FastdataError, OptionError, SourceError, is_of_machine
from fastdata.formats.lmdb_pages import MAGIC, Entry, LmdbFile
from fastdata.formats.reader import ShardReader
from fastdata.schema import Field, ImageField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .known_sets import recipe_for
from .reading.deferred import DeferredValues, ValueSpan
from .reading.fields import resolve_fields
from .reading.fingerprints import FileSource
from .reading.image_files import is_image_bytes
from .reading.locations import first_bytes, path_of, printable
from .reading.refusals import already_packed
from .reading.selection import left_out
from .reading.small_memory import StringTable
from .reading.spans import FileSpan, close_files
from .reading.text_lines import text_lines

__all__ = ["LmdbPairsSource"]

_META_INFO = "meta_info.txt"
"""BasicSR's list of keys, beside ``data.mdb``: lines like ``0001.png (480,480,3) 1``."""
_COUNTS = ("num-samples", "__len__", "__keys__", "length", "nSamples")
_IMAGE, _TEXT = "image-", "label-"
_PEEK = 16


class LmdbPairsSource(FileSource, IndexedSource):
    """Image files by their keys; fields ``image``, and ``text`` if there is one."""

    name = "lmdb"
    summary = "LMDB of key -> image file (BasicSR, LSUN, text recognition)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _lmdb_at(location) is not None

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        path = _lmdb_at(location)
        if path is None:
            raise SourceError(f"{location}: no LMDB there: no file, and no folder with data.mdb")
        if _is_ours(path):
            raise already_packed(path)
        self.notes, self.paths, self._file = [], [path], str(path)
        # Some 30 bytes a value and its key.
        self._keys = StringTable()
        self._values, self._texts = _Places(), _Places()
        self._rejects: dict[int, Reject] = {}
        self._read_keys(path)
        self._check_values(path)
        self._read_meta_info(path.parent / _META_INFO)
        self.num_samples = len(self._keys)
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if self._texts.lengths:
            resolved["text"] = StringField()
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))

    def _read_keys(self, path: Path) -> None:
        """Find the values that are samples, and the texts that belong to them.

        Keys are sorted: images come before texts, and both are in the order of their numbers.
        """
        place = printable((path.parent if path.name == "data.mdb" else path).name)
        left, unused, at, images = [], 0, 0, False
        for entry in LmdbFile(path).entries():
            if not isinstance(entry, Entry):
                key = f"{place}#{len(self._keys)}"
                self._reject(key, f"{path}: {entry}: damaged")
                continue
            if entry.is_database:
                raise SourceError(
                    f"{path}: has databases with names, which are not read. Copy the entries of "
                    "one into an LMDB of their own"
                )
            key = entry.key.decode("utf-8", "backslashreplace")
            images = images or key.startswith(_IMAGE)
            if key in _COUNTS:
                left.append(key)
            elif images and key.startswith(_TEXT):
                image = _IMAGE + key.removeprefix(_TEXT)
                while at < len(self._keys) and (at in self._rejects or self._keys[at] < image):
                    at += 1
                if at < len(self._keys) and self._keys[at] == image:
                    self._texts.put(at, entry)
                else:
                    unused += 1
            else:
                self._values.put(len(self._keys), entry)
                self._keys.append(key)
        self.notes += left_out("keys that are no images", left)
        if unused:
            self.notes.append(f"{unused:,} texts without an image left out")

    def _reject(self, key: str, reason: str) -> None:
        self._rejects[len(self._keys)] = Reject(key, reason)
        self._keys.append(key)

    def _check_values(self, path: Path) -> None:
        """Refuse a database in which none of the first values is an image file."""
        starts = []
        for index in range(min(_PEEK, len(self._keys))):
            offset, length = self._values.at(index)
            if length:
                starts.append(FileSpan(self._file, offset, min(length, 16)).read())
        close_files()
        if starts and not any(map(is_image_bytes, starts)):
            remedy = recipe_for(path) or (
                "pickled samples are not read, since reading them may run anything: load them in "
                "Python and pack that, or write image files"
            )
            raise SourceError(
                f"{path}: expected image files, but its values begin with {starts[0]!r}; {remedy}"
            )

    def _read_meta_info(self, path: Path) -> None:
        """Add a reject for each key that BasicSR's list has and the database lacks."""
        if not path.is_file():
            return
        lines = text_lines(path, "backslashreplace", OptionError)
        named = [line.rsplit(" (", 1)[0].rsplit(".", 1)[0] for _, line in lines]
        there = {self._keys[index] for index in range(len(self._keys))}
        lost = [key for key in named if key not in there]
        if named and len(lost) == len(named):
            self.notes.append(f"{path}: is about other keys, and was not used")
        else:
            for key in lost:
                self._reject(key, f"{path} names this key, which the database has not")

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self._rejects:
            return self._rejects[index]
        key, image = self._keys[index], FileSpan(self._file, *self._values.at(index))
        if not self._texts.lengths:
            return Sample(key, (image,))
        offset, length = self._texts.at(index)
        if not offset:
            raise ValueError("the database has no text for this image")
        return Sample(key, DeferredValues((image, ValueSpan(self._file, offset, length, "text"))))

    def key_at(self, index: int) -> str:
        return self._keys[index]


class _Places:
    """Places of values by the numbers of samples; zeros if there is none."""

    def __init__(self) -> None:
        self.offsets, self.lengths = array("q"), array("q")

    def put(self, index: int, entry: Entry) -> None:
        """Add the place of a sample behind those that are there."""
        for column, value in ((self.offsets, entry.offset), (self.lengths, entry.length)):
            column.extend(itertools.repeat(0, index - len(column)))
            column.append(value)

    def at(self, index: int) -> tuple[int, int]:
        """Return offset and length."""
        return (self.offsets[index], self.lengths[index]) if index < len(self.offsets) else (0, 0)


def _lmdb_at(location: Any) -> Path | None:
    """Return the data file of an LMDB at a location, a file or a folder; None if there is none."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "data.mdb" if path.is_dir() else path
    start = first_bytes(path, 32)
    magic = MAGIC.to_bytes(4, "little")
    return path if magic in (start[16:20], start[24:28]) else None


def _is_ours(path: Path) -> bool:
    """Tell whether a file is a shard of fastdata's; raises what the machine lacks to read it."""
    try:
        for entry in itertools.islice(LmdbFile(path).entries(), _PEEK):
            if isinstance(entry, Entry) and entry.key.startswith(b"column/"):
                return ShardReader(path) is not None
    except FastdataError as error:
        if is_of_machine(error):
            raise
    return False
