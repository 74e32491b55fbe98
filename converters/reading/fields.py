"""What kind of field a value is, and the kinds users can name.

Sources that do not say what their fields are (a CSV, a Python iterable) are
read by these rules; ``fields={"name": "kind"}`` overrules them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)

from .class_names import numbered
from .field_names import IMAGES, MASKS, is_mask_name
from .image_files import is_image_bytes, is_image_name

__all__ = [
    "BOXES",
    "KINDS",
    "check_names",
    "convert",
    "field_of",
    "image_field",
    "is_pixels",
    "named_field",
    "nested_array",
    "resolve_fields",
    "to_numpy",
]

BOXES = ArrayField("float32", (None, 4), boxes=True)
"""The field of boxes: left, top, right, bottom, in pixels."""

KINDS = ("image", "mask", "label", "int", "float", "bool", "string", "bytes", "array", "boxes")
"""What ``fields=`` and ``--field`` take for a field's kind."""


def named_field(kind: Field | str, channels: int) -> Field:
    """Return the field that a user's word for it means."""
    if not isinstance(kind, str):
        return kind
    fields: dict[str, Field] = {
        "image": ImageField(channels=channels),
        "mask": ImageField(channels=1, mask=True),
        "label": ScalarField("int64"),
        "int": ScalarField("int64"),
        "float": ScalarField("float64"),
        "bool": ScalarField("bool"),
        "string": StringField(),
        "bytes": BytesField(),
        "array": ArrayField("float32", (None,)),
        "boxes": BOXES,
    }
    if kind not in fields:
        raise OptionError(f"field kind {kind!r} is not one of {', '.join(KINDS)}")
    return fields[kind]


def resolve_fields(
    names: Iterable[str],
    fields: Mapping[str, Field | str] | None,
    channels: int,
    own: Callable[[str], Field],
) -> dict[str, Field]:
    """Return the field of each name: what the user says that it is, else the source's own.

    own: takes a name; asked only for fields that the user does not name.
    """
    fields, names = fields or {}, list(names)
    check_names(fields, names)
    return {
        name: named_field(fields[name], channels) if name in fields else own(name) for name in names
    }


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Return an array, a tensor or a nested list of numbers as a NumPy array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def field_of(values: Sequence[Any], channels: int, name: str = "") -> Field:
    """Infer a field from some samples' values of it.

    Dimensions in which the values differ are variable; so where all happen
    to agree but later ones will not, name the field in ``fields=``.
    """
    first = values[0]
    if isinstance(first, (Image.Image, os.PathLike)) or is_image_bytes(first):
        return image_field(name, channels)
    if name.lower() in IMAGES + MASKS and all(map(_is_image_path, values)):
        return image_field(name, channels)
    if isinstance(first, (bool, np.bool_)):
        return ScalarField("bool")
    if isinstance(first, (int, float)) and not isinstance(first, np.generic):
        return ScalarField("float64" if any(isinstance(v, float) for v in values) else "int64")
    if isinstance(first, str):
        return StringField()
    if isinstance(first, (bytes, bytearray, memoryview)):
        return BytesField()
    try:
        arrays = [to_numpy(value) for value in values]
    except Exception as error:
        raise SourceError(f"field {name!r}: a {type(first).__name__} cannot be stored") from error
    kinds = {array.dtype for array in arrays}
    dtype = np.result_type(*kinds).name if all(k.kind in "biuf" for k in kinds) else "object"
    if dtype not in SCALAR_DTYPES:
        raise SourceError(
            f"field {name!r}: a {type(first).__name__} of dtype {arrays[0].dtype} cannot be "
            f"stored. Fields are images, text, bytes and numbers of {', '.join(SCALAR_DTYPES)}."
        )
    if is_pixels(arrays[0]):
        return image_field(name, channels)
    shapes = {array.shape for array in arrays}
    if len({len(shape) for shape in shapes}) != 1:
        raise SourceError(f"field {name!r}: arrays have different numbers of dimensions: {shapes}")
    if shapes == {()}:
        return ScalarField(dtype)
    lengths = zip(*shapes, strict=True)
    return ArrayField(dtype, tuple(n[0] if len(set(n)) == 1 else None for n in map(list, lengths)))


def _is_image_path(value: Any) -> bool:
    return isinstance(value, str) and is_image_name(value)


def image_field(name: str, channels: int) -> ImageField:
    """Return the field for images; of masks where they are called so."""
    if is_mask_name(name):
        return ImageField(channels=1, mask=True)
    return ImageField(channels=channels)


def is_pixels(array: np.ndarray[Any, Any]) -> bool:
    """Tell whether this looks like an image: uint8, H x W (x 1 or 3), or 1 or 3 x H x W."""
    if array.dtype != np.uint8:
        return False
    return array.ndim == 2 or (
        array.ndim == 3 and (array.shape[2] in (1, 3) or array.shape[0] in (1, 3))
    )


def convert(value: Any, field: Field, name: str) -> Any:
    """Bring a value into the form that its field's column takes."""
    if isinstance(field, ImageField):
        return _convert_image(value, name)
    if isinstance(field, StringField):
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is a {type(value).__name__}, not text")
        value.encode()  # lone surrogates are no text; UnicodeEncodeError is a ValueError
        return value
    if isinstance(field, ScalarField) and field.classes is not None and isinstance(value, str):
        value = _class_number(value, field.classes, name)
    if type(value) is int and isinstance(field, ScalarField) and field.dtype == "int64":
        # A label, in a tenth of the time that it takes below.
        with contextlib.suppress(OverflowError):
            return _checked(np.int64(value), field, name)
    if isinstance(field, BytesField):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise ValueError(f"{name!r} is a {type(value).__name__}, not bytes")
        return bytes(value)
    try:
        array = to_numpy(value)
    except Exception as error:  # a user's object may raise anything
        raise ValueError(f"{name!r} is a {type(value).__name__}, not numbers") from error
    if isinstance(field, ScalarField):
        if array.size != 1:
            raise ValueError(f"{name!r} has shape {array.shape}, not one number")
        array = array.reshape(())
    else:
        fits = len(array.shape) == len(field.shape) and all(
            want in (None, have) for have, want in zip(array.shape, field.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{name!r} has shape {array.shape}, not {field.shape}; where lengths vary, say so: "
                f"fields={{{name!r}: ArrayField({field.dtype!r}, {(None,) * array.ndim})}}"
            )
    if array.dtype.kind not in "biuf":
        # Python's own integers beyond 64 bits have dtype object.
        raise ValueError(f"{name!r}: {_shown(value)} does not fit {field.dtype}")
    if array.dtype == field.dtype:
        result = array.copy()
    else:
        with np.errstate(all="ignore"):
            result = array.astype(field.dtype)
        if not _same(array, result):
            raise ValueError(f"{name!r}: {_shown(value)} does not fit {field.dtype}")
    return _checked(result[()] if isinstance(field, ScalarField) else result, field, name)


_NO_LABEL = -1
"""What Hugging Face's ``datasets`` has where a sample has no label."""


def _checked(value: Any, field: ScalarField | ArrayField, name: str) -> Any:
    """Return class numbers; ValueError if one is beyond the names of the classes."""
    if field.classes is None or value.size == 0:
        return value
    lowest, highest = value.min(), value.max()
    if lowest < _NO_LABEL or highest >= len(field.classes):
        wrong = lowest if lowest < _NO_LABEL else highest
        raise ValueError(
            f"{name!r} is {wrong}, and there are {len(field.classes)} classes: 0 to "
            f"{len(field.classes) - 1}"
        )
    return value


_numbers = functools.lru_cache(16)(numbered)


def _class_number(text: str, classes: tuple[str, ...], name: str) -> int:
    number = _numbers(classes).get(text.strip())
    if number is None:
        raise ValueError(f"{name!r} is {text!r:.60}, which is none of its {len(classes)} classes")
    return number


def _convert_image(value: Any, name: str) -> Any:
    """Bring an image into a form that can be sent to a worker."""
    if isinstance(value, Image.Image):
        value.load()  # else a broken file would show only while it is sent
        return value
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    array = to_numpy(value)
    if array.dtype == object:
        raise ValueError(f"{name!r} is a {type(value).__name__}, not an image")
    return array


def nested_array(values: Any, field: ArrayField) -> np.ndarray[Any, Any]:
    """Return nested lists as an array; of an empty list the field says what is inside."""
    array = np.asarray(values)
    if array.size == 0 and array.ndim < len(field.shape):
        missing = field.shape[array.ndim :]
        return np.zeros((*array.shape, *(length or 0 for length in missing)), field.dtype)
    return array


def _same(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> bool:
    """Tell whether a conversion kept values (floats may lose precision)."""
    if after.dtype.kind == "f":
        return bool(np.array_equal(np.isfinite(before), np.isfinite(after)))
    return bool(np.array_equal(before, after))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_names(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse names in ``fields=`` that the source does not have."""
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise OptionError(f"fields {unknown} are not in the source, which has {list(known)}")
