"""TFRecord files of ``tf.train.Example``, without TensorFlow.

A file is records one behind the other, each

=======  =====================================================
8 bytes  length of the data, little-endian
4 bytes  masked CRC-32C of these 8 bytes
length   the data
4 bytes  masked CRC-32C of the data
=======  =====================================================

and may be compressed as a whole by gzip or zlib.  Source: ``tensorflow/core/lib/io/
record_writer.h`` and TensorFlow's guide "TFRecord and tf.train.Example".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import MissingExtraError, OptionError, SourceError
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

from .base import Deferred, FieldSpec, Reject, Sample
from .reading.example import parse_example, values_of
from .reading.extras import require
from .reading.fields import check_names, convert, is_image_bytes, named_field
from .reading.inflating import INFLATE_ERRORS, compression_of, inflated_start, open_inflated
from .reading.labels import named_classes
from .reading.locations import files_at, first_bytes
from .reading.scanned import Place, ScannedSource
from .reading.spans import MAX_RECORD, read_at, read_exactly

__all__ = ["TFRecordSource"]

_SUFFIXES = (".tfrecord", ".tfrecords")
_HEAD = 12
_FOOT = 4
_PEEK = 16
_IMAGES = ("image/encoded", "image", "image_raw", "image/raw", "jpeg", "img", "encoded")
_LABELS = ("image/class/label", "label", "class", "target", "labels")


class TFRecordSource(ScannedSource):
    """Shards of TFRecord; each Example is a sample.

    Parameters
    ----------
    features : tuple of str
        What is taken: ``field=feature``, or a feature that is named like its field.
        Default: the image in ``image/encoded`` and ``image/class/label``, or what is
        called like them.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    label_offset : int
        Added to the label: -1 where classes are counted from 1, as in ImageNet's.
    check : bool
        Whether the CRC of each record's data is compared; that of lengths always is.
    """

    name = "tfrecord"
    summary = "TFRecord files of tf.train.Example, plain, gzip or zlib"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        if not files:
            return False
        start = first_bytes(files[0])
        try:
            return not (_bad_head(start[:_HEAD]) and _bad_head(inflated_start(start, _HEAD)))
        except MissingExtraError:  # opening it says what to install
            return any(suffix in files[0].name for suffix in _SUFFIXES)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        features: tuple[str, ...] = (),
        classes: str | None = None,
        label_offset: int = 0,
        check: bool = True,
    ) -> None:
        require("google_crc32c", "tfrecord", "reading TFRecord files")
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise SourceError(f"{location}: no TFRecord files there")
        self._check = check
        self._compressed = [_is_compressed(path) for path in self.paths]
        settled, chosen = self._settle(features, fields or {}, channels)
        if label_offset:
            if "label" not in settled:
                raise OptionError("label_offset: there is no field 'label'")
            self.notes.append(f"labels are those of the files {label_offset:+d}")
        self.schema = Schema(named_classes(settled, "label", classes))
        self._plan = Plan(self.schema, tuple(chosen.values()), label_offset, check)

    def _settle(
        self, features: tuple[str, ...], fields: FieldSpec, channels: int
    ) -> tuple[dict[str, Field], dict[str, str]]:
        """Return the fields, and the feature that each is read from."""
        examples = self._first_examples()
        known = {name: list(values_of(value)) for e in examples for name, value in e.items()}
        if features:
            pairs = [entry.partition("=") for entry in features]
            chosen = {name: feature or name for name, _, feature in pairs}
        else:
            chosen = _usual(known)
        for field, feature in chosen.items():
            if feature not in known:
                raise OptionError(
                    f"{self.paths[0]}: no feature {feature!r} for the field {field!r}; the first "
                    f"records have {', '.join(sorted(known)[:30])}. Name what is wanted: "
                    "--option features=image=FEATURE,label=FEATURE"
                )
        check_names(fields, list(chosen))
        settled: dict[str, Field] = {}
        for field, feature in chosen.items():
            if field in fields:
                settled[field] = named_field(fields[field], channels)
            else:
                columns = [list(values_of(e[feature])) for e in examples if feature in e]
                settled[field] = _field_of(columns, channels, "mask" in field)
        if not features:
            left = sorted(set(known) - set(chosen.values()))
            if left:
                self.notes.append(
                    f"features left out: {', '.join(left[:12])}{' ...' * (len(left) > 12)} "
                    "(--option features=FIELD=FEATURE,... takes others)"
                )
        return settled, chosen

    def _first_examples(self) -> list[dict[str, Any]]:
        """Return the features of the first records that can be read."""
        found: list[dict[str, Any]] = []
        failure = "the files have no records"
        for sample in self._records():
            try:
                if isinstance(sample, Reject):
                    failure = f"{sample.key}: {sample.reason}"
                else:
                    found.append(parse_example(sample))
            except ValueError as error:
                failure = str(error)
            if len(found) == _PEEK:
                break
        if not found:
            raise SourceError(f"{self.paths[0]}: no record can be read as an Example: {failure}")
        return found

    def _records(self) -> Iterator[bytes | Reject]:
        for file, path in enumerate(self.paths):
            if self._compressed[file]:
                for _, data in _stream_records(path, self._check):
                    yield data
                continue
            for place in self.scan(file):
                yield place if isinstance(place, Reject) else _read(path, place, self._check)

    def scan(self, file: int) -> Iterator[Place | Reject]:
        path = self.paths[file]
        size = path.stat().st_size
        offset = 0
        with open(path, "rb", buffering=0) as raw:
            while offset < size:
                raw.seek(offset)
                head = raw.read(_HEAD)
                reason = _bad_head(head)
                length = int.from_bytes(head[:8], "little")
                if not reason and offset + _HEAD + length + _FOOT > size:
                    reason = f"the file ends within the record's {length:,} bytes"
                if reason:
                    yield Reject(self.key(file, offset), f"{reason}; the rest of {path} is lost")
                    return
                yield Place(file, offset, length)
                offset += _HEAD + length + _FOOT

    def at(self, place: Place) -> Sample:
        record = Record(str(self.paths[place.file]), place, self._plan)
        return Sample(self.key(place.file, place.offset), record)

    def compressed(self, file: int) -> bool:
        return self._compressed[file]

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        for offset, data in _stream_records(self.paths[file], self._check):
            key = self.key(file, offset)
            if isinstance(data, Reject):
                yield Reject(key, data.reason)
            else:
                yield Sample(key, Inflated(data, self._plan))


class Plan(NamedTuple):
    """How an Example becomes a sample.

    Attributes
    ----------
    schema : Schema
    features : tuple of str
        Of each field.
    label_offset : int
    check : bool
    """

    schema: Schema
    features: tuple[str, ...]
    label_offset: int
    check: bool

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the values of a sample.

        Raises
        ------
        ValueError
            If a feature is missing or does not fit its field.
        """
        example = parse_example(data)
        values = []
        for (name, field), feature in zip(self.schema.items(), self.features, strict=True):
            if feature not in example:
                raise ValueError(f"the feature {feature!r} is missing")
            value = _value(values_of(example[feature]), field, feature)
            if name == "label" and self.label_offset:
                value += self.label_offset
            values.append(convert(value, field, name))
        return tuple(values)


class Record(Deferred):
    """A record that the worker reads from its file."""

    def __init__(self, path: str, place: Place, plan: Plan) -> None:
        self.path, self.place, self.plan = path, place, plan

    def load(self) -> tuple[Any, ...]:
        """Read the record, compare its checksum and take its values."""
        data = _read(Path(self.path), self.place, self.plan.check)
        if isinstance(data, Reject):
            raise SourceError(data.reason)
        return self.plan.values(data)


class Inflated(Deferred):
    """A record of a compressed file, which only the packing process could read."""

    def __init__(self, data: bytes, plan: Plan) -> None:
        self.data, self.plan = data, plan

    def load(self) -> tuple[Any, ...]:
        """Take the values."""
        return self.plan.values(self.data)


def _masked(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes (``tensorflow/core/lib/hash/crc32c.h``)."""
    crc: int = require("google_crc32c", "tfrecord", "reading TFRecord files").value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bad_head(head: bytes) -> str:
    """Say what is wrong with a record's first 12 bytes, if anything is."""
    if len(head) < _HEAD:
        return f"the file ends {_HEAD - len(head)} bytes within the record's head"
    if _masked(head[:8]) != int.from_bytes(head[8:], "little"):
        return "the checksum of the record's length is wrong"
    length = int.from_bytes(head[:8], "little")
    return "" if length <= MAX_RECORD else f"the record claims {length:,} bytes"


def _read(path: Path, place: Place, check: bool) -> bytes | Reject:
    data = read_at(path, place.offset + _HEAD, place.length + _FOOT)
    return _checked(data, check)


def _checked(data: bytes, check: bool) -> bytes | Reject:
    body = data[:-_FOOT]
    if check and _masked(body) != int.from_bytes(data[-_FOOT:], "little"):
        return Reject("", "the checksum of the record's data is wrong")
    return body


# -- compressed files ---------------------------------------------------------------


def _is_compressed(path: Path) -> bool:
    start = first_bytes(path, 64)
    # The length of a first record can look like zlib's head; its checksum tells.
    return compression_of(start) != "" and bool(_bad_head(start[:_HEAD]))


def _stream_records(path: Path, check: bool) -> Iterator[tuple[int, Any]]:
    """Yield offset (of what is inflated) and data, or a Reject, of each record."""
    offset = 0
    with open_inflated(path) as stream:
        while True:
            try:
                head = stream.read(_HEAD)
                if not head:
                    return
                reason = _bad_head(head)
                if not reason:
                    length = int.from_bytes(head[:8], "little")
                    data = read_exactly(stream, length + _FOOT, str(path), offset)
            except (*INFLATE_ERRORS, SourceError) as error:
                reason = f"{error}"
            if reason:
                yield offset, Reject("", f"{reason}; the rest of {path} is lost")
                return
            yield offset, _checked(data, check)
            offset += _HEAD + length + _FOOT


# -- features as fields ---------------------------------------------------------------


def _usual(known: Mapping[str, list[Any]]) -> dict[str, str]:
    """Choose what is called as images and labels usually are."""
    images = [name for name in _IMAGES if _is_image(known.get(name, []))]
    images += [name for name, values in known.items() if _is_image(values)]
    if not images:
        return {"image": _IMAGES[0], "label": _LABELS[0]}
    labels = [n for n in _LABELS if n in known and known[n] and isinstance(known[n][0], int)]
    return {"image": images[0], **({"label": labels[0]} if labels else {})}


def _is_image(values: list[Any]) -> bool:
    return len(values) == 1 and isinstance(values[0], bytes) and is_image_bytes(values[0])


def _field_of(columns: list[list[Any]], channels: int, mask: bool) -> Field:
    """Return the field for a feature, from some records' values of it."""
    first = next((column[0] for column in columns if column), None)
    single = all(len(column) == 1 for column in columns)
    if isinstance(first, bytes):
        if is_image_bytes(first):
            return ImageField(channels=1, mask=True) if mask else ImageField(channels=channels)
        return StringField() if all(map(_is_text, columns)) else BytesField()
    dtype = "float32" if isinstance(first, float) else "int64"
    if single:
        return ScalarField(dtype)
    lengths = {len(column) for column in columns}
    return ArrayField(dtype, (lengths.pop() if len(lengths) == 1 else None,))


def _is_text(column: list[bytes]) -> bool:
    try:
        return all(value.decode() is not None for value in column)
    except UnicodeDecodeError:
        return False


def _value(values: Any, field: Field, feature: str) -> Any:
    if isinstance(field, ArrayField):
        return list(values)
    if len(values) != 1:
        raise ValueError(f"the feature {feature!r} has {len(values)} values, not one")
    value = values[0]
    if isinstance(field, StringField) and isinstance(value, bytes):
        return value.decode()
    return value
