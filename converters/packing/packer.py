"""A pack on this machine: connects the source, the writer and the state on the disk.

Samples are cut into chunks, encoded elsewhere, and appended in the source's
order by the one writer, here.  The files on the disk, and why it is safe to kill
this at any moment, are in ``job.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata.errors import DestinationExistsError, FastdataError, JobChangedError, RejectedError
from fastdata.formats.layout import Header, content_digest
from fastdata.formats.manifest import Manifest
from fastdata.formats.proof import DATASET, REJECTS, REJECTS_HEAD, listed_shards
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.formats.writer import Record, ShardDamagedError, ShardWriter, Spool, write_file
from fastdata.own_files import make_own_folder, open_own_file, remove_own, sync_directory
from fastdata.regular_files import with_urls
from fastdata.replacing import Destination
from fastdata.schema import Schema
from fastdata.storage.local import tag_of
from fastdata.summary import load_code

from ..base import IndexedSource, Reject, Sample, Source
from .chunk import CHUNK_BYTES, bytes_of
from .job import (
    OURS,
    Sealed,
    Start,
    State,
    csv_line,
    dataset_at,
    differences,
    entry_of,
    read_rejects,
    read_state,
    rejects_path,
    replace_state,
)
from .lock import DirectoryLock
from .options import Container, PackOptions
from .plan import (
    nothing_packed,
    num_samples,
    order_of,
    packed_with,
    request_of,
    shard_bounds,
)
from .remarks import remark_lines, with_records
from .report import PackReport, progress_bar
from .workers import EncodeAll

__all__ = ["Packer", "checked_records", "next_chunk", "writer_of"]

log = logging.getLogger("fastdata")

CHUNK_SAMPLES = 32
_COMMIT_BYTES = 64 << 20
_COMMIT_SECONDS = 10.0


class Packer:
    """A pack to one destination, locked against other processes and threads; for one thread."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self.directory = destination.with_name(destination.name + ".partial")
        self.shards = self.directory / "shards"
        self.state = State()
        self.notes: list[str] = []
        """Remarks on the files of an earlier run."""
        self._rejects: Spool | None = None
        self._writer: ShardWriter | None = None
        self._published: Manifest | Header | None = None
        """The dataset, if an earlier run has published it."""
        self._lock = DirectoryLock(self.directory, OURS.fullmatch)

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

    # -- starting ---------------------------------------------------------------------

    def prepare(self, source: Source, options: PackOptions) -> None:
        """Take the source and the options; `OptionError` if they do not fit."""
        self.source = source.indexed() if options.shuffle else source
        self.left_out = source.left_out
        self.options = options
        self.request = request_of(source, options)
        self.packed_with = packed_with(source, options)
        self.total = num_samples(self.source, options, counted=options.shards > 1)
        self.bounds = shard_bounds(options, self.total)
        self.order = order_of(self.source, options)

    def begin(self, overwrite: bool) -> None:
        """Check the destination, and resume an unfinished pack or start one.

        `JobChangedError` lists the differences if the unfinished pack has another identity or
        source; with `overwrite` that pack is discarded instead.
        """
        destination, replaced = self.destination, self.directory / "replaced"
        if os.path.lexists(replaced) and not os.path.lexists(destination):
            os.rename(replaced, destination)  # a packer died between the two renames
        exists = os.path.lexists(destination)
        if exists and destination.name in listed_shards(destination.parent):
            raise DestinationExistsError(
                f"{destination} is one shard of the dataset {destination.parent}, so it is not "
                "replaced. Choose another destination."
            )
        if exists and not overwrite and not (self.directory / "job.json").exists():
            raise DestinationExistsError(
                f"{destination} already exists. Choose another destination, or pass "
                "overwrite=True (--overwrite) to replace it once the new dataset is complete."
            )
        self._place = Destination(destination, DATASET, replace=overwrite)
        self._list = Destination(rejects_path(destination), REJECTS)
        found = self._read("job.json")
        changes = [] if found is None else differences(found, self.request)
        if changes and not overwrite:
            raise JobChangedError(
                f"{self.directory} is an unfinished pack of something else: "
                f"{'; '.join(changes)}. Finish it with the options that it was started with, or "
                "start again with overwrite=True (--overwrite)."
            )
        if found is None or changes:
            self._clear()
            replace_state(self.directory / "job.json", self.request)
            sync_directory(self.directory)
        saved = self._read("state.json")
        if saved is None:
            self._start_over()
        else:
            self.state = State.from_json(saved)
            self._find_published()
        if exists and not overwrite and self._published is None:
            raise DestinationExistsError(
                f"{destination} already exists, next to the unfinished pack "
                f"{self.directory}. Pass overwrite=True (--overwrite) to finish and replace it."
            )
        if self._published is None and saved is not None:
            try:
                self._open()
            except ShardDamagedError as error:
                self._note(f"{error}. Everything is packed again")
                self._start_over()

    def _find_published(self) -> None:
        entries = [shard.entry for shard in self.state.sealed]
        with contextlib.suppress(OSError, IndexError):
            # Another file is there if it has changed places with what it replaced.
            if tag_of(os.stat(self.shards / entries[0].file)) == self.state.sealed[0].tag:
                return
        if not entries:
            return
        found = dataset_at(self.destination, self.options.many)
        same = found is not None and (
            found.shards == tuple(entries)
            if isinstance(found, Manifest)
            else found.digest == entries[0].digest
        )
        self._published = found if same else None

    def _read(self, name: str) -> Any:
        """Return a committed file; None if it is missing or damaged."""
        path = self.directory / name
        try:
            return read_state(path)
        except FileNotFoundError:
            return None
        except ValueError:
            self._note(f"{path} is damaged. Everything is packed again")
            return None

    def _note(self, text: str) -> None:
        log.warning("%s", text)
        self.notes.append(text)

    def _start_over(self) -> None:
        """Discard the progress of the pack; its identity stays."""
        self._clear(keep=("job.json",))
        self.state = State()
        self._open()

    def _open(self) -> None:
        if self._rejects is not None:
            self._rejects.close()
        make_own_folder(self.shards, 0o755)  # which becomes the dataset
        self._rejects = Spool(self.directory / "rejects.csv", self.state.rejects)
        if self.left_out and not self._rejects.length:  # these come first, and have no place
            lines = [csv_line("", *map(with_urls, one)) for one in self.left_out]
            self._rejects.append(b"".join([REJECTS_HEAD, *lines]))
            self.state.num_rejected += len(lines)

    def _clear(self, keep: Sequence[str] = ()) -> None:
        names = [name for name in os.listdir(self.directory) if OURS.fullmatch(name)]
        # job.json first: without it, the other files have no meaning.
        for name in sorted(set(names).difference(keep), key=lambda name: name != "job.json"):
            remove_own(self.directory / name)

    # -- the work ---------------------------------------------------------------------

    def run(
        self, encode: EncodeAll, *, stop_on_error: bool = False, progress: bool | None = None
    ) -> PackReport:
        """Pack the remaining samples, seal, and publish."""
        started = self.last_commit = time.monotonic()
        self.stop_on_error = stop_on_error
        resumed_at = self.state.position
        found = self._published
        if found is None:
            checked_records(self.left_out, self.source, stop_on_error)
            self._check_earlier_run()
            resumed_at = self.state.position
            with progress_bar(self.destination.name, self.total, progress, resumed_at) as bar:
                self._pack_rest(encode, bar)
            self._publish()
            found = dataset_at(self.destination, self.options.many)
            assert found is not None
        self._clear()
        return self.report(found, time.monotonic() - started, resumed_at)

    def report(
        self, dataset: Manifest | Header, seconds: float = 0.0, resumed_at: int = 0
    ) -> PackReport:
        """Return the report of the dataset at the destination."""
        path, rejects = self.destination, rejects_path(self.destination)
        shards = dataset.shards if isinstance(dataset, Manifest) else (entry_of(path),)
        num_rejected = len(read_rejects(rejects))
        return PackReport(
            path=path,
            digest=dataset.digest,
            num_samples=sum(shard.num_samples for shard in shards),
            num_rejected=num_rejected,
            num_shards=len(shards),
            file_bytes=sum(shard.file_bytes for shard in shards),
            seconds=seconds,
            images_per_second=(self.state.position - resumed_at) / max(seconds, 1e-9),
            resumed_at=resumed_at,
            rejects_path=rejects if num_rejected else None,
            notes=(*self.source.notes, *remark_lines(self.state.remarks), *self.notes),
            read_as=self.source.description,
            load_code=load_code(path),
        )

    def _pack_rest(self, encode: EncodeAll, bar: Any) -> None:
        """Pack the remaining samples into shards."""
        self.consistent = True  # writer and state agree, so that a commit is safe
        results = encode(self._chunks())
        try:
            for result in results:
                self._take(result)
                bar.update(len(result))
                if self.state.num_rejected:
                    bar.set_postfix(rejected=self.state.num_rejected, refresh=False)
            self.source.check_store()
            self.consistent = False
            if self._writer is not None or self.state.writer is not None:
                self._seal()
        except ShardDamagedError as error:
            self._go_back(len(self.state.sealed))
            raise ShardDamagedError(
                f"{error}. Run the same command again: it packs this shard again"
            ) from error
        except BaseException:
            # Commit complete samples, unless the error interrupted a write: then
            # only the last commit is complete.
            if self.consistent:
                with contextlib.suppress(Exception):
                    self._commit()
            raise
        finally:
            results.close()
            if self._writer is not None:
                self._writer.close()

    def _check_earlier_run(self) -> None:
        """Check the files of an earlier run; shards that have changed are packed again."""
        sound = 0
        try:
            for shard in self.state.sealed:
                path = self.shards / shard.entry.file
                if not path.exists() or tag_of(os.stat(path)) != shard.tag:
                    _check_shard(path, shard.entry.digest)
                    shard.tag = tag_of(os.stat(path))
                sound += 1
            if self.state.sealing:
                self._seal()
            elif self.state.writer is not None:
                self._open_writer()
        except ShardDamagedError as error:
            self._go_back(sound)
            self._note(f"{error}. Shard {self.state.shard} is packed again")

    def _go_back(self, sealed: int) -> None:
        """Keep only the first `sealed` shards."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        kept = self.state.sealed[:sealed]
        start = kept[-1].after if kept else Start()
        self.state = State(**asdict(start), sealed=kept)
        self._open()
        self._commit()
        for path in self.shards.iterdir():
            if path.name not in {shard.entry.file for shard in kept}:
                remove_own(path)

    def _samples(self, start: int) -> Iterator[Sample | Reject]:
        """Yield the source's samples from `start` on."""
        if self.order is None:
            stop = None if self.options.limit is None else max(0, self.options.limit - start)
            return itertools.islice(self.source.start_at(start), stop)
        assert isinstance(self.source, IndexedSource)
        return map(self.source.get, map(int, self.order[start : self.total]))

    def _chunks(self) -> Iterator[list[Sample | Reject]]:
        """Cut the remaining samples into chunks of limited size, each within one shard."""
        position, number = self.state.position, self.state.shard
        samples = self._samples(position)
        while True:
            end = self.bounds(number)
            count = CHUNK_SAMPLES if end is None else min(CHUNK_SAMPLES, end - position)
            if count == 0:
                number += 1
                continue
            chunk = next_chunk(samples, count)
            if not chunk:
                return
            position += len(chunk)
            yield chunk

    def _directory(self) -> Path:
        """Return the directory of the current shard."""
        return self.directory / f"shard-{self.state.shard:05}"

    def _open_writer(self) -> ShardWriter:
        if self._writer is None:
            kind = writer_of(self.options.container)
            directory = self._directory()
            if self.state.writer is None:
                remove_own(directory)  # begun, but never committed
            self._writer = kind(directory, self.source.schema, self.state.writer)
        return self._writer

    def _take(self, result: Sequence[Record | Reject]) -> None:
        """Append a chunk's records; commit or seal the shard if it is due."""
        taken = checked_records(result, self.source, self.stop_on_error)
        self.consistent = False
        state, writer, rejects = self.state, self._open_writer(), self._rejects
        assert rejects is not None
        for index, record in enumerate(taken, state.position):
            if isinstance(record, Reject):
                if rejects.length == 0:
                    rejects.append(REJECTS_HEAD)
                rejects.append(csv_line(index, *record))
                state.num_rejected += 1
        writer.append([record for record in taken if isinstance(record, Record)])
        state.remarks = with_records(state.remarks, taken)
        state.position += len(taken)
        limit = self.options.shard_bytes
        if state.position == self.bounds(state.shard) or (
            limit is not None and writer.blob_bytes >= limit
        ):
            self._seal()
        elif (
            writer.blob_bytes - (state.writer or {}).get("blob_bytes", 0) >= _COMMIT_BYTES
            or time.monotonic() - self.last_commit >= _COMMIT_SECONDS
        ):
            self._commit()
        self.consistent = True

    def _commit(self) -> None:
        """Make all data durable, and then the state that refers to them."""
        assert self._rejects is not None
        if self._writer is not None:
            self.state.writer = self._writer.commit()
        self._rejects.sync()
        self.state.rejects = self._rejects.state
        replace_state(self.directory / "state.json", asdict(self.state))
        self.last_commit = time.monotonic()

    def _seal(self) -> None:
        """Finish the current shard; an empty one leaves no file.

        `ShardDamagedError` if it does not read back as written.
        """
        assert self._rejects is not None
        state, directory = self.state, self._directory()
        target = self.shards / f"{directory.name}{writer_of(self.options.container).suffix}"
        if state.sealing and target.exists():
            _check_shard(target)  # killed between the rename and the commit
        else:
            writer = self._open_writer()
            if writer.num_samples:
                state.sealing = True
                self._commit()
                writer.seal(target, self.packed_with)
            writer.close()
        self._writer = None
        state.shard += 1
        state.rejects = self._rejects.state
        if state.sealing:
            after = Start(*(getattr(state, name) for name in Start.__slots__))
            state.sealed.append(Sealed(entry_of(target), tag_of(os.stat(target)), after))
        state.sealing, state.writer = False, None
        self._commit()
        remove_own(directory)

    # -- ending -----------------------------------------------------------------------

    def _finish(self) -> Path:
        """Return the path of the finished data; write the manifest of several shards."""
        entries = [shard.entry for shard in self.state.sealed]
        if not entries:
            self._publish_rejects()
            self._clear()
            rejects = rejects_path(self.destination)
            raise nothing_packed(self.state.num_rejected, read_rejects(rejects), rejects)
        if not self.options.many:
            return self.shards / entries[0].file
        schema: Schema = self.source.schema
        readers = [ShardReader(self.shards / entry.file) for entry in entries]
        digest = content_digest(schema, [reader.column for reader in readers])
        Manifest(schema, digest, tuple(entries), self.packed_with).write(self.shards)
        return self.shards

    def _publish(self) -> None:
        """Rename the finished data to the destination.

        The list of rejects comes first, so that a visible dataset is complete.
        """
        data = self._finish()
        self._place.check()
        self._publish_rejects()
        self._place.put(data, spare=self.directory / "replaced")
        sync_directory(self.destination.parent)

    def _publish_rejects(self) -> None:
        assert self._rejects is not None
        new = self.directory / "rejects.csv.new"
        remove_own(new)
        if self.state.num_rejected:
            self._rejects.sync()
            with open_own_file(self._rejects.path) as file:
                write_file(new, file.read())
        self._list.put(new)


def checked_records(
    result: Sequence[Record | Reject], source: Source, stop_on_error: bool
) -> list[Record | Reject]:
    """Return the records of a chunk; raise `RejectedError` at a bad sample if that is wanted."""
    source.check_store()  # before samples are rejected because of a failed store
    taken = [
        Reject(*map(with_urls, record)) if isinstance(record, Reject) else record
        for record in result
    ]
    bad = next((record for record in taken if isinstance(record, Reject)), None)
    if bad is not None and stop_on_error:
        raise RejectedError(
            f"{bad.key}: {bad.reason}. Go on with on_error='report', which leaves such images "
            "out and lists them; or repair or remove it and start again with overwrite=True."
        )
    return taken


def writer_of(container: Container) -> type[ShardWriter]:
    """Return a container's writer; imports its library, and not the other's."""
    if container == "lmdb":
        from fastdata.formats.lmdb import LmdbShardWriter

        return LmdbShardWriter
    from fastdata.formats.hdf5 import Hdf5ShardWriter

    return Hdf5ShardWriter


def _check_shard(path: Path, digest: str = "") -> None:
    """Read a finished shard completely; `ShardDamagedError` if it has changed."""
    try:
        reader = ShardReader(path)
        damage = next(find_damage(reader), None)
    except FastdataError as error:
        raise ShardDamagedError(str(error)) from error
    if damage is not None:
        raise ShardDamagedError(str(damage))
    if digest and reader.header.digest != digest:
        raise ShardDamagedError(f"{path} is another shard than the one that was written")


def next_chunk(samples: Iterator[Sample | Reject], count: int) -> list[Sample | Reject]:
    """Return the next samples; fewer if they are large, as a chunk is in memory."""
    chunk: list[Sample | Reject] = []
    num_bytes = 0
    for sample in itertools.islice(samples, count):
        chunk.append(sample)
        num_bytes += bytes_of(sample)
        if num_bytes >= CHUNK_BYTES:
            break
    return chunk
