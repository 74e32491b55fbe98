"""MXNet's RecordIO: ``.rec`` files of images with their labels, as ``im2rec`` writes them.

``reading/records/recordio.py`` reads the records and their content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .reading.class_names import named_classes
from .reading.fields import convert, resolve_fields
from .reading.image_files import is_image_bytes
from .reading.locations import files_at, printable
from .reading.options import ClassFile
from .reading.records.recordio import has_records, read_index, record_of, record_rows, unpack
from .reading.refusals import no_files
from .reading.selection import joined
from .scan import Found, Input, Scan, ScanSource

__all__ = ["RecordIOSource"]

_SUFFIXES = (".rec",)


class RecordIOSource(ScanSource):
    """Files of RecordIO; each record is a sample."""

    name = "recordio"
    summary = "MXNet RecordIO: .rec files, with .idx or without"

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
        classes: ClassFile = None,
    ) -> None:
        paths, notes = files_at(location, _SUFFIXES), list[str]()
        if not paths:
            raise no_files(location, ".rec files")
        if len(paths) > 1:
            names = (printable(path.name) for path in paths)
            notes.append(f"{len(paths)} files: {joined(names, 4)}")
        beside = [path.with_suffix(".idx") for path in paths]
        indexes = {k: read_index(path) for k, path in enumerate(beside) if path.is_file()}
        images = [_range_of_images(path, notes) for path in paths]
        scan = Scan(paths, partial(_image_rows, indexes, images))
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
        data = record_of(values[0])
        field = self.schema.get("label")
        if field is None:
            return (data,)
        labels, content = unpack(data)
        if not content:
            raise ValueError("the record has no image")
        if isinstance(field, ArrayField):
            return content, convert(labels, field, "label")
        if len(labels) != 1:
            raise ValueError(f"the record has {len(labels)} labels, not 1")
        return content, convert(labels[0], field, "label")


def _image_rows(
    indexes: Mapping[int, Sequence[int]],
    images: Sequence[range | None],
    input: Input,
    start: int,
    stop: int | None,
) -> Iterator[Found]:
    """Yield the records with images."""
    rows = record_rows(input, start, stop, indexes.get(input.number, ()))
    numbers = images[input.number]
    if numbers is None or stop is not None:
        yield from rows
        return
    count = 0
    for begin, end, row in rows:
        if isinstance(row, Reject) or count in numbers:
            yield begin, end, row
        count += end > begin
    if count < numbers.stop:
        assert input.size is not None
        reason = f"the first record says that there are {numbers.stop:,}, and {count:,} are here"
        yield input.size, input.size, Reject(input.key(input.size), reason)


def _range_of_images(path: Path, notes: list[str]) -> range | None:
    """Return the numbers of the records with images, if the first record has them.

    InsightFace's face datasets begin with a record without an image, whose first label is the
    number behind the last image; records of identities come after it.
    """
    first = next(Scan([path], record_rows).file(0), None)
    if first is None or isinstance(first[2], Reject):
        return None
    try:
        labels, content = unpack(record_of(first[2].values[0]))
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
    data = record_of(values[0])
    if is_image_bytes(data):
        return None
    labels, content = unpack(data)
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
