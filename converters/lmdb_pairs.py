"""LMDB files of key -> image file, as BasicSR and LSUN have them, and text recognition.

* Every value is an image file.
* BasicSR writes ``meta_info.txt`` next to ``data.mdb``, with one key a line.  A key there that the
  database lacks is a reject.
* Keys ``image-000000001`` and ``label-000000001`` (of CRNN, deep-text-recognition-benchmark,
  PARSeq): the text becomes the field ``text``.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.formats.lmdb_pages import MAGIC, Entry, LmdbFile
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
"""BasicSR's list of keys, next to ``data.mdb``: lines like ``0001.png (480,480,3) 1``."""
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
        self.notes, self.paths, self._file = [], [path], str(path)
        # Some 30 bytes a value and its key.
        self._keys, self._offsets, self._lengths = StringTable(), array("q"), array("q")
        self._text_offsets, self._text_lengths = array("q"), array("q")
        self._rejects: dict[int, Reject] = {}
        self._read_keys(path)
        self._check_values(path)
        self._read_meta_info(path.parent / _META_INFO)
        self.num_samples = len(self._keys)
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if self._text_offsets:
            resolved["text"] = StringField()
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))

    def _read_keys(self, path: Path) -> None:
        """Find the values that are samples, and the texts that belong to them.

        Keys are sorted: images come before texts, and both are in the order of their numbers.
        """
        place = printable((path.parent if path.name == "data.mdb" else path).name)
        left, own = [], set[str]()
        unused, at, images = 0, 0, False
        for entry in LmdbFile(path).entries():
            if not isinstance(entry, Entry):
                self._add(f"{place}#{len(self._keys)}", f"{path}: {entry}: damaged")
                continue
            if entry.is_database:
                raise SourceError(
                    f"{path}: has databases with names, which are not read. Copy the entries of "
                    "one into an LMDB of their own"
                )
            key = entry.key.decode("utf-8", "backslashreplace")
            images = images or key.startswith(_IMAGE)
            own |= {key.partition("/")[0]} & {"column", "header"}
            if key in _COUNTS:
                left.append(key)
            elif images and key.startswith(_TEXT):
                image = _IMAGE + key.removeprefix(_TEXT)
                while at < len(self._keys) and (at in self._rejects or self._keys[at] < image):
                    at += 1
                if at < len(self._keys) and self._keys[at] == image:
                    missing = at - len(self._text_offsets)
                    self._text_offsets.extend([*[0] * missing, entry.offset])
                    self._text_lengths.extend([*[0] * missing, entry.length])
                else:
                    unused += 1
            else:
                self._add(key, "", entry.offset, entry.length)
        if len(own) == 2:
            raise already_packed(path)
        self.notes += left_out("keys of counts", left)
        if unused:
            self.notes.append(f"{unused:,} texts without an image left out")

    def _add(self, key: str, reason: str, offset: int = 0, length: int = 0) -> None:
        """Add a sample, or a reject if there is a reason."""
        if reason:
            self._rejects[len(self._keys)] = Reject(key, reason)
        self._keys.append(key)
        self._offsets.append(offset)
        self._lengths.append(length)

    def _check_values(self, path: Path) -> None:
        """Refuse a database in which none of the first values is an image file."""
        starts = []
        for offset, length in zip(self._offsets[:_PEEK], self._lengths, strict=False):
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
                self._add(key, f"{path} names this key, which the database has not")

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self._rejects:
            return self._rejects[index]
        key = self._keys[index]
        image = FileSpan(self._file, self._offsets[index], self._lengths[index])
        if not self._text_offsets:
            return Sample(key, (image,))
        if index >= len(self._text_offsets) or not self._text_offsets[index]:
            raise ValueError("the database has no text for this image")
        place = (self._text_offsets[index], self._text_lengths[index])
        return Sample(key, DeferredValues((image, ValueSpan(self._file, *place, "text"))))

    def key_at(self, index: int) -> str:
        return self._keys[index]


def _lmdb_at(location: Any) -> Path | None:
    """Return the data file of an LMDB at a location, a file or a folder; None if there is none."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "data.mdb" if path.is_dir() else path
    start = first_bytes(path, 32)
    magic = MAGIC.to_bytes(4, "little")
    return path if magic in (start[16:20], start[24:28]) else None
