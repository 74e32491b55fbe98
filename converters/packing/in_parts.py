"""`pack` into a store, or by an engine, or step by step: plan, parts, commit."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError
from fastdata.storage import Store, is_url

from ..base import Source
from ..finding import find_source
from .engines import Task, named_executor, open_source, run_parts
from .options import PackOptions
from .parts import REJECTS, Parts, Receipt, parse_part
from .report import PackReport, progress_bar, say_what_is_read

__all__ = ["pack_in_parts"]


def pack_in_parts(
    source: Any,
    store: Store,
    options: PackOptions,
    found_by: Mapping[str, Any],
    storage_options: Mapping[str, str],
    *,
    part: str | None,
    executor: Executor | str | None,
    num_workers: int | None,
    retries: int,
    stop_on_error: bool,
    progress: bool | None,
) -> PackReport:
    """Pack all parts, or do one step; `pack` documents the arguments."""
    began = time.monotonic()
    if not options.many:
        raise OptionError(
            "a pack in parts is one of several shards: give shard_size (--shard-size 1GB) or "
            "shards=N (--shards N)"
        )
    if part is not None and executor is not None:
        raise OptionError("part is for tasks without an engine: give part or executor, not both")
    first, of = (0, 1) if part in (None, "plan", "commit") else parse_part(part)
    if executor is not None and not isinstance(source, (str, os.PathLike)):
        raise OptionError(
            "an engine's tasks open the source themselves, and one out of Python is in this "
            "process only: pack a path or a URL, or without executor"
        )
    with ExitStack() as stack:
        engine = executor if isinstance(executor, str) else type(executor).__name__
        if isinstance(executor, str):
            executor = stack.enter_context(named_executor(executor))
        found = find_source(open_source(source, storage_options), **found_by)
        if not isinstance(source, Source):
            stack.callback(found.close)
        parts = Parts(store, found, options)
        if part is None and parts.is_only_to_be_tidied():
            part = "commit"
        if part in (None, "plan"):
            parts.make_plan()
            say_what_is_read(found)
        receipts: list[Receipt] = []
        if part not in ("plan", "commit"):
            plan, done = parts.plan(), parts.done()
            mine = [number for number in range(first, len(plan), of) if number not in done]
            if executor is None:
                results = (
                    parts.pack(number, num_workers=num_workers, stop_on_error=stop_on_error)
                    for number in mine
                )
            else:
                place = os.fspath(source)
                task = Task(
                    source=place if is_url(place) else os.path.abspath(place),
                    destination=store.url,
                    storage_options=storage_options,
                    # As it was recognised here; another machine is not to take it for another.
                    found={**found_by, "format": found_by["format"] or found.name},
                    options=options,
                    stop_on_error=stop_on_error,
                    plan=plan.id,
                )
                results = run_parts(executor, engine, task, mine, retries=retries)
            total = sum(plan.samples_in(number) or 0 for number in mine) or None
            with progress_bar(store.url.rpartition("/")[2], total, progress) as bar:
                for receipt in results:
                    receipts.append(receipt)
                    bar.update(receipt.num_samples)
                    if receipt.rejects:
                        rejected = sum(len(one.rejects) for one in receipts)
                        bar.set_postfix(rejected=rejected, refresh=False)
        return _report(parts, found, part, receipts, time.monotonic() - began)


def _report(
    parts: Parts, source: Source, part: str | None, packed: list[Receipt], seconds: float
) -> PackReport:
    """Commit, if all parts are to be there, and report."""
    store, notes, digest, receipts = parts.store, list(source.notes), "", packed
    shards = [one.shard for one in packed if one.shard is not None]
    if part in (None, "commit"):
        manifest, receipts = parts.commit()
        digest, shards = manifest.digest, list(manifest.shards)
        if not receipts:
            notes.append("it was complete already")
    else:
        notes.append(f"{len(parts.done()):,} of {len(parts.plan()):,} parts are done")
    num_rejected = sum(len(receipt.rejects) for receipt in receipts)
    if digest and not receipts:
        num_rejected = parts.num_rejected()
    listed = digest and num_rejected
    if listed and not store.is_local:
        notes.append(f"rejected images and reasons: {store.url_of(REJECTS)}")
    return PackReport.of(
        Path(store.url) if store.is_local else store.url,
        source,
        shards,
        notes,
        digest=digest,
        num_rejected=num_rejected,
        source_bytes=sum(receipt.source_bytes for receipt in receipts),
        seconds=seconds,
        consumed=sum(receipt.num_samples for receipt in packed),
        rejects_path=store.path(REJECTS) if listed and store.is_local else None,
    )
