"""`pack`: the function behind ``fastdata.pack`` and ``fastdata pack``.

It checks its arguments and brings together a source, workers and a packer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from fastdata.bounds import check_int
from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.resize import Filter, Resize
from fastdata.errors import (
    DestinationLockedError,
    OptionError,
    did_you_mean,
    full_disk_explained,
)
from fastdata.formats.layout import Header
from fastdata.formats.manifest import MANIFEST, Manifest
from fastdata.processes.ranks import world_size
from fastdata.replacing import check_apart
from fastdata.schema import Codec
from fastdata.storage import Store, is_url, open_store
from fastdata.summary import load_code
from fastdata.waits import wait_until

from ..base import FieldSpec, Source
from ..finding import find_source
from ..packed import PackedSource, files_of, opened
from ..reading.locations import files_at, is_pattern, path_of
from ..reading.spans import close_files
from .engines import Task, at_url, named_executor, open_source, run_parts
from .job import dataset_at
from .options import Container, EncodeOptions, PackOptions, parse_shard_size
from .packer import Packer
from .parts import REJECTS, Parts, Receipt, share_of
from .remarks import Remarks, remark_lines, with_remarks
from .report import PackReport, progress_bar, say_what_is_read
from .workers import start_workers

__all__ = ["files_read", "pack"]

_MAKE_ROOM = "Make room and run the same command again: it goes on where it stopped."

_RunAll: TypeAlias = Callable[[Sequence[int]], Generator[Receipt, None, None]]

_SHARD_SIZE = "1GB"
"""Default shard size of a dataset at a URL."""

_SUFFIXES: dict[str, Container] = {".lmdb": "lmdb", ".h5": "hdf5", ".hdf5": "hdf5"}


def pack(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] = 256,
    resize: Resize | None = None,
    enlarge: bool = False,
    filter: Filter = "bilinear",
    codec: Codec = "auto",
    quality: int = 90,
    channels: int = 3,
    container: Container | None = None,
    shards: int = 1,
    shard_size: int | str | None = None,
    num_workers: int | None = None,
    on_error: Literal["report", "stop"] = "report",
    overwrite: bool = False,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    format: str | None = None,
    fields: FieldSpec | None = None,
    source_options: Mapping[str, Any] | None = None,
    max_pixels: int = MAX_PIXELS,
    executor: Executor | str | None = None,
    part: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack images into a dataset that trains fast.

    Parameters
    ----------
    source : path, pattern, URL, iterable or torch Dataset
        A folder of class folders, a CSV or TSV manifest, any other format that
        ``fastdata formats`` lists, or samples from Python.  At a URL, ``s3://bucket/images``, class
        folders, WebDataset, TFRecord, Parquet, MDS, LitData and manifests; files there may be named
        by patterns, ``s3://bucket/train-{00..09}.tar``.
    destination : path-like or URL
        A file, ``.lmdb`` or ``.h5``; with several shards, a directory.  Another suffix requires
        `container`.  At a URL, a folder of shards of about 1 GB each, unless `shards` or
        `shard_size` is given.
    size : int or (int, int)
        Pixels of the side that `resize` names, or height and width.
    resize : {"short", "long", "exact", "crop", "none"}, optional
        ``"short"`` and ``"long"`` resize that side to `size` and keep the aspect ratio, ``"exact"``
        does not keep it, ``"crop"`` resizes the short side and cuts out the centre.  By default
        ``"short"``; ``"none"`` with ``codec="keep"``.
    enlarge : bool
        Whether to enlarge smaller images.
    filter : {"bilinear", "bicubic", "lanczos"}
        All antialiased, as torchvision's on PIL images.
    codec : {"auto", "jpeg", "png", "raw", "keep"}
        ``"auto"`` is raw up to 64 x 64 pixels, else JPEG; masks are PNG.  A JPEG of the right size
        keeps its pixels: only its entropy code changes.  ``"keep"`` copies files byte for byte.
    quality : int
        Quality of encoded JPEGs, 1 to 100.
    channels : {3, 1}
        RGB or grey.
    max_pixels : int
        Images with more pixels are rejected.
    container : {"lmdb", "hdf5"}, optional
        By the destination's suffix, else ``"lmdb"``.
    shards : int
        Number of files of the dataset.
    shard_size : int or str, optional
        Or the size of each file: a number of samples, or bytes (``"2GB"``, approximately).
    num_workers : int, optional
        Worker processes; 0 works in the calling thread.  By default one per core.
    on_error : {"report", "stop"}
        Whether a bad image is listed as a reject, or ends the pack.
    overwrite : bool
        Replace an existing dataset once the new one is complete, and discard an unfinished pack
        with other options or another source.
    limit : int, optional
        Take only the first `limit` samples (of the shuffled order, if shuffled).
    shuffle, seed : bool, int
        Pack in a random order: sequential reads of class-sorted files are bad for training.
    format : str, optional
        Name of the source's format; by default it is recognised.
    fields : mapping of str to Field or str, optional
        Kinds of fields that a manifest or Python object does not determine.
    source_options : mapping of str to object, optional
        Options of the source's format; ``fastdata formats`` lists them.
    executor : concurrent.futures.Executor or str, optional
        Runs the work instead of own processes; it is not shut down.  ``"dask:ADDRESS"``,
        ``"dask:local"``, ``"ray:ADDRESS"`` and ``"ray:auto"`` are engines: each task packs one
        shard, from a source with a path or URL that is valid on all machines.  An executor does
        the same if the destination is a URL; else it encodes chunks for this process.
    part : {"plan", "K/N", "commit"}, optional
        Only one step of a pack of several shards, for independent tasks: first ``"plan"``; then
        ``"0/N"`` to ``"N-1/N"`` on any machine, which pack a share of the missing shards each; then
        ``"commit"``, which completes the dataset.
    storage_options : mapping of str to str, optional
        For URLs: ``endpoint``, ``region``, ``anonymous``.  Credentials are those of each cloud's
        own tools.
    progress : bool, optional
        A progress bar on standard error; by default if that is a terminal.

    Returns
    -------
    PackReport

    Raises
    ------
    OptionError, SourceError
        If the arguments or the source cannot be used.
    DestinationExistsError, DestinationLockedError, JobChangedError
        If the destination exists, another process packs to it, or an unfinished pack has other
        options.
    PartsMissingError
        If a step before `part` is missing.
    StorageError
        If a store cannot be read or written.
    RejectedError
        At the first bad image, with ``on_error="stop"``.
    MachineError, ResourceLimitError
        If a sample cannot be read for a reason other than its data: no permission, an I/O error,
        too little memory.  Run the same call again to continue.
    WorkerError
        If workers cannot be started, or an engine or its workers are lost.
    DiskFullError
        If the disk is full; run the same call again to continue.

    Notes
    -----
    After an interruption, the same call continues.  The result does not depend on interruptions or
    on `num_workers`.
    If several ranks of a training call this, one rank packs, and the others wait for the dataset.
    Before the first sample, the logger ``fastdata`` describes the source at level INFO: format,
    samples, classes, fields; the report has the same description.
    Memory is bounded by the chunks of 32 samples in flight.  In a script, call this under
    ``if __name__ == "__main__":``.

    Examples
    --------
    >>> report = fastdata.pack("./images", "train.lmdb", size=256)   # doctest: +SKIP
    """
    storage_options = dict(storage_options or {})
    # A file:// URL is a path.
    target: Store | str | Path = at_url(os.fspath(destination), storage_options)
    in_parts = part is not None or isinstance(executor, str) or isinstance(target, Store)
    path = Path(target.url if isinstance(target, Store) else target)
    if isinstance(target, Store):
        if shards == 1 and shard_size is None:
            shard_size = _SHARD_SIZE
    elif path.name in ("", ".."):
        raise OptionError(f"destination {str(destination)!r} cannot be the name of a dataset")
    elif container is None and shards == 1 and shard_size is None:
        _refuse_suffix(path)
    container = container or _SUFFIXES.get(path.suffix.lower(), "lmdb")
    encode = EncodeOptions(
        size=(size, size) if isinstance(size, int) else size,
        resize=resize or ("none" if codec == "keep" else "short"),
        enlarge=enlarge,
        filter=filter,
        codec=codec,
        quality=quality,
        channels=channels,
        max_pixels=max_pixels,
    )
    options = PackOptions(
        encode=encode,
        container=container,
        shards=shards,
        limit=limit,
        shuffle=shuffle,
        seed=seed,
        **parse_shard_size(shard_size),
    )
    if on_error not in ("report", "stop"):
        raise OptionError(f"on_error={on_error!r} is neither 'report' nor 'stop'")
    if num_workers is not None:
        num_workers = check_int("num_workers", num_workers)
    if in_parts:
        _check_step(source, options, part, executor, overwrite)
    else:
        sources = files_read(source)
        check_apart(path.with_name(f"{path.name}.partial"), sources, around=False)
        if os.path.lexists(path):
            check_apart(path, sources, around=overwrite)
    found_by: dict[str, Any] = {
        "format": format,
        "channels": channels,
        "fields": fields,
        "options": source_options,
    }
    engine = executor if isinstance(executor, str) else type(executor).__name__
    with contextlib.ExitStack() as stack:
        if isinstance(executor, str):
            executor = stack.enter_context(named_executor(executor))
        if not in_parts:
            stack.enter_context(full_disk_explained(path, _MAKE_ROOM))
            stack.callback(lambda: _ends.update({os.path.realpath(path): time.time()}))
            packer = stack.enter_context(contextlib.closing(_packer_of(path)))
        stack.callback(close_files)
        found = find_source(open_source(source, storage_options), **found_by)
        if not isinstance(source, Source):
            stack.callback(found.close)
        if not in_parts:
            packer.prepare(found, options)
            if (dataset := _packed_by_another_rank(packer)) is not None:
                packer.notes.append("another rank has packed it")
                return packer.report(dataset)
            packer.begin(overwrite)
            say_what_is_read(found)
            with start_workers(found, encode, num_workers, executor) as run:
                return packer.run(run, stop_on_error=on_error == "stop", progress=progress)
        store = target if isinstance(target, Store) else open_store(os.path.abspath(target))
        parts = Parts(store, found, options)
        run_all: _RunAll = partial(
            parts.pack_all, num_workers=num_workers, stop_on_error=on_error == "stop"
        )
        if executor is not None:
            place = os.fspath(source)
            task = Task(
                source=place if is_url(place) else os.path.abspath(place),
                destination=store.url,
                storage_options=storage_options,
                # As it was recognised here; another machine is not to take it for another.
                found={**found_by, "format": format or found.name},
                options=options,
                stop_on_error=on_error == "stop",
                call=secrets.token_hex(8),
            )
            run_all = partial(run_parts, executor, engine, task)
        return _pack_in_parts(parts, part, run_all, progress)


def _check_step(
    source: Any,
    options: PackOptions,
    part: str | None,
    executor: Executor | str | None,
    overwrite: bool,
) -> None:
    """Refuse arguments that do not fit a pack in parts."""
    if overwrite:
        raise OptionError(
            "overwrite=True does not work for packs in parts or to a store: remove the dataset "
            "at the destination yourself, or choose another destination"
        )
    if not options.many:
        raise OptionError(
            "a pack in parts is one of several shards: give shard_size (--shard-size 1GB) or "
            "shards=N (--shards N)"
        )
    if part is not None and executor is not None:
        raise OptionError("part is for tasks without an engine: give part or executor, not both")
    if executor is not None and not isinstance(source, (str, os.PathLike)):
        raise OptionError(
            "an engine's tasks open the source themselves, and one out of Python is in this "
            "process only: pack a path or a URL, or without executor"
        )
    share_of(part)


def _pack_in_parts(
    parts: Parts,
    part: str | None,
    run_all: _RunAll,
    progress: bool | None,
) -> PackReport:
    """Pack all parts, or do one step.

    run_all: packs the parts with these numbers, and yields their receipts.
    """
    began = time.monotonic()
    store, source = parts.store, parts.source
    if part is None and parts.is_only_to_be_tidied():
        part = "commit"
    if part in (None, "plan"):
        parts.make_plan()
        say_what_is_read(source)
    packed: list[Receipt] = []
    first, of = share_of(part)
    if of:
        plan, done = parts.plan, parts.done()
        mine = [number for number in range(first, len(plan), of) if number not in done]
        total = sum(plan.samples_in(number) or 0 for number in mine) or None
        bar = progress_bar(store.url.rpartition("/")[2], total, progress)
        with bar, contextlib.closing(run_all(mine)) as results:
            for receipt in results:
                packed.append(receipt)
                bar.update(receipt.num_samples)
                if receipt.rejects:
                    rejected = sum(len(one.rejects) for one in packed)
                    bar.set_postfix(rejected=rejected, refresh=False)
    notes, digest, receipts = list(source.notes), "", packed
    shards = [one.shard for one in packed if one.shard is not None]
    if part in (None, "commit"):
        manifest, receipts = parts.commit()
        digest, shards = manifest.digest, list(manifest.shards)
        if not receipts:
            notes.append("it was complete already")
    else:
        notes.append(f"{len(parts.done()):,} of {len(parts.plan):,} parts are done")
    remarks: Remarks = {}
    for receipt in receipts:
        remarks = with_remarks(remarks, receipt.remarks)
    notes += remark_lines(remarks)
    num_rejected = sum(len(receipt.rejects) for receipt in receipts)
    if digest:  # with objects that are in no part
        num_rejected = parts.num_rejected()
    listed = digest and num_rejected
    if listed and not store.is_local:
        notes.append(f"rejected images and reasons: {store.url_of(REJECTS)}")
    path = Path(store.url) if store.is_local else store.url
    seconds = time.monotonic() - began
    return PackReport(
        path=path,
        digest=digest,
        num_samples=sum(shard.num_samples for shard in shards),
        num_rejected=num_rejected,
        num_shards=len(shards),
        file_bytes=sum(shard.file_bytes for shard in shards),
        seconds=seconds,
        images_per_second=sum(one.num_samples for one in packed) / max(seconds, 1e-9),
        rejects_path=store.path(REJECTS) if listed and store.is_local else None,
        notes=tuple(notes),
        read_as=source.description,
        load_code=load_code(path, schema=source.schema) if digest else "",
    )


def _refuse_suffix(path: Path) -> None:
    """Refuse an LMDB file with the suffix of another kind."""
    suffix = path.suffix.lower()
    if suffix and suffix not in _SUFFIXES:
        raise OptionError(
            f"{path}: {suffix} is not a suffix of a dataset. Use {', '.join(_SUFFIXES)}, or none "
            f"for an LMDB.{did_you_mean(suffix, _SUFFIXES)} With container='lmdb' (--container "
            "lmdb) the file may have any name; so may the folder of several shards."
        )


def files_read(source: Any) -> Sequence[Path]:
    """Return the files and folders on this machine that a source is, as far as paths say."""
    dataset = source.dataset if isinstance(source, PackedSource) else opened(source)
    if dataset is not None:
        return files_of(dataset)
    if is_url(source):
        return [Path(at_url(source, {}))] if str(source).startswith("file://") else []
    path = path_of(source)
    return files_at(source) if is_pattern(source) else [] if path is None else [path]


# -- ranks of a training ---------------------------------------------------------------------------
#
# Under torchrun every rank calls `pack`.  The first rank to lock the destination packs.  The others
# wait for the lock, and then find the dataset; if the packing rank fails, the next one continues.

_ends: dict[str, float] = {}
"""When this process's last call for a destination ended."""


def _packer_of(destination: Path) -> Packer:
    """Return the packer that locks a destination; a rank waits while another one holds the lock.

    `DestinationLockedError` if another process holds it and this process is not a rank.
    """
    packers: list[Packer] = []

    def attempt(seconds: float) -> bool:
        try:
            packers.append(Packer(destination))
        except DestinationLockedError:
            if world_size() == 1:
                raise
            time.sleep(min(seconds, 0.2))
        return bool(packers)

    wait_until(attempt, f"{destination}, which another rank packs")
    return packers[0]


def _packed_by_another_rank(packer: Packer) -> Manifest | Header | None:
    """Return the dataset if another rank has packed it for this call.

    Return None if the dataset is missing, is older than this process or its last call for this
    destination, or has other options.
    """
    path, many = packer.destination, packer.options.many
    first = path / MANIFEST if many else path
    last_call = _ends.get(os.path.realpath(path), psutil.Process().create_time())
    if world_size() == 1 or not first.exists() or first.stat().st_mtime < last_call:
        return None
    found = dataset_at(path, many)
    same = found is not None and found.options == json.loads(json.dumps(packer.packed_with))
    return found if same else None
