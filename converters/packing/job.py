"""What an unfinished pack has on the disk, and how it differs from a new request.

Beside the destination ``train.lmdb`` a pack in progress owns the directory
``train.lmdb.partial``:

=================  ==========================================================
``lock``           locked while a packer runs; the kernel drops it with the process
``job.json``       the options and a hash of the source; a pack with others is refused
``state.json``     the progress; replaced as a whole at every commit
``rejects.csv``    the samples rejected so far
``shard-00000/``   the shard being written
``shards/``        finished shards
``replaced``       the old dataset, until the new one has its name
=================  ==========================================================

State is committed after the data it refers to, so killing the process at any
moment loses at most the work since the last commit.  The state has a checksum, and
holds those of the other files; a shard that does not match is packed again.  A pack
exists as long as ``job.json``: it is the first file to be written, and the first to be
removed after publishing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import FastdataError
from fastdata.formats.layout import Header, checksum
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import (
    SpoolState,
    replace_file,
)
from fastdata.own_files import (
    open_own_file,
)
from fastdata.printable import printable
from fastdata.regular_files import open_regular

from ..base import Reject
from .remarks import Remarks

__all__ = [
    "OURS",
    "Sealed",
    "Start",
    "State",
    "checked_json",
    "csv_line",
    "dataset_at",
    "differences",
    "entry_of",
    "json_with_checksum",
    "read_rejects",
    "read_state",
    "rejects_in",
    "rejects_path",
    "replace_state",
]

log = logging.getLogger("fastdata")

OURS = re.compile(r"(job\.json|state\.json|rejects\.csv)(\.new)?|shard-\d{5}|shards|replaced")
"""Names of our files in the directory; other files there are never touched."""


@dataclass(slots=True)
class Start:
    """The progress of a pack where a shard begins."""

    position: int = 0
    """Source samples consumed; the counts below refer to them."""
    shard: int = 0
    """Number of the shard; empty shards count too."""
    rejects: SpoolState = (0, "")
    num_rejected: int = 0
    remarks: Remarks = field(default_factory=dict)
    """Replaced, never changed: copies of the progress share it."""


@dataclass(slots=True)
class Sealed:
    """A finished shard."""

    entry: ShardEntry
    tag: str
    """Size, times and inode of its file; an unchanged file is not read again."""
    after: Start
    """The progress just after it."""


@dataclass(slots=True)
class State(Start):
    """The progress of a pack; `shard` is the current one."""

    sealed: list[Sealed] = field(default_factory=list)
    writer: dict[str, Any] | None = None
    """State of the writer of the current shard."""
    sealing: bool = False
    """Whether the current shard is complete and needs only sealing."""

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> State:
        """Return a committed state."""
        sealed = [
            Sealed(ShardEntry(**one["entry"]), one["tag"], Start(**one["after"]))
            for one in saved["sealed"]
        ]
        return cls(**{**saved, "sealed": sealed})


def entry_of(path: Path) -> ShardEntry:
    """Return the entry of a finished shard in a manifest."""
    reader = ShardReader(path)
    return ShardEntry(path.name, len(reader), path.stat().st_size, reader.header.digest)


def dataset_at(destination: Path, many: bool) -> Manifest | Header | None:
    """Return the manifest or header of a dataset; None if there is none that can be read."""
    try:
        return Manifest.read(destination) if many else ShardReader(destination).header
    except (FastdataError, OSError):
        return None


def rejects_path(destination: Path) -> Path:
    """Return the path of a dataset's list of rejected samples."""
    return destination.with_name(destination.name + ".rejects.csv")


def read_state(path: Path) -> Any:
    """Return the data of `replace_state`; `ValueError` for a damaged file, else `OSError`."""
    with open_own_file(path) as file:
        return checked_json(file.read())


def replace_state(path: Path, body: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically; the file includes a checksum."""
    replace_file(path, json_with_checksum(body))


def json_with_checksum(body: Mapping[str, Any]) -> bytes:
    """Return JSON with a checksum, for `checked_json`."""
    return json.dumps({"checksum": _checksum(body), "body": body}, allow_nan=False).encode()


def checked_json(data: bytes) -> Any:
    """Return the body of `json_with_checksum`; `ValueError` if it does not match."""
    try:
        stored = json.loads(data)
        body = stored["body"]
        if stored["checksum"] == _checksum(body):
            return body
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError("its checksum does not match")


def read_rejects(path: Path) -> list[Reject]:
    """Read a list of rejected samples; empty without a file."""
    try:
        with open(
            path, newline="", errors="replace", encoding="utf-8", opener=open_regular
        ) as file:
            return rejects_in(file)
    except FileNotFoundError:
        return []


def rejects_in(lines: Iterable[str]) -> list[Reject]:
    """Return the samples in a list of rejects."""
    found = []
    with contextlib.suppress(csv.Error):  # a file of another program may have the name
        for row in csv.DictReader(lines):
            found.append(Reject(*(_as_reported(row.get(n) or "") for n in ("key", "reason"))))
    return found


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""Start of a cell that a spreadsheet would compute, or that is quoted already."""


def _no_formula(cell: str) -> str:
    """Return a cell that spreadsheets treat as text: with an apostrophe (OWASP)."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _as_reported(cell: str) -> str:
    """Undo `_no_formula`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def csv_line(*cells: object) -> bytes:
    """Return a line of a list of rejected samples."""
    text = io.StringIO()
    shown = (_no_formula(_visible(str(cell))) for cell in cells)
    csv.writer(text, lineterminator="\n").writerow(shown)
    return text.getvalue().encode()


def _visible(cell: str) -> str:
    """Return a cell without control characters, except tabs and line ends, which CSV quotes."""
    if cell.isprintable():
        return cell
    return "".join(
        part if part in "\t\n" else printable(part) for part in re.split(r"([\t\n])", cell)
    )


def _checksum(body: Any) -> str:
    return f"{checksum(json.dumps(body, sort_keys=True).encode()):016x}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two packs: of their identities, or else of their sources."""
    old, new = _flat(before["identity"]), _flat(json.loads(json.dumps(now["identity"])))
    found = []
    for name in {**old, **new}:
        was, is_ = old.get(name), new.get(name)
        if was == is_:
            continue
        if name.startswith("classes of ") and was and is_ and set(was) != set(is_):
            changed = [f"{c!r} is new" for c in is_ if c not in set(was)]
            changed += [f"{c!r} is gone" for c in was if c not in set(is_)]
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            found.append(f"{name}: {', '.join(changed[:3])}{more}")
        else:
            found.append(f"{name} was {_short(was)} and is {_short(is_)}")
    if not found and before["source"] != now["source"]:
        was, is_ = (pack["source"].partition(" ")[0] for pack in (before, now))
        found.append(
            "files of the source have changed since, or were added or removed "
            f"({was} then, {is_} now)"
        )
    return found


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with an entry for each property of each field."""
    schema = identity.get("schema", ())
    of_fields = {f"{what} of {one['name']}": one[what] for one in schema for what in one}
    return {**identity, "schema": [one["name"] for one in schema], **of_fields}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
