"""``tf.train.Example``, TensorFlow's record of named values, without TensorFlow.

The message is described here at run time and read by Google's protobuf library; its features
become fields.  Source: ``tensorflow/core/example/example.proto`` and ``feature.proto``.

TensorFlow's Object Detection API writes objects: ``image/object/bbox/{xmin,ymin,xmax,ymax}`` are
lists of floats, parts of the picture's width and height; ``image/object/class/{label,text}`` are
the numbers and the names of the classes.  Source: ``research/object_detection/dataset_tools`` of
``github.com/tensorflow/models``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.schema import ArrayField, BytesField, Field, ScalarField, StringField

from ..annotations.annotated import check_parts, frame_of
from ..class_names import known_numbers
from ..exported import array_of, needs_shape
from ..field_names import BOXES, IMAGES, LABELS, first_called
from ..fields import BOXES as BOXES_FIELD
from ..fields import image_field
from ..image_files import is_image_bytes
from ..refusals import require

__all__ = [
    "OBJECTS",
    "Objects",
    "class_texts",
    "example_of",
    "exported_value",
    "field_of_feature",
    "has_objects",
    "parse_example",
    "usual_boxes",
    "usual_features",
    "value_of_feature",
    "values_of",
]

_EXAMPLE = """
syntax: "proto3" name: "fastdata_example.proto" package: "fastdata"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type_name: "Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 type_name: "Entry" label: LABEL_REPEATED } }
message_type { name: "Example" field { name: "features" number: 1 type_name: "Features" } }
"""
"""A map is, on the wire, a list of entries; a key that stands twice counts as last."""


# The names in TensorFlow's own datasets, then usual names.
_IMAGES = ("image/encoded", "image/raw", *IMAGES)
_LABELS = ("image/class/label", *LABELS)


@functools.cache
def _example() -> Any:
    """Return the class of an Example."""
    require("google.protobuf", "tfrecord", "reading TFRecord files")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fastdata.Example"))


def parse_example(data: bytes) -> dict[str, Any]:
    """Return the features of an Example by name, as protobuf has them.

    Raises ValueError if the bytes are no Example.
    """
    from google.protobuf.message import DecodeError

    message = _example()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example: {error}") from error
    return {entry.key: entry.value for entry in message.features.feature}


def example_of(features: Iterable[tuple[str, str, Sequence[Any]]]) -> bytes:
    """Return an Example of names, kinds (``bytes_list``, ``float_list``, ...) and values."""
    message = _example()()
    add = message.features.feature.add
    for name, kind, values in features:
        held = getattr(add(key=name).value, kind)
        held.SetInParent()  # an empty list has its kind too
        held.value.extend(values)
    data: bytes = message.SerializeToString()
    return data


def values_of(feature: Any) -> Sequence[Any]:
    """Return the values of a feature: bytes, floats or integers; none where it is empty."""
    kind = feature.WhichOneof("kind")
    return () if kind is None else getattr(feature, kind).value


def usual_features(examples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Choose the features that are called as images and labels usually are.

    Feature by field: ``image``, and ``label`` if there are numbers for it.
    """
    first: dict[str, Any] = {}
    for example in examples:
        for name, feature in example.items():
            first.setdefault(name, values_of(feature))
    images = [name for name, values in first.items() if _is_image(values)]
    if not images:
        return {"image": _IMAGES[0], "label": _LABELS[0]}
    image = first_called(images, _IMAGES) or images[0]
    numbers = [name for name, values in first.items() if values and isinstance(values[0], int)]
    label = first_called(numbers, _LABELS)
    return {"image": image} if label is None else {"image": image, "label": label}


def usual_boxes(examples: Sequence[Mapping[str, Any]], known: Sequence[str]) -> dict[str, str]:
    """Choose the feature of boxes and that of their classes, if there are any.

    known: features that are boxes; other features are recognised by their names.
    """
    there = {name: values_of(value) for example in examples for name, value in example.items()}
    called = [
        name
        for name, values in sorted(there.items())
        if name.rpartition("/")[2].lower() in BOXES
        and not (len(values) % 4 or (values and isinstance(values[0], bytes)))
    ]
    boxes = next((name for name in (*known, *called) if name in there), None)
    if boxes is None:
        return {}
    group, _, last = boxes.rpartition("/")
    labels = {"labels": f"{group}/label"} if f"{group}/label" in there else {}
    return {"boxes" if boxes in known else last: boxes, **labels}


def _is_image(values: Sequence[Any]) -> bool:
    return len(values) == 1 and isinstance(values[0], bytes) and is_image_bytes(values[0])


def field_of_feature(features: Sequence[Any], channels: int, name: str) -> Field:
    """Return the field for a feature, from that of some records, as protobuf has it.

    The `name` of the field says whether an image is a mask.
    """
    columns = [values_of(feature) for feature in features]
    first = next((column[0] for column in columns if column), None)
    if isinstance(first, bytes):
        if is_image_bytes(first):
            return image_field(name, channels)
        return StringField() if all(map(_is_text, columns)) else BytesField()
    # An empty list has only a kind.
    kinds = {feature.WhichOneof("kind") for feature in features}
    dtype = "float32" if "float_list" in kinds else "int64"
    if name.lower() in BOXES and not any(len(column) % 4 for column in columns):
        return ArrayField(dtype, (None, 4))
    lengths = {len(column) for column in columns}
    if lengths == {1}:
        return ScalarField(dtype)
    length = lengths.pop() if len(lengths) == 1 else 0
    return ArrayField(dtype, (length or None,))


def _is_text(column: Sequence[bytes]) -> bool:
    try:
        return all(value.decode() is not None for value in column)
    except UnicodeDecodeError:
        return False


def value_of_feature(feature: Any, field: Field, name: str) -> Any:
    """Return the value of a feature as its field takes it.

    Raises ValueError if there is not one value where the field is for one.
    """
    values = values_of(feature)
    if isinstance(field, ArrayField):
        return _shaped(list(values), field)
    if len(values) != 1:
        remedy = "" if not values or isinstance(values[0], bytes) else "; name its field an array"
        raise ValueError(f"the feature {name!r} has {len(values)} values, not one{remedy}")
    value = values[0]
    if isinstance(field, StringField) and isinstance(value, bytes):
        return value.decode()
    return value


def _shaped(values: list[Any], field: ArrayField) -> Any:
    """Return the values in the field's shape, as far as their number has one; else as they are.

    Examples have lists only: boxes stand in them one behind the other.
    """
    lengths = [-1 if length is None else length for length in field.shape]
    known = math.prod(length for length in lengths if length >= 0)
    if len(lengths) == 1 or lengths.count(-1) != 1 or not known or len(values) % known:
        return values
    return np.array(values, None if values else field.dtype).reshape(lengths)


def exported_value(example: Mapping[str, Any], feature: str, field: Field) -> Any:
    """Return a value that ``fastdata export`` wrote, for `convert`.

    Raises ValueError if it does not fit its field.
    """
    if not isinstance(field, (ScalarField, ArrayField)):
        return value_of_feature(example[feature], field, feature)
    held = example[feature]
    kind, values = held.WhichOneof("kind"), values_of(held)
    if kind == "bytes_list":
        if field.dtype != "float64" or len(values) != 1 or len(values[0]) % 8:
            raise ValueError(f"the feature {feature!r} has bytes that are not {field.dtype}")
        entries = np.frombuffer(values[0], "<f8")
    else:
        dtype = np.float32 if kind == "float_list" else np.int64
        entries = np.fromiter(values, dtype, len(values))
    if isinstance(field, ScalarField):
        return entries
    shape = None
    if needs_shape(field):
        lengths = f"{feature}/shape"
        if lengths not in example:
            raise ValueError(f"the feature {lengths!r} is missing")
        shape = [int(length) for length in values_of(example[lengths])]
    return array_of(entries, field, shape, feature)


# -- objects ----------------------------------------------------------------------------


_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_SIZE = ("image/height", "image/width")
OBJECTS = {*_SIDES, _LABEL, _TEXT}
"""The features that are read."""


class Objects(NamedTuple):
    """How the objects of an Example become boxes and labels."""

    names: tuple[str, ...] | None  # of the classes
    named: bool  # whether records have the names of their classes, which count; else numbers do
    check_size: bool

    @property
    def fields(self) -> dict[str, Field]:
        """The fields."""
        return {"boxes": BOXES_FIELD, "labels": ArrayField("int64", (None,), classes=self.names)}

    def values(self, example: Mapping[str, Any], image: bytes) -> tuple[Any, Any]:
        """Return boxes, in pixels of the image file, and labels.

        Raises ValueError if features have different lengths or impossible values.
        """
        sides = [_listed(example, name) for name in _SIDES]
        classes = list(_listed(example, _TEXT if self.named else _LABEL))
        counts = [*map(len, sides), len(classes)]
        if len(set(counts)) > 1:
            raise ValueError(
                f"{', '.join(_SIDES)} and the classes have {counts} values, not as many each"
            )
        parts = np.array(sides, np.float64).T.reshape(-1, 4)
        check_parts(parts)
        size = [int(value) for name in _SIZE for value in _listed(example, name)[:1]]
        said = (size[0], size[1]) if len(size) == 2 else None
        frame = frame_of(image, said, self.check_size)
        boxes = frame.boxes(parts * (frame.width, frame.height, frame.width, frame.height))
        if self.named:
            assert self.names is not None
            known = known_numbers(self.names)
            unknown = [name for name in map(_text, classes) if name not in known]
            if unknown:
                raise ValueError(f"the class {unknown[0]!r} is not known")
            classes = [known[_text(name)] for name in classes]
        return boxes.astype(np.float32), np.array(classes, np.int64)


def has_objects(examples: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether Examples have boxes, as four features."""
    return any(all(name in example for name in _SIDES) for example in examples)


def class_texts(example: Mapping[str, Any]) -> list[str]:
    """Return the names that an Example has for the classes of its objects."""
    return [_text(name) for name in _listed(example, _TEXT)]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _listed(example: Mapping[str, Any], name: str) -> Sequence[Any]:
    return values_of(example[name]) if name in example else ()
