"""TFRecord files of ``tf.train.Example``, without TensorFlow.

What is in a file is in ``reading/records/framing.py``, what is in a record in ``examples.py``
beside it.  Source: TensorFlow's guide "TFRecord and tf.train.Example".
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastdata.errors import MissingExtraError, OptionError, SourceError
from fastdata.regular_files import mirror_of
from fastdata.schema import Field, ScalarField, Schema, StringField

from .base import FieldSpec, Reject, Sample
from .reading.class_names import named_classes
from .reading.deferred import DeferredRecord
from .reading.exported import read_exported
from .reading.fields import convert, resolve_fields
from .reading.locations import files_at, folder_at, map_files
from .reading.options import CheckSize, ClassFile, Option
from .reading.records.detection import (
    OBJECTS,
    Objects,
    classes_of_objects,
    has_objects,
    read_label_map,
)
from .reading.records.examples import (
    exported_value,
    field_of_feature,
    parse_example,
    usual_features,
    value_of_feature,
)
from .reading.records.framing import (
    BadFrameError,
    FrameSpan,
    crc32c,
    has_frames,
    is_compressed,
    scan_frames,
    stream_frames,
)
from .reading.refusals import no_files, require
from .reading.scanned import Place, ScannedSource
from .reading.selection import FEATURES

__all__ = ["TFRecordSource"]

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".record", ".records", ".jpeg_records")
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
"""How TensorFlow's scripts call shards that have no suffix: ``train-00000-of-01024``."""
_LOOKED_AT = 16
"""Files of a folder without such names that are asked whether they are TFRecord."""


class TFRecordSource(ScannedSource):
    """Shards of TFRecord; each Example is a sample."""

    name = "tfrecord"
    summary = "TFRecord files of tf.train.Example, plain, gzip or zlib"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = _files(location)
        if not files:
            return False
        try:
            return has_frames(files[0])
        except MissingExtraError:  # opening it says what to install
            name = files[0].name
            return bool(_SHARD.search(name)) or any(suffix in name for suffix in _SUFFIXES)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        features: Annotated[
            tuple[str, ...],
            Option(
                "FIELD=FEATURE or FEATURE; default: image/encoded, image/class/label, or the like"
            ),
        ] = (),
        classes: ClassFile = None,
        label_offset: Annotated[
            int, Option("added to the label: -1 where classes are counted from 1, as in ImageNet's")
        ] = 0,
        check: Annotated[
            bool, Option("compare the CRC of each record's data; that of lengths always is")
        ] = True,
        label_map: Annotated[
            str | None,
            Option(
                "a label_map.pbtxt with the classes of objects; else all records are read for them"
            ),
        ] = None,
        check_size: CheckSize = True,
    ) -> None:
        crc32c()
        require("google.protobuf", "tfrecord", "reading TFRecord files")
        self.notes = []
        self.paths = _files(location)
        if not self.paths:
            raise no_files(location, "TFRecord files")
        self._check = check
        self._decoder = ExampleDecoder({}, (), 0, False)  # until the fields are known
        self._objects: Objects | None = None
        self._compressed = map_files(is_compressed, self.paths)
        exported = None if features else read_exported(self.paths, self.name)
        if exported is not None:
            resolved, chosen = exported.resolve_fields(fields, channels), dict(exported.stored_as)
            self.packed_with, self.beside = exported.packed_with, [exported.path]
            known = {name for example in self._first_examples() for name in example}
            for feature in chosen.values():
                exported.check_place(feature, [feature], known, self.paths[0])
        else:
            resolved, chosen = self._resolve(features, fields or {}, channels)
            if not features and has_objects(self._first_examples()):
                self._objects = self._read_classes(label_map, check_size)
                resolved |= self._objects.fields
        if label_map is not None and self._objects is None:
            raise OptionError(f"label_map={label_map}: no boxes of objects are read")
        if label_offset:
            label = resolved.get("label")
            if not isinstance(label, ScalarField) or "int" not in label.dtype:
                raise OptionError("label_offset: there is no field 'label' of class numbers")
            self.notes.append(f"labels are those of the files {label_offset:+d}")
        stored = exported is not None
        self.schema = Schema(named_classes(resolved, "label", classes), stored=stored)
        self._decoder = ExampleDecoder(
            self.schema, tuple(chosen.values()), label_offset, stored, self._objects
        )

    def _read_classes(self, label_map: str | None, check_size: bool) -> Objects:
        """Return how objects are read; without a map of classes from all records."""
        if label_map is not None:
            return read_label_map(label_map, check_size)
        if mirror_of(self.paths[0]) is not None and len(self.paths) > 1:
            raise SourceError(
                f"{self.paths[0]}: the names of classes of objects are in the records, all of "
                "which would have to be read for them, and those of a store are not: name a file "
                "here that has them (--option label_map=FILE)"
            )
        found = classes_of_objects(self._examples(), self.paths[0], check_size)
        self.notes.append(
            "classes of objects have no names here, and 'labels' are the numbers of the files "
            "(--option label_map=FILE names them)"
            if found.names is None
            else "all records were read once for the names of classes (--option label_map=FILE "
            "saves that, and knows those without objects)"
        )
        return found

    def _resolve(
        self, features: tuple[str, ...], fields: FieldSpec, channels: int
    ) -> tuple[dict[str, Field], dict[str, str]]:
        """Return the fields, and the feature that each is read from."""
        examples = self._first_examples()
        known = sorted({name for example in examples for name in example})
        chosen = FEATURES.parse(features) if features else usual_features(examples)
        unread = dict.fromkeys(known, "")
        FEATURES.check(chosen, self.paths[0], unread, "the first records have")
        if not features:
            objects = OBJECTS if has_objects(examples) else ()
            taken = {*chosen.values(), *objects}
            self.notes += FEATURES.left_out(sorted(set(known) - taken))

        def own(name: str) -> Field:
            column = [example[chosen[name]] for example in examples if chosen[name] in example]
            return field_of_feature(column, channels, name)

        return resolve_fields(chosen, fields, channels, own), chosen

    def _examples(self) -> Iterator[dict[str, Any]]:
        """Yield the features of all records that can be read."""
        for record in self.records():
            with contextlib.suppress(ValueError):  # the worker says what is the matter
                if isinstance(record, bytes):
                    yield parse_example(record)

    def _first_examples(self) -> list[dict[str, Any]]:
        """Return the features of the first records that can be read."""
        what = "record can be read as an Example"
        return self.first_records(parse_example, self.paths[0], what)

    def scan(self, file: int) -> Iterator[Place | Reject]:
        try:
            for offset, length in scan_frames(self.paths[file]):
                yield Place(file, offset, length)
        except BadFrameError as error:
            yield Reject(self.key(file, error.offset), str(error))

    def at(self, place: Place) -> Sample:
        path = str(self.paths[place.file])
        frame = FrameSpan(path, place.offset, place.length, self._check)
        return Sample(self.key(place.file, place.offset), DeferredRecord(frame, self._decoder))

    def compressed(self, file: int) -> bool:
        return self._compressed[file]

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        try:
            for offset, data in stream_frames(self.paths[file], self._check):
                key = self.key(file, offset)
                if isinstance(data, SourceError):
                    yield Reject(key, str(data))
                else:
                    yield Sample(key, DeferredRecord(data, self._decoder))
        except BadFrameError as error:
            yield Reject(self.key(file, error.offset), str(error))


class ExampleDecoder(NamedTuple):
    """How an Example becomes a sample."""

    schema: Mapping[str, Field]
    features: tuple[str, ...]  # of each field but boxes and labels of objects, which come last
    label_offset: int
    exported: bool  # whether fastdata wrote it, with a key and with shapes of arrays
    objects: Objects | None = None  # how boxes and labels are read

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], str | None]:
        """Return values and key; raises ValueError if a feature is missing or does not fit."""
        example = parse_example(data)
        values = []
        for (name, field), feature in zip(self.schema.items(), self.features, strict=False):
            if feature not in example:
                raise ValueError(f"the feature {feature!r} is missing")
            if self.exported:
                value = exported_value(example, feature, field)
            else:
                value = value_of_feature(example[feature], field, feature)
            if name == "label" and self.label_offset:
                value += self.label_offset
            values.append(convert(value, field, name))
        if self.objects is not None:
            values += self.objects.values(example, values[0])
        key = None
        if self.exported and "key" in example:
            key = value_of_feature(example["key"], StringField(), "key")
        return tuple(values), key


def _files(location: Any) -> list[Path]:
    """Return the files of a location; of a folder those with a suffix, those like shards, or all.

    Where names do not tell, the checksum of the first record's length does.
    """
    found = files_at(location, _SUFFIXES)
    folder = folder_at(location)
    if found or folder is None:
        return found
    every = files_at(folder)
    found = [path for path in every if _SHARD.search(path.name)]
    if found:
        return found
    with contextlib.suppress(MissingExtraError):
        if any(map_files(has_frames, every[:_LOOKED_AT])):
            return list(itertools.compress(every, map_files(has_frames, every)))
    return []
