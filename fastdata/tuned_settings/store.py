"""Tuned settings in files, one a key, in the user's state directory.

    ~/.local/state/fastdata/tuned/0123456789abcdef0123456789abcdef.json

The folder is platformdirs' ``user_state_dir``, or ``FASTDATA_TUNED_DIR``.  Guarantees:

- Files are written under another name and renamed, so that any number of processes may read and
  write concurrently; the last writer wins.
- Files are not trusted and cannot stop a program: a damaged or foreign file counts as absent, with
  one warning that names it.  So does a file or a folder that another user owns or may write to
  (`fastdata.own_files`).  A read-only folder is a warning, too.
- No pickle: reading runs no code.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs
import xxhash

from fastdata.bounds import check_float, check_int
from fastdata.errors import NotRegularFileError
from fastdata.formats.layout import canonical_json
from fastdata.own_files import make_own_folder, open_own_file, open_own_folder
from fastdata.tuned_settings.settings import Settings, from_plain

__all__ = [
    "Entry",
    "Key",
    "Point",
    "TunedSettings",
    "directory",
    "entries",
    "find",
    "forget",
    "is_empty",
    "is_used",
    "log_once",
    "save",
]

log = logging.getLogger("fastdata")

_logged: set[str] = set()

VERSION = 4
"""Of the files."""

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Key:
    """The parameters of settings (`fastdata.tuned_settings.key`), and the name of the data.

    The name, a path or class, is for listings and is not compared.
    """

    machine: dict[str, Any]
    work: dict[str, Any]
    name: str = field(default="", compare=False)

    @cached_property
    def digest(self) -> str:
        """32 hex digits: XXH3-128 of the canonical JSON of both."""
        return xxhash.xxh3_128_hexdigest(canonical_json([self.machine, self.work]))


@dataclass(frozen=True, slots=True)
class Point:
    """Batches per second for a number of workers, without a training step."""

    num_workers: int
    supply: float


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """What is kept of a tuning: the settings, and the figures that listings and profiles show."""

    settings: Settings
    batch_size: int
    verdict: str
    saturates: bool
    """Whether they keep the step busy."""
    supply: float | None = None
    demand: float | None = None
    """Batches per second, if known."""
    curve: tuple[Point, ...] = ()
    """For workers of this kind, the fewest first."""
    streams: int | None = None
    """Requests at once to the store, where their number was measured."""

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size)
        if self.streams is not None:
            check_int("streams", self.streams)
        for name in ("supply", "demand"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name))

    def __str__(self) -> str:
        return str(self.settings) + (f", {self.streams} streams" if self.streams else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of tuned settings: their key, and when they were saved (UTC)."""

    key: Key
    tuned: TunedSettings
    measured_at: datetime
    path: Path


def directory() -> Path:
    """Return the folder of the files, which need not be there."""
    named = os.environ.get("FASTDATA_TUNED_DIR")
    return Path(named) if named else Path(platformdirs.user_state_dir("fastdata")) / "tuned"


def is_used() -> bool:
    """Return whether anything is kept, and is to be used."""
    return os.environ.get("FASTDATA_TUNED") != "0" and not is_empty()


def is_empty() -> bool:
    """Return whether nothing is kept: some 20 us, so that asking costs a loader nothing."""
    try:
        with os.scandir(directory()) as files:
            return not any(file.name.endswith(".json") for file in files)
    except OSError:
        return True


def save(key: Key, tuned: TunedSettings) -> Path | None:
    """Save settings, replacing earlier ones for this key; return the file.

    None, with a warning, if it could not be written.
    """
    path = directory() / f"{key.digest}.json"
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = {
        "fastdata_tuned": VERSION,
        "measured_at": now,
        **asdict(key),
        "tuned": asdict(tuned),
    }
    text = json.dumps(document, indent=1) + "\n"  # in ASCII, as a path may be no text
    scratch = None
    try:
        make_own_folder(path.parent)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".new", delete=False
        ) as file:
            scratch = file.name
            file.write(text)
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
    """Return the entry for this key, or None."""
    path = directory() / f"{key.digest}.json"
    entry = _read(path)
    if entry is not None and entry.key != key:
        _warn(path, "it is of another key than its name says")
        return None
    return entry


def entries() -> list[Entry]:
    """Return all that is kept, the newest first."""
    try:
        paths = sorted(directory().glob("*.json"))
    except OSError as error:
        _warn(directory(), error.strerror or str(error))
        return []
    found = [entry for path in paths if (entry := _read(path)) is not None]
    return sorted(found, key=lambda entry: entry.measured_at, reverse=True)


def forget(*kept: Entry) -> int:
    """Remove the files of these entries; return the number that existed."""
    count = 0
    for entry in kept:
        with suppress(FileNotFoundError):  # another process was faster
            entry.path.unlink()
            count += 1
    return count


def _read(path: Path) -> Entry | None:
    """Return the entry in a file; None if it is absent or, with a warning, foreign."""
    try:
        os.close(open_own_folder(path.parent))
        with open_own_file(path) as file:
            document = json.loads(file.read(_MOST_BYTES))
        version = document.pop("fastdata_tuned", None) if isinstance(document, dict) else None
        if version is None:
            raise ValueError("it is no tuned result of fastdata's")
        if version != VERSION:
            why = f"its version is {version!r}, not {VERSION}; others of that version are not used"
            _warn(path, f"{why} either", about=f"version {version!r}")
            return None
        measured_at = datetime.fromisoformat(document.pop("measured_at"))
        if measured_at.tzinfo is None:
            raise ValueError(f"measured_at has no time zone: {measured_at.isoformat()!r}")
        tuned = from_plain(TunedSettings, document.pop("tuned"))
        return Entry(from_plain(Key, document), tuned, measured_at, path)
    except FileNotFoundError:
        return None
    except NotRegularFileError as error:
        _warn(path, f"{error.strerror} (FASTDATA_TUNED_DIR)", about="others")
    except OSError as error:
        _warn(path, error.strerror or str(error))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        _warn(path, f"{type(error).__name__}: {error}"[:300])
    return None


def log_once(about: str, level: int, message: str, *arguments: object) -> None:
    """Log a message once a process for all that it is about."""
    if about not in _logged:
        _logged.add(about)
        log.log(level, message, *arguments)


def _warn(path: Path, why: str, *, about: str | None = None) -> None:
    message = "%s is not used as a tuned result: %s. It can be removed"
    log_once(about or str(path), logging.WARNING, message, path, why)
