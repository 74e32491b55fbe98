"""What kind of field a value is, and the kinds users can name.

Sources that do not say what their fields are (a CSV, a Python iterable) are
read by these rules; ``fields={"name": "kind"}`` overrules them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from fastdata.codecs import Pixels
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    StringField,
)

from .box_forms import BoxNumbers, fitting_forms
from .class_names import numbered
from .field_names import BOXES as BOX_NAMES
from .field_names import LABELS, is_image_name, is_mask_name
from .image_files import is_image_bytes
from .image_files import is_image_name as is_image_file

__all__ = [
    "BOXES",
    "KINDS",
    "check_names",
    "convert",
    "field_of",
    "image_field",
    "is_whole_label",
    "named_field",
    "nested_array",
    "pixels_of",
    "resolve_boxes",
    "resolve_fields",
    "to_numpy",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

_LEAST_SIDE = 8
"""The least side, in pixels, of an image that is the first array of a tuple."""
_CHANNELS = (1, 3, 4)
_ROUNDING = 1e-3
"""How far floats from 0 to 1, times 255, may be from whole numbers."""

_A = {"image": "an image", "mask": "a mask"}

BOXES = ArrayField("float32", (None, 4), boxes=True)
"""The field of boxes: left, top, right, bottom, in pixels."""
CORNERS = BoxNumbers("xyxy", "pixels")

_MASK = ImageField(channels=1, mask=True)
_FIELDS: dict[str, Field] = {
    "image": ImageField(),
    "mask": _MASK,
    "label": ScalarField("int64"),
    "int": ScalarField("int64"),
    "float": ScalarField("float64"),
    "bool": ScalarField("bool"),
    "string": StringField(),
    "bytes": BytesField(),
    "array": ArrayField("float32", (None,)),
    "boxes": BOXES,
}
KINDS = tuple(_FIELDS)
"""What ``fields=`` and ``--field`` take for a field's kind."""


def named_field(kind: Field | str, channels: int) -> Field:
    """Return the field that a user's word for it means."""
    if not isinstance(kind, str):
        return kind
    if kind not in _FIELDS:
        raise OptionError(f"field kind {kind!r} is not one of {', '.join(KINDS)}")
    return ImageField(channels=channels) if kind == "image" else _FIELDS[kind]


def resolve_fields(
    names: Iterable[str],
    fields: Mapping[str, Field | str] | None,
    channels: int,
    own: Callable[[str], Field],
) -> dict[str, Field]:
    """Return the field of each name: the user's, else the source's own.

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


def field_of(
    values: Sequence[Any],
    channels: int,
    name: str,
    notes: list[str] | None = None,
    *,
    leading: bool = False,
) -> Field:
    """Infer a field from its name and from its values in some samples.

    Dimensions in which the values differ are variable; so where all happen
    to agree but later ones will not, name the field in ``fields=``.

    notes: a list for remarks to the user.
    leading: whether this is the first value of a tuple, or the only one.  Then it is an image if it
        looks like one; else only if it is called so.
    """
    first = values[0]
    if isinstance(first, (Image.Image, os.PathLike)) or is_image_bytes(first):
        return image_field(name, channels)
    if (is_image_name(name) or is_mask_name(name)) and all(map(_is_image_path, values)):
        return image_field(name, channels)
    if isinstance(first, (bool, np.bool_)):
        return ScalarField("bool")
    if isinstance(first, (int, float)) and not isinstance(first, np.generic):
        floats = [value for value in values if isinstance(value, float)]
        return ScalarField("float64" if floats and not is_whole_label(name, floats) else "int64")
    if isinstance(first, str):
        return StringField()
    if isinstance(first, (bytes, bytearray, memoryview)):
        return BytesField()
    try:
        arrays = [to_numpy(value) for value in values]
    except Exception as error:
        raise SourceError(f"field {name!r}: a {type(first).__name__} cannot be stored") from error
    meant = _meant(arrays, channels, name, [] if notes is None else notes, leading)
    if meant is not None:
        return meant
    # NumPy makes float64 of shape (0,) of an empty list, whatever other lists have.
    told = [a for a, v in zip(arrays, values, strict=True) if a.size or not isinstance(v, list)]
    told = told or arrays
    kinds = {array.dtype for array in told}
    dtype = np.result_type(*kinds).name if all(k.kind in "biuf" for k in kinds) else "object"
    if dtype not in SCALAR_DTYPES:
        raise SourceError(
            f"field {name!r}: a {type(first).__name__} of dtype {arrays[0].dtype} cannot be "
            f"stored. Fields are images, text, bytes and numbers of {', '.join(SCALAR_DTYPES)}. "
            'Yield a dict of such fields: {"image": ..., "boxes": [N, 4], "labels": [N]}'
        )
    shapes = {array.shape for array in told}
    if len({len(shape) for shape in shapes}) != 1:
        raise SourceError(f"field {name!r}: arrays have different numbers of dimensions: {shapes}")
    if shapes == {()}:
        return ScalarField("int64" if is_whole_label(name, arrays) else dtype)
    lengths = [each[0] if len(set(each)) == 1 else None for each in zip(*shapes, strict=True)]
    return ArrayField(dtype, (None if len(told) < len(arrays) else lengths[0], *lengths[1:]))


def _meant(
    arrays: Sequence[Array], channels: int, name: str, notes: list[str], leading: bool
) -> Field | None:
    """Return the field of images or masks that arrays are; None if they are neither.

    Raises SourceError if they are called so and cannot be.
    """
    shape, kind = arrays[0].shape, arrays[0].dtype.kind
    if len(shape) < 2 or kind not in "biuf":
        return None
    mask, called = is_mask_name(name), is_image_name(name) and not leading
    field = image_field(name, channels)
    if not (mask or called or (leading and _may_be_image(arrays))):
        plain = arrays[0].dtype == np.uint8
        if _has_channels(shape) and (plain or sorted(shape)[-2] >= _LEAST_SIDE):
            word = "image" if plain else "mask"
            remedy = f' (fields={{{name!r}: "{word}"}} makes it {_A[word]})' if kind != "f" else ""
            notes.append(
                f"field {name!r} of shape {shape} is stored as an array, which no transform "
                f"changes{remedy}"
            )
        return None
    several = kind == "f" or (mask and len(shape) == 3)  # of instances, or of classes
    for array in arrays if several else arrays[:1]:  # others are rejects, each for itself
        try:
            pixels_of(array, field)
        except ValueError as error:
            what = _A["mask" if mask else "image"]
            as_array = f"fields={{{name!r}: ArrayField({array.dtype.name!r}, {array.shape})}}"
            raise SourceError(
                f"field {name!r} of dtype {array.dtype} and shape {array.shape} is not {what}: "
                f"{error}. Make it one, or name it an array, which no transform changes: {as_array}"
            ) from None
    if kind == "f":
        scaled = "" if mask else "times 255, "
        notes.append(f"field {name!r} has floats, which are stored {scaled}as uint8")
    return field


def _may_be_image(arrays: Sequence[Array]) -> bool:
    """Tell whether the first value of a tuple looks like one image or several, usable or not.

    Matrices of floats are images only if they are whole numbers divided by 255.
    """
    shape, dtype = arrays[0].shape, arrays[0].dtype
    last = len(shape) > 2 and shape[-1] in _CHANNELS
    if not _has_channels(shape) or min(shape[-3:-1] if last else shape[-2:]) < _LEAST_SIDE:
        return False
    if len(shape) == 2 and dtype.kind == "f":
        with contextlib.suppress(ImageError):
            return all(_from_unit(array).ndim == 2 for array in arrays)
        return False
    return dtype in (np.uint8, np.uint16) or dtype.kind == "f"


def _has_channels(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or shape[-1] in _CHANNELS or shape[-3] in _CHANNELS


def is_whole_label(name: str, values: Iterable[Any]) -> bool:
    """Tell whether these are floats, 0.0 and 1.0, that number classes; NaN is a missing label."""
    known = [v for v in values if not _is_nan(v)] if name.lower() in LABELS else []
    numbers = all(isinstance(value, (int, float, np.ndarray)) for value in known)
    return bool(known) and numbers and all(float(value).is_integer() for value in known)


def _is_nan(value: Any) -> bool:
    return bool(np.size(value) == 1 and value != value)


def _is_image_path(value: Any) -> bool:
    return isinstance(value, str) and is_image_file(value)


def image_field(name: str, channels: int) -> ImageField:
    """Return the field for images; of masks where they are called so."""
    return _MASK if is_mask_name(name) else ImageField(channels=channels)


# -- boxes ------------------------------------------------------------------------------


def resolve_boxes(
    fields: dict[str, Field],
    columns: Mapping[str, Sequence[Any]],
    option: BoxNumbers,
    given: Mapping[str, Field | str],
    notes: list[str],
) -> dict[str, BoxNumbers]:
    """Make boxes of the fields that are called so; return form and unit of each that is converted.

    columns: some samples' values of each field.
    option: form and unit from the user.
    given: the fields that the user names.
    """
    forms: dict[str, BoxNumbers] = {}
    images = [name for name, field in fields.items() if isinstance(field, ImageField)]
    for name, field in fields.items():
        by_user = name in given and isinstance(field, ArrayField) and field.boxes
        called = name.lower() in BOX_NAMES and name not in given
        if not images or not isinstance(field, ArrayField) or not (by_user or called):
            continue
        some = [to_numpy(value) for value in columns[name]]
        if not by_user and not all(array.shape[-1:] == (4,) or not array.size for array in some):
            raise SourceError(
                f"field {name!r} of shape {some[0].shape} has not 4 numbers for each box. Leave it "
                f"out, or name it an array, which no transform changes: fields={{{name!r}: "
                f"ArrayField({field.dtype!r}, {field.shape})}}"
            )
        form = option if option.form or by_user else _form_of(name, some, columns[images[0]], notes)
        if form.form and form != CORNERS:
            forms[name] = form
        fields[name] = field if by_user else BOXES
        # Labels have a number for each box, even if each of these samples has one box.
        counts = [len(boxes) for boxes in columns[name]]
        for other, numbers in fields.items():
            if other in given or not isinstance(numbers, ArrayField) or numbers.boxes:
                continue
            if [len(value) for value in columns[other]] == counts:
                fields[other] = dataclasses.replace(numbers, shape=(None, *numbers.shape[1:]))
    if option.form and not any(isinstance(f, ArrayField) and f.boxes for f in fields.values()):
        raise OptionError(f"boxes={','.join(option)}: none of the fields {', '.join(fields)} is")
    return forms


def _form_of(
    name: str, boxes: Sequence[Array], images: Sequence[Any], notes: list[str]
) -> BoxNumbers:
    """Return form and unit of boxes; SourceError if they are not clear."""
    if name.lower() == "boxes":
        if CORNERS in fitting_forms(boxes, [None] * len(boxes)) or not any(b.size for b in boxes):
            return CORNERS
        problem = "are not left, top, right and bottom in pixels"
    else:
        fitting = fitting_forms(boxes, list(map(_size_of, images)))
        if len(fitting) == 1:
            notes.append(
                f"field {name!r}: boxes are {', '.join(fitting[0])}, as no other form fits "
                "(--option boxes=FORM,UNIT)"
            )
            return fitting[0]
        problem = "may be of several forms" if fitting else "are of no form that fits all samples"
    shown = next((each.reshape(-1, 4)[0].tolist() for each in boxes if each.size), "empty")
    raise SourceError(
        f"field {name!r}: its boxes {problem}; the first is {shown}. Name their form, e.g. "
        '--option boxes=xywh,pixels or source_options={"boxes": ("xyxy", "normalised")}: xyxy, '
        "xywh, cxcywh or yxyx, and pixels or normalised"
    )


def _size_of(image: Any) -> tuple[int, int] | None:
    """Return height and width of an image; None if it cannot be read."""
    from fastdata.codecs.image_header import size_of

    try:
        if isinstance(image, (str, os.PathLike)):
            image = read_regular(Path(image))
        if isinstance(image, (bytes, bytearray, memoryview)):
            return size_of(bytes(image), turned=False)
        height, width, _ = pixels_of(image, ImageField()).shape
        return height, width
    except (OSError, ValueError):  # an ImageError is a ValueError
        return None


# -- pixels -----------------------------------------------------------------------------


def pixels_of(value: Any, field: ImageField) -> Pixels:
    """Return pixels in memory, a PIL image, an array or a tensor, as uint8, H x W x channels.

    Images are uint8, or floats that are such divided by 255; H x W, H x W x C or C x H x W with 1,
    3 or 4 channels.  Masks are whole numbers up to 255 of any dtype, or one channel for each class.

    Raises ValueError if the value is neither.
    """
    # They need OpenCV, 20 MB that opening a source of files does not.
    from fastdata.codecs.image import contiguous
    from fastdata.codecs.lossy_masks import thresholded
    from fastdata.codecs.pillow import to_pixels

    if isinstance(value, Image.Image):
        if field.mask and (pixels := thresholded(value)) is not None:
            return pixels
        return to_pixels(value, field.channels, mask=field.mask)
    array = to_numpy(value)
    shape = array.shape
    if array.dtype == object:
        raise ImageError(f"a {type(value).__name__} is not an image")
    if array.ndim not in (2, 3) or 0 in shape:
        raise ImageError(f"an array of shape {shape} is not an image")
    if array.ndim == 2:
        array = array[:, :, None]
    if field.mask:
        return contiguous(_class_numbers(array))
    if array.dtype.kind == "f":
        array = _from_unit(array)
    if array.dtype != np.uint8:
        raise ImageError(f"pixels are {array.dtype}, not uint8")
    if array.shape[2] not in (1, 3) and (array.shape[0] in (1, 3) or array.shape[2] != 4):
        array = array.transpose(1, 2, 0)
    if array.shape[2] == field.channels:
        return contiguous(array)
    if array.shape[2] not in _CHANNELS:
        raise ImageError(f"an array of shape {shape} has not 1, 3 or 4 channels")
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    return to_pixels(image, field.channels)


def _from_unit(array: Array) -> Array:
    """Return floats from 0 to 1 as the uint8 pixels that they were made of."""
    with np.errstate(all="ignore"):
        scaled = array.astype(np.float64) * 255
        whole = np.rint(scaled)
        exact = np.abs(scaled - whole) <= _ROUNDING
    if not (exact.all() and whole.min() >= 0 and whole.max() <= 255):  # or NaN
        raise ImageError(
            f"pixels from {array.min():g} to {array.max():g} are not whole numbers from 0 to 255 "
            "divided by 255: scale them to these"
        )
    return whole.astype(np.uint8)


def _class_numbers(array: Array) -> Array:
    """Return a mask, of H x W x C or C x H x W, as uint8, H x W x 1."""
    if array.shape[2] != 1:
        array = array.transpose(1, 2, 0) if array.shape[0] == 1 else _from_one_hot(array)
    result = array
    if array.dtype != np.uint8:
        with np.errstate(all="ignore"):
            result = array.astype(np.uint8)
        if array.dtype.kind not in "biuf" or not np.array_equal(array, result):
            raise ImageError(
                f"a mask of {array.dtype} from {array.min()} to {array.max()} has numbers that are "
                "not whole or not from 0 to 255"
            )
    return result


def _from_one_hot(array: Array) -> Array:
    """Return the number of the one channel that is 1 at each pixel, H x W x 1."""
    ones = ((array == 0) | (array == 1)).all()
    for axis in sorted((0, 2), key=array.shape.__getitem__):
        if ones and array.shape[axis] <= 256 and (array.sum(axis) == 1).all():
            return np.expand_dims(array.argmax(axis), 2)
    raise ImageError(f"a mask of shape {array.shape} has neither 1 channel nor one for a class")


# -- values -----------------------------------------------------------------------------


def convert(value: Any, field: Field, name: str) -> Any:
    """Bring a value into the form that its field's column takes; images stay as they are."""
    if isinstance(field, ImageField):
        return value
    if isinstance(field, StringField):
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is a {type(value).__name__}, not text")
        value.encode()  # lone surrogates are not text; UnicodeEncodeError is a ValueError
        return value
    if isinstance(field, ScalarField) and field.classes is not None and isinstance(value, str):
        value = _class_number(value, field.classes, name)
    if type(value) is int and isinstance(field, ScalarField) and field.dtype == "int64":
        # A label, in a tenth of the time that it takes below.
        if field.classes is not None and _NO_LABEL <= value < len(field.classes):
            return np.int64(value)
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
        if field.boxes and field.shape == (None, 4) and array.shape == (4,):
            array = array[None]  # one box
        if isinstance(value, list):
            array = nested_array(array, field)
        fits = len(array.shape) == len(field.shape) and all(
            want in (None, have) for have, want in zip(array.shape, field.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{name!r} has shape {array.shape}, not {field.shape}; where lengths vary, say so: "
                f"fields={{{name!r}: ArrayField({field.dtype!r}, {(None,) * array.ndim})}}"
            )
    if name == "label" and array.dtype.kind == "f" and _is_nan(array):
        raise ValueError(f"{name!r} is NaN: the label is missing")
    fits = array.dtype.kind in "biuf"  # Python's own integers beyond 64 bits are objects
    if fits:
        with np.errstate(all="ignore"):
            result = array.astype(field.dtype)
        fits = array.dtype == result.dtype or _same(array, result)
    if not fits:
        raise ValueError(f"{name!r}: {value!r:.60} does not fit {field.dtype}")
    return _checked(result[()] if isinstance(field, ScalarField) else result, field, name)


_NO_LABEL = -1
"""What Hugging Face's ``datasets`` has where a sample has no label."""


def _checked(value: Any, field: ScalarField | ArrayField, name: str) -> Any:
    """Return numbers; ValueError if one is beyond the class names."""
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
        raise ValueError(f"{name!r} is {text!r:.60}, not one of its {len(classes)} classes")
    return number


def nested_array(values: Any, field: ArrayField) -> np.ndarray[Any, Any]:
    """Return nested lists as an array; an empty list gets the inner shape of the field."""
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


def check_names(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse names in ``fields=`` that the source does not have."""
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise OptionError(f"fields {unknown} are not in the source, which has {list(known)}")
