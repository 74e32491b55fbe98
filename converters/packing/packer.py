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
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastdata.errors import DestinationExistsError, FastdataError, RejectedError
from fastdata.formats.layout import Header, content_digest, is_container
from fastdata.formats.manifest import MANIFEST, Manifest
from fastdata.formats.reader import ShardReader, find_damage
from fastdata.formats.writer import Record, ShardDamagedError, ShardWriter
from fastdata.own_files import remove_own
from fastdata.regular_files import open_regular, with_urls
from fastdata.schema import Schema
from fastdata.storage.local import tag_of
from fastdata.summary import load_code

from ..base import IndexedSource, Reject, Sample, Source
from .chunk import CHUNK_BYTES, bytes_of
from .job import Job, read_rejects, rejects_path
from .options import Container, PackOptions
from .plan import (
    identity,
    nothing_packed,
    num_samples,
    order_of,
    packed_with,
    shard_bounds,
    source_hash,
)
from .report import PackReport, progress_bar
from .workers import EncodeAll

__all__ = ["Packer", "checked_records", "dataset_at", "next_chunk", "writer_of"]

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
        self.published = False
        """Whether an earlier run has published the dataset."""
        self.consistent = False
        """Whether writer and state agree, so that a commit is safe."""

    # -- starting ---------------------------------------------------------------------

    def begin(self, overwrite: bool) -> None:
        """Check the destination, and resume an earlier run."""
        job, destination = self.job, self.job.destination
        job.restore()
        exists = os.path.lexists(destination)
        if overwrite:
            _refuse_to_replace(destination)
        elif exists and not (job.directory / "job.json").exists():
            raise DestinationExistsError(
                f"{destination} already exists. Choose another destination, or pass "
                "overwrite=True (--overwrite) to replace it once the new dataset is complete."
            )
        content = source_hash(self.source, self.options)
        job.begin(self.identity, content, restart=overwrite)
        if job.state.digest and not self._data().exists():
            found = dataset_at(destination, self.options.many)
            self.published = found is not None and found.digest == job.state.digest
            if not self.published:
                job.start_over()  # the dataset of the earlier run has been removed
        if exists and not overwrite and not self.published:
            raise DestinationExistsError(
                f"{destination} already exists, beside the unfinished pack "
                f"{job.directory}. Pass overwrite=True (--overwrite) to finish and replace it."
            )
        self.overwrite = overwrite

    # -- the work ---------------------------------------------------------------------

    def run(self, encode: EncodeAll) -> PackReport:
        """Pack the remaining samples, seal, and publish."""
        started = time.monotonic()
        if not self.published:
            self._check_earlier_run()
        state = self.job.state
        resumed_at = state.position
        bar = progress_bar(self.job.destination.name, self.total, self.progress, resumed_at)
        results = encode(self._chunks() if not state.digest else iter(()))
        try:
            self.consistent = True
            for result in results:
                self._take(result)
                bar.update(len(result))
                if state.num_rejected:
                    bar.set_postfix(rejected=state.num_rejected, refresh=False)
            self.source.check_store()
            self.consistent = False
            if not state.digest:
                self._finish()
        except ShardDamagedError as error:
            self._go_back(len(state.sealed))
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
                path = self.job.shards / shard.entry.file
                if not path.exists() or tag_of(os.stat(path)) != shard.tag:
                    _check_shard(path, shard.entry.digest)
                    shard.tag = tag_of(os.stat(path))
                sound += 1
            if state.sealing:
                self._seal()
            elif state.writer is not None:
                self._open_writer()
        except ShardDamagedError as error:
            self._go_back(sound)
            self.job.note(f"{error}. Shard {self.job.state.shard} is packed again")
        else:
            # The digest is computed again: it costs little.
            state.digest = ""

    def _go_back(self, sealed: int) -> None:
        """Discard all but the first shards."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        self.job.go_back(sealed)

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

    def _directory(self) -> Path:
        """Return the directory of the current shard."""
        return self.job.directory / f"shard-{self.job.state.shard:05}"

    def _open_writer(self) -> ShardWriter:
        if self.writer is None:
            kind = writer_of(self.options.container)
            directory = self._directory()
            if self.job.state.writer is None:
                remove_own(directory)  # begun, but never committed
            self.writer = kind(directory, self.source.schema, self.job.state.writer)
        return self.writer

    def _take(self, result: Sequence[Record | Reject]) -> None:
        """Append a chunk's records; commit or seal the shard if it is due."""
        taken = checked_records(result, self.source, self.stop_on_error)
        self.consistent = False
        state, writer = self.job.state, self._open_writer()
        for index, record in enumerate(taken, state.position):
            if isinstance(record, Reject):
                self.job.reject(index, record)
        writer.append([record for record in taken if isinstance(record, Record)])
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
        if self.writer is not None:
            self.job.state.writer = self.writer.commit()
        self.job.commit()
        self.last_commit = time.monotonic()

    def _seal(self) -> None:
        """Finish the current shard; an empty one leaves no file.

        `ShardDamagedError` if it does not read back as written.
        """
        state, directory = self.job.state, self._directory()
        target = self.job.shards / f"{directory.name}{writer_of(self.options.container).suffix}"
        if state.sealing and target.exists():
            _check_shard(target)  # killed between the rename and the commit
        else:
            writer = self._open_writer()
            if writer.num_samples:
                state.sealing = True
                self._commit()
                writer.seal(target, self.packed_with)
            writer.close()
        state.shard += 1
        if state.sealing:
            self.job.note_sealed(target)
        state.sealing, state.writer, self.writer = False, None, None
        self.job.commit()
        remove_own(directory)

    def _finish(self) -> None:
        """Seal the last shard, and compute the digest of the dataset."""
        state = self.job.state
        if self.writer is not None or state.writer is not None:
            self._seal()
        if not state.sealed:
            self.job.abandon()
            rejects = rejects_path(self.job.destination)
            raise nothing_packed(state.num_rejected, read_rejects(rejects), rejects)
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
        entries = [shard.entry for shard in state.sealed]
        seconds = time.monotonic() - started
        return PackReport(
            path=destination,
            digest=state.digest,
            num_samples=sum(entry.num_samples for entry in entries),
            num_rejected=state.num_rejected,
            num_shards=len(entries),
            file_bytes=sum(entry.file_bytes for entry in entries),
            seconds=seconds,
            images_per_second=(state.position - resumed_at) / max(seconds, 1e-9),
            resumed_at=resumed_at,
            rejects_path=rejects_path(destination) if state.num_rejected else None,
            notes=(*self.source.notes, *self.job.notes),
            read_as=self.source.description,
            load_code=load_code(destination),
        )


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


def dataset_at(destination: Path, many: bool) -> Manifest | Header | None:
    """Return the manifest or header of a dataset; None if there is none that can be read."""
    try:
        return Manifest.read(destination) if many else ShardReader(destination).header
    except (FastdataError, OSError):
        return None


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


_OF_DATASET = re.compile(
    r"manifest\.json(\.new)?|rejects\.csv|shard-\d{5,}(-[0-9a-f]{16})?\.(lmdb|h5)(-lock)?"
)
"""Names that fastdata gives; LMDB's own tools add ``-lock``."""


def _refuse_to_replace(destination: Path) -> None:
    """Refuse to replace anything but a dataset."""
    why = None
    if destination.is_dir():
        manifest = dataset_at(destination, many=True)
        listed = {one.file for one in manifest.shards} if isinstance(manifest, Manifest) else set()
        names = sorted(set(os.listdir(destination)) - listed)
        foreign = next((name for name in names if not _OF_DATASET.fullmatch(name)), None)
        if MANIFEST not in names:
            why = f"is a directory but not a dataset (it has no {MANIFEST})"
        elif foreign:
            why = f"has {foreign}, which does not belong to the dataset"
    elif destination.is_file():
        with open(destination, "rb", opener=open_regular) as file:
            start = file.read(32)
        if start and not is_container(start):  # a damaged dataset may be replaced
            why = "is a file but not a dataset (if you gave a pattern, put it in quotes)"
    if why:
        raise DestinationExistsError(
            f"{destination} {why}, so it is not replaced. Move that elsewhere, or choose another "
            "destination."
        )


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
