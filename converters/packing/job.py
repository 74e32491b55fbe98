"""An unfinished pack on the disk: its lock, its state, and checks against the new request.

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
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import DestinationExistsError, JobChangedError
from fastdata.formats.layout import checksum
from fastdata.formats.manifest import ShardEntry
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import (
    ShardDamagedError,
    Spool,
    SpoolState,
    replace_file,
    write_file,
)
from fastdata.own_files import (
    make_own_folder,
    open_own_file,
    remove_own,
    sync_directory,
)
from fastdata.regular_files import open_regular
from fastdata.storage.local import tag_of

from ..base import Reject
from .lock import DirectoryLock

__all__ = [
    "Job",
    "Sealed",
    "checked_json",
    "csv_line",
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

_OURS = re.compile(r"(job\.json|state\.json|rejects\.csv)(\.new)?|shard-\d{5}|shards|replaced")
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
    digest: str = ""
    """Digest of the dataset, once all shards are finished."""

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


def rejects_path(destination: Path) -> Path:
    """Return the path of a dataset's list of rejected samples."""
    return destination.with_name(destination.name + ".rejects.csv")


class Job:
    """One pack to one destination, locked against other processes and threads."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self.directory = destination.with_name(destination.name + ".partial")
        self.shards = self.directory / "shards"
        self._rejects: Spool | None = None
        self.state = State()
        self.notes: list[str] = []
        """Remarks on the files of an earlier run."""
        self._lock = DirectoryLock(self.directory, _OURS.fullmatch)

    # -- starting -------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the old dataset, if a packer died between the two renames."""
        replaced = self.directory / "replaced"
        if os.path.lexists(replaced) and not os.path.lexists(self.destination):
            os.rename(replaced, self.destination)

    def begin(self, identity: Mapping[str, Any], source: str, *, restart: bool = False) -> None:
        """Resume the unfinished pack, or start one.

        `identity` is JSON of everything that decides the result, e.g. the options, and `source` a
        hash of the samples.  `JobChangedError` lists the differences if the unfinished pack has
        others; with `restart` that pack is discarded instead.
        """
        found = self._read("job.json")
        changes = [] if found is None else differences(**found, now=identity, source_now=source)
        if changes and not restart:
            raise JobChangedError(
                f"{self.directory} is an unfinished pack of something else: "
                f"{'; '.join(changes)}. Finish it with the options that it was started with, or "
                "start again with overwrite=True (--overwrite)."
            )
        if found is None or changes:
            self._clear()
            replace_state(
                self.directory / "job.json", {"identity": dict(identity), "source": source}
            )
            sync_directory(self.directory)
        saved = self._read("state.json")
        if saved is None:
            self.start_over()
            return
        self.state = State.from_json(saved)
        try:
            self._open()
        except ShardDamagedError as error:
            self.note(f"{error}. Everything is packed again")
            self.start_over()

    def note(self, text: str) -> None:
        """Log a remark on an earlier run, and keep it for the report."""
        log.warning("%s", text)
        self.notes.append(text)

    def start_over(self) -> None:
        """Discard the progress of the pack; its identity stays."""
        self._clear(keep=("job.json",))
        self.state = State()
        self._open()

    def go_back(self, sealed: int) -> None:
        """Discard all but the first `sealed` shards."""
        kept = self.state.sealed[:sealed]
        start = kept[-1].after if kept else Start()
        self.state = State(**asdict(start), sealed=kept)
        self._open()
        self.commit()
        for path in self.shards.iterdir():
            if path.name not in {shard.entry.file for shard in kept}:
                remove_own(path)

    def _open(self) -> None:
        if self._rejects is not None:
            self._rejects.close()
        if not self.state.digest:
            # With a digest, the folder may be published already.
            make_own_folder(self.shards)
        self._rejects = Spool(self.directory / "rejects.csv", self.state.rejects)

    def _clear(self, keep: Sequence[str] = ()) -> None:
        names = [name for name in os.listdir(self.directory) if _OURS.fullmatch(name)]
        # job.json first: without it, the other files have no meaning.
        for name in sorted(set(names).difference(keep), key=lambda name: name != "job.json"):
            remove_own(self.directory / name)

    # -- going on ---------------------------------------------------------------------

    def reject(self, index: int, reject: Reject) -> None:
        """Add a sample to the list of rejects."""
        assert self._rejects is not None
        if self._rejects.length == 0:
            self._rejects.append(b"index,key,reason\n")
        self._rejects.append(csv_line(index, reject.key, reject.reason))
        self.state.num_rejected += 1

    def note_sealed(self, shard: Path) -> None:
        """Note that the current shard is finished; the next one begins here."""
        assert self._rejects is not None
        self.state.rejects = self._rejects.state
        after = Start(*(getattr(self.state, name) for name in Start.__slots__))
        self.state.sealed.append(Sealed(entry_of(shard), tag_of(os.stat(shard)), after))

    def commit(self) -> None:
        """Make the state durable, after the data that it refers to."""
        assert self._rejects is not None
        self._rejects.sync()
        self.state.rejects = self._rejects.state
        replace_state(self.directory / "state.json", asdict(self.state))

    # -- ending -----------------------------------------------------------------------

    def publish(self, data: Path, *, replace: bool) -> None:
        """Rename finished data to the destination, and remove the remaining files.

        The list of rejects comes first and the dataset last, so that a visible dataset is
        complete.  If `data` does not exist, an earlier run has published it.  An existing
        destination is replaced; without `replace` it is a `DestinationExistsError`.
        """
        if data.exists():
            if os.path.lexists(self.destination) and not replace:
                raise DestinationExistsError(
                    f"{self.destination} appeared while the dataset was being packed. Move it away "
                    "and run the same command again, or pass overwrite=True (--overwrite)."
                )
            self._publish_rejects()
            if data.is_dir() or self.destination.is_dir():
                if os.path.lexists(self.destination):
                    os.rename(self.destination, self.directory / "replaced")
                os.rename(data, self.destination)
            else:
                os.replace(data, self.destination)
            sync_directory(self.destination.parent)
        self._clear()

    def tidy_after(self, digest: str) -> None:
        """Remove the remaining files of a pack that was killed after publishing.

        An unfinished pack of a dataset with another digest is not touched.
        """
        state = self._read("state.json")
        if state is not None and state.get("digest") == digest:
            self._clear()

    def abandon(self) -> None:
        """End a pack without samples; only the list of rejects stays."""
        self._publish_rejects()
        self._clear()

    def _publish_rejects(self) -> None:
        assert self._rejects is not None
        if self.state.num_rejected:
            self._rejects.sync()
            with open_own_file(self._rejects.path) as file:
                write_file(self.directory / "rejects.csv.new", file.read())
            os.replace(self.directory / "rejects.csv.new", rejects_path(self.destination))
        else:
            rejects_path(self.destination).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock; committed data stay."""
        try:
            if self._rejects is not None:
                self._rejects.close()
            if self._lock.is_locked and not (self.directory / "job.json").exists():
                with contextlib.suppress(OSError):  # finished, or never begun
                    self._clear()
                    self._lock.release(finished=True)
        finally:
            self._lock.release()

    def _read(self, name: str) -> Any:
        """Return a committed file; None if it is missing or damaged."""
        path = self.directory / name
        try:
            return read_state(path)
        except FileNotFoundError:
            return None
        except ValueError:
            self.note(f"{path} is damaged. Everything is packed again")
            return None


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
        with open(path, newline="", encoding="utf-8", opener=open_regular) as file:
            return rejects_in(file)
    except FileNotFoundError:
        return []


def rejects_in(lines: Iterable[str]) -> list[Reject]:
    """Return the samples in a list of rejects."""
    rows = csv.DictReader(lines)
    return [Reject(_as_reported(row["key"]), _as_reported(row["reason"])) for row in rows]


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
    # Python 3.10 cannot write NUL.
    shown = (_no_formula(str(cell).replace("\0", "\\x00")) for cell in cells)
    csv.writer(text, lineterminator="\n").writerow(shown)
    return text.getvalue().encode("utf-8", "replace")


def _checksum(body: Any) -> str:
    return f"{checksum(json.dumps(body, sort_keys=True).encode()):016x}"


def differences(
    identity: Mapping[str, Any], source: str, now: Mapping[str, Any], source_now: str
) -> list[str]:
    """Return the differences between a stored identity and source and those of now."""
    old, new = _flat(identity), _flat(json.loads(json.dumps(now)))
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
    if not found and source != source_now:
        counts = source.partition(" ")[0], source_now.partition(" ")[0]
        found.append(
            "files of the source have changed since, or were added or removed "
            f"({counts[0]} then, {counts[1]} now)"
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
