"""MXNet's RecordIO: ``.rec`` files of images with their labels, as ``im2rec`` writes them.

``reading/records/recordio.py`` reads records from a file, ``reading/records/image_records.py``
their content and the other files.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .reading.class_names import named_classes
from .reading.fields import resolve_fields
from .reading.image_files import is_image_bytes
from .reading.locations import files_at, printable
from .reading.options import ClassFile, Option
from .reading.records.image_records import ImageList, ImageRecordReader, read_index, unpack
from .reading.records.recordio import has_records, record_of, record_rows
from .reading.refusals import no_files
from .reading.selection import joined
from .scan import Found, Input, Row, Scan, ScanSource

__all__ = ["RecordIOSource"]

_SUFFIXES = (".rec",)


class RecordIOSource(ScanSource):
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
    ) -> None:
        paths, notes = files_at(location, _SUFFIXES), list[str]()
        if not paths:
            raise no_files(location, ".rec files")
        if len(paths) > 1:
            names = (printable(path.name) for path in paths)
            notes.append(f"{len(paths)} files: {joined(names, 4)}")
        beside = [path.with_suffix(".idx") for path in paths] if index else []
        known = {k: read_index(path) for k, path in enumerate(beside) if path.is_file()}
        images = [_range_of_images(path, notes) for path in paths]
        entries = ImageList(Path(lst)) if lst is not None else None
        scan = Scan(paths, partial(_image_rows, known, images, entries))
        first = scan.first(_first_record, paths[0], "record with an image can be read")
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        header = first[0] is not None
        if header:
            rows = [row for row in first if row is not None]
            if not labels and "label" not in (fields or {}) and all(map(_are_of_objects, rows)):
                raise SourceError(
                    f"{paths[0]}: its labels are of objects (a head, then class and box of each), "
                    "and boxes are not read from RecordIO. Pack the images with a list of their "
                    "boxes; --field label=array takes the labels as numbers, which crops and flips "
                    "leave as they are"
                )
            resolved |= _label_fields(rows, labels, notes)
        elif labels or lst:
            raise OptionError(f"{paths[0]}: the records are images alone, without labels")
        resolved = resolve_fields(resolved, fields, channels, resolved.__getitem__)
        schema = Schema(named_classes(resolved, "label", classes))
        lists = [p.name for path in paths if (p := path.with_suffix(".lst")).is_file()]
        if lists and lst is None and header:
            notes.append(
                f"{lists[0]} is not read (--option lst=FILE takes labels and names from it)"
            )
        beside = [*([entries.path] if entries is not None else []), *(beside[k] for k in known)]
        reader = ImageRecordReader(schema, header, bool(labels))
        super().__init__(scan, schema, reader, notes=notes, beside=beside)


def _image_rows(
    indexes: Mapping[int, array[int]],
    images: Sequence[range | None],
    entries: ImageList | None,
    input: Input,
    start: int,
    stop: int | None,
) -> Iterator[Found]:
    """Yield the records with images, with the labels and names that a list has for them."""
    numbers, count = images[input.number], 0
    for begin, end, row in record_rows(input, start, stop, indexes.get(input.number, ())):
        is_image = stop is not None or numbers is None or count in numbers
        count += end > begin
        if isinstance(row, Row) and not is_image:
            continue
        if isinstance(row, Row) and entries is not None:
            # The labels are looked up here: workers do not have the list.
            try:
                listed, name = entries[unpack(record_of(row.values[0]))[2]]
                row = Row(printable(name), (*row.values, listed))
            except (OSError, ValueError) as error:
                row = Reject.of(row.key, error)
        yield begin, end, row
    if numbers is not None and stop is None and count < numbers.stop:
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
        labels, content, _ = unpack(record_of(first[2].values[0]))
    except ValueError:
        return None
    if content or len(labels) != 2 or not 1 < labels[0] < 2**24:
        return None
    notes.append(
        f"{printable(path.name)}: images are the records 1 to {int(labels[0]) - 1}, says the "
        "first; it and those of identities, behind them, are left out"
    )
    return range(1, int(labels[0]))


def _first_record(values: tuple[Any, ...]) -> Any:
    """Return the labels of a record with an image, None if it is an image alone."""
    data = record_of(values[0])
    if is_image_bytes(data):
        return None
    labels, content, _ = unpack(data)
    if not is_image_bytes(content):
        raise SourceError(
            f"what is in the record begins with {content[:8]!r}, and no JPEG, PNG, WebP, BMP, GIF "
            "or TIFF does"
        )
    return labels if len(values) == 1 else values[1]


def _are_of_objects(row: Any) -> bool:
    """Tell whether labels begin with the numbers of entries of their head and of each object."""
    if len(row) < 7 or row[0] < 2 or row[1] < 5 or row[0] % 1 or row[1] % 1:
        return False
    return bool((len(row) - row[0]) % row[1] == 0)


def _label_fields(
    rows: Sequence[Any], names: tuple[str, ...], notes: list[str]
) -> dict[str, Field]:
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
    notes.append(
        "a record has several labels, which are one array (--option labels=NAME,NAME,... makes "
        "fields of them)"
    )
    return {"label": ArrayField("float32", (lengths.pop() if len(lengths) == 1 else None,))}


def _scalar(values: Any) -> ScalarField:
    whole = all(float(value).is_integer() for value in values)
    return ScalarField("int64" if whole else "float32")
