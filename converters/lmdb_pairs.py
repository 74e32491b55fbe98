"""LMDB files of key -> image file, as BasicSR and LSUN have them; and, as readers of text do.

* Every value is an image file; labels are a part of the key.
* BasicSR has ``meta_info.txt`` beside ``data.mdb``, a line a key: what it names and the
  database has not is a reject.
* Keys ``image-000000001`` and ``label-000000001`` (of CRNN, deep-text-recognition-benchmark,
  PARSeq): the text becomes the field ``text``.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import FastdataError, OptionError, SourceError, is_of_machine
from fastdata.formats.lmdb_pages import MAGIC, Entry, LmdbFile
from fastdata.formats.reader import ShardReader
from fastdata.schema import Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .known_sets import recipe_for
from .reading.class_names import classes_of_texts, named_classes, numbered
from .reading.deferred import DeferredValues, ValueSpan
from .reading.fields import resolve_fields
from .reading.fingerprints import FileSource
from .reading.image_files import is_image_bytes
from .reading.locations import first_bytes, path_of, printable
from .reading.options import ClassFile, Option
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


_NO_LABEL = -1


class LmdbPairsSource(FileSource, IndexedSource):
    """Image files by their keys; fields ``image``, and ``label`` or ``text`` where there are."""

    name = "lmdb"
    summary = "LMDB of key -> image file (BasicSR, LSUN, text recognition)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _lmdb_at(location) is not None

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        label_pattern: Annotated[
            str | None,
            Option("a regular expression; its first group in a key is the class: ([^/_]+)"),
        ] = None,
        classes: ClassFile = None,
        database: Annotated[
            str | None, Option("which database, where the file has some with names")
        ] = None,
    ) -> None:
        path = _lmdb_at(location)
        if path is None:
            raise SourceError(f"{location}: no LMDB there: no file, and no folder with data.mdb")
        if _is_ours(path):
            raise already_packed(path)
        self.notes = []
        self.paths = [path]
        self.index = _Index(path, database)
        self._texts = self._choose()
        self._check_values()
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if self._texts is not None:
            resolved["text"] = StringField()
        self._labels: array[int] | None = None
        if label_pattern is not None:
            keys = (self.index.keys[index] for index in self._order)
            self._labels, names = _labels_in_keys(keys, label_pattern, classes)
            resolved["label"] = ScalarField(classes=names)
        resolved = resolve_fields(resolved, fields, channels, resolved.__getitem__)
        self._info = self.index.path.parent / _META_INFO
        self._missing_from(self._info)
        self.num_samples = len(self._order) + len(self._lost)
        self.schema = Schema(named_classes(resolved, "label", classes))

    # -- which values are images ----------------------------------------------------------

    def _choose(self) -> array[int] | None:
        """Find the values that are samples, and the texts that belong to them."""
        keys = self.index.keys
        self._order: array[int] = array("q")
        self._lost: list[str] = []
        texts: array[int] = array("q")
        left = []
        for index in range(len(keys)):
            key = keys[index]
            if key in _COUNTS:
                left.append(key)
            elif key.startswith(_TEXT) and index not in self.index.rejects:
                texts.append(index)
            else:
                self._order.append(index)
        images = sum(1 for index in self._order if keys[index].startswith(_IMAGE))
        if not texts or not images:
            self._order = array("q", sorted([*self._order, *texts]))
        self.notes += left_out("keys that are no images", left)
        return self._paired(texts) if texts and images else None

    def _paired(self, texts: array[int]) -> array[int]:
        """Return the text of each image, or -1: both are in the order of their numbers."""
        keys = self.index.keys
        paired: array[int] = array("q")
        at = 0
        unused = 0
        for index in self._order:
            number = keys[index].removeprefix(_IMAGE)
            while at < len(texts) and keys[texts[at]].removeprefix(_TEXT) < number:
                at, unused = at + 1, unused + 1
            found = at < len(texts) and keys[texts[at]].removeprefix(_TEXT) == number
            paired.append(texts[at] if found else -1)
            at += found
        if unused := unused + len(texts) - at:
            self.notes.append(f"{unused:,} texts without an image left out")
        return paired

    def _check_values(self) -> None:
        """Refuse a database in which none of the first values is an image file."""
        starts = []
        for index in self._order[:_PEEK]:
            path, offset, length = self.index.span(index)
            if index not in self.index.rejects and length:
                starts.append(FileSpan(path, offset, min(length, 16)).read())
        close_files()
        if starts and not any(map(is_image_bytes, starts)):
            remedy = recipe_for(self.index.path) or (
                "pickled samples are not read, since reading them may run anything: load them in "
                "Python and pack that, or write image files"
            )
            raise SourceError(
                f"{self.index.path}: expected image files, but its values begin with "
                f"{starts[0]!r}; {remedy}"
            )

    def _missing_from(self, path: Path) -> None:
        """Note what BasicSR's list of keys has and the database has not."""
        if not path.is_file():
            return
        lines = text_lines(path, "backslashreplace", OptionError)
        named = [line.rsplit(" (", 1)[0].rsplit(".", 1)[0] for _, line in lines]
        keys = self.index.keys
        there = {keys[index] for index in range(len(keys))}
        lost = [key for key in named if key not in there]
        if named and len(lost) == len(named):
            self.notes.append(f"{path}: is about other keys, and was not used")
        else:
            self._lost = lost

    # -- samples -----------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample | Reject:
        if index >= len(self._order):
            raise ValueError(f"{self._info} names this key, which the database has not")
        entry = self._order[index]
        if entry in self.index.rejects:
            return self.index.rejects[entry]
        values: list[Any] = [self.index.span(entry)]
        if self._texts is not None:
            if self._texts[index] < 0:
                raise ValueError("the database has no text for this image")
            values.append(ValueSpan(*self.index.span(self._texts[index]), "text"))
        if self._labels is not None:
            if self._labels[index] == _NO_LABEL:
                raise ValueError("no label: the pattern does not match, or finds no class")
            values.append(self._labels[index])
        given = tuple(values)
        return Sample(self.key_at(index), given if self._texts is None else DeferredValues(given))

    def key_at(self, index: int) -> str:
        if index >= len(self._order):
            return self._lost[index - len(self._order)]
        return self.index.keys[self._order[index]]


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


class _Index:
    """Keys and places of all values, of one database: some 30 bytes a value and its key."""

    def __init__(self, path: Path, database: str | None = None) -> None:
        self.path = path
        self.keys = StringTable()
        self._offsets, self._lengths = array("q"), array("q")
        self.rejects: dict[int, Reject] = {}
        file = LmdbFile(path)
        named = file.databases()
        if database is None and len(named) == 1:
            database = next(iter(named))
        if (database is None and named) or (database is not None and database not in named):
            raise OptionError(
                f"{path}: has the databases {', '.join(named) or 'without names only'}; choose "
                "one of them: --option database=NAME"
            )
        place = path.parent if path.name == "data.mdb" else path
        for entry in file.entries(named[database] if database is not None else None):
            if not isinstance(entry, Entry):
                key = f"{printable(place.name)}#{len(self)}"
                self.rejects[len(self)] = Reject(key, f"{path}: {entry}: damaged")
                entry = Entry(key.encode(), 0, 0)
            self.keys.append(entry.key.decode("utf-8", "backslashreplace"))
            self._offsets.append(entry.offset)
            self._lengths.append(entry.length)

    def __len__(self) -> int:
        return len(self._offsets)

    def span(self, index: int) -> FileSpan:
        """Return where a value is."""
        return FileSpan(str(self.path), self._offsets[index], self._lengths[index])


def _labels_in_keys(
    keys: Iterable[str], pattern: str, classes: str | None
) -> tuple[array[int], tuple[str, ...]]:
    """Return the numbers of the classes that the first group of a pattern matches, and their names.

    Raises OptionError if the pattern is none, has no group, or matches no key.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"label_pattern={pattern!r}: {error}") from error
    if compiled.groups < 1:
        raise OptionError(f"label_pattern={pattern!r} has no group (...) for the label")
    labels = [match[1] if (match := compiled.search(key)) else None for key in keys]
    texts = [label for label in labels if label is not None]
    if not texts:
        raise OptionError("no key has a label")
    names = classes_of_texts(texts, "what keys are labelled by", classes)
    numbers = numbered(names)
    return array("q", (numbers.get(label or "", _NO_LABEL) for label in labels)), names
