"""Caffe's Datum messages in an LMDB, for DALI (``format="dali"``).

::

    OUT/data.mdb            keys 00000000, 00000001, ...; values are Datum, encoded
    OUT/fastdata.json       what they hold

A Datum has one image file and one whole number, the label.  Other fields are left out, with a
note.  The sample's key is in field 1000 of the message, which Caffe and DALI skip as an unknown
field of protobuf.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import lmdb
import numpy as np

from fastdata.errors import OptionError
from fastdata.formats.lmdb import disk_errors
from fastdata.own_files import create_own
from fastdata.schema import ImageField, ScalarField, Schema

from ..reading.records.datum import datum_class
from .base import Exporter, PackedSample, label_field, main_image

__all__ = ["DatumExporter"]

_MOST = 10**8
"""Samples: behind the last key of 8 digits, one of 9 would be in the middle."""

_PENDING_BYTES = 64 << 20
_FIRST_MAP_BYTES = 256 << 20
_LABELS = np.iinfo(np.int32)


class DatumExporter(Exporter):
    """An LMDB of Datums."""

    name = "dali"
    reads_as = "caffe"

    def write(self, samples: Iterable[PackedSample]) -> None:
        image = main_image(self.schema)
        if image is None:
            raise OptionError("format='dali' needs an image field, but the dataset has none")
        if len(self.dataset) > _MOST:
            raise OptionError(
                f"format='dali' holds at most {_MOST:,} samples, not {len(self.dataset):,}: export "
                "parts (--select)"
            )
        label = _label(self.schema)
        self.stored_as = {image: "data", **({label: "label"} if label else {})}
        left = [name for name in self.schema if name not in self.stored_as]
        if left:
            self.notes.append(
                f"fields left out: {', '.join(left)} (a Datum holds an image and a label; "
                "webdataset, tfrecord and parquet hold all fields)"
            )
        database = _Database(self.root)
        try:
            for index, sample in enumerate(samples):
                database.put(b"%08d" % index, self._datum(sample, image, label))
            database.flush()
        finally:
            database.close()
        self.count([self.root / "data.mdb"])

    def _datum(self, sample: PackedSample, image: str, label: str | None) -> bytes:
        field = self.schema[image]
        assert isinstance(field, ImageField)
        height, width = sample.size(image)
        datum = datum_class()(
            channels=field.channels,
            height=height,
            width=width,
            data=bytes(sample.image_file(image)),
            encoded=True,
            key=sample.key.encode(),
        )
        if label is not None:
            number = int(sample.value(label))
            if not _LABELS.min <= number <= _LABELS.max:
                raise OptionError(
                    f"{sample.shard.path}: {sample} has {label!r} {number}, but a Datum holds "
                    f"{_LABELS.min} to {_LABELS.max}. Export to webdataset, tfrecord or parquet."
                )
            datum.label = number
        data: bytes = datum.SerializeToString()
        return data


def _label(schema: Schema) -> str | None:
    """Return the field that is the label: of classes, else the only whole number there is."""
    found = label_field(schema)
    if found is not None:
        return found
    whole = [
        name
        for name, field in schema.items()
        if isinstance(field, ScalarField) and np.dtype(field.dtype).kind in "iu"
    ]
    return whole[0] if len(whole) == 1 else None


class _Database:
    """An LMDB that is written in the order of its keys, and grows as needed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pending: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        os.close(create_own(root / "data.mdb"))
        with disk_errors(root, "shared memory maps"):
            self._environment = lmdb.open(
                str(root),
                map_size=_FIRST_MAP_BYTES,
                lock=False,  # no other process opens it yet, and lock.mdb would stay
                metasync=False,
                writemap=False,
                mode=0o644,
                lib_version=0,  # LMDB 0.9's file format, which every release reads
            )

    def put(self, key: bytes, value: bytes) -> None:
        """Add a value behind the others."""
        self._pending.append((key, value))
        self._bytes += len(value)
        if self._bytes >= _PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pending entries, again in a larger map if it is full."""
        while self._pending:
            try:
                with disk_errors(self._root), self._environment.begin(write=True) as transaction:
                    transaction.cursor().putmulti(self._pending, append=True)
                self._pending, self._bytes = [], 0
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def close(self) -> None:
        """Close the file."""
        self._environment.close()
