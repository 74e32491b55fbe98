"""MXNet's RecordIO: ``.rec`` files of images with their labels, as ``im2rec`` writes them.

``reading/records/recordio.py`` reads records from a file, ``reading/records/image_records.py``
their content and the other files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject, Sample, reason_of
from .reading.class_names import named_classes, read_class_names
from .reading.deferred import DeferredRecord
from .reading.fields import BOXES, resolve_fields
from .reading.image_files import is_image_bytes
from .reading.locations import files_at, printable
from .reading.options import ClassFile, Option
from .reading.records.image_records import (
    ImageList,
    ImageRecordDecoder,
    read_index,
    unpack,
    width_of_objects,
)
from .reading.records.recordio import Damage, RecordSpan, has_records, scan_records
from .reading.refusals import no_files
from .reading.scanned import Place, ScannedSource
from .reading.selection import joined

__all__ = ["RecordIOSource"]

_SUFFIXES = (".rec",)
_PEEK = 16


class RecordIOSource(ScannedSource):
    """Files of RecordIO; each record is a sample."""

    name = "recordio"
    summary = "MXNet RecordIO: .rec files, with .idx and .lst or without"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        return bool(files) and has_records(files[0])

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        labels: Annotated[
            tuple[str, ...],
            Option("names of a record's labels, each then a field; default: one array, label"),
        ] = (),
        lst: Annotated[
            str | None, Option("a .lst file with labels and names by the number in the record")
        ] = None,
        classes: ClassFile = None,
        index: Annotated[
            bool, Option("compare a .idx beside a .rec with the records that are there")
        ] = True,
        boxes: Annotated[
            bool, Option("make boxes and labels of labels that are of objects, else one array")
        ] = True,
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, ".rec files")
        if len(self.paths) > 1:
            names = (printable(path.name) for path in self.paths)
            self.notes.append(f"{len(self.paths)} files: {joined(names, 4)}")
        self._list = ImageList(Path(lst)) if lst is not None else None
        self._beside = [Path(lst)] if lst is not None else []
        indexes = [path.with_suffix(".idx") for path in self.paths] if index else []
        self._indexes = {k: read_index(path) for k, path in enumerate(indexes) if path.is_file()}
        self._beside += [indexes[k] for k in self._indexes]
        self._images = [self._range_of_images(path) for path in self.paths]
        contents = self._first_records()
        self._header = not is_image_bytes(contents[0])
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        self._objects = False
        if self._header:
            rows = self._first_labels(contents)
            self._objects = boxes and not labels and width_of_objects(rows) > 0
            resolved |= self._object_fields(rows, classes) if self._objects else {}
            resolved |= {} if self._objects else self._label_fields(rows, labels)
        elif labels or lst:
            raise OptionError(f"{self.paths[0]}: the records are images alone, without labels")
        resolved = resolve_fields(resolved, fields, channels, resolved.__getitem__)
        self.schema = Schema(
            resolved if self._objects else named_classes(resolved, "label", classes)
        )
        self._decoder = ImageRecordDecoder(self.schema, self._header, bool(labels), self._objects)
        lists = [p.name for path in self.paths if (p := path.with_suffix(".lst")).is_file()]
        if lists and lst is None and self._header:
            self.notes.append(
                f"{lists[0]} is not read (--option lst=FILE takes labels and names from it)"
            )

    def _range_of_images(self, path: Path) -> range | None:
        """Return the numbers of the records with images, if the first record has them.

        InsightFace's face datasets begin with a record without an image, whose first label
        is the number behind the last image; records of identities come after it.
        """
        first = next(scan_records(path), None)
        if first is None or isinstance(first, Damage):
            return None
        try:
            labels, content, _ = unpack(RecordSpan(str(path), *first).read())
        except ValueError:
            return None
        if content or len(labels) != 2 or not 1 < labels[0] < 2**24:
            return None
        self.notes.append(
            f"{printable(path.name)}: images are the records 1 to {int(labels[0]) - 1}, says the "
            "first; it and those of identities, behind them, are left out"
        )
        return range(1, int(labels[0]))

    def _first_records(self) -> list[bytes]:
        """Return the content of the first readable records with an image."""
        found: list[bytes] = []
        failure = "the files have no records"
        for file, path in enumerate(self.paths):
            for place in self.scan(file):
                if isinstance(place, Reject):
                    failure = f"{place.key}: {place.reason}"
                    continue
                try:
                    data = RecordSpan(str(path), place.offset, place.length).read()
                    content = data if is_image_bytes(data) else unpack(data)[1]
                except (OSError, ValueError) as error:
                    failure = reason_of(error)
                    continue
                if is_image_bytes(content):
                    found.append(data)
                elif not found:
                    failure = (
                        f"what is in the record at byte {place.offset:,} begins with "
                        f"{content[:8]!r}, and no JPEG, PNG, WebP, BMP, GIF or TIFF does"
                    )
                if len(found) == _PEEK:
                    return found
            if found:
                return found
        raise SourceError(f"{self.paths[0]}: no record with an image can be read: {failure}")

    def _first_labels(self, contents: list[bytes]) -> list[Any]:
        rows = []
        for labels, _, number in map(unpack, contents):
            with contextlib.suppress(ValueError):  # which the list does not have
                rows.append(self._listed(number, labels)[0])
        if not rows:
            raise SourceError(f"{self.paths[0]}: the list has none of the first records' numbers")
        return rows

    def _object_fields(self, rows: list[Any], classes: str | None) -> dict[str, Field]:
        self.notes.append(
            "labels are of objects: boxes and classes (--option boxes=false takes them as an array)"
        )
        if width_of_objects(rows) > 5:
            self.notes.append("numbers of objects behind class and box left out")
        names = read_class_names(classes) if classes is not None else None
        return {
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=names),
        }

    def _label_fields(self, rows: list[Any], names: tuple[str, ...]) -> dict[str, Field]:
        lengths = {len(row) for row in rows}
        if names:
            if lengths != {len(names)}:
                raise OptionError(
                    f"labels={','.join(names)}: the first records have "
                    f"{', '.join(map(str, sorted(lengths)))} labels, not {len(names)}"
                )
            return {name: _scalar([row[k] for row in rows]) for k, name in enumerate(names)}
        if lengths == {1}:
            return {"label": _scalar([row[0] for row in rows])}
        self.notes.append(
            "a record has several labels, which are one array (--option labels=NAME,NAME,... "
            "makes fields of them)"
        )
        return {"label": ArrayField("float32", (lengths.pop() if len(lengths) == 1 else None,))}

    def _listed(self, number: int, labels: Any) -> tuple[Any, str]:
        """Return the labels of an image, and its name if the list has it."""
        return (labels, "") if self._list is None else self._list[number]

    def scan(self, file: int) -> Iterator[Place | Reject]:
        path, images = self.paths[file], self._images[file]
        expected = self._indexes.get(file, np.zeros(0, np.int64))
        met = count = 0
        for number, found in enumerate(scan_records(path)):
            count += 1
            if isinstance(found, Damage):
                yield Reject(self.key(file, found.offset), found.reason)
                start, end = found.offset, found.offset + 1
            else:
                start, end = found[0], found[0] + 1
                if images is None or number in images:
                    yield Place(file, *found)
            while met < len(expected) and expected[met] < end:
                if expected[met] < start:
                    yield self._missing(file, int(expected[met]))
                met += 1
        for position in expected[met:]:
            yield self._missing(file, int(position))
        if images is not None and count < images.stop:
            reason = f"the first record says that there are {images.stop:,}, and {count:,} are here"
            yield Reject(self.key(file, path.stat().st_size), reason)

    def _missing(self, file: int, position: int) -> Reject:
        return Reject(self.key(file, position), "the index names a record here, and none begins")

    def at(self, place: Place) -> Sample | Reject:
        key = self.key(place.file, place.offset)
        record = RecordSpan(str(self.paths[place.file]), place.offset, place.length)
        decoder = self._decoder
        if self._list is not None:
            try:
                # The labels are looked up here: workers do not have the list.
                labels, name = self._listed(unpack(record.read())[2], ())
            except (OSError, ValueError) as error:
                return Reject.of(key, error)
            key, decoder = printable(name), decoder._replace(listed=labels)
        return Sample(key, DeferredRecord(record, decoder))

    @property
    def files_read(self) -> list[Path]:
        return [*self.paths, *self._beside]


def _scalar(values: Any) -> ScalarField:
    whole = all(float(value).is_integer() for value in values)
    return ScalarField("int64" if whole else "float32")
