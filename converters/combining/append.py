"""`append`: add samples to an existing dataset.

The new samples are packed in the folder ``train.lmdb.append``, and then added in one step:

* to a folder of shards, new shards are added and the manifest is replaced; the old shards are
  neither read nor copied;
* a single file is replaced by one with the old and the new samples.

``train.lmdb.append.json`` holds the digest of the dataset with the new samples, and a hash of the
request, until all is done.  If a killed run has added its samples, the same call adds nothing; if
it has not, the call packs them again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.dataset import Dataset
from fastdata.errors import (
    FastdataError,
    FormatError,
    JobChangedError,
    OptionError,
    full_disk_explained,
    is_of_machine,
)
from fastdata.formats.layout import content_digest
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.proof import DATASET, REJECTS, listed_shards
from fastdata.formats.reader import ShardReader
from fastdata.own_files import remove_own, sync_directory
from fastdata.replacing import Destination, check_apart

from ..base import FieldSpec, Source, hash_fields
from ..finding import find_source
from ..opening import open_packed
from ..packed import PackedSource
from ..packing.driver import files_read, pack
from ..packing.job import read_state, rejects_path, replace_state
from ..packing.lock import DirectoryLock
from ..packing.options import EncodeOptions
from ..packing.report import PackReport
from ..reading.locations import folder_at, folders_in, is_pattern
from .class_numbers import fitted
from .copying import merge

__all__ = ["append"]

_ENCODING = ("size", "resize", "enlarge", "filter", "codec", "quality", "channels")
_MAKE_ROOM = "Make room and run the same command again."


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
    OptionError, DestinationLockedError, RejectedError, DiskFullError, ...
        As in `fastdata.pack`.

    Notes
    -----
    If it is interrupted, the same call finishes it.  Readers see the dataset without the new
    samples, or with all of them.  Each append to a single file copies the whole file: use a folder
    of shards for a dataset that grows.

    Examples
    --------
    >>> fastdata.append("train.lmdb", "./more_images")        # doctest: +SKIP
    """
    path = _one_dataset(dataset)
    workplace = path.with_name(path.name + ".append")
    new, merged = (workplace / f"{name}{path.suffix}" for name in ("new", "merged"))
    packed = new, merged, rejects_path(new)
    names = {f"{one.name}{end}" for one in packed for end in ("", ".partial")} | {"state.json"}
    with full_disk_explained(path, _MAKE_ROOM), contextlib.ExitStack() as stack:
        current = open_packed(path)
        stack.callback(DirectoryLock(workplace, names.__contains__, "appending").release)
        place = None if path.is_dir() else Destination(path, DATASET)
        listed = Destination(path.with_name(f"{path.name}.append.rejects.csv"), REJECTS)
        encoding = _packed_with(current)
        found = find_source(
            source,
            format=format or _known_classes(source, current),
            channels=encoding.get("channels", 3),
            fields=fields,
            options=source_options,
            numbered=True,
        )
        check_apart(workplace, files_read(source), around=False)
        request = _identity(found, current, limit, max_pixels)
        state = _read_state(path)
        if state is None or (state["after"], state["asked"]) != (current.digest, request):
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
                overwrite=True,
                progress=progress,
                **({"codec": "keep"} if found.name == "fastdata" else encoding),
            )
            readers = [*current.shards, *open_packed(new).shards]
            digest = content_digest(current.schema, [reader.column for reader in readers])
            done = dataclasses.asdict(report)
            for name in ("path", "digest", "rejects_path"):
                del done[name]  # which are those of the dataset
            state = {"after": digest, "asked": request, "report": done}
            replace_state(workplace / "state.json", state)
            os.replace(workplace / "state.json", _state_path(path))
            sync_directory(path.parent)
            if place is None:
                _add_shards(path, new, digest)
            else:
                merge([path, new], merged, overwrite=True, progress=progress)
                place.put(merged)
                sync_directory(path.parent)
        rejects = listed.path if state["report"]["num_rejected"] else None
        if rejects is None or rejects_path(new).exists():  # else an earlier run has published it
            listed.put(rejects_path(new))
        for one in packed:
            remove_own(one)
    _state_path(path).unlink()
    return PackReport(
        path=Path(dataset), digest=state["after"], rejects_path=rejects, **state["report"]
    )


def _one_dataset(dataset: str | os.PathLike[str]) -> Path:
    """Return the path of the dataset; refuse a pattern, or one shard of a dataset."""
    if is_pattern(dataset):
        raise OptionError(
            f"{os.fspath(dataset)} is a pattern, but append needs one dataset: a shard, or a "
            "folder of shards"
        )
    path = Path(os.path.realpath(dataset))
    if path.name in listed_shards(path.parent):
        raise OptionError(f"{path} is one shard of a dataset. Append to the dataset: {path.parent}")
    return path


def _known_classes(source: Any, dataset: Dataset) -> str | None:
    """Return "folder" for a single folder, and for folders that are all called like classes."""
    folder, classes = folder_at(source), set(dataset.schema.classes or ())
    names = folders_in(folder) if folder is not None else []
    if folder is None or not names or any(entry.is_file() for entry in os.scandir(folder)):
        return None
    return "folder" if classes and (len(names) == 1 or set(names) <= classes) else None


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
    shard = next(iter(dataset.shards))
    stored = shard.header.options
    options = {name: stored[name] for name in _ENCODING if name in stored}
    if isinstance(options.get("size"), list):
        options["size"] = tuple(options["size"])
    try:
        EncodeOptions(**options)
    except (OptionError, TypeError) as error:
        raise FormatError(f"{shard.path}: its header says how it was packed: {error}") from error
    return options


def _state_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.append.json")


def _read_state(path: Path) -> dict[str, Any] | None:
    """Return the state; None if there is none, `JobChangedError` if it is damaged."""
    path = _state_path(path)
    try:
        state: dict[str, Any] = read_state(path)
    except FileNotFoundError:
        return None
    except ValueError:
        raise JobChangedError(
            f"{path} is damaged, so it is unknown whether the samples have been added. Look at "
            f"the dataset (fastdata info), then remove that file: rm {shlex.quote(str(path))}"
        ) from None
    return state


def _add_shards(path: Path, added: Path, digest: str) -> None:
    """Move new shards into the dataset's folder, then replace its manifest."""
    manifest = Manifest.read(path)
    entries = list(manifest.shards)
    listed = {entry.file for entry in entries}
    for new in Manifest.read(added).shards:
        number = len(entries)
        while True:
            target = path / f"shard-{number:05}{Path(new.file).suffix}"
            # A killed run may have left this shard; other files are not ours.
            if target.name not in listed and _is_free(target, new):
                break
            number += 1
        Destination(target, DATASET).put(added / new.file)
        listed.add(target.name)
        entries.append(dataclasses.replace(new, file=target.name))
    sync_directory(path)
    Manifest(manifest.schema, digest, tuple(entries), manifest.options).write(path)
    sync_directory(path)


def _is_free(path: Path, entry: ShardEntry) -> bool:
    """Tell whether no file has this name, or it is this shard by its digest."""
    if not os.path.lexists(path):
        return True
    try:
        is_file = path.is_file() and not path.is_symlink()
        return is_file and ShardReader(path).header.digest == entry.digest
    except (FastdataError, OSError) as error:
        if is_of_machine(error):
            raise
        return False
