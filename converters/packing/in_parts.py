"""`pack` into a store, or by an engine, or step by step: plan, parts, commit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastdata.errors import OptionError
from fastdata.printable import printable
from fastdata.storage import Store, is_url
from fastdata.summary import load_code

from ..base import Source
from ..finding import find_source
from .engines import Task, named_executor, open_destination, open_source, run_parts
from .options import PackOptions
from .parts import REJECTS, Parts, Receipt, parse_part
from .report import PackReport

__all__ = ["InParts", "say_what_is_read"]

log = logging.getLogger("fastdata")

_Done = Callable[[int, int], object]
"""Called with the numbers of consumed and of rejected samples."""


def say_what_is_read(source: Source) -> None:
    """Log the description of a source."""
    for line in (source.description, *source.notes):
        log.info("%s", printable(line))


@dataclass(frozen=True)
class InParts:
    """A pack in parts, or a step of one; `pack` documents the arguments."""

    source: Any
    destination: Store | str | Path
    options: PackOptions
    found_by: Mapping[str, Any]
    storage_options: Mapping[str, str]
    part: str | None
    executor: Executor | str | None
    num_workers: int | None
    retries: int
    stop_on_error: bool
    progress: bool | None

    def run(self) -> PackReport:
        """Do it, and report."""
        began = time.monotonic()
        if not self.options.many:
            raise OptionError(
                "a pack in parts is one of several shards: give shard_size (--shard-size 1GB) or "
                "shards=N (--shards N)"
            )
        if self.part is not None and self.executor is not None:
            raise OptionError(
                "part is for tasks without an engine: give part or executor, not both"
            )
        step, of = (0, 1) if self.part in (None, "plan", "commit") else parse_part(self.part)
        store = self.destination
        if not isinstance(store, Store):
            store = open_destination(os.path.abspath(store), {})
        if self.executor is not None and not isinstance(self.source, (str, os.PathLike)):
            raise OptionError(
                "an engine's tasks open the source themselves, and one out of Python is in this "
                "process only: pack a path or a URL, or without executor"
            )
        with ExitStack() as stack:
            executor = self.executor
            if isinstance(executor, str):
                executor = stack.enter_context(named_executor(executor))
            found = find_source(open_source(self.source, self.storage_options), **self.found_by)
            if not isinstance(self.source, Source):
                stack.callback(found.close)
            parts = Parts(store, found, self.options)
            made: list[Receipt] = []
            consumed = 0
            if self.part != "commit" and not (self.part is None and parts.is_only_to_be_tidied()):
                if self.part in (None, "plan"):
                    parts.make_plan()
                    say_what_is_read(found)
                done = parts.done()
                numbers = range(step, 0 if self.part == "plan" else len(parts.plan()), of)
                mine = [part for part in numbers if part not in done]
                made, consumed = self._run(parts, mine, found, executor)
            return self._report(parts, found, made, consumed, time.monotonic() - began)

    def _run(
        self,
        parts: Parts,
        mine: Sequence[int],
        source: Source,
        executor: Executor | None,
    ) -> tuple[list[Receipt], int]:
        """Pack some parts; return the receipts of this process, and the samples of all parts."""
        plan = parts.plan()
        receipts: list[Receipt] = []
        rejected = packed = 0
        whole = sum(plan.samples_in(part) or 0 for part in mine)
        total = plan.num_samples
        with tqdm(
            total=total if total is None or self.part is None else whole,
            initial=0 if total is None or self.part is not None else total - whole,
            unit="img",
            desc=f"packing {printable(parts.store.url.rpartition('/')[2])}",
            disable=None if self.progress is None else not self.progress,
            dynamic_ncols=True,
        ) as bar:

            def done(consumed: int, left_out: int) -> None:
                nonlocal rejected, packed
                rejected, packed = rejected + left_out, packed + consumed
                bar.update(consumed)
                if rejected:
                    bar.set_postfix(rejected=rejected, refresh=False)

            if executor is not None:
                task = self._task(source, parts)
                named = isinstance(self.executor, str)
                engine = str(self.executor) if named else type(executor).__name__
                run_parts(executor, engine, task, mine, retries=self.retries, done=done)
            else:
                for part in mine:
                    receipt = parts.pack(
                        part, num_workers=self.num_workers, stop_on_error=self.stop_on_error
                    )
                    done(receipt.num_samples, len(receipt.rejects))
                    receipts.append(receipt)
        return receipts, packed

    def _task(self, source: Source, parts: Parts) -> Task:
        place = os.fspath(self.source)
        return Task(
            source=place if is_url(place) else os.path.abspath(place),
            destination=parts.store.url,
            storage_options=self.storage_options,
            # As it was recognised here; another machine is not to take it for something else.
            found={**self.found_by, "format": self.found_by["format"] or source.name},
            options=self.options,
            stop_on_error=self.stop_on_error,
            plan=parts.plan().id,
        )

    def _report(
        self,
        parts: Parts,
        source: Source,
        receipts: Sequence[Receipt],
        consumed: int,
        seconds: float,
    ) -> PackReport:
        store = parts.store
        notes = list(source.notes)
        digest = ""
        shards = [one.shard for one in receipts if one.shard is not None]
        if self.part in (None, "commit"):
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
        path: Path | str = Path(store.url) if store.is_local else store.url
        return PackReport(
            path=path,
            digest=digest,
            num_samples=sum(shard.num_samples for shard in shards),
            num_rejected=num_rejected,
            num_shards=len(shards),
            source_bytes=sum(receipt.source_bytes for receipt in receipts),
            file_bytes=sum(shard.file_bytes for shard in shards),
            seconds=seconds,
            images_per_second=consumed / max(seconds, 1e-9),
            rejects_path=store.path(REJECTS) if listed and store.is_local else None,
            notes=tuple(notes),
            read_as=source.description,
            load_code=load_code(path, schema=source.schema) if digest else "",
        )
