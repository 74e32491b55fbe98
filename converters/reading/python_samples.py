"""What Python's iterables and Datasets yield, as samples: names, fields and values."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeGuard

import numpy as np
from PIL import Image

from fastdata.codecs.pillow import open_image
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema, StringField

from ..base import FieldSpec, reason_of
from .box_forms import BoxNumbers, parse_boxes
from .class_names import classes_of_texts, read_class_names
from .field_names import LABELS, first_called
from .fields import field_of, image_field, resolve_boxes, resolve_fields, to_numpy
from .image_files import is_image_bytes, is_image_name
from .options import Option

__all__ = [
    "PEEK",
    "ClassNames",
    "Rows",
    "are_names",
    "file_of",
    "first_samples",
    "holds_files",
    "is_file",
    "own_copy",
    "schema_of",
    "to_values",
    "values_of",
]

ClassNames: TypeAlias = Annotated[
    str | Sequence[str] | None, Option("names of classes, or a text file with one a line")
]
"""The option ``classes=`` of sources from Python."""

PEEK = 16
"""Samples that show the kinds of fields."""


class Rows(Sequence[Any]):
    """Samples as rows of columns.

    columns: the values of each field.
    root: the folder that keys are relative to, if it is known.
    classes: the names of the classes, if they are known.
    """

    def __init__(
        self, columns: Mapping[str, Sequence[Any]], root: str = "", classes: Any = None
    ) -> None:
        self._names, self._columns = tuple(columns), tuple(columns.values())
        self.root, self.classes = root, classes

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        return {n: column[index] for n, column in zip(self._names, self._columns, strict=True)}

    def __iter__(self) -> Iterator[Any]:
        for row in zip(*self._columns, strict=True):
            yield dict(zip(self._names, row, strict=True))


def first_samples(dataset: Any) -> list[Any]:
    """Return some samples of a map-style dataset, leaving out those that fail.

    They are asked of a shallow copy of a torch Dataset: one that opens a file at
    its first sample must do that in the workers, since HDF5 and LMDB handles
    do not survive fork.
    """
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    if torch is not None and isinstance(dataset, torch.utils.data.Dataset):
        dataset = copy.copy(dataset)
    samples = []
    failure: Exception | None = None
    for index in range(min(PEEK, len(dataset))):
        try:
            samples.append(dataset[index])
        except Exception as error:  # a user's Dataset may raise anything
            failure = error
    if failure is not None and not samples:
        raise SourceError(
            f"none of the dataset's first {PEEK} samples can be read; the last error is: "
            f"{reason_of(failure)}"
        ) from failure
    return samples


def to_values(
    names: Sequence[str], are_images: Sequence[bool], item: Any, folder: str = ""
) -> tuple[Any, ...]:
    """Return a sample's values in the order of its fields, in a form that can be sent to a worker.

    Raises ValueError if it has other fields.

    are_images: whether text in a field is the path of an image.
    folder: the one that paths are relative to.
    """
    values = values_of(item, names)
    if values.keys() != set(names):
        raise ValueError(f"the sample has the fields {list(values)}, not {list(names)}")
    both = zip(names, are_images, strict=True)
    return tuple(_sendable(values[name], image, folder) for name, image in both)


def _sendable(value: Any, image: bool, folder: str) -> Any:
    if isinstance(value, Image.Image):
        value.load()  # else a broken file would show only while it is sent
    elif image and isinstance(value, (str, os.PathLike)):
        return Path(folder, value)
    elif isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return to_numpy(value) if _is_tensor(value) else value


def own_copy(item: Any) -> Any:
    """Return a sample with pixels and numbers of its own.

    Many a generator fills one buffer for all its samples, and several are held at once here.
    """
    named = _named(item)
    if named is not None:
        return {name: _own(value) for name, value in named.items()}
    return tuple(map(_own, item)) if isinstance(item, (tuple, list)) else _own(item)


def _own(value: Any) -> Any:
    if isinstance(value, np.ndarray) or type(value) is Image.Image:  # others are of files
        return value.copy()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value.detach().clone() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone")


def schema_of(
    samples: Sequence[Any],
    channels: int,
    fields: FieldSpec | None,
    dataset: Any,
    classes: str | Sequence[str] | None,
    boxes: Sequence[str],
    notes: list[str],
) -> tuple[Schema, dict[str, BoxNumbers]]:
    """Return the fields of a dataset's first samples, and what boxes are; see `resolve_boxes`.

    Raises SourceError if there are no samples.

    classes, boxes: as the options `ClassNames` and `BoxesOption`.
    notes: a list for remarks to the user.
    """
    if not samples:
        raise SourceError("the iterable is empty: there is nothing to pack")
    fields = fields or {}
    rows = [values_of(sample, list(fields)) for sample in samples]

    unnamed = _named(samples[0]) is None
    columns = {name: [row[name] for row in rows if name in row] for name in rows[0]}
    first = next(iter(columns), "")

    def own(name: str) -> Field:
        values = columns[name]
        if name != first and (unnamed or name.lower() in LABELS):
            if _are_masks(values, rows[0]):
                return ImageField(channels=1, mask=True)
            if all(map(is_file, values)):
                return image_field(name, channels)
        return field_of(values, channels, name, notes, leading=unnamed and name == first)

    resolved = resolve_fields(rows[0], fields, channels, own)
    if unnamed and len(fields) != len(rows[0]):
        images = {n: field for n, field in resolved.items() if isinstance(field, ImageField)}
        masks = [n for n, field in images.items() if field.mask and n not in fields]
        if len(masks) == 1 and "mask" not in resolved:
            resolved = {"mask" if n in masks else n: field for n, field in resolved.items()}
            notes.append("the second of two images has class numbers, and is the field 'mask'")
            rows[0] = dict(zip(resolved, rows[0].values(), strict=True))
    _name_features(resolved, dataset)
    free = {name: value for name, value in rows[0].items() if fields.get(name, "label") == "label"}
    _name_labels(resolved, free, dataset, classes, notes)
    columns = dict(zip(resolved, columns.values(), strict=True))
    forms = resolve_boxes(resolved, columns, parse_boxes(boxes, whole=True), fields, notes)
    return Schema(resolved), forms


def _are_masks(values: Sequence[Any], sample: Mapping[str, Any]) -> bool:
    """Tell whether these, which are not called masks, are masks of a sample's first value.

    Images of one channel of 8 bits are, and arrays of whole numbers of the image's size.
    """
    image, *_ = sample.values()
    if not _is_picture(image) and not is_file(image):
        return False
    if all(map(is_file, values)):
        with contextlib.suppress(OSError, ImageError), open_image(_content(values[0])) as mask:
            return mask.mode in _MASK_MODES
        return False
    if all(isinstance(value, Image.Image) for value in values):
        return all(value.mode in _MASK_MODES for value in values)
    if not all(isinstance(value, np.ndarray) or _is_tensor(value) for value in values):
        return False
    array = to_numpy(values[0])
    size = image.size[::-1] if isinstance(image, Image.Image) else getattr(image, "shape", ())
    whole = array.dtype.kind in "biu" or (array.dtype.kind == "f" and not (array % 1).any())
    plain = whole and array.ndim in (2, 3) and array.ndim - 1 <= len(size)
    return plain and array.squeeze().ndim == 2 and array.squeeze().shape in (size[:2], size[-2:])


_MASK_MODES = ("L", "1", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")


def _content(file: Any) -> bytes:
    return read_regular(Path(file)) if isinstance(file, (str, os.PathLike)) else bytes(file)


def _name_features(fields: dict[str, Field], dataset: Any) -> None:
    """Give fields of integers the names of a ``ClassLabel``, or of a list of such.

    Hugging Face's ``datasets`` has these in `features`.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return
    for name, field in fields.items():
        feature = features.get(name)
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if not isinstance(field, (ScalarField, ArrayField)) or "int" not in field.dtype:
            continue
        if field.classes is None and are_names(names):
            fields[name] = dataclasses.replace(field, classes=tuple(names))


def _name_labels(
    fields: dict[str, Field],
    first: Mapping[str, Any],
    dataset: Any,
    classes: str | Sequence[str] | None,
    notes: list[str],
) -> None:
    """Give the label its class names; text becomes classes if all samples can be read.

    first: the first sample's values of the fields that may be the label.
    """
    able = [n for n in first if isinstance(first[n], str) or "int" in _number_type(fields[n])]
    label = first_called(able, LABELS)
    if label is None:
        if classes is not None:
            raise OptionError(f"classes=: none of the fields {', '.join(fields)} is a label")
        return
    names: Any = getattr(dataset, "classes", None)
    if classes is not None:
        names = read_class_names(classes) if isinstance(classes, str) else tuple(classes)
    field = fields[label]
    if are_names(names):
        plain = field if isinstance(field, ScalarField) else ScalarField()
        if plain.classes is None or classes is not None:
            fields[label] = dataclasses.replace(plain, classes=tuple(names))
    elif isinstance(first[label], str) and isinstance(dataset, (list, tuple, Rows)):
        texts = _texts(dataset, list(fields), label)
        fields[label] = ScalarField(classes=classes_of_texts(texts, f"field {label!r}"))
    elif isinstance(first[label], str):
        fields[label] = StringField()
        notes.append(
            f"field {label!r} stays text: its classes are known only when all samples have been "
            'read. Name them: source_options={"classes": ["cat", "dog", ...]}'
        )


def _number_type(field: Field) -> str:
    return field.dtype if isinstance(field, ScalarField) else ""


def _texts(rows: Iterable[Any], names: Sequence[str], label: str) -> Iterable[str]:
    for row in rows:
        text = values_of(row, names).get(label)
        if isinstance(text, str) and text.strip():
            yield text.strip()


def are_names(classes: Any) -> TypeGuard[Sequence[str]]:
    """Tell whether these are names of classes."""
    return (
        isinstance(classes, (list, tuple))
        and len(classes) > 0
        and all(isinstance(name, str) for name in classes)
    )


def file_of(value: Any) -> Any:
    """Return the bytes or the path of an undecoded image of Hugging Face's; else the value."""
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"}:
        path = value["path"]
        return value["bytes"] if value["bytes"] is not None else path and Path(path)
    return value


def is_file(value: Any) -> bool:
    """Tell whether this is an image file: its path, also as text, or its bytes."""
    if isinstance(value, str):
        return is_image_name(value)
    return isinstance(value, os.PathLike) or is_image_bytes(value)


def holds_files(location: Any) -> bool:
    """Tell whether this is a sequence of samples whose images are all files.

    That is a list or tuple, or a dataset of Hugging Face's that does not decode images.
    """
    features = getattr(location, "features", None)
    if isinstance(features, Mapping) and hasattr(location, "__len__"):
        able = any(getattr(feature, "decode", True) is False for feature in features.values())
    else:  # a named tuple is one sample
        able = isinstance(location, (list, tuple)) and not hasattr(location, "_fields")
    count = min(PEEK, len(location)) if able else 0
    rows = [values_of(location[at], ()) for at in range(count)]
    return bool(rows) and all(
        any(map(is_file, row.values())) and not any(map(_is_picture, row.values())) for row in rows
    )


def _is_picture(value: Any) -> bool:
    """Tell whether this is an image in memory."""
    if isinstance(value, (np.ndarray, np.generic)) or _is_tensor(value):
        return len(value.shape) > 2 or (len(value.shape) == 2 and "uint8" in str(value.dtype))
    return isinstance(value, Image.Image)


def _is_target(value: Any) -> bool:
    """Tell whether this is a dict of fields, not a file of Hugging Face's."""
    return isinstance(value, Mapping) and "image" not in value and file_of(value) is value


def values_of(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a sample's values by field name; undecoded images of Hugging Face's as files."""
    named = _named(item)
    if named is None:
        if not isinstance(item, (tuple, list)):
            item = (item,)
        if len(names) != len(item):
            names = ["image", "label", *(f"field{k}" for k in range(2, len(item)))][: len(item)]
        named = dict(zip(names, item, strict=True))
    return {name: file_of(value) for name, value in named.items()}


def _named(item: Any) -> dict[str, Any] | None:
    """Return a sample that names its values as a dict; None for any other.

    Detection datasets of torchvision yield an image, and a dict of the rest.
    """
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, (tuple, list)) and len(item) == 2 and _is_target(item[1]):
        return {"image": item[0], **item[1]}
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return dict(item._asdict()) if hasattr(item, "_asdict") else None
