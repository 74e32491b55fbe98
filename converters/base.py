"""The contract of a source: how somebody's dataset becomes samples.

To add a format, write one module with one subclass of `Source` and name it
in the entry-point group ``fastdata.converters``.  A source

* says what fields its samples have (`schema`);
* yields its samples in one fixed order, with images *undecoded*: a
  `pathlib.Path`, or the bytes of an image file.  Workers read and decode them;
* tells, for resuming, what each sample was made from (`fingerprints`).

`IndexedSource` is for sources that can reach sample *i* at once; they can be
packed in shuffled order.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import xxhash

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, Schema

__all__ = ["IndexedSource", "Reject", "Sample", "Source", "find_source", "hash_fields"]

FieldSpec: TypeAlias = Mapping[str, Field | str]


class Sample(NamedTuple):
    """One sample before encoding.

    Attributes
    ----------
    key : str
        What the source calls it, e.g. its path; shown in errors and reports.
    values : tuple
        In the schema's order.  An image is a Path, bytes of a file, a uint8 array
        (H x W or H x W x C) or a ``PIL.Image.Image``.
    """

    key: str
    values: tuple[Any, ...]


class Reject(NamedTuple):
    """A sample that cannot be packed, and why; a source may yield one too."""

    key: str
    reason: str


class Source(abc.ABC):
    """Samples in some format, in a fixed order.

    Attributes
    ----------
    name : str
        Of the format, as ``--format`` takes it.
    schema : Schema
    num_samples : int or None
        None where only reading to the end would tell.
    notes : list of str
        What the user should know about the source, e.g. files left out.
    """

    name: ClassVar[str]
    schema: Schema
    num_samples: int | None = None
    notes: list[str]

    @classmethod
    @abc.abstractmethod
    def recognises(cls, location: Any) -> bool:
        """Tell, by content rather than name, whether this class reads `location`."""

    @abc.abstractmethod
    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        """Look at the source and settle `schema`.

        Parameters
        ----------
        location : path or object
        channels : {3, 1}
            Of the image fields.
        fields : mapping, optional
            The user's word on what fields are, where the source does not say.
        """

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Sample | Reject]:
        """Yield all samples, each time the same in the same order.

        In the place of one that cannot be read, a `Reject` says why.
        """

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return a hash a sample of what it is made from, without reading images.

        Resuming compares them; an empty array means that nothing can be told.
        """
        return np.zeros(0, np.uint64)

    def key_at(self, index: int) -> str:
        """Return the name of a sample for messages."""
        return f"sample {index}"

    @property
    def worker_setup(self) -> Callable[[], None] | None:
        """A picklable callable to run once in each worker process, or None."""
        return None


class IndexedSource(Source):
    """A source that can reach any sample at once."""

    num_samples: int

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Return one sample; an exception makes it a reject."""

    def __iter__(self) -> Iterator[Sample | Reject]:
        return (self[index] for index in range(self.num_samples))


def hash_fields(*parts: object) -> int:
    """Hash what a sample is made from, for `Source.fingerprints`."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode("utf-8", "surrogateescape"))


def find_source(
    location: Any,
    *,
    format: str | None = None,
    channels: int = 3,
    fields: FieldSpec | None = None,
) -> Source:
    """Return the source that reads `location`.

    Parameters
    ----------
    location : path or object
    format : str, optional
        Name of the format; recognised by content where not given.

    Raises
    ------
    SourceError
        If there is nothing there or no format fits.
    OptionError
        If `format` is not known.
    """
    points = {point.name: point for point in entry_points(group="fastdata.converters")}
    if format is not None:
        if format not in points:
            raise OptionError(f"format {format!r} is not one of {', '.join(sorted(points))}")
        chosen: type[Source] = points[format].load()
        return chosen(location, channels=channels, fields=fields)
    if isinstance(location, (str, Path)) and not Path(location).exists():
        raise SourceError(f"{location}: no such file or directory")
    # Formats that other packages bring first: ours take a good deal for theirs.
    for name in sorted(points, key=lambda name: (_is_ours(points[name]), name)):
        candidate: type[Source] = points[name].load()
        if candidate.recognises(location):
            return candidate(location, channels=channels, fields=fields)
    raise SourceError(
        f"{location!r}: not recognised as any of the formats {', '.join(sorted(points))}. "
        "Expected a folder of class folders with images, a .csv or .tsv with the columns "
        "path,label, or, from Python, an iterable or a torch Dataset."
    )


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith("fastdata.")
