"""Classes of a source get the numbers that they have in the dataset it is added to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ScalarField, Schema

from ..base import Deferred, Reject, Sample, Source
from ..reading.class_names import numbered
from ..reading.fields import convert

__all__ = ["fitted"]

_REMEDY = (
    "Bring the source into the form of the dataset (`fastdata info` shows its fields), or pack the "
    "old and the new images together."
)


def fitted(source: Source, schema: Schema) -> Source:
    """Return a source with this schema; `SourceError` where its fields or classes do not fit."""
    if source.schema == schema:
        return source
    tables: dict[int, _Table] = {}
    if list(source.schema) != list(schema):
        raise SourceError(
            f"the source has the fields {', '.join(source.schema)}, but the dataset has "
            f"{', '.join(schema)}: they must be the same. {_REMEDY}"
        )
    for place, (name, wanted) in enumerate(schema.items()):
        found = source.schema[name]
        if found == wanted:
            continue
        table = _renumbering(name, found, wanted)
        if table is not None:
            tables[place] = _Table(name, found, table)
            if getattr(found, "classes", None) is None:
                source.notes.append(
                    f"the numbers of {name!r} are names of classes, as the dataset has classes "
                    "that are called by numbers"
                )
    return _Fitted(source, schema, tables)


def _renumbering(name: str, found: Any, wanted: Any) -> dict[int, int] | None:
    """Return the dataset's number of each class of the source; None if they are the same.

    Numbers without names are those of the dataset, unless its classes are called by numbers.
    """
    fits = isinstance(found, (ScalarField, ArrayField)) and type(found) is type(wanted)
    if not fits or dataclasses.replace(found, classes=wanted.classes) != wanted:
        raise SourceError(
            f"field {name!r} is {found!r} in the source, but {wanted!r} in the dataset: they must "
            f"be the same. {_REMEDY}"
        )
    if found.classes is None:
        called = {int(n): k for k, n in enumerate(wanted.classes) if n.isdecimal()}
        same = called == dict(enumerate(range(len(wanted.classes))))
        return {**called, -1: -1} if called and not same else None
    if wanted.classes is None:
        raise SourceError(
            f"field {name!r} has class names in the source, but not in the dataset. {_REMEDY}"
        )
    numbers = numbered(wanted.classes)
    new = [repr(c) for c in found.classes if c not in numbers]
    if new:
        raise SourceError(
            f"field {name!r}: the dataset has no class {', '.join(new[:10])}"
            f"{' ...' * (len(new) > 10)}. Its classes are fixed: pack old and new images together."
        )
    # -1 stands for no label.
    return {**{number: numbers[name] for number, name in enumerate(found.classes)}, -1: -1}


class _Table(NamedTuple):
    """How the class numbers of one field change."""

    name: str
    field: Field  # of the source
    numbers: Mapping[int, int]  # of the dataset, for each class of the source


class _Fitted(Source):
    """Samples of another source, with other class numbers."""

    name = "fitted"

    def __init__(self, location: Source, schema: Schema, tables: Mapping[int, _Table]) -> None:
        vars(self).update(vars(location))  # its notes and options, and how it is read
        self._source, self._tables = location, tables
        self.name = location.name  # type: ignore[misc]
        self.schema = schema

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False

    def __iter__(self) -> Iterator[Sample | Reject]:
        return map(self._fit, self._source)

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        return map(self._fit, self._source.start_at(start))

    def _fit(self, sample: Sample | Reject) -> Sample | Reject:
        if isinstance(sample, Reject) or not self._tables:
            return sample
        return Sample(sample.key, Renumbered(sample.values, self._tables))

    def count(self) -> int | None:
        return self._source.count()

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self._source.fingerprints(limit)

    def key_at(self, index: int) -> str:
        return self._source.key_at(index)

    @property
    def worker_setup(self) -> Callable[[], None] | None:
        return self._source.worker_setup


class Renumbered(Deferred):
    """A sample that the worker reads and then renumbers."""

    def __init__(self, values: tuple[Any, ...] | Deferred, tables: Mapping[int, _Table]) -> None:
        self.values, self.tables = values, tables

    def load(self) -> tuple[Any, ...]:
        """Read the values and renumber their classes."""
        if not isinstance(self.values, Deferred):
            return _renumbered(self.values, self.tables)
        values = self.values.load()
        self.stored_key = self.values.stored_key
        return _renumbered(values, self.tables)


def _renumbered(values: tuple[Any, ...], tables: Mapping[int, _Table]) -> tuple[Any, ...]:
    changed = list(values)
    for place, (name, field, numbers) in tables.items():
        found = convert(changed[place], field, name)
        try:
            new = [numbers[number] for number in np.ravel(found).tolist()]
        except KeyError as error:
            raise ValueError(f"{name!r} is {error}, and the dataset has no such class") from None
        changed[place] = np.array(new, np.int64).reshape(found.shape)
    return tuple(changed)
