"""Samples that a worker reads: what belongs to one of them, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..base import Deferred

__all__ = ["DeferredSample", "SampleReader"]


class SampleReader(Protocol):
    """What all samples of a source share, and how a worker reads one; it can be pickled."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the schema's order."""

    @property
    def read(self) -> Callable[..., Mapping[str, Any]]:
        """Return the values of a sample by the names of fields; others may be among them."""


class DeferredSample(Deferred):
    """The parts of one sample, as its reader takes them: names of files, numbers, rows."""

    def __init__(self, reader: SampleReader, *parts: Any) -> None:
        self.reader, self.parts = reader, parts

    def load(self) -> tuple[Any, ...]:
        """Read the sample."""
        values = self.reader.read(*self.parts)
        return tuple(values[name] for name in self.reader.fields)
