"""The contract of a source: how a dataset of some format becomes samples.

To add a format, write one module with one subclass of `Source` and name it
in the entry-point group ``fastdata.converters``.  A source

* has the fields of its samples (`schema`);
* yields its samples in one fixed order, with images *undecoded*: a
  `pathlib.Path`, a `FileSpan`, or the bytes of an image file.  Workers read and
  decode them;
* returns hashes of the samples' sources, for resuming (`fingerprints`).

`IndexedSource` is for sources with random access; they can be packed in
shuffled order.  Others may offer an index that requires a scan of the whole
source (`Source.indexed`).  ``finding.py`` chooses a source.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import xxhash

from fastdata.errors import (
    DiskFullError,
    FastdataError,
    JobChangedError,
    MachineError,
    OptionError,
    ResourceLimitError,
    StorageError,
    is_of_machine,
)
from fastdata.regular_files import Mirror
from fastdata.schema import Field, Schema

from .reading.box_forms import BoxNumbers
from .reading.selection import joined

if TYPE_CHECKING:
    from .refusal import Doubt

__all__ = [
    "Deferred",
    "IndexedSource",
    "Reject",
    "Sample",
    "Source",
    "hash_fields",
    "reason_of",
    "reject_reason",
]

FieldSpec: TypeAlias = Mapping[str, Field | str]


class Deferred(abc.ABC):
    """The values of a sample, to be read by the worker; small, and picklable.

    Attributes
    ----------
    stored_key : str or None
        The key of the sample, where `load` has read that too; it then takes the place
        of `Sample.key`, which says where the sample is.
    held : object
        What must not be gone before the sample is: the file that it is in, of a store.
    """

    stored_key: str | None = None
    held: object = None

    @abc.abstractmethod
    def load(self) -> tuple[Any, ...]:
        """Return the values in the schema's order; an exception makes the sample a reject."""


class Sample(NamedTuple):
    """One sample before encoding.

    Attributes
    ----------
    key : str
        What the source calls it, e.g. its path; shown in errors and reports.
    values : tuple or Deferred
        In the schema's order.  An image is a Path, a `FileSpan`, bytes of a file, a
        uint8 array (H x W or H x W x C) or a ``PIL.Image.Image``.
    """

    key: str
    values: tuple[Any, ...] | Deferred


class Reject(NamedTuple):
    """A sample that cannot be packed, and why; a source may yield one too.

    The key of a piece of a file has the file and the place: ``a.tfrecord@4096``.
    """

    key: str
    reason: str

    @classmethod
    def of(cls, key: str | os.PathLike[str], error: Exception) -> Reject:
        """Return the reject of a sample or a file, or raise as `reject_reason` does."""
        return cls(os.fspath(key), reject_reason(key, error))


class Source(abc.ABC):
    """Samples in some format, in a fixed order.

    Attributes
    ----------
    name : str
        Name of the format for ``--format``.
    summary : str
        A short description for ``fastdata formats``.
    general : bool
        Whether it also recognises data of more special formats (any folder, any iterable),
        which are tried first.
    schema : Schema
    num_samples : int or None
        None if only reading to the end would determine it.
    notes : list of str
        Remarks for the user, e.g. on files left out.
    tree : Tree or None
        The folders that the source was found in; None once the source is opened.
    doubt : Doubt or None
        Evidence against this format in a source that matches it; the source is then refused
        unless the user names the format.
    parts : tuple of str
        Patterns of the required files and folders of this format; ``|`` separates
        alternatives.  They show the nearest formats for an unknown source.
    box_forms : mapping
        By field, what boxes are that are not left, top, right and bottom in pixels.
    format_options : mapping
        The format's own options; part of the identity of a pack.
    packed_with : mapping or None
        The options of a source packed by fastdata, which ``codec="keep"`` keeps.
    reads_by_network : bool
        Whether workers read samples out of a store themselves; there are many per core then.
    mirror : Mirror or None
        The mirror of a source in a store.  Then workers are threads: connections do not survive
        a fork.
    """

    name: ClassVar[str]
    reads_by_network: bool = True
    mirror: Mirror | None = None
    format_options: Mapping[str, Any] = MappingProxyType({})
    packed_with: Mapping[str, Any] | None = None
    box_forms: Mapping[str, BoxNumbers] = MappingProxyType({})
    summary: ClassVar[str] = ""
    general: ClassVar[bool] = False
    schema: Schema
    parts: ClassVar[tuple[str, ...]] = ()
    num_samples: int | None = None
    notes: list[str]
    tree: Any = None
    doubt: Doubt | None = None

    @classmethod
    @abc.abstractmethod
    def recognises(cls, location: Any) -> bool:
        """Return, by content rather than name, whether this class reads `location`.

        fastdata's own formats are tried only if their signs are present (``signs.py``).
        """

    @abc.abstractmethod
    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        """Look at the source and determine `schema`.

        Further keyword arguments, with annotations and defaults, are the format's own
        options (``--option NAME=VALUE``, ``pack(source_options=...)``).

        Parameters
        ----------
        location : path or object
        channels : {3, 1}
            Channels of the image fields.
        fields : mapping, optional
            Kinds of fields that the source does not determine.
        """

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Sample | Reject]:
        """Yield all samples, each time the same in the same order.

        In the place of one that cannot be read there is a `Reject` with the reason.
        """

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        """Yield the samples from number `start` on.

        Raises
        ------
        JobChangedError
            If there are not so many; they were there when the pack was begun.
        """
        samples = iter(self)
        skipped = sum(1 for _ in itertools.islice(samples, start))
        if skipped < start:
            raise JobChangedError(
                f"the unfinished pack is of something else: the source had at least {start} "
                f"samples and has {skipped}. Pass overwrite=True (--overwrite) to start again."
            )
        yield from samples

    def count(self) -> int | None:
        """Return the number of samples, where need be by reading to the end.

        None where they can be read only once.
        """
        return self.num_samples if self.num_samples is not None else sum(1 for _ in self)

    def indexed(self) -> IndexedSource:
        """Return the same samples, reachable at once; may take a look at the whole source.

        Raises
        ------
        OptionError
            If this source can only be read in order.
        """
        raise OptionError(
            f"shuffle needs a source that can be indexed; {self.name!r} can only be read in "
            "order. The loader shuffles too: fastdata.loader(shuffle=True)."
        )

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return hashes of the samples' sources, without reading images.

        One per sample, or one per file if samples are pieces of files.  Resuming
        compares them; an empty array means that there is nothing to compare.
        """
        return np.zeros(0, np.uint64)

    def key_at(self, index: int) -> str:
        """Return the name of a sample for messages."""
        return f"sample {index}"

    @property
    def description(self) -> str:
        """Format, samples, classes and fields in one line."""
        count = "" if self.num_samples is None else f"{self.num_samples:,} samples, "
        classes = self.schema.classes
        known = f"{len(classes):,} classes ({joined(classes, 5)}), " if classes else ""
        return f"read as {self.name}: {count}{known}fields {', '.join(self.schema)}"

    @property
    def worker_setup(self) -> Callable[[], None] | None:
        """A picklable callable to run once in each worker process, or None."""
        return None

    @property
    def left_out(self) -> list[Reject]:
        """Objects of a store that cannot be files here; they have no place among the samples."""
        return [] if self.mirror is None else [Reject(*one) for one in self.mirror.left_out]

    def check_store(self) -> None:
        """Raise the error of a store that readers may have mistaken for damage."""
        if self.mirror is not None:
            self.mirror.check()

    def close(self) -> None:
        """Remove downloaded files.  Idempotent."""
        if self.mirror is not None:
            self.mirror.close()


class IndexedSource(Source):
    """A source that can reach any sample at once.

    One that reads cheaper in order than one by one, in blocks, also has a `start_at`.
    """

    num_samples: int

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Sample | Reject:
        """Return one sample; an exception makes it a reject."""

    def __iter__(self) -> Iterator[Sample | Reject]:
        return self.start_at(0)

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        return map(self.get, range(start, self.num_samples))

    def get(self, index: int) -> Sample | Reject:
        """Return one sample, or why it cannot be read."""
        try:
            return self[index]
        except Exception as error:  # e.g. a row of a manifest that does not fit its column
            return Reject.of(self.key_at(index), error)

    def indexed(self) -> IndexedSource:
        return self


def reason_of(error: Exception) -> str:
    """Return the reason of an exception for a list of rejects."""
    if isinstance(error, MemoryError):
        return "there is not enough memory to read and decode it"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, (FastdataError, ValueError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def reject_reason(key: str | os.PathLike[str], error: Exception) -> str:
    """Return the reason to reject a sample or a file after an error.

    Raises `MachineError`, or the error itself, if the machine is the cause.
    """
    if not is_of_machine(error):
        return reason_of(error)
    if isinstance(error, (DiskFullError, MachineError, ResourceLimitError, StorageError)):
        raise error
    raise MachineError(
        f"{os.fspath(key)}: {reason_of(error)}. The machine is the cause, not this "
        f"sample, so it is not rejected. {_remedy(error)}; then run the same command again: it "
        "continues"
    ) from error


def _remedy(error: Exception) -> str:
    """Return the remedy for an error of the machine."""
    for cause in (error, error.__cause__):
        if type(cause).__name__.endswith("MemoryError"):
            return "Use fewer workers (num_workers, --workers) or a smaller max_pixels"
        if isinstance(cause, PermissionError):
            return "Permit reading it, or remove it from the source"
        if isinstance(cause, ImportError):
            return "Install what is missing"
    return "Look at the drive and the limits of this process (ulimit -a)"


def hash_fields(*parts: object) -> int:
    """Hash the parts of a sample's source, for `Source.fingerprints`."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode("utf-8", "surrogateescape"))
