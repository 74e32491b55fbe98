"""A pack in parts, on one machine or many, into a folder or a store of objects.

Each part records its progress next to the shards, so that any process may be killed:

=====================================  =========================================================
``unfinished/plan.json``               the identity of the pack, and the bounds of the parts
``shard-00003-1f0a66d0….lmdb``         the shard of part 3, under a unique name
``unfinished/PLAN/00003.json``         its receipt; the first one written counts
``rejects.csv``, ``manifest.json``     written once all receipts exist
=====================================  =========================================================

A part packs its shard on a local disk, uploads it, and then puts its receipt if there is none.
Running a part again, even concurrently, is safe.  `Parts.commit` removes shards that the manifest
does not list.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import (
    DestinationExistsError,
    FormatError,
    JobChangedError,
    ObjectNotFoundError,
    OptionError,
    PartsMissingError,
    full_disk_explained,
)
from fastdata.formats.layout import content_digest
from fastdata.formats.manifest import MANIFEST, Manifest, ShardEntry
from fastdata.formats.proof import REJECTS_HEAD
from fastdata.formats.reader import ShardReader
from fastdata.formats.sparse import columns_only
from fastdata.formats.writer import Record
from fastdata.own_files import make_own_folder
from fastdata.storage import LocalStore, Store
from fastdata.storage.contract import MOST_TEXT_BYTES
from fastdata.waits import said_while

from ..base import IndexedSource, Reject, Sample, Source
from ..scan import ScanSource
from .job import (
    checked_json,
    csv_line,
    differences,
    entry_of,
    json_with_checksum,
    rejects_in,
)
from .options import PackOptions
from .packer import CHUNK_SAMPLES, checked_records, next_chunk, writer_of
from .plan import Plan, nothing_packed, order_of, packed_with, request_of
from .remarks import Remarks, with_records, with_remarks
from .workers import start_workers

__all__ = ["Parts", "Receipt", "share_of"]

_MAKE_ROOM = "A part is packed there: make room, or set TMPDIR to a larger folder."

PLAN = "unfinished/plan.json"
REJECTS = "rejects.csv"

_REQUESTS = 16
"""Concurrent requests to the store."""

_OURS = re.compile(
    r"unfinished/plan\.json|unfinished/[0-9a-f]{16}/\d{5,}\.json|shard-\d{5,}-[0-9a-f]{16}\.(lmdb|h5)"
)
"""Names of plans, receipts and shards; other objects are never touched."""


@dataclass(frozen=True)
class Receipt:
    """What became of a part; `shard` is None where all of its samples were rejected."""

    part: int
    shard: ShardEntry | None
    rejects: list[tuple[int, str, str]]
    """Position in the part, key and reason."""
    remarks: Remarks = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """How many samples the part has consumed."""
        return len(self.rejects) + (0 if self.shard is None else self.shard.num_samples)

    @classmethod
    def from_json(cls, data: bytes | memoryview, place: str) -> Receipt:
        """Return a receipt; `FormatError` if it is invalid."""
        try:
            body = checked_json(bytes(data))
            shard = ShardEntry(**body["shard"]) if body["shard"] else None
            if shard is not None:
                shard.check()
            rejects = [(int(n), *why) for n, *why in body["rejects"]]
            return cls(int(body["part"]), shard, rejects, with_remarks({}, body["remarks"]))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{place} is not a valid receipt: {error!r}. Remove it, and pack that part again"
            ) from error

    def to_json(self) -> bytes:
        """Return the bytes to put."""
        return json_with_checksum(asdict(self))


class Parts:
    """The parts of a pack to a store, which may be a folder; for one thread.

    Any number of processes and machines may work on one pack, with the same source and options.
    """

    def __init__(self, store: Store, source: Source, options: PackOptions) -> None:
        self.store, self.source = store, source
        self._options = options
        self._source = source.indexed() if options.shuffle else source
        self._order = order_of(self._source, options)

    # -- the plan --------------------------------------------------------------------------------

    def make_plan(self) -> None:
        """Cut the source into parts, unless there is a plan.

        Raises `DestinationExistsError` if the store has a dataset or foreign objects.
        """
        if self.store.exists(MANIFEST):
            raise self._is_there()
        if not self.store.exists(PLAN):
            keys = (one.key for one in self.store.list())
            strange = next((key for key in keys if not _OURS.fullmatch(key)), None)
            if strange is not None:
                raise DestinationExistsError(
                    f"{self.store.url} is not empty: it has {strange}. Choose a folder of its own "
                    "for the dataset."
                )
            plan = Plan.of(self.source, self._options).to_json()
            self._make_folders("", "unfinished")
            self.store.put_if_absent(PLAN, plan)

    @cached_property
    def plan(self) -> Plan:
        """The plan, which was compared with the source and the options.

        Raises `PartsMissingError` if there is none, and `JobChangedError` if they differ.
        """
        try:
            plan = Plan.from_json(self._read_text(PLAN), self.store.url_of(PLAN))
        except ObjectNotFoundError:
            if self.store.exists(MANIFEST):
                raise self._is_there() from None
            raise PartsMissingError(
                f"{self.store.url} has no plan: run the same command with --plan first"
            ) from None
        self._make_folders("", "unfinished", f"unfinished/{plan.id}")
        if different := differences(asdict(plan), request_of(self.source, self._options)):
            raise JobChangedError(
                f"{self.store.url} is an unfinished pack of something else: "
                f"{'; '.join(different)}. Run it as it was planned, or choose another destination; "
                f"{self.store.url_of('unfinished/')} and its shards may be removed by hand."
            )
        return plan

    def _make_folders(self, *names: str) -> None:
        """Make own folders in a local store: what others may write to is not trusted."""
        if isinstance(self.store, LocalStore):
            for name in names:
                make_own_folder(Path(os.path.realpath(self.store.folder), name), 0o755)

    def _is_there(self) -> DestinationExistsError:
        return DestinationExistsError(
            f"{self.store.url} has a dataset already. Choose another destination, or remove it."
        )

    def is_only_to_be_tidied(self) -> bool:
        """Return whether only the leftover files of a complete dataset must be removed."""
        return self.store.exists(MANIFEST) and self.store.exists(PLAN)

    # -- parts -----------------------------------------------------------------------------------

    def receipts(self) -> dict[int, Receipt]:
        """Return the receipts of the parts that are done."""
        keys = self._receipt_keys()
        with said_while(f"the receipts in {self.store.url}"), ThreadPoolExecutor(_REQUESTS) as pool:
            return {receipt.part: receipt for receipt in pool.map(self._receipt, keys)}

    def done(self) -> set[int]:
        """Return the numbers of the parts that are done, by the names of their receipts."""
        keys = self._receipt_keys()
        return {int(key.removeprefix(self._folder).removesuffix(".json")) for key in keys}

    def _receipt_keys(self) -> list[str]:
        return [one.key for one in self.store.list(self._folder) if _OURS.fullmatch(one.key)]

    @property
    def _folder(self) -> str:
        return f"unfinished/{self.plan.id}/"

    def _receipt(self, key: str) -> Receipt:
        return Receipt.from_json(self._read_text(key), self.store.url_of(key))

    def _read_text(self, key: str) -> bytes | memoryview:
        return self.store.read(key, most_bytes=MOST_TEXT_BYTES)

    def _samples(self, part: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a part."""
        source, plan = self._source, self.plan
        start, stop = plan.bounds[part : part + 2]
        if plan.unit == "files":
            assert isinstance(source, ScanSource), "other sources are cut between samples"
            return source.read_files(start, stop)
        if self._order is None:
            return itertools.islice(source.start_at(start), stop - start)
        assert isinstance(source, IndexedSource), "other sources are not shuffled"
        return map(source.get, map(int, self._order[start:stop]))

    def pack(
        self, part: int, *, num_workers: int | None = None, stop_on_error: bool = False
    ) -> Receipt:
        """Pack a part, upload its shard and put its receipt; return the receipt that counts."""
        plan, options = self.plan, self._options
        position = 0
        remarks: Remarks = {}
        rejects: list[tuple[int, str, str]] = []
        shard = None
        checked_records(self.source.left_out, self._source, stop_on_error)
        with ExitStack() as stack:
            place = tempfile.gettempdir()
            stack.enter_context(full_disk_explained(place, _MAKE_ROOM))
            scratch = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-part-"))
            )
            encode = stack.enter_context(
                start_workers(self._source, options.encode, num_workers, None)
            )
            writer = writer_of(options.container)(scratch / "unfinished", self._source.schema)
            stack.callback(writer.close)
            chunks = iter(partial(next_chunk, self._samples(part), CHUNK_SAMPLES), [])
            for result in stack.enter_context(contextlib.closing(encode(chunks))):
                records = checked_records(result, self._source, stop_on_error)
                for index, record in enumerate(records, position):
                    if isinstance(record, Reject):
                        rejects.append((index, *record))
                writer.append([record for record in records if isinstance(record, Record)])
                remarks = with_records(remarks, records)
                position += len(records)
            self._source.check_store()
            planned = plan.samples_in(part)
            if planned is not None and position != planned:
                raise JobChangedError(
                    f"the source had {planned:,} samples for part {part} when it was planned, and "
                    f"has {position:,}: pack it anew, to another destination"
                )
            if writer.num_samples:
                path = scratch / f"shard-{part:05}-{secrets.token_hex(8)}{writer.suffix}"
                writer.seal(path, packed_with(self.source, options))
                shard = entry_of(path)
                with said_while(f"the upload of {self.store.url_of(path.name)}"):
                    self.store.put(path.name, path)
        return self._put(Receipt(part, shard, rejects, remarks))

    def pack_all(self, parts: Sequence[int], **options: Any) -> Generator[Receipt, None, None]:
        """Pack some parts, one after another."""
        yield from (self.pack(part, **options) for part in parts)

    def _put(self, receipt: Receipt) -> Receipt:
        key = f"{self._folder}{receipt.part:05}.json"
        if not self.store.put_if_absent(key, receipt.to_json()):
            with contextlib.suppress(ObjectNotFoundError):  # removed: the pack is complete
                # It may be this receipt: a request is retried if its answer comes too late.
                counts = self._receipt(key)
                if receipt.shard is not None and counts.shard != receipt.shard:
                    self.store.remove(receipt.shard.file)
                receipt = counts
        # If another process has committed meanwhile, it did not see this shard or receipt.
        if (manifest := self._manifest()) is not None:
            self.tidy(manifest)
        return receipt

    # -- the dataset -----------------------------------------------------------------------------

    def _manifest(self) -> Manifest | None:
        """Return the manifest, if the dataset is complete."""
        try:
            data = bytes(self._read_text(MANIFEST))
        except ObjectNotFoundError:
            return None
        return Manifest.from_bytes(data, self.store.url_of(MANIFEST))

    def num_rejected(self) -> int:
        """Return the number of rejected samples of the complete dataset."""
        try:
            text = bytes(self.store.read(REJECTS)).decode()
        except ObjectNotFoundError:
            return 0
        return len(rejects_in(io.StringIO(text, newline="")))

    def commit(self) -> tuple[Manifest, list[Receipt]]:
        """Put the manifest, which makes a dataset of the shards, and remove leftover files.

        If the manifest exists already, return it without receipts.  Raises `PartsMissingError`
        while parts are missing, `SourceError` if every sample was rejected,
        `DestinationExistsError` if there is another dataset.
        """
        options = packed_with(self.source, self._options)
        if (manifest := self._manifest()) is not None:
            now = json.loads(json.dumps(dict(options)))
            if (manifest.schema, manifest.options) != (self.source.schema, now):
                raise DestinationExistsError(
                    f"{self.store.url} has a dataset already, which was packed otherwise"
                )
            self.tidy(manifest)
            return manifest, []
        plan, found = self.plan, self.receipts()
        missing = [part for part in range(len(plan)) if part not in found]
        if missing and self.store.exists(MANIFEST):  # another process did it meanwhile
            return self.commit()
        if missing:
            shown = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            raise PartsMissingError(
                f"{self.store.url}: {len(missing):,} of {len(plan):,} parts are missing ({shown}). "
                "Run the same command with --part 0/1 to pack them here, and commit then."
            )
        receipts = [found[part] for part in range(len(plan))]
        shards = [receipt.shard for receipt in receipts if receipt.shard is not None]
        consumed = list(itertools.accumulate((one.num_samples for one in receipts), initial=0))
        rejects: list[tuple[int | str, str, str]] = [("", *one) for one in self.source.left_out]
        rejects += [
            (first + at, key, why)
            for first, receipt in zip(consumed, receipts, strict=False)
            for at, key, why in receipt.rejects
        ]
        if rejects:
            lines = [csv_line(*line) for line in rejects]
            self.store.put(REJECTS, b"".join([REJECTS_HEAD, *lines]))
        if not shards:
            first = [Reject(*rejects[0][1:])] if rejects else []
            raise nothing_packed(len(rejects), first, self.store.url_of(REJECTS))
        schema = self.source.schema
        with tempfile.TemporaryDirectory(prefix="fastdata-commit-") as scratch:
            waiting = said_while(f"the columns of the shards in {self.store.url}")
            with waiting, ThreadPoolExecutor(_REQUESTS) as pool:
                entries = pool.map(lambda shard: self.store.head(shard.file), shards)
                paths = pool.map(
                    lambda entry: columns_only(self.store, entry, Path(scratch)), entries
                )
                columns = list(map(self._columns_of, paths, shards))
            digest = content_digest(schema, columns)
        manifest = Manifest(schema, digest, tuple(shards), options)
        if not self.store.put_if_absent(MANIFEST, manifest.to_bytes()):
            return self.commit()  # another process did it, perhaps with other shards
        self.tidy(manifest)
        return manifest, receipts

    def _columns_of(self, path: Path, shard: ShardEntry) -> Callable[[str], np.ndarray[Any, Any]]:
        """Return a function that returns a column of a shard, given its name.

        It opens the shard each time, so that the columns of all shards are never mapped at once.
        """
        reader = ShardReader(path)
        if (reader.header.digest, len(reader)) != (shard.digest, shard.num_samples):
            raise FormatError(f"{self.store.url_of(shard.file)} is not the shard of its receipt")
        return lambda name: ShardReader(path).column(name)

    def tidy(self, manifest: Manifest) -> None:
        """Remove the plan, the receipts, and shards that the manifest does not list."""
        listed = {shard.file for shard in manifest.shards}
        for one in list(self.store.list()):
            if one.key not in listed and one.key != PLAN and _OURS.fullmatch(one.key):
                self.store.remove(one.key)
        self.store.remove(PLAN)  # last: it marks a store with leftover files
        if isinstance(self.store, LocalStore):
            self.store.remove_unfinished()
            # A killed process may have left an empty folder.
            for folder, _, _ in os.walk(self.store.path("unfinished"), topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def share_of(part: str | None) -> tuple[int, int]:
    """Return K and N of ``K/N``: (0, 1) for all parts, (0, 0) for a step without parts.

    `OptionError` unless K is one of N, from 0 on.
    """
    if part in ("plan", "commit"):
        return 0, 0
    match = re.fullmatch(r"(\d+)/(\d+)", "0/1" if part is None else part)
    if match is None or not 0 <= int(match[1]) < int(match[2]):
        raise OptionError(
            f"part={part!r} is no K/N with K from 0 to N - 1: the tasks of an array are counted "
            "from 0, as with sbatch --array=0-99"
        )
    return int(match[1]), int(match[2])
