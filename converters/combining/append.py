"""`append`: add samples to an existing dataset.

The new samples are packed in the folder ``train.lmdb.append``, and then added in one step:

* to a folder of shards, new shards are added and the manifest is replaced; the old shards are
  neither read nor copied;
* a single file is replaced by one with the old and the new samples.

``append.json`` in that folder holds the digests before and after, and a hash of the request: a
killed run continues, adds nothing twice, and refuses another source.  Once the samples are in the
dataset, the file becomes ``train.lmdb.append.done``, and is removed last: a run that is killed
while it removes the folder is recognised, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.dataset import Dataset
from fastdata.errors import (
    FastdataError,
    JobChangedError,
    OptionError,
    full_disk_explained,
    is_of_machine,
)
from fastdata.formats.layout import content_digest
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.own_files import create_own, remove_own, sync_directory

from ..base import FieldSpec, Source, hash_fields
from ..finding import find_source
from ..opening import open_packed
from ..packed import PackedSource
from ..packing.driver import pack
from ..packing.job import read_state, rejects_path, replace_state
from ..packing.lock import DirectoryLock
from ..packing.packer import Packer
from ..packing.report import PackReport
from ..reading.locations import folder_at, folders_in, is_pattern
from .class_numbers import fitted
from .copying import merge

__all__ = ["append"]

log = logging.getLogger("fastdata")

_ENCODING = ("size", "resize", "enlarge", "filter", "codec", "quality", "channels")
_MAKE_ROOM = "Make room and run the same command again: it goes on where it stopped."
_STATE = "append.json"


def append(
    dataset: str | os.PathLike[str],
    source: Any,
    *,
    num_workers: int | None = None,
    on_error: Literal["report", "stop"] = "report",
    limit: int | None = None,
    format: str | None = None,
    fields: FieldSpec | None = None,
    source_options: Mapping[str, Any] | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: bool | None = None,
) -> PackReport:
    """Add samples to a packed dataset.

    They are resized and encoded with the options of the dataset (size, codec, quality, ...);
    another fastdata dataset is copied unchanged.

    Parameters
    ----------
    dataset : path-like
        A shard or a folder of shards; no pattern, and no shard of a folder that has a manifest.
        A link is followed.
    source : path, pattern, iterable or torch Dataset
        Anything that `fastdata.pack` takes, of the same fields.  Classes are matched by
        their names: they may be fewer than the dataset's, or in another order, but none may
        be new.
    num_workers, on_error, limit, format, fields, source_options, max_pixels, progress
        As in `fastdata.pack`.

    Returns
    -------
    PackReport
        Report on the new samples; `path` and `digest` are the dataset's.

    Raises
    ------
    SourceError
        If the source has other fields, or classes that the dataset has not.
    JobChangedError
        If an unfinished append has another source.  Iterables are not distinguished.
    OptionError, DestinationLockedError, RejectedError, DiskFullError, ...
        As in `fastdata.pack`.

    Notes
    -----
    If it is interrupted, the same call continues.  Readers see the dataset without the new
    samples, or with all of them.  Each append to a single file copies the whole file: use a folder
    of shards for a dataset that grows.

    Examples
    --------
    >>> fastdata.append("train.lmdb", "./more_images")        # doctest: +SKIP
    """
    path = _one_dataset(dataset)
    workplace = path.with_name(path.name + ".append")
    new = workplace / f"new{path.suffix}"
    done = path.with_name(path.name + ".append.done")
    with full_disk_explained(path, _MAKE_ROOM), contextlib.ExitStack() as stack:
        current = open_packed(path)
        ours = _names_in_workplace(new)
        stack.callback(DirectoryLock(workplace, ours.__contains__, "appending").release)
        unfinished = _unfinished(workplace, current, path)
        encoding = _packed_with(current)
        found = find_source(
            source,
            format=format or _known_classes(source, current),
            channels=encoding.get("channels", 3),
            fields=fields,
            options=source_options,
        )
        request = _identity(found, current, limit, max_pixels)
        state = _state_of_request(unfinished, request, current, new, done, path)
        if state is not None and current.digest == state.before:
            damage = _damage(new, current, state)
            if damage is not None:
                log.warning("%s. The new samples are packed again", damage.removesuffix("."))
                state = None
        if state is None:
            report = pack(
                fitted(found, current.schema),
                new,
                container="hdf5" if current.paths[-1].suffix in (".h5", ".hdf5") else "lmdb",
                # New shards have the size of the old ones.
                shard_size=max(map(len, current.shards)) if path.is_dir() else None,
                num_workers=num_workers,
                on_error=on_error,
                limit=limit,
                max_pixels=max_pixels,
                # Without a state, the source of an existing part is unknown.
                overwrite=True,
                progress=progress,
                **({"codec": "keep"} if found.name == "fastdata" else encoding),
            )
            state = _State.of(current, report, request)
            state.write(workplace)
        if current.digest == state.before:
            if path.is_dir():
                _add_shards(path, current, new, state)
            else:
                merge([path, new], path, overwrite=True, progress=progress)
        rejects = _publish_rejects(new, path, state.report["num_rejected"])
        _clear(new, done)
    done.unlink(missing_ok=True)
    return PackReport(path=Path(dataset), digest=state.after, rejects_path=rejects, **state.report)


def _one_dataset(dataset: str | os.PathLike[str]) -> Path:
    """Return the path of the dataset; refuse a pattern, or one shard of a dataset."""
    if is_pattern(dataset):
        raise OptionError(
            f"{os.fspath(dataset)} is a pattern, but append needs one dataset: a shard, or a "
            "folder of shards"
        )
    path = Path(os.path.realpath(dataset))
    listed: set[str] = set()
    with contextlib.suppress(FastdataError, OSError):
        listed = {entry.file for entry in Manifest.read(path.parent).shards}
    if path.name in listed:
        raise OptionError(f"{path} is one shard of a dataset. Append to the dataset: {path.parent}")
    return path


def _known_classes(source: Any, dataset: Dataset) -> str | None:
    """Return "folder" for a single folder, and for folders that are all called like classes."""
    folder, classes = folder_at(source), dataset.schema.classes
    names = folders_in(folder) if folder is not None else []
    known = len(names) == 1 or set(names) <= set(classes or ())
    return "folder" if names and classes and known and not _has_files(folder) else None


def _has_files(folder: Path | None) -> bool:
    return folder is not None and any(entry.is_file() for entry in os.scandir(folder))


def _identity(source: Source, current: Dataset, limit: int | None, max_pixels: int) -> str:
    """Return a hash that is the same for the same call, as far as the source allows."""
    content = source.fingerprints(limit).tobytes()
    if isinstance(source, PackedSource) and source.dataset.paths[0] == current.paths[0]:
        content = b""  # the dataset itself, which is another once it has been added
    options = sorted((name, str(value)) for name, value in source.format_options.items())
    identity = (source.name, options, source.schema.to_json(), limit, max_pixels, content)
    return f"{hash_fields(*identity):016x}"


def _packed_with(dataset: Dataset) -> dict[str, Any]:
    """Return how the images of a dataset were resized and encoded, as options of `pack`."""
    stored = next(iter(dataset.shards)).header.options
    options = {name: stored[name] for name in _ENCODING if name in stored}
    if isinstance(options.get("size"), list):
        options["size"] = tuple(options["size"])
    return options


# -- going on after an interruption -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _State:
    """Digests before and after, the request's hash, and the report; written once it is packed."""

    before: str
    after: str
    asked: str
    report: dict[str, Any]

    @classmethod
    def of(cls, current: Dataset, report: PackReport, request: str) -> _State:
        added = open_packed(report.path)
        summary = {
            field.name: getattr(report, field.name)
            for field in dataclasses.fields(report)
            if field.name not in ("path", "digest", "rejects_path")
        }
        return cls(current.digest, _digest_of_both(current, added), request, summary)

    @classmethod
    def read(cls, path: Path) -> _State | None:
        """Return the state; None if there is none, `JobChangedError` if it is damaged."""
        try:
            return cls(**read_state(path))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise JobChangedError(
                f"{path} is damaged, so it is unknown whether the samples have been added. Look at "
                f"the dataset (fastdata info), then remove that file: rm {shlex.quote(str(path))}"
            ) from None

    def write(self, workplace: Path) -> None:
        replace_state(workplace / _STATE, dataclasses.asdict(self))
        sync_directory(workplace)


def _unfinished(workplace: Path, current: Dataset, path: Path) -> _State | None:
    """Return the state of an interrupted append; refuse one of another dataset."""
    state = _State.read(workplace / _STATE)
    if state is None:
        return None
    if current.digest not in (state.before, state.after):
        raise JobChangedError(
            f"{path} has changed since the unfinished append in {workplace} was started. Discard "
            f"the new samples: rm -r {shlex.quote(str(workplace))}"
        )
    if current.digest == state.after and not path.is_dir():
        with contextlib.closing(Packer(path)) as packer:
            packer.tidy_after(state.after)  # of the merge
    return state


def _state_of_request(
    state: _State | None, request: str, current: Dataset, new: Path, done: Path, path: Path
) -> _State | None:
    """Return how far an earlier run of the same request came, None where it did not pack."""
    if state is not None and state.asked != request:
        if current.digest == state.before:
            raise JobChangedError(
                f"{new.parent} is an unfinished append of another source to {path}. Finish it with "
                f"the command that began it, or discard it: rm -r {shlex.quote(str(new.parent))}"
            )
        # The dataset has the samples already: remove the leftover files.
        _clear(new, done)
        state = None
    if state is not None:
        return state
    state = _State.read(done)
    if state is not None and (state.after, state.asked) != (current.digest, request):
        return None  # left by an append long ago
    return state


def _damage(new: Path, current: Dataset, state: _State) -> str | None:
    """Return the damage of files packed by an earlier run; None if they are intact."""
    try:
        added = open_packed(new)
        for shard in added.shards:
            if (damage := next(find_damage(shard), None)) is not None:
                return str(damage)
        if _digest_of_both(current, added) != state.after:
            return f"{new} has changed since it was packed"
    except FastdataError as error:
        return str(error)
    return None


def _digest_of_both(current: Dataset, added: Dataset) -> str:
    readers = [*current.shards, *added.shards]
    return content_digest(current.schema, [reader.column for reader in readers])


def _add_shards(path: Path, current: Dataset, added: Path, state: _State) -> None:
    """Give new shards names in the dataset's folder, then replace its manifest."""
    manifest = Manifest.read(path)
    entries = list(manifest.shards)
    listed = {entry.file for entry in entries}
    for new in Manifest.read(added).shards:
        number = len(entries)
        while True:
            name = f"shard-{number:05}{Path(new.file).suffix}"
            # A killed run may have left this shard; other files are not ours.
            is_left = name not in listed and _is_shard(path / name, new)
            if is_left or not os.path.lexists(path / name):
                break
            number += 1
        listed.add(name)
        if not is_left:
            _link(added / new.file, path / name)
        entries.append(dataclasses.replace(new, file=name))
    sync_directory(path)
    Manifest(manifest.schema, state.after, tuple(entries), manifest.options).write(path)
    sync_directory(path)


def _is_shard(path: Path, entry: ShardEntry) -> bool:
    """Return whether a file is this shard, by its digest."""
    try:
        is_file = path.is_file() and not path.is_symlink()
        return is_file and ShardReader(path).header.digest == entry.digest
    except (FastdataError, OSError) as error:
        if is_of_machine(error):
            raise
        return False


def _link(source: Path, target: Path) -> None:
    """Link a file to a second name, or copy it there atomically."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        scratch = target.with_name(f".fastdata-{target.name}.new")
        with open(source, "rb") as found, open(create_own(scratch), "wb") as copy:
            shutil.copyfileobj(found, copy)
        os.rename(scratch, target)


def _publish_rejects(added: Path, path: Path, num_rejected: int) -> Path | None:
    """Publish the list of rejects, unless an earlier run has done so."""
    target = path.with_name(f"{path.name}.append.rejects.csv")
    if not num_rejected:
        target.unlink(missing_ok=True)
        return None
    if rejects_path(added).exists():
        os.replace(rejects_path(added), target)
    return target


def _names_in_workplace(new: Path) -> set[str]:
    """Return the names of our files in the folder, except the lock and the state."""
    return {new.name, f"{new.name}.partial", rejects_path(new).name, f"{_STATE}.new"}


def _clear(new: Path, done: Path) -> None:
    """Remove our files; the folder stays if it has others."""
    # The state goes last: without it, the next run would treat leftover files as new samples.
    workplace = new.parent
    for name in _names_in_workplace(new):
        remove_own(workplace / name)
    if (workplace / _STATE).exists():
        os.replace(workplace / _STATE, done)
        sync_directory(done.parent)
