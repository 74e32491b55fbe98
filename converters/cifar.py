"""CIFAR-10 and CIFAR-100 in the edition for Python, unpacked or as downloaded.

A batch is a pickle of ``{"data": N x 3072, "labels": [...]}``, in CIFAR-100 of ``"fine_labels"``
and ``"coarse_labels"``; ``reading/pickles.py`` reads it and executes nothing.  An image is its red
plane, then the green and the blue one.  An archive is read twice, from its front: first for the
batches and their labels, then for the pixels.
Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .known_sets import PAGE
from .reading.arrays.array_source import ArraySource, Part
from .reading.arrays.columns import ArrayColumn, ListColumn, StoredColumn
from .reading.compression import compression_of, inflated_start
from .reading.fields import resolve_fields
from .reading.forward_reader import ForwardReader
from .reading.locations import first_bytes, printable
from .reading.options import Option
from .reading.pickles import Place, array_place, read_pickle
from .reading.selection import left_out
from .reading.tar.archive import members

__all__ = ["CifarSource"]

_PIXELS = 3072
_NAME = re.compile(r"data_batch_(?P<number>\d{1,4})|test_batch|train|test")
_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
_FIELDS = {"labels": "label", "fine_labels": "label", "coarse_labels": "coarse_label"}
_NAMES = {"label_names": "label", "fine_label_names": "label", "coarse_label_names": "coarse_label"}
"""Fields of the lists of labels and of class names."""
_LARGEST = 256 << 20
"""Size limit of a batch; CIFAR-100's has 154 MB."""


class _Batch(NamedTuple):
    """A file with images, or such a member of an archive."""

    name: str
    file: Path
    split: str
    number: int  # 0 if its name has none
    columns: Mapping[str, ArrayColumn] = {}  # by field
    failure: str = ""  # why there are none


class CifarSource(ArraySource):
    """Batches of CIFAR; fields ``image``, ``label`` and, of CIFAR-100, ``coarse_label``."""

    name = "cifar"
    summary = "CIFAR-10 and -100 for Python: a folder of batches, or the .tar.gz"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        if not path.is_file():
            return _folder(path) is not None
        start = first_bytes(path, 1 << 14)
        if compression_of(start):
            start = inflated_start(start, 512)
        name = start[:100].split(b"\0")[0].decode("latin-1")
        return _is_batch(path) or (start[257:262] == b"ustar" and name.startswith("cifar-10"))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: Annotated[
            str, Option("which batches; all adds a field 'split'", ("train", "test", "all"))
        ] = "train",
    ) -> None:
        self.notes = []
        path = Path(location)
        batches, names, failure = _look_at(path)
        taken = [batch for batch in batches if split in (batch.split, "all")]
        if not taken:
            there = batches[0].split
            raise OptionError(f"{location}: has only split={there} (--option split={there})")
        left = [batch.name for batch in batches if batch not in taken]
        self.notes += left_out("batches", left, "--option split=test, or all")
        whole = next((batch for batch in taken if batch.columns), None)
        if whole is None:
            raise SourceError(f"{location}: no batch can be read: {taken[0].failure}")
        resolved: dict[str, Field] = {}
        for field in whole.columns:
            resolved[field] = ScalarField(classes=names.get(field))
            if field != "image" and field not in names:
                self.notes.append(f"no file with the names of the classes of {field!r}")
        resolved["image"] = ImageField(channels=channels)
        parts = [_part_of(batch, resolved) for batch in taken]
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
            parts = [
                part.in_split(int(batch.split == "test"))
                for part, batch in zip(parts, taken, strict=True)
            ]
        self.notes += left_out("of batches", ["filenames"])
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))
        numbers = {batch.number for batch in taken}
        missing = {1, 2, 3, 4, 5} - numbers if numbers - {0} else ()
        lost = [Reject(f"data_batch_{k}", "this batch is not there") for k in sorted(missing)]
        if failure:
            lost.append(Reject(printable(path.name), failure))
        self.set_parts([*parts, Part("", (), lost=tuple(lost))])
        self.paths = list(dict.fromkeys(batch.file for batch in taken))


def _part_of(batch: _Batch, fields: Mapping[str, Field]) -> Part:
    """Return the rows of a batch, with the labels that the dataset has."""
    failure = batch.failure
    if not failure and not {*fields} <= {*batch.columns}:
        failure = f"the batch has not the fields {', '.join(fields)}, as others have"
    if failure:
        return Part(batch.name, (), lost=(Reject(f"{batch.name}[0]", failure),))
    return Part(batch.name, tuple(batch.columns[name] for name in fields))


# -- files ------------------------------------------------------------------------------


def _folder(path: Path) -> Path | None:
    """Return the folder with the batches: this one, or one of CIFAR's in it; None if neither."""
    for folder in (path, *(path / name for name in _FOLDERS)):
        if folder.is_dir() and any(map(_is_batch, map(folder.joinpath, os.listdir(folder)))):
            return folder
    return None


def _is_batch(path: Path) -> bool:
    """Tell whether a file is called like a batch and begins like one."""
    if not _NAME.fullmatch(path.name) or not path.is_file():
        return False
    start = first_bytes(path, 12)
    return start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5" and start[2:3] in b"}\x95"


def _look_at(path: Path) -> tuple[list[_Batch], dict[str, tuple[str, ...]], str]:
    """Return all batches at a location, the class names by field, and the damage of an archive.

    Raises SourceError if there are no batches.
    """
    batches: list[_Batch] = []
    names: dict[str, tuple[str, ...]] = {}
    failure, shared = "", None
    try:
        for file, name, offset, size, shared in _pieces(path):
            if match := _NAME.fullmatch(name):
                split = "test" if name.startswith("test") else "train"
                batch = _Batch(name, file.path, split, int(match["number"] or 0))
                try:
                    columns = _columns(file, offset, size, shared)
                    batches.append(batch._replace(columns=columns))
                except SourceError as error:
                    batches.append(batch._replace(failure=f"{name}: {error}"))
            elif name in ("batches.meta", "meta"):
                with contextlib.suppress(SourceError):  # without it classes have no names
                    for key, values in _read(file, offset, size).items():
                        texts = values if isinstance(values, list) else []
                        if key in _NAMES and texts and all(isinstance(t, str) for t in texts):
                            names[_NAMES[key]] = tuple(texts)
    except SourceError as error:
        failure = str(error)
    if not batches:
        raise SourceError(
            f"{path}: no batches of CIFAR there{failure and f' ({failure})'}. Expected "
            "data_batch_1 to data_batch_5 and test_batch, or train and test. There is a recipe for "
            f"the binary edition: {PAGE}#cifar-binary"
        )
    if shared is None:
        batches.sort(key=lambda batch: (batch.split != "train", batch.number, batch.name))
    return batches, names, failure


def _pieces(path: Path) -> Iterator[tuple[ForwardReader, str, int, int, ForwardReader | None]]:
    """Yield the files of a folder or an archive: their reader, name, place and length.

    The last value reads the pixels if the archive is compressed.
    """
    if path.is_file() and _NAME.fullmatch(path.name):
        raise OptionError(f"{path}: is one batch. Name its folder, {path.parent}")
    if not path.is_file():
        folder = _folder(path)
        for entry in filter(Path.is_file, folder.iterdir() if folder else ()):
            with ForwardReader(entry, compressed=False) as file:
                yield file, entry.name, 0, file.size or 0, None
        return
    compressed = compression_of(first_bytes(path, 16)) != ""
    shared = ForwardReader(path, compressed=True) if compressed else None
    with ForwardReader(path, compressed=compressed) as file:
        for member in members(file):
            if member.kind == "file":
                name = os.fsdecode(member.name).rpartition("/")[2]
                yield file, name, member.offset, member.size, shared


def _read(file: ForwardReader, offset: int, size: int) -> dict[str, Any]:
    if size > _LARGEST:
        raise SourceError(f"it has {size:,} bytes; at most {_LARGEST:,} are read")
    return read_pickle(file.read(offset, size))


def _columns(
    file: ForwardReader, offset: int, size: int, shared: ForwardReader | None
) -> dict[str, ArrayColumn]:
    """Return images and labels of a batch, by field."""
    found = _read(file, offset, size)
    there = ", ".join(key[:20] for key in list(found)[:10]) or "nothing"
    given, place = array_place(found.get("data")) or ((), Place(0, 0))
    count, *shape = (*given[:1], 3, 32, 32) if given[1:] == (_PIXELS,) else given or (0,)
    if len(shape) != 3 or shape[0] != 3 or count * math.prod(shape) != place.length:
        raise SourceError(
            f"no array 'data' in it of uint8, N x 3072 or N x 3 x H x W, in C order; it has {there}"
        )
    pixels = StoredColumn(file.path, offset + place.offset, (count, *shape), front=shared)
    columns: dict[str, ArrayColumn] = {"image": pixels}
    for key, field in _FIELDS.items():
        if key in found:
            labels = found[key]
            if not isinstance(labels, list) or not all(type(label) is int for label in labels):
                raise SourceError(f"{key!r} is not a list of whole numbers")
            if len(labels) != count:
                raise SourceError(f"it has {count:,} images and {len(labels):,} {key}")
            columns[field] = ListColumn(field, labels)
    if "label" not in columns:
        raise SourceError(f"no list 'labels' or 'fine_labels' in it; it has {there}")
    return columns
