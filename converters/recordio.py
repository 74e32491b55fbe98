"""MXNet's RecordIO: ``.rec`` files of images with their labels, as ``im2rec`` writes them.

A record is one part or several, each

=======  ==================================================================
4 bytes  the magic number 0xced7230a, little-endian
4 bytes  in the upper 3 bits the part's kind, below them its length
length   the data, then zeros up to a multiple of 4
=======  ==================================================================

The kinds are 0, a whole record, and 1, 2, 3, the first, a middle and the last part.  If the data
has the magic number at a multiple of 4, the writer leaves it out and begins a new part.  Records
have no checksums.  The data of a record with an image is

=======  ==================================================================
4 bytes  count of labels, or 0
4 bytes  the label, float32, if the count is 0
16 bytes the number of the image, and 0
4 each   the labels, float32
rest     an image file
=======  ==================================================================

An ``.idx`` beside the file has a line for each record: its number, a tab, and its first byte.

Source: ``include/dmlc/recordio.h`` and ``src/recordio.cc`` of dmlc-core; ``pack`` and ``unpack``
in ``python/mxnet/recordio.py`` of MXNet.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .reading.class_names import named_classes
from .reading.fields import convert, resolve_fields
from .reading.image_files import is_image_bytes
from .reading.locations import files_at, first_bytes, printable
from .reading.options import ClassFile
from .reading.refusals import no_files
from .reading.selection import joined
from .reading.spans import MAX_RECORD, FileSpan
from .reading.text_lines import text_lines
from .scan import Found, Input, Row, Scan, ScanSource, read

__all__ = ["RecordIOSource"]

_SUFFIXES = (".rec",)
_MAGIC = bytes.fromhex("0a23d7ce")
_LENGTH = (1 << 29) - 1
_LABELS = struct.Struct("<If16x")
_MOST_PARTS = 64
"""Parts of a record: the data is cut only where it has the magic number by chance."""


class RecordIOSource(ScanSource):
    """Files of RecordIO; each record is a sample."""

    name = "recordio"
    summary = "MXNet RecordIO: .rec files, with .idx or without"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        return bool(files) and _has_records(files[0])

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        classes: ClassFile = None,
    ) -> None:
        paths, notes = files_at(location, _SUFFIXES), list[str]()
        if not paths:
            raise no_files(location, ".rec files")
        if len(paths) > 1:
            names = (printable(path.name) for path in paths)
            notes.append(f"{len(paths)} files: {joined(names, 4)}")
        beside = [path.with_suffix(".idx") for path in paths]
        indexes = {k: _read_index(path) for k, path in enumerate(beside) if path.is_file()}
        images = [_range_of_images(path, notes) for path in paths]
        scan = Scan(paths, partial(_record_rows, indexes, images))
        first = scan.first(_first_labels, paths[0], "record with an image can be read")
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        rows = [row for row in first if row is not None]
        if rows:
            if "label" not in (fields or {}) and all(map(_are_of_objects, rows)):
                raise SourceError(
                    f"{paths[0]}: its labels are of objects (a head, then class and box of each), "
                    "and boxes are not read from RecordIO. Pack the images with a list of their "
                    "boxes; --field label=array takes the labels as numbers, which crops and flips "
                    "leave as they are"
                )
            resolved["label"] = _label_field(rows)
        resolved = resolve_fields(resolved, fields, channels, resolved.__getitem__)
        schema = Schema(named_classes(resolved, "label", classes))
        lists = [p.name for path in paths if (p := path.with_suffix(".lst")).is_file()]
        if lists:
            notes.append(f"{lists[0]} is not read: labels are those in the records")
        reader = RecordReader(schema)
        super().__init__(scan, schema, reader, notes=notes, beside=[beside[k] for k in indexes])


class RecordReader(NamedTuple):
    """Reads a record: an image with labels before it, or alone."""

    schema: Schema

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        data = _record_of(values[0])
        field = self.schema.get("label")
        if field is None:
            return (data,)
        labels, content = _unpack(data)
        if not content:
            raise ValueError("the record has no image")
        if isinstance(field, ArrayField):
            return content, convert(labels, field, "label")
        if len(labels) != 1:
            raise ValueError(f"the record has {len(labels)} labels, not 1")
        return content, convert(labels[0], field, "label")


def _range_of_images(path: Path, notes: list[str]) -> range | None:
    """Return the numbers of the records with images, if the first record has them.

    InsightFace's face datasets begin with a record without an image, whose first label is the
    number behind the last image; records of identities come after it.
    """
    first = next(Scan([path], partial(_record_rows, {}, [None])).file(0), None)
    if first is None or isinstance(first[2], Reject):
        return None
    try:
        labels, content = _unpack(_record_of(first[2].values[0]))
    except ValueError:
        return None
    if content or len(labels) != 2 or not 1 < labels[0] < 2**24:
        return None
    notes.append(
        f"{printable(path.name)}: images are the records 1 to {int(labels[0]) - 1}, says the "
        "first; it and those of identities, behind them, are left out"
    )
    return range(1, int(labels[0]))


def _first_labels(values: tuple[Any, ...]) -> Any:
    """Return the labels of a record with an image, None if it is an image alone."""
    data = _record_of(values[0])
    if is_image_bytes(data):
        return None
    labels, content = _unpack(data)
    if not is_image_bytes(content):
        raise SourceError(
            f"the content of the record begins with {content[:8]!r}. It is not a JPEG, PNG, WebP, "
            "BMP, GIF or TIFF"
        )
    return labels


def _are_of_objects(row: Any) -> bool:
    """Tell whether labels begin with the numbers of entries of their head and of each object."""
    if len(row) < 7 or row[0] < 2 or row[1] < 5 or row[0] % 1 or row[1] % 1:
        return False
    return bool((len(row) - row[0]) % row[1] == 0)


def _label_field(rows: Sequence[Any]) -> Field:
    lengths = {len(row) for row in rows}
    if lengths == {1}:
        whole = all(float(row[0]).is_integer() for row in rows)
        return ScalarField("int64" if whole else "float32")
    return ArrayField("float32", (lengths.pop() if len(lengths) == 1 else None,))


# -- records ----------------------------------------------------------------------------


def _has_records(path: Path) -> bool:
    """Tell whether a file begins with a record."""
    return _kind(first_bytes(path, 8)) in (0, 1)


def _record_rows(
    indexes: Mapping[int, Sequence[int]],
    images: Sequence[range | None],
    input: Input,
    start: int,
    stop: int | None,
) -> Iterator[Found]:
    """Yield the records of a file with images, each as one value, which `_record_of` reads.

    indexes: by file, where records begin, in ascending order.  Behind damage, reading goes on at
        the next.
    images: by file, the numbers of the records with images; None for all.
    """
    assert input.size is not None
    if stop is not None:
        yield start, stop, Row(input.key(start), (input.piece(start, stop - start),))
        return
    at, size, count, following = start, input.size, 0, start
    index, numbers = indexes.get(input.number, ()), images[input.number]
    positions = iter(index)
    while at < size:
        if following <= at:
            following = next((position for position in positions if position > at), size)
        end, reason = _end_of(input, at, size)
        if not reason and following < end and _kind(input.read(following, 8)) in (0, 1):
            reason = "its length is wrong: another begins within it"
        if reason:
            lost = "" if following < size else f"; the rest of {input.path} is lost"
            yield at, following, Reject(input.key(at), reason + lost)
            end = following
        elif numbers is None or count in numbers:
            yield at, end, Row(input.key(at), (input.piece(at, end - at),))
        at, count = end, count + 1
    for position in index[bisect_left(index, size) :]:
        reason = "the index names a record here, and the file ends before"
        yield position, position, Reject(input.key(position), reason)
    if numbers is not None and count < numbers.stop:
        reason = f"the first record says that there are {numbers.stop:,}, and {count:,} are here"
        yield size, size, Reject(input.key(size), reason)


def _record_of(piece: FileSpan | bytes) -> bytes:
    """Return the data of a record, its parts put together; raises SourceError for damage."""
    data, parts, at = read(piece), list[bytes](), 0
    while at + 8 <= len(data):
        count = int.from_bytes(data[at + 4 : at + 8], "little") & _LENGTH
        part = data[at + 8 : at + 8 + count]
        if _has_magic(part):
            raise SourceError("its length is wrong: another record begins within it")
        parts.append(part)
        at += 8 + count + -count % 4
    return _MAGIC.join(parts)


def _unpack(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bytes]:
    """Return the labels and the image file of a record.

    Raises ValueError if it is too short for its head, or for its labels.
    """
    if len(data) < _LABELS.size:
        raise ValueError(f"a record of {len(data)} bytes is too short for a label and an image")
    count, label = _LABELS.unpack_from(data)
    if not count:
        return np.array([label], np.float32), data[_LABELS.size :]
    end = _LABELS.size + 4 * count
    if end > len(data):
        raise ValueError(f"the record claims {count:,} labels in its {len(data):,} bytes")
    return np.frombuffer(data[_LABELS.size : end], "<f4"), data[end:]


def _read_index(path: Path) -> Sequence[int]:
    """Return where the records begin that an index names, in ascending order.

    Raises SourceError if a line is not a number and a position.
    """
    positions = array("q")
    for number, line in text_lines(path):
        try:
            _, position = line.split("\t")
            positions.append(int(position))
        except (ValueError, OverflowError):
            raise SourceError(
                f"{path}, line {number}: {line[:60]!r} is not a key and a position with a tab "
                "between them. Move the file away: the records can be read without it"
            ) from None
    return array("q", np.sort(np.array(positions, np.int64)).tobytes())


def _kind(head: bytes) -> int:
    """Return the kind of the part that 8 bytes begin; -1 if they begin none."""
    return head[7] >> 5 if len(head) == 8 and head[:4] == _MAGIC else -1


def _end_of(input: Input, offset: int, size: int) -> tuple[int, str]:
    """Return the end of the record at `offset`, or the damage."""
    at = offset
    for number in range(_MOST_PARTS):
        head = input.read(at, 8)
        if len(head) < 8:
            return at, f"the file ends {8 - len(head)} bytes before the record's head does"
        kind = _kind(head)
        if kind not in ((2, 3) if number else (0, 1)):
            expected = "part of the record goes on" if number else "record begins"
            return at, f"no {expected} at byte {at:,}"
        length = int.from_bytes(head[4:], "little") & _LENGTH
        end = at + 8 + length
        if end > size:
            return at, f"the file ends within the record's {length:,} bytes"
        if end - offset > MAX_RECORD:
            return at, f"the record claims more than {MAX_RECORD:,} bytes"
        at = min(end + -length % 4, size)
        if kind in (0, 3):
            return at, ""
    return at, f"the record has more than {_MOST_PARTS} parts"


def _has_magic(data: bytes) -> bool:
    at = data.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            return True
        at = data.find(_MAGIC, at + 1)
    return False
