"""What a pack tells its user: a description of the source, a progress bar, and a `PackReport`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastdata.printable import printable
from fastdata.summary import classes_text, field_texts

from ..base import Reject, Source
from .job import read_rejects

__all__ = ["PackReport", "progress_bar", "say_what_is_read"]

log = logging.getLogger("fastdata")

LEAST_FOR_RATE = 2000
"""The rate of fewer images is not printed: the start of the workers takes most of the time."""


def say_what_is_read(source: Source) -> None:
    """Log the description of a source."""
    for line in (source.description, *source.notes):
        log.info("%s", printable(line))


def progress_bar(name: str, total: int | None, shown: bool | None, initial: int = 0) -> Any:
    """Return a progress bar of samples; `shown` is None for one on terminals only."""
    return tqdm(
        total=total,
        initial=initial,
        unit="img",
        desc=f"packing {printable(name)}",
        disable=None if shown is None else not shown,
        dynamic_ncols=True,
    )


@dataclass(frozen=True, slots=True)
class PackReport:
    """The outcome of `fastdata.pack`.

    Attributes
    ----------
    path : Path or str
        The dataset; a URL is a str.
    digest : str
        Fingerprint of its content; "" where only a part of a pack was done.
    num_samples, num_rejected : int
        Packed, and left out.
    num_shards : int
    file_bytes : int
        Bytes of the dataset's files.
    seconds : float
        Of this run.
    images_per_second : float
        Samples this run consumed over its time.
    resumed_at : int
        Samples that earlier, interrupted runs had already consumed.
    rejects_path : Path or None
        A CSV (index, key, reason) of the samples left out, if there are any, and it is a file.
    notes : tuple of str
        Remarks on the source, e.g. on files that were not taken.
    read_as : str
        What the source was understood to be: format, samples, classes, fields.
    load_code : str
        Python code that makes a loader of the dataset; "" where only a part of a pack was done.
    parts : dict of str to PackReport
        With ``subset(divide=)``: the report of each part.  Else empty.
    groups : int or None
        Of such a part, with ``group=``: how many groups it has.
    classes : dict of str to int, or None
        Of such a part: its samples of each class of the field ``stratify=``, else of the label.
    """

    path: Path | str
    digest: str
    num_samples: int
    num_rejected: int
    num_shards: int
    file_bytes: int
    seconds: float = 0.0
    images_per_second: float = 0.0
    resumed_at: int = 0
    rejects_path: Path | None = None
    notes: tuple[str, ...] = ()
    read_as: str = ""
    load_code: str = ""
    parts: Mapping[str, PackReport] = field(default_factory=dict)
    groups: int | None = None
    classes: Mapping[str, int] | None = None

    @property
    def rejects(self) -> list[Reject]:
        """The samples left out, as (key, reason), read from `rejects_path`."""
        return read_rejects(self.rejects_path) if self.rejects_path else []

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, without empty `parts`, `groups` and `classes`."""
        given = asdict(self)
        for name in ("parts", "groups", "classes"):
            if not given[name]:
                del given[name]
        if self.parts:
            given["parts"] = {name: part.to_json() for name, part in self.parts.items()}
        return {
            **given,
            "path": str(self.path),
            "seconds": round(self.seconds, 3),
            "images_per_second": round(self.images_per_second, 1),
            "rejects_path": str(self.rejects_path) if self.rejects_path else None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        enough = self.images_per_second * self.seconds >= LEAST_FOR_RATE
        rate = f"{self.images_per_second:,.0f} images/s, " if enough else ""
        lines = [
            f"{self.path}: {self.num_samples:,} images, "
            f"{self.file_bytes / 1e6:,.1f} MB, "
            f"{rate}{self.num_rejected:,} rejected"
        ]
        for part in self.parts.values():
            lines.append(f"{Path(part.path).name}: {part._contents(self.num_samples)}")
        if self.digest and not self.parts:
            lines += [f"{name}: {text}" for name, text in field_texts(self.path).items()]
        if self.read_as:
            lines.append(self.read_as)
        lines += [f"note: {note}" for note in self.notes]
        for one in (self, *self.parts.values()):
            if one.rejects_path:
                lines.append(f"rejected images and reasons: {one.rejects_path}")
        if self.load_code:
            lines += ["load it:", *(f"  {line}" for line in self.load_code.splitlines())]
        return "\n".join(map(printable, lines))

    def _contents(self, total: int) -> str:
        """Return a line on a part; `total` is the number of samples in all parts."""
        texts = [f"{self.num_samples:,} images ({self.num_samples / max(total, 1):.1%})"]
        if self.groups is not None:
            texts.append(f"{self.groups:,} groups")
        if self.classes:
            texts.append(classes_text(list(self.classes), list(self.classes.values())))
        return ", ".join(texts)
