"""What fields the arrays of files become: the part that formats of arrays share.

Several files are one dataset, in their order; what is chosen in the first is taken of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)

from ...base import FieldSpec, reason_of
from ..class_names import MOST_CLASSES, classes_of_texts, named_classes
from ..fields import check_names, named_field
from ..locations import printable
from ..selection import ARRAYS
from .array_source import Part
from .columns import Array, Column, FlatColumn, NamesColumn
from .picture_layout import PictureLayout
from .roles import Known, chosen_arrays

__all__ = ["ArrayFile", "ArrayOptions", "parts_of"]

_STEP = 4096


class ArrayOptions(NamedTuple):
    """What the user says of a dataset of arrays.

    Attributes
    ----------
    channels : int
    fields : mapping
    arrays : tuple of str
        ``field=array``; empty for what is called as usual.
    layout : str or None
    scale : float or None
    classes : str or None
        A file of names of classes.
    """

    channels: int
    fields: FieldSpec
    arrays: tuple[str, ...] = ()
    layout: str | None = None
    scale: float | None = None
    classes: str | None = None


class ArrayFile(NamedTuple):
    """What one file has.

    Attributes
    ----------
    where : str
        Its path, for messages.
    name : str
        For keys.
    known : mapping
        Its arrays by their paths.
    column : callable
        Returns the column of an array.
    usual : tuple of str
        What is taken, as in ``ArrayOptions.arrays``, where names do not tell.
    """

    where: str
    name: str
    known: Mapping[str, Known]
    column: Callable[[str], Column]
    usual: tuple[str, ...] = ()


def parts_of(
    files: Iterable[ArrayFile], options: ArrayOptions
) -> tuple[dict[str, Field], list[Part], list[str]]:
    """Return the fields of a dataset, its parts, and notes on what is left out.

    Raises
    ------
    OptionError, SourceError
        If an array does not fit what it is chosen for, or files differ.
    """
    settled: dict[str, Field] = {}
    parts: list[Part] = []
    notes: list[str] = []
    arrays = options.arrays
    for file in files:
        chosen, left = chosen_arrays(file.where, file.known, arrays or file.usual)
        arrays = tuple(f"{field}={array}" for field, array in chosen.items())
        fields, part = _part_of(file, chosen, options)
        if parts and fields != settled:
            raise SourceError(
                f"{file.where}: its arrays are of other kinds than those of the first file: "
                f"{fields}, not {settled}"
            )
        settled = fields
        parts.append(part)
        notes += [f"{file.where}: {note}" for note in ARRAYS.left_out(map(printable, left))]
    return named_classes(settled, "label", options.classes), parts, notes


def _part_of(
    file: ArrayFile, chosen: Mapping[str, str], options: ArrayOptions
) -> tuple[dict[str, Field], Part]:
    """Return the fields and columns of one file, of which the array of each is known."""
    where, column = file.name, file.column
    fields, channels = options.fields, options.channels
    columns = {name: column(path) for name, path in chosen.items() if name != "classes"}
    check_names(fields, [name for name in columns if name != "offsets"])
    offsets = columns.pop("offsets", None)
    if columns["image"].dtype == np.uint8 and len(columns["image"].shape) == 1:
        columns["image"] = _flat(where, columns["image"], offsets, columns.get("label"))
    settled: dict[str, Field] = {}
    layouts: list[PictureLayout | None] = []
    for name, found in columns.items():
        field = named_field(fields[name], channels) if name in fields else None
        is_text = file.known[chosen[name]].kind == "text"
        if name == "label" and is_text and fields.get(name, "label") == "label":
            what = f"{where}: {found.label!r}"
            names = classes_of_texts(_texts(where, found), what, options.classes)
            columns[name], field = NamesColumn(found, names), ScalarField(classes=names)
        elif field is None:
            field = _field_of(where, name, found, channels, is_text)
        settled[name] = field
        layouts.append(None)
        if isinstance(field, ImageField) and found.dtype is not None:
            scale = None if field.mask else options.scale
            layouts[-1] = PictureLayout.of(
                where, found, layout=options.layout, scale=scale, mask=field.mask
            )
    label = settled.get("label")
    if "classes" in chosen and isinstance(label, ScalarField) and label.classes is None:
        names = tuple(_texts(where, column(chosen["classes"])))
        if len(names) <= MOST_CLASSES and "int" in label.dtype:
            settled["label"] = ScalarField(label.dtype, names)
    return settled, Part(where, tuple(columns.values()), tuple(layouts))


def _field_of(where: str, name: str, column: Column, channels: int, text: bool) -> Field:
    if name == "image":
        return ImageField(channels=channels)
    if name == "mask":
        return ImageField(channels=1, mask=True)
    if text:
        return StringField()
    if column.dtype is None:  # bytes: image files
        return ImageField(channels=channels)
    dtype, shape = column.dtype.newbyteorder("=").name, column.shape[1:]
    if name == "label" and np.dtype(dtype).kind in "ui":
        dtype = "int64"
    if dtype not in SCALAR_DTYPES:
        raise OptionError(
            f"{where}: {column.label!r} is {column.dtype}; a field can be "
            f"{', '.join(SCALAR_DTYPES)}. Say what it becomes: --field {name}=int"
        )
    return ScalarField(dtype) if all(n == 1 for n in shape) else ArrayField(dtype, shape)


def _flat(where: str, flat: Column, offsets: Column | None, label: Column | None) -> FlatColumn:
    """Return image files that lie end to end."""
    if offsets is None or offsets.dtype is None or offsets.dtype.kind not in "ui":
        raise OptionError(
            f"{where}: {flat.label!r} is one row of {flat.shape[0]:,} bytes; where each image file "
            "in it begins must be told: --option arrays=image=ARRAY,offsets=ARRAY,label=ARRAY"
        )
    if len(offsets.shape) != 1 or offsets.shape[0] > max(1, flat.shape[0]) + 1:
        raise OptionError(f"{where}: {offsets.label!r} of shape {offsets.shape} are no offsets")
    read = [np.asarray(rows).astype(np.int64) for rows in _blocks(where, offsets)]
    numbers: Array = np.concatenate(read or [np.zeros(0, np.int64)])
    total, count = flat.shape[0], len(numbers)
    rises = bool(np.all(np.diff(numbers) >= 0))
    first, last = (int(numbers[0]), int(numbers[-1])) if count else (0, total)
    if (label is not None and label.shape[0] == count - 1) or (
        rises and (first, last) == (0, total)
    ):
        return FlatColumn(flat, numbers[:-1], numbers[1:])
    if rises and last == total:
        return FlatColumn(flat, np.insert(numbers[:-1], 0, 0), numbers)
    if int(numbers.sum()) == total:
        ends = np.cumsum(numbers)
        return FlatColumn(flat, ends - numbers, ends)
    if first != 0:
        raise OptionError(
            f"{where}: {offsets.label!r} is neither where image files begin or end among the "
            f"{total:,} bytes of {flat.label!r}, nor how long they are"
        )
    return FlatColumn(flat, numbers, np.append(numbers[1:], total))


def _texts(where: str, column: Column) -> Iterator[str]:
    values = itertools.chain.from_iterable(_blocks(where, column))
    return (name for name in values if isinstance(name, str))


def _blocks(where: str, column: Column) -> Iterator[Any]:
    """Yield all that a small column has, some thousand rows at a time.

    Raises
    ------
    SourceError
        If it cannot be read: without it, no sample can be.
    """
    for start in range(0, column.shape[0], _STEP):
        try:
            yield column.read(start, min(start + _STEP, column.shape[0]))
        except Exception as error:  # what libraries raise on damage
            raise SourceError(f"{where}: {column.label!r}: {reason_of(error)}") from error
