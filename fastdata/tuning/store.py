"""Where tuned results are kept: one JSON file a key, in the user's state directory.

    ~/.local/state/fastdata/tuned/0123456789abcdef0123456789abcdef.json

The place is platformdirs' ``user_state_dir``, or what ``FASTDATA_TUNED_DIR`` names.  What is
promised of it:

- A file is written under another name and renamed, so that any number of processes may read and
  write at once: the last one to write is found.
- Nothing in it is trusted, and nothing in it can stop a program: a file that is damaged, or not
  ours, is as good as absent, with one warning that names it.  A place that cannot be written is a
  warning too.
- No pickle: reading runs no code.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import platformdirs

from fastdata.tuning.key import Key
from fastdata.tuning.results import TuningResult

__all__ = ["Entry", "directory", "entries", "find", "forget", "is_empty", "save"]

log = logging.getLogger("fastdata")

VERSION = 1
"""Of the files."""

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """A result that is kept.

    Attributes
    ----------
    key : Key
    result : TuningResult
    measured_at : datetime
        When it was saved, UTC.
    path : Path
        The file.
    """

    key: Key
    result: TuningResult
    measured_at: datetime
    path: Path


def directory() -> Path:
    """Return the folder of the files, which need not be there."""
    named = os.environ.get("FASTDATA_TUNED_DIR")
    return Path(named) if named else Path(platformdirs.user_state_dir("fastdata")) / "tuned"


def is_empty() -> bool:
    """Return whether nothing is kept: some 20 us, so that asking costs a loader nothing."""
    try:
        with os.scandir(directory()) as files:
            return not any(file.name.endswith(".json") for file in files)
    except OSError:
        return True


def save(key: Key, result: TuningResult) -> Path | None:
    """Keep a result, in place of one that was kept under this key.

    Returns
    -------
    Path or None
        The file; None where it could not be written, with a warning that says why.
    """
    path = directory() / f"{key.digest}.json"
    document = {
        "fastdata_tuned": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "name": key.name,
        "machine": key.machine,
        "work": key.work,
        "result": replace(result, machine=key.machine).to_json(),
    }
    text = json.dumps(document, indent=1) + "\n"  # in ASCII, as a path may be no text
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".new", delete=False
        ) as file:
            scratch = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        if scratch is not None:
            with suppress(OSError):
                os.unlink(scratch)
        log.warning(
            "the tuned result cannot be kept in %s (%s): the next program will not find it. Set "
            "FASTDATA_TUNED_DIR to a folder that can be written",
            path.parent,
            error.strerror or error,
        )
        return None
    return path


def find(key: Key) -> Entry | None:
    """Return what is kept under this key, None where nothing is."""
    path = directory() / f"{key.digest}.json"
    entry = _read(path)
    if entry is not None and entry.key != key:
        _warn(path, "it is of another key than its name says")
        return None
    return entry


def entries() -> list[Entry]:
    """Return all that is kept, the newest first."""
    found = [entry for path in _paths() if (entry := _read(path)) is not None]
    return sorted(found, key=lambda entry: entry.measured_at, reverse=True)


def forget(*kept: Entry) -> int:
    """Remove the files of these entries; return how many were there.

    Raises
    ------
    OSError
        If one cannot be removed.
    """
    count = 0
    for entry in kept:
        with suppress(FileNotFoundError):  # somebody else was faster
            entry.path.unlink()
            count += 1
    return count


def _paths() -> Iterator[Path]:
    try:
        yield from sorted(directory().glob("*.json"))
    except OSError as error:
        _warn(directory(), error.strerror or str(error))


def _read(path: Path) -> Entry | None:
    """Return what a file holds; None where it is absent, or, with a warning, is not ours."""
    try:
        return _entry(path, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(path, error.strerror or str(error))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        _warn(path, f"{type(error).__name__}: {error}"[:300])
    return None


def _entry(path: Path, document: Any) -> Entry:
    if not isinstance(document, dict) or "fastdata_tuned" not in document:
        raise ValueError("it is no tuned result of fastdata's")
    if document["fastdata_tuned"] != VERSION:
        raise ValueError(f"its version is {document['fastdata_tuned']!r}, not {VERSION}")
    for name, kind in (("machine", dict), ("work", dict), ("name", str)):
        if not isinstance(document[name], kind):
            raise ValueError(f"{name} is {document[name]!r:.100}")
    measured = datetime.fromisoformat(document["measured_at"])
    if measured.tzinfo is None:
        raise ValueError(f"measured_at has no time zone: {document['measured_at']!r}")
    return Entry(
        Key(document["machine"], document["work"], document["name"]),
        TuningResult.from_json(document["result"]),
        measured,
        path,
    )


def _warn(path: Path, why: str) -> None:
    """Warn of a file, once a process."""
    if str(path) not in _warned:
        _warned.add(str(path))
        log.warning("%s is not used as a tuned result: %s. It can be removed", path, why)
