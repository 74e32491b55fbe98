"""Which of a file's arrays are what: by their usual names, or as the user says.

An array is known by its path.  What its last name says is a role (image, label, mask, names
of classes, offsets), and the rest of the name tells arrays of one dataset from another's:
``train_x`` belongs to ``train_y`` and not to ``test_y``, ``train/images`` to ``train/labels``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fastdata.errors import OptionError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)

from ..base import FieldSpec
from .arrays import Array, Column, FlatColumn, NamesColumn, Part, PictureLayout
from .fields import check_names, named_field

__all__ = ["Known", "chosen_arrays", "part_of"]

_ROLES = {
    "image": "image images img imgs x data pixels picture pictures jpeg jpegs png bytes encoded",
    "label": "label labels y target targets class gt category",
    "mask": "mask masks segmentation",
    "classes": "classes names categories",
    "offsets": "offset offsets indptr starts lengths sizes ends",
}
_WORDS = {word: role for role, words in _ROLES.items() for word in words.split()}
_SHOWN = 30
_MAX_CLASSES = 1 << 20
_STEP = 4096


class Known(NamedTuple):
    """An array that a file has.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype or None
        None where rows are bytes or text.
    kind : {"numbers", "bytes", "text"}
    refused : str
        Why it cannot be read, with what helps; empty where it can.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic] | None
    kind: str = "numbers"
    refused: str = ""

    def __str__(self) -> str:
        what = self.kind if self.dtype is None else str(self.dtype)
        return f"{what} of shape {self.shape}" + (" (cannot be read)" if self.refused else "")


def _role(path: str) -> tuple[str, tuple[str, ...]]:
    """Return what an array's name says that it is, and the rest of its path."""
    group, _, name = path.rpartition("/")
    words = [word for word in re.split(r"[_\-. ]+", name.lower()) if word]
    roles = [(word, _WORDS[word]) for word in words if word in _WORDS]
    if not roles:
        return "", (group, *words)
    # The more telling of two: image_offsets are offsets, label_names names of classes.
    order = ("offsets", "classes", "mask", "label", "image")
    word, role = min(roles, key=lambda found: order.index(found[1]))
    words.remove(word)
    if role in ("offsets", "classes"):  # of what, they may say too
        words = [word for word in words if word not in _WORDS]
    return role, (group, *words)


def chosen_arrays(
    where: str, known: Mapping[str, Known], arrays: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the array of each field, and the names of arrays that are left out.

    ``classes`` and ``offsets`` are no fields but belong to those.

    Parameters
    ----------
    where : str
        The file, for messages.
    known : mapping
        What the file has.
    arrays : sequence of str
        The user's word: ``field=array``, or an array that is named like its field.

    Raises
    ------
    OptionError
        If there is no such array, or it is not clear which hold the pictures.
    """
    if arrays:
        pairs = [entry.partition("=") for entry in arrays]
        chosen = {field: (array or field).strip("/") for field, _, array in pairs}
        if "image" not in chosen:
            raise OptionError(
                f"arrays={','.join(arrays)}: names no image; {_remedy(where, known)}"
            )
    else:
        chosen = _usual(where, known)
    for field, array in chosen.items():
        if array not in known:
            raise OptionError(
                f"{where}: no array {array!r} for the field {field!r}; {_remedy(where, known)}"
            )
        if known[array].refused:
            raise OptionError(f"{where}: {array!r}: {known[array].refused}")
    return chosen, sorted(set(known) - set(chosen.values()))


def _remedy(where: str, known: Mapping[str, Known]) -> str:
    told = [f"{name}: {array}" for name, array in list(known.items())[:_SHOWN]]
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return (
        f"there are {'; '.join(told) or 'no arrays'}{more}. Name what is wanted: --option "
        "arrays=image=ARRAY,label=ARRAY"
    )


def _usual(where: str, known: Mapping[str, Known]) -> dict[str, str]:
    roles = {path: _role(path) for path in known}
    images = [path for path, (role, _) in roles.items() if role == "image" and _may(known[path])]
    if not images:
        images = [
            path
            for path, array in known.items()
            if roles[path][0] == "" and array.dtype == np.uint8 and _may(array, flat=False)
        ]
    if len(images) != 1:
        several = f"{len(images)} may be" if images else "none is called like"
        raise OptionError(
            f"{where}: it is not clear which array has the images, {several} it; "
            f"{_remedy(where, known)}"
        )
    chosen = {"image": images[0]}
    count = known[images[0]].shape[0]
    rest = roles[images[0]][1]
    for role in ("label", "mask", "classes", "offsets"):
        if role == "offsets" and not _is_flat(known[images[0]]):
            continue
        found = [path for path, (name, _) in roles.items() if name == role]
        if role in ("label", "classes") and not found:
            found = [p for p, (name, _) in roles.items() if {name, role} == {"label", "classes"}]
        if role == "classes":
            found = [path for path in found if known[path].kind == "text"]
        elif role == "label":
            found = [path for path in found if path not in chosen.values()]
        elif role == "mask":
            found = [path for path in found if known[path].shape[:1] == (count,)]
        same = [path for path in found if roles[path][1] == rest]
        beside = [path for path in found if roles[path][1][0] == rest[0]]
        for candidates in (same, beside) if role != "classes" else (same, beside, found):
            if len(candidates) == 1 and candidates[0] not in chosen.values():
                chosen[role] = candidates[0]
                break
    return chosen


def _may(array: Known, flat: bool = True) -> bool:
    """Tell whether an array may hold pictures."""
    if array.kind == "bytes":
        return len(array.shape) == 1
    return len(array.shape) in (3, 4) or (flat and _is_flat(array))


def _is_flat(array: Known) -> bool:
    return array.dtype == np.uint8 and len(array.shape) == 1


def part_of(
    where: str,
    chosen: Mapping[str, str],
    column: Callable[[str], Column],
    fields: FieldSpec,
    *,
    channels: int = 3,
    layout: str | None = None,
    scale: float | None = None,
    text: Callable[[str], bool] = lambda path: False,
) -> tuple[dict[str, Field], Part]:
    """Return the fields and columns of one file.

    Parameters
    ----------
    where : str
        The file, for messages and keys.
    chosen : mapping
        The array of each field, as `chosen_arrays` gives it.
    column : callable
        Returns the column of an array.
    text : callable
        Tells whether the rows of an array are text.

    Raises
    ------
    OptionError, SourceError
        If an array does not fit what it is chosen for.
    """
    columns = {name: column(path) for name, path in chosen.items() if name != "classes"}
    check_names(fields, [name for name in columns if name != "offsets"])
    offsets = columns.pop("offsets", None)
    if columns["image"].dtype == np.uint8 and len(columns["image"].shape) == 1:
        columns["image"] = _flat(where, columns["image"], offsets, columns.get("label"))
    settled: dict[str, Field] = {}
    layouts: list[PictureLayout | None] = []
    for name, found in columns.items():
        field = named_field(fields[name], channels) if name in fields else None
        if field is None:
            is_text = text(chosen[name])
            if name == "label" and is_text:
                names = _all_names(where, found)
                columns[name], field = NamesColumn(found, names), ScalarField(classes=names)
            else:
                field = _field_of(where, name, found, channels, is_text)
        settled[name] = field
        layouts.append(None)
        if isinstance(field, ImageField) and found.dtype is not None:
            layouts[-1] = PictureLayout.of(
                where, found, layout=layout, scale=None if field.mask else scale, mask=field.mask
            )
    label = settled.get("label")
    if "classes" in chosen and isinstance(label, ScalarField) and label.classes is None:
        names = tuple(_texts(column(chosen["classes"])))
        if len(names) <= _MAX_CLASSES and "int" in label.dtype:
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
    steps = range(0, offsets.shape[0], _STEP)
    read = [offsets.read(at, min(at + _STEP, offsets.shape[0])) for at in steps]
    numbers: Array = np.concatenate([np.asarray(part).astype(np.int64) for part in read])
    total = flat.shape[0]
    count = len(numbers) if label is None else label.shape[0]
    with np.errstate(over="ignore"):
        lengths = int(numbers.sum()) == total and not bool(np.all(np.diff(numbers) >= 0))
    if len(numbers) == count + 1 or (len(numbers) > 1 and not lengths and numbers[-1] == total):
        return FlatColumn(flat, numbers[:-1], numbers[1:])
    if lengths or (int(numbers.sum()) == total and numbers[:1] != 0):
        ends = np.cumsum(numbers)
        return FlatColumn(flat, ends - numbers, ends)
    return FlatColumn(flat, numbers, np.append(numbers[1:], total))


def _all_names(where: str, column: Column) -> tuple[str, ...]:
    """Return the different names that a column of text has, sorted."""
    names: set[str] = set()
    for name in _texts(column):
        names.add(name)
        if len(names) > _MAX_CLASSES:
            raise OptionError(f"{where}: {column.label!r} has too many different names for labels")
    return tuple(sorted(names))


def _texts(column: Column) -> Iterator[str]:
    for start in range(0, column.shape[0], _STEP):
        for name in column.read(start, min(start + _STEP, column.shape[0])):
            if isinstance(name, str):
                yield name
