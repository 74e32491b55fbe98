"""One run of a pack: connects the source, the writer and the job's state.

Samples are cut into chunks, encoded elsewhere, and appended in the source's
order by the one writer, here.  The order of events on the disk, which is
what makes it safe to kill this at any moment, is in ``job.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import DestinationExistsError, FastdataError, RejectedError
from fastdata.formats.layout import content_digest, is_container
from fastdata.formats.manifest import MANIFEST, Manifest, ShardEntry
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.formats.writer import Record, ShardDamagedError, ShardWriter
from fastdata.own_files import remove_own
from fastdata.regular_files import open_regular, with_urls
from fastdata.schema import Schema
from fastdata.storage.local import tag_of

from ..base import IndexedSource, Reject, Sample, Source
from .chunk import CHUNK_BYTES, ChunkResult, bytes_of
from .job import Job, Sealed, Start, rejects_path
from .options import Container, PackOptions
from .plan import NothingPackedError, identity, num_samples, order_of, packed_with, shard_bounds
from .report import PackReport, progress_bar
from .workers import EncodeAll

__all__ = ["Packer", "checked_records", "entry_of", "next_chunk", "writer_of"]

CHUNK_SAMPLES = 32
_COMMIT_BYTES = 64 << 20
_COMMIT_SECONDS = 10.0


class Packer:
    """One run of a job; for one thread."""

    def __init__(
        self,
        job: Job,
        source: Source,
        options: PackOptions,
        stop_on_error: bool,
        progress: bool | None,
    ) -> None:
        self.job = job
        self.source = source.indexed() if options.shuffle else source
        self.identity = identity(source, options)
        self.packed_with = packed_with(source, options)
        self.options = options
        self.stop_on_error = stop_on_error
        self.progress = progress
        self.total = num_samples(self.source, options, counted=options.shards > 1)
        self.writer: ShardWriter | None = None
        self.bounds = shard_bounds(options, self.total)
        self.order = order_of(self.source, options)
        self.last_commit = time.monotonic()
        self.overwrite = False
        self.consistent = False
        """Whether writer and state agree, so that a commit is safe."""

    # -- starting ---------------------------------------------------------------------

    def begin(self, overwrite: bool) -> None:
        """Check the destination, and resume an earlier run."""
        destination = self.job.destination
        self.job.restore()
        exists = os.path.lexists(destination)
        self._check_destination(overwrite)
        fingerprints = self.source.fingerprints(
            None if self.options.shuffle else self.options.limit
        )

        def name_of(index: int) -> str:
            return with_urls(self.source.fingerprint_key(index))

        self.job.begin(self.identity, fingerprints, name_of, restart=overwrite)
        published = self._is_published()
        if self.job.state.digest and not published and not self._data().exists():
            self.job.start_over()  # the dataset of the earlier run has been removed
        if exists and not overwrite and not published:
            raise DestinationExistsError(
                f"{destination} already exists, beside the unfinished pack "
                f"{self.job.directory}. Pass overwrite=True (--overwrite) to finish and replace it."
            )
        self.overwrite = overwrite

    def _check_destination(self, overwrite: bool) -> None:
        """Refuse to replace a destination without `overwrite`, or anything but a dataset."""
        destination = self.job.destination
        unfinished = (self.job.directory / "job.json").exists()
        if os.path.lexists(destination) and not overwrite and not unfinished:
            raise DestinationExistsError(
                f"{destination} already exists. Choose another destination, or pass "
                "overwrite=True (--overwrite) to replace it once the new dataset is complete."
            )
        if overwrite and destination.is_dir() and not (destination / MANIFEST).exists():
            raise DestinationExistsError(
                f"{destination} is a directory but not a dataset (it has no {MANIFEST}), so it is "
                "not replaced. Remove it yourself, or choose another destination."
            )
        if overwrite and destination.is_dir() and (found := _foreign_name(destination)):
            raise DestinationExistsError(
                f"{destination} has {found}, which does not belong to the dataset and would be "
                "removed with it. Move it elsewhere, or choose another destination."
            )
        if overwrite and destination.is_file() and not _may_be_dataset(destination):
            raise DestinationExistsError(
                f"{destination} is a file but not a dataset, so it is not replaced. Remove it "
                "yourself, or choose another destination. If you gave a pattern, put it in quotes: "
                "the shell replaced it by file names, and took the last one as the destination."
            )

    def _is_published(self) -> bool:
        """Return whether an earlier run has published the dataset."""
        destination, digest = self.job.destination, self.job.state.digest
        if not digest or self._data().exists():
            return False
        try:
            if self.options.many:
                return Manifest.read(destination).digest == digest
            return ShardReader(destination).header.digest == digest
        except FastdataError:
            return False

    # -- the work ---------------------------------------------------------------------

    def run(self, encode: EncodeAll) -> PackReport:
        """Pack the remaining samples, seal, and publish."""
        started = time.monotonic()
        if not (self.job.state.digest and not self._data().exists()):
            self._check_earlier_run()
        state = self.job.state
        resumed_at = state.position
        bar = progress_bar(self.job.destination.name, self.total, self.progress, resumed_at)
        results = encode(self._chunks() if not state.digest else iter(()))
        try:
            self.consistent = True
            for result in results:
                self._take(result)
                bar.update(len(result.records))
                if state.num_rejected:
                    bar.set_postfix(rejected=state.num_rejected, refresh=False)
            self.source.check_store()
            self.consistent = False
            if not state.digest:
                self._finish()
        except ShardDamagedError as error:
            self._go_back(state.begins, len(state.sealed))
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
            bar.close()
            results.close()
            if self.writer is not None:
                self.writer.close()
        return self._publish(started, resumed_at)

    def _check_earlier_run(self) -> None:
        """Check the files of an earlier run; shards that have changed are packed again."""
        state = self.job.state
        sound = 0
        try:
            for shard in state.sealed:
                self._check_sealed(shard)
                sound += 1
            if state.sealing:
                self._seal()
            elif state.writer is not None:
                self._open_writer()
        except ShardDamagedError as error:
            begins = [*(shard.begins for shard in state.sealed), state.begins][sound]
            self.job.note(f"{error}. Shard {begins.shard} is packed again")
            self._go_back(begins, sound)
        else:
            # The digest is computed again: it costs little.
            state.digest = ""

    def _check_sealed(self, shard: Sealed) -> None:
        path = self.job.shards / shard.entry.file
        with contextlib.suppress(OSError):
            if tag_of(os.stat(path)) == shard.tag:
                return
        self._check_shard(path, shard.entry.digest)
        shard.tag = tag_of(os.stat(path))

    def _check_shard(self, path: Path, digest: str = "") -> None:
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

    def _go_back(self, begins: Start, sealed: int) -> None:
        """Discard a shard, and all later ones."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        self.job.go_back(begins, sealed)

    def _samples(self, start: int) -> Iterator[Sample | Reject]:
        """Yield the source's samples from `start` on."""
        if self.order is None:
            stop = None if self.options.limit is None else max(0, self.options.limit - start)
            return itertools.islice(self.source.start_at(start), stop)
        assert isinstance(self.source, IndexedSource)
        return map(self.source.get, map(int, self.order[start : self.total]))

    def _chunks(self) -> Iterator[list[Sample | Reject]]:
        """Cut the remaining samples into chunks of limited size, each within one shard."""
        position, number = self.job.state.position, self.job.state.shard
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

    def _open_writer(self) -> ShardWriter:
        if self.writer is None:
            kind = writer_of(self.options.container)
            directory = self.job.shard_directory()
            if self.job.state.writer is None:
                remove_own(directory)  # begun, but never committed
            self.writer = kind(directory, self.source.schema, self.job.state.writer)
        return self.writer

    def _take(self, result: ChunkResult) -> None:
        """Append a chunk's records; commit or seal the shard if it is due."""
        taken = checked_records(result, self.source, self.stop_on_error)
        self.consistent = False
        state, writer = self.job.state, self._open_writer()
        for index, record in enumerate(taken, state.position):
            if isinstance(record, Reject):
                self.job.reject(index, record)
        writer.append([record for record in taken if isinstance(record, Record)])
        state.position += len(taken)
        state.source_bytes += result.source_bytes
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
        if self.writer is not None:
            self.job.state.writer = self.writer.commit()
        self.job.commit()
        self.last_commit = time.monotonic()

    def _seal(self) -> None:
        """Finish the current shard; an empty one leaves no file.

        `ShardDamagedError` if it does not read back as written.
        """
        state = self.job.state
        directory = self.job.shard_directory()
        target = self.job.shards / f"{directory.name}{writer_of(self.options.container).suffix}"
        if state.sealing and target.exists():
            self._check_shard(target)  # killed between the rename and the commit
        else:
            writer = self._open_writer()
            if writer.num_samples:
                state.sealing = True
                self._commit()
                writer.seal(target, self.packed_with)
            writer.close()
        if state.sealing:
            state.sealed.append(Sealed(entry_of(target), state.begins, tag_of(os.stat(target))))
        state.sealing, state.writer, self.writer = False, None, None
        state.shard += 1
        self.job.begin_shard()
        self.job.commit()
        remove_own(directory)

    def _finish(self) -> None:
        """Seal the last shard, and compute the digest of the dataset."""
        state = self.job.state
        if self.writer is not None or state.writer is not None:
            self._seal()
        if not state.sealed:
            rejects = self.job.rejects()
            self.job.abandon()
            if not rejects:
                raise NothingPackedError("nothing to pack: the source has no samples")
            raise NothingPackedError(
                f"nothing to pack: all {state.num_rejected} samples were rejected, the first, "
                f"{rejects[0].key}, since: {rejects[0].reason}. All are listed in "
                f"{rejects_path(self.job.destination)}."
            )
        entries = [shard.entry for shard in state.sealed]
        state.digest = entries[0].digest
        if self.options.many:
            readers = [ShardReader(self.job.shards / entry.file) for entry in entries]
            schema: Schema = self.source.schema
            state.digest = content_digest(schema, [reader.column for reader in readers])
            manifest = Manifest(schema, state.digest, tuple(entries), self.packed_with)
            manifest.write(self.job.shards)
        self.job.commit()

    def _data(self) -> Path:
        """Return the finished data, which `publish` renames to the destination."""
        shards = self.job.shards
        return shards if self.options.many else shards / self.job.state.sealed[0].entry.file

    def _publish(self, started: float, resumed_at: int) -> PackReport:
        state, destination = self.job.state, self.job.destination
        self.job.publish(self._data(), replace=self.overwrite)
        return PackReport.of(
            destination,
            self.source,
            [shard.entry for shard in state.sealed],
            [*self.source.notes, *self.job.notes],
            digest=state.digest,
            num_rejected=state.num_rejected,
            source_bytes=state.source_bytes,
            seconds=time.monotonic() - started,
            consumed=state.position - resumed_at,
            resumed_at=resumed_at,
            rejects_path=rejects_path(destination) if state.num_rejected else None,
        )


def checked_records(
    result: ChunkResult, source: Source, stop_on_error: bool
) -> list[Record | Reject]:
    """Return the records of a chunk; raise `RejectedError` at a bad sample if that is wanted."""
    source.check_store()  # before samples are rejected because of a failed store
    taken = [
        Reject(*map(with_urls, record)) if isinstance(record, Reject) else record
        for record in result.records
    ]
    bad = next((record for record in taken if isinstance(record, Reject)), None)
    if bad is not None and stop_on_error:
        raise RejectedError(
            f"{bad.key}: {bad.reason}. Go on with on_error='report', which leaves such images "
            "out and lists them; or repair or remove it and start again with overwrite=True."
        )
    return taken


def entry_of(path: Path) -> ShardEntry:
    """Return the entry of a finished shard in a manifest."""
    reader = ShardReader(path)
    return ShardEntry(path.name, len(reader), path.stat().st_size, reader.header.digest)


def writer_of(container: Container) -> type[ShardWriter]:
    """Return a container's writer; imports its library, and not the other's."""
    if container == "lmdb":
        from fastdata.formats.lmdb import LmdbShardWriter

        return LmdbShardWriter
    from fastdata.formats.hdf5 import Hdf5ShardWriter

    return Hdf5ShardWriter


_OF_DATASET = re.compile(
    r"manifest\.json(\.new)?|rejects\.csv|shard-\d{5,}(-[0-9a-f]{16})?\.(lmdb|h5)(-lock)?"
)
"""Names that fastdata gives; LMDB's own tools add ``-lock``."""


def _foreign_name(directory: Path) -> str | None:
    """Return the name of a file in a dataset's folder that does not belong to it."""
    listed: set[str] = set()
    with contextlib.suppress(FastdataError):
        listed = {shard.file for shard in Manifest.read(directory).shards}
    names = sorted(set(os.listdir(directory)) - listed)
    return next((name for name in names if not _OF_DATASET.fullmatch(name)), None)


def _may_be_dataset(path: Path) -> bool:
    """Return whether a file is empty, or an LMDB or HDF5 file, perhaps damaged."""
    with open(path, "rb", opener=open_regular) as file:
        start = file.read(32)
    return not start or is_container(start)


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
