"""What a sample is made of: its fields, and the tuple type that holds them.

A `Schema` is an ordered mapping from field name to field.  It is stored as
JSON in every shard, so each class here converts to and from plain dicts, and
checks itself at construction: a schema that exists is a valid one.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fastdata.errors import FormatError, OptionError

__all__ = [
    "ArrayField",
    "BytesField",
    "Field",
    "ImageField",
    "ScalarField",
    "Schema",
    "StringField",
    "record_type",
]

SCALAR_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "float32",
    "float64",
)
"""dtypes that both NumPy and PyTorch have in full."""

_CLASSES_SHOWN = 5
"""Classes that a message about a difference names."""

RESERVED_NAMES = frozenset(
    {"blobs", "column", "columns", "count", "fastdata", "header", "index", "key", "keys"}
)
"""Names a field cannot have: tuple methods, and names of the file layout."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
"""Not `str.isidentifier`, whose answer changes with Python's Unicode tables.  Names
become part of LMDB keys (511 bytes) and of file names while packing (255 bytes).
"""


@dataclass(frozen=True, slots=True)
class ImageField:
    """An image of 8-bit pixels.

    Parameters
    ----------
    channels : {3, 1}
        RGB or grey.
    mask : bool
        Whether pixels are class numbers rather than brightness.  A mask has
        one channel, is stored without loss and resized by nearest neighbour.
    classes : tuple of str, optional
        Names of the class numbers 0, 1, 2, ... of a mask.
    """

    kind: ClassVar[str] = "image"
    channels: int = 3
    mask: bool = False
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _class_names(self.classes))
        if not _is_length(self.channels) or self.channels not in (1, 3):
            raise OptionError(
                f"an image field has 3 (RGB) or 1 (grey) channels, not {self.channels!r}"
            )
        if not _is_bool(self.mask):
            raise OptionError(f"mask is true or false, not {self.mask!r}")
        if self.mask and self.channels != 1:
            raise OptionError("a mask field has 1 channel: its pixels are class numbers")
        if self.classes is not None and not self.mask:
            raise OptionError("an image field has class names only if it is a mask: mask=True")


@dataclass(frozen=True, slots=True)
class ScalarField:
    """One number or bool per sample.

    Parameters
    ----------
    dtype : str
        A NumPy dtype name out of `SCALAR_DTYPES`.
    classes : tuple of str, optional
        Names of the values 0, 1, 2, ... if the number is a class.
    """

    kind: ClassVar[str] = "scalar"
    dtype: str = "int64"
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        object.__setattr__(self, "classes", _class_names(self.classes))


@dataclass(frozen=True, slots=True)
class StringField:
    """Text, stored as UTF-8."""

    kind: ClassVar[str] = "string"


@dataclass(frozen=True, slots=True)
class BytesField:
    """Bytes that fastdata does not interpret."""

    kind: ClassVar[str] = "bytes"


@dataclass(frozen=True, slots=True)
class ArrayField:
    """A numeric array.

    Parameters
    ----------
    dtype : str
        A NumPy dtype name out of `SCALAR_DTYPES`.
    shape : tuple of int or None
        One entry per dimension; None if the length varies between samples.
    boxes : bool
        Whether these are boxes of the sample's images: left, top, right and bottom along
        the last dimension, in pixels of the images as they are stored, from the top left
        corner.  They follow the images through packing and geometric transforms.
    classes : tuple of str, optional
        Names of the values 0, 1, 2, ... if the numbers are classes, e.g. of boxes.

    Examples
    --------
    >>> ArrayField("float32", (None, 4), boxes=True)
    ArrayField(dtype='float32', shape=(None, 4), boxes=True, classes=None)
    """

    kind: ClassVar[str] = "array"
    dtype: str = "float32"
    shape: tuple[int | None, ...] = (None,)
    boxes: bool = False
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "classes", _class_names(self.classes))
        if not 1 <= len(self.shape) <= 8:
            raise OptionError(f"an array field has 1 to 8 dimensions, not {len(self.shape)}")
        for length in self.shape:
            if length is not None and not _is_length(length):
                raise OptionError(f"array dimensions are non-negative int or None, not {length!r}")
        # NumPy cannot make such an array even where another dimension is 0.
        if math.prod(length or 1 for length in self.shape) >= 2**31:
            raise OptionError(f"an array of shape {self.shape} has more than 2**31 entries")
        if not _is_bool(self.boxes):
            raise OptionError(f"boxes is true or false, not {self.boxes!r}")
        if self.boxes and (self.shape[-1] != 4 or self.dtype == "bool"):
            raise OptionError(
                "boxes are numbers (left, top, right, bottom) along the last dimension, so their "
                f"shape ends with 4, e.g. (None, 4); this is {self.dtype} of shape {self.shape}"
            )

    @property
    def fixed(self) -> bool:
        """Whether all samples have one shape."""
        return None not in self.shape


Field: TypeAlias = ImageField | ScalarField | StringField | BytesField | ArrayField

_KINDS: dict[str, type[Any]] = {
    cls.kind: cls for cls in (ImageField, ScalarField, StringField, BytesField, ArrayField)
}


_OMITTED = {("array", "boxes"), ("array", "classes"), ("image", "classes")}
"""Attributes that are not stored where they are empty."""


_LISTS = {"classes", "shape"}
"""Attributes that are lists in JSON, and not empty ones."""


# Schemas come out of files too, so types are checked where annotations promise them.


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not _is_bool(value) and 0 <= value < 2**31


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _class_names(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if not names:
        return None
    for name in names:
        if not _is_text(name) or "\0" in name:
            raise OptionError(f"class names are Unicode text without NUL, not {name!r:.100}")
    return tuple(names)


def _check_dtype(dtype: str) -> None:
    if dtype not in SCALAR_DTYPES:
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join(SCALAR_DTYPES)}")


class Schema(Mapping[str, Field]):
    """An ordered, immutable mapping from field name to field.

    Parameters
    ----------
    fields : mapping
        Names are attributes of a named tuple: a letter, then letters, digits
        and underscores.
    stored : bool
        Whether they come from a file; one whose name has become a keyword of
        Python since is then shown under its position (``_1``).
    """

    def __init__(self, fields: Mapping[str, Field], *, stored: bool = False) -> None:
        if not fields:
            raise OptionError("a schema has at least one field")
        for name, value in fields.items():
            if not _NAME.fullmatch(name):
                raise OptionError(
                    f"field name {name!r} is not a letter followed by up to 99 letters, digits "
                    "and underscores (ASCII)"
                )
            if name in RESERVED_NAMES or (keyword.iskeyword(name) and not stored):
                raise OptionError(f"field name {name!r} is reserved; choose another")
            if type(value) not in _KINDS.values():
                raise OptionError(f"field {name!r} is a {type(value).__name__}, not a field")
        self._fields = dict(fields)
        if self.boxes and not self.images:
            raise OptionError(
                f"field {next(iter(self.boxes))!r} holds boxes of images, but there is no image "
                "field; add one, or say boxes=False"
            )

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self._fields.items()) == list(other._fields.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Schema.from_json, (self.to_json(),))

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{k}={v!r}" for k, v in self._fields.items()) + ")"

    @cached_property
    def images(self) -> dict[str, ImageField]:
        """The image fields, in order."""
        return {k: v for k, v in self._fields.items() if isinstance(v, ImageField)}

    @cached_property
    def boxes(self) -> dict[str, ArrayField]:
        """The fields that hold boxes of the images, in order."""
        return {k: v for k, v in self._fields.items() if isinstance(v, ArrayField) and v.boxes}

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """Class names of the first scalar field that has them, else of an array, else a mask.

        A field `split`, whose classes are not those of pictures, comes last.
        """
        for kind in (ScalarField, ArrayField, ImageField):
            for name, value in self._fields.items():
                if isinstance(value, kind) and value.classes is not None and name != "split":
                    return value.classes
        split = self._fields.get("split")
        return split.classes if isinstance(split, ScalarField) else None

    @cached_property
    def label(self) -> str | None:
        """Name of the number that is a sample's class: `label`, else the first with classes.

        Not `split`.
        """
        if isinstance(self._fields.get("label"), ScalarField):
            return "label"
        scalars = ((k, v) for k, v in self._fields.items() if isinstance(v, ScalarField))
        named = (name for name, value in scalars if value.classes is not None)
        return next((name for name in named if name != "split"), None)

    def difference(self, other: Schema) -> str:
        """Return what is not the same in another schema, for messages; "" if all is."""
        parts = []
        for name in dict.fromkeys([*self, *other]):
            mine, theirs = self.get(name), other.get(name)
            if mine is None or theirs is None:
                parts.append(f"only the {'first' if theirs is None else 'second'} has {name!r}")
            elif mine != theirs:
                parts.append(f"{name!r} {_difference(mine, theirs)}")
        if not parts and list(self) != list(other):
            parts.append(f"their order is {', '.join(self)} and {', '.join(other)}")
        return "; ".join(parts)

    @cached_property
    def sample_type(self) -> Any:
        """The named tuple type of a sample or a batch; see `record_type`."""
        return record_type(tuple(self._fields))

    def to_json(self) -> list[dict[str, Any]]:
        """Return a list with one JSON object a field, in order."""
        out: list[dict[str, Any]] = []
        for name, value in self._fields.items():
            entry: dict[str, Any] = {"name": name, "kind": value.kind}
            for attribute in value.__dataclass_fields__:
                content = getattr(value, attribute)
                if not content and (value.kind, attribute) in _OMITTED:
                    continue  # so that shards without them have the digest as ever
                entry[attribute] = list(content) if isinstance(content, tuple) else content
            out.append(entry)
        return out

    @classmethod
    def from_json(cls, entries: object) -> Schema:
        """Build a schema from `to_json`'s result; `FormatError` if it is none."""
        try:
            if not isinstance(entries, list):
                raise TypeError(f"a list of fields is expected, not {type(entries).__name__}")
            fields: dict[str, Field] = {}
            for entry in entries:
                options = dict(entry)
                name, kind = options.pop("name"), options.pop("kind")
                if name in fields:
                    raise ValueError(f"field {name!r} stands twice")
                if kind not in _KINDS:
                    raise ValueError(f"field {name!r} is of unknown kind {kind!r}")
                for attribute in _LISTS.intersection(options):
                    content = options[attribute]
                    if (content == [] or not isinstance(content, list)) and content is not None:
                        raise ValueError(f"{attribute} of {name!r} is {content!r:.100}")
                    options[attribute] = content and tuple(content)
                fields[name] = _KINDS[kind](**options)
            return cls(fields, stored=True)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise FormatError(f"bad schema: {error}") from error


def _difference(mine: Field, theirs: Field) -> str:
    """Return how two fields of one name differ: the classes that only one has, if it is these."""
    ours, others = (getattr(field, "classes", None) for field in (mine, theirs))
    same = type(mine) is type(theirs) and all(
        getattr(mine, name) == getattr(theirs, name)
        for name in mine.__dataclass_fields__
        if name != "classes"
    )
    if not same or ours is None or others is None:
        return f"is {mine!r} and {theirs!r}"
    only = [
        ", ".join([name for name in one if name not in set(other)][:_CLASSES_SHOWN]) or "none"
        for one, other in ((ours, others), (others, ours))
    ]
    if only == ["none", "none"]:
        return "has the same classes in another order"
    return f"has other classes: only in the first {only[0]}, only in the second {only[1]}"


def _rebuild_record(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return record_type(names)._make(values)


@cache
def record_type(names: tuple[str, ...]) -> Any:
    """Return the named tuple type with these field names.

    Instances pickle by field names, not by class, as the class is made at run time.  They are also
    made of one list, tuple or iterator of their values, like other tuples: libraries write
    ``type(batch)([x for x in batch])`` as well as ``type(batch)(*batch)``.

    Where an only field has a list as its value, both may be ``type(batch)([x])``.  So such a record
    is of a class of its own, which takes a list for the value unless its only entry is a list.
    `_make` makes a record of its values, whatever they are.
    """
    base: Any = namedtuple("Sample", names, rename=True)  # type: ignore[misc]

    def new(cls: Any, *values: Any, **named: Any) -> Any:
        if len(values) == 1 and not named:
            (given,) = values
            if len(names) > 1 or isinstance(given, (tuple, Iterator)):
                values = tuple(given)
            elif isinstance(given, list) and (
                cls is not listed or (len(given) == 1 and isinstance(given[0], list))
            ):
                values = tuple(given)
                if len(values) != 1:
                    raise TypeError(
                        f"a record of one field is made of one value, and this list has "
                        f"{len(values)}: if it is the value, write {names[0]}=[...]"
                    )
        made: Any = base.__new__(plain, *values, **named)
        if len(names) == 1 and isinstance(made[0], list):
            return base.__new__(listed, *made)
        return made

    def make(cls: Any, values: Iterable[Any]) -> Any:
        return new(cls, iter(values))

    def reduce(self: Any) -> tuple[Any, ...]:
        return (_rebuild_record, (names, tuple(self)))

    members = {
        "__new__": new,
        "_make": classmethod(make),
        "__reduce__": reduce,
        "__slots__": (),
        "__module__": __name__,
    }
    plain = type("Sample", (base,), members)
    listed = type("Sample", (plain,), members)
    return plain


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian NumPy dtype that stores values of `name`."""
    dtype: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return dtype


Codec: TypeAlias = Literal["auto", "jpeg", "png", "raw", "keep"]
