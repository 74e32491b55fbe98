"""Caffe's ``Datum`` messages in an LMDB, as ``convert_imageset`` and DIGITS write them.

A Datum has either an image file (``encoded``) or pixels, C x H x W and, where there are three
channels, in the order blue, green, red.  Source: ``caffe.proto``, ``src/caffe/util/io.cpp``
and ``tools/convert_imageset.cpp`` of Caffe.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import Deferred, FieldSpec, Reject, Sample, reason_of
from .reading.class_names import named_classes
from .reading.fields import settle_fields
from .reading.image_files import is_image_bytes
from .reading.lmdb.lmdb_file import lmdb_at
from .reading.lmdb.lmdb_source import LmdbSource, first_values, is_ours
from .reading.protobuf import message_class
from .reading.refusals import check_choice
from .reading.spans import FileSpan

__all__ = ["CaffeSource"]

_DATUM = {
    "Datum": [
        ("channels", 1, "int32"),
        ("height", 2, "int32"),
        ("width", 3, "int32"),
        ("data", 4, "bytes"),
        ("label", 5, "int32"),
        ("float_data", 6, "float*"),
        ("encoded", 7, "bool"),
    ]
}
_STARTS = (0x08, 0x22)
"""First bytes of a Datum: of its field channels, or data."""

Order = Literal["bgr", "rgb"]


class CaffeSource(LmdbSource):
    """Datums of an LMDB; fields ``image`` and ``label``.

    Parameters
    ----------
    order : {"bgr", "rgb"}
        Of the channels where Datums hold pixels; Caffe's own tools write bgr, but its
        ``convert_cifar_data`` rgb.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "caffe"
    summary = "LMDB of Caffe's Datum messages, encoded or raw"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = lmdb_at(location)
        if path is None or is_ours(path):
            return False
        values = first_values(path, 4)
        return bool(values) and all(map(_may_be_datum, values))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        order: Order = "bgr",
        classes: str | None = None,
    ) -> None:
        check_choice("order", order, get_args(Order))
        _datum()
        self._open(location, None)
        labelled, failure = 0, "the database is empty"
        for value in first_values(self.index.path):
            try:
                labelled += parse_datum(value).HasField("label")
                failure = ""
            except ValueError as error:
                failure = reason_of(error)
        if failure and not labelled:
            raise SourceError(f"{self.index.path}: none of its first values is a Datum: {failure}")
        settled: dict[str, Field] = {"image": ImageField(channels=channels)}
        if labelled:
            settled["label"] = ScalarField("int64")
        settled = settle_fields(settled, fields, channels, settled.__getitem__)
        self.num_samples = len(self.index)
        self.schema = Schema(named_classes(settled, "label", classes))
        self._plan = (order == "bgr", bool(labelled))

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self.index.rejects:
            return self.index.rejects[index]
        return Sample(self.key_at(index), Datum(self.index.span(index), *self._plan))


class Datum(Deferred):
    """A Datum that the worker reads."""

    def __init__(self, span: FileSpan, reverse: bool, labelled: bool) -> None:
        self.span, self.reverse, self.labelled = span, reverse, labelled

    def load(self) -> tuple[Any, ...]:
        """Read the message and take its values.

        Raises
        ------
        ValueError
            If it is damaged, or has no label where others have.
        """
        datum = parse_datum(self.span.read())
        image = datum.data if datum.encoded else _pixels(datum, self.reverse)
        if not self.labelled:
            return (image,)
        if not datum.HasField("label"):
            raise ValueError("the Datum has no label")
        return image, datum.label


@functools.cache
def _datum() -> Any:
    return message_class("fastdata_caffe", _DATUM, "Datum", "caffe")


def parse_datum(data: bytes) -> Any:
    """Return the Datum that some bytes are.

    Raises
    ------
    ValueError
        If they are none.
    """
    from google.protobuf.message import DecodeError

    datum = _datum()()
    try:
        datum.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no Datum of Caffe's: {error}") from error
    if not datum.HasField("data") and not datum.float_data:
        raise ValueError("no Datum of Caffe's: neither data nor float_data")
    return datum


def _may_be_datum(value: bytes) -> bool:
    if not value or value[0] not in _STARTS or is_image_bytes(value):
        return False
    try:
        return parse_datum(value) is not None
    except ValueError:
        return False
    except ImportError:  # opening it says what to install
        return True


def _pixels(datum: Any, reverse: bool) -> np.ndarray[Any, Any]:
    """Return the pixels of a Datum as H x W x C, red first."""
    shape = datum.channels, datum.height, datum.width
    if not datum.HasField("data"):
        raise ValueError("the Datum has float_data, which are no pixels")
    if shape[0] not in (1, 3) or min(shape) < 1:
        raise ValueError(f"the Datum says {shape} channels, rows and columns: no picture")
    if len(datum.data) != shape[0] * shape[1] * shape[2]:
        raise ValueError(f"the Datum of shape {shape} has {len(datum.data):,} bytes")
    planes = np.frombuffer(datum.data, np.uint8).reshape(shape)
    pixels: np.ndarray[Any, Any] = planes.transpose(1, 2, 0)
    return pixels[..., ::-1] if reverse else pixels
