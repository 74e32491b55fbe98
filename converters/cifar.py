"""CIFAR-10 and CIFAR-100: Python's edition and the binary one, unpacked or as downloaded.

``reading/classic/cifar_batches.py`` finds and reads the batches.  ``pickled.py``
reads pickles and executes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .reading.arrays.array_source import ArraySource, Part
from .reading.arrays.columns import ListColumn
from .reading.classic.cifar_batches import Batch, batch_name, is_cifar, look_at
from .reading.fields import resolve_fields
from .reading.locations import printable
from .reading.options import Option
from .reading.selection import left_out

__all__ = ["CifarSource"]

_NAMES = {
    "label": ("fine_label_names", "label_names"),
    "coarse_label": ("coarse_label_names",),
}


class CifarSource(ArraySource):
    """Batches of CIFAR; fields ``image``, ``label`` and, of CIFAR-100, ``coarse_label``."""

    name = "cifar"
    summary = "CIFAR-10 and -100: pickles or binary, a folder or the .tar.gz"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_cifar(Path(location))

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
        found = look_at(path)
        alone = path.is_file() and batch_name(path.name) is not None
        taken = [b for b in found.batches if alone or split in (b.kind.split, "all")]
        if not taken:
            there = found.batches[0].kind.split
            raise OptionError(f"{location}: has only split={there} (--option split={there})")
        left = [batch.name for batch in found.batches if batch not in taken]
        self.notes += left_out("batches", left, "--option split=test, or all")
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        whole = next((batch for batch in taken if batch.pixels is not None), None)
        if whole is None:
            raise SourceError(f"{location}: no batch can be read: {taken[0].failure}")
        for field in sorted(whole.labels, reverse=True):
            lists = [found.names[key] for key in _NAMES[field] if key in found.names]
            resolved[field] = ScalarField(classes=lists[0] if lists else None)
            if not lists:
                self.notes.append(f"no file with the names of the classes of {field!r}")
        parts = [_part_of(batch, resolved) for batch in taken]
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
            parts = [
                part.in_split(int(batch.kind.split == "test"))
                for part, batch in zip(parts, taken, strict=True)
            ]
        if not whole.kind.binary:
            self.notes += left_out("of batches", ["filenames"])
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))
        lost = [] if alone else _missing(taken)
        if found.failure:
            lost.append(Reject(printable(path.name), found.failure))
        self.set_parts([*parts, Part("", (), lost=tuple(lost))])
        self.paths = list(dict.fromkeys(batch.file for batch in taken))


def _part_of(batch: Batch, fields: dict[str, Field]) -> Part:
    """Return the rows of a batch, with the labels that the dataset has."""
    pixels, failure = batch.pixels, batch.failure
    labels = [name for name in fields if name != "image"]
    if pixels is not None and not {*labels} <= {*batch.labels}:
        pixels, failure = None, f"the batch has not the labels {', '.join(labels)}, as others have"
    if pixels is None:
        return Part(batch.name, (), lost=(Reject(f"{batch.name}[0]", failure),))
    columns = [
        ListColumn(name, _checked(name, batch.labels[name], fields[name])) for name in labels
    ]
    lost = (Reject(f"{batch.name}[{pixels.shape[0]}]", failure),) if failure else ()
    return Part(batch.name, (pixels, *columns), lost=lost)


def _checked(name: str, labels: Sequence[int], field: Field) -> list[Any]:
    """Return labels, with a ValueError for each that has no class."""
    names = field.classes if isinstance(field, ScalarField) else None
    return [
        label
        if names is None or 0 <= label < len(names)
        else ValueError(f"{name!r} is {label}, none of the {len(names)} classes")
        for label in labels
    ]


def _missing(batches: list[Batch]) -> list[Reject]:
    """Return a reject for each training batch that CIFAR-10 has and that is not there."""
    names = [batch.name for batch in batches if batch.name.startswith("data_batch_")]
    if not names:
        return []
    suffix = ".bin" if names[0].endswith(".bin") else ""
    expected = [f"data_batch_{number}{suffix}" for number in range(1, 6)]
    return [Reject(name, "this batch is not there") for name in expected if name not in names]
