"""More shards than a process may have files open."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from samples import SUFFIXES, make_records, write_shard

import fastdata
from fastdata.errors import ResourceLimitError
from fastdata.formats.layout import content_digest
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import ShardReader
from fastdata.verifying import verify

SHARDS = 300
OPEN_FILES = 100


@pytest.fixture(scope="module", params=SUFFIXES)
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of as many shards, all alike."""
    folder: Path = tmp_path_factory.mktemp("many") / "shards"
    folder.mkdir()
    suffix = SUFFIXES[request.param]
    records = make_records(count=2, codec="raw", size=(8, 8))
    first = write_shard(folder.parent / f"one{suffix}", records)
    reader = ShardReader(first)
    entries = []
    for number in range(SHARDS):
        name = f"shard-{number:05}{suffix}"
        shutil.copy(first, folder / name)
        entries.append(ShardEntry(name, 2, first.stat().st_size, reader.header.digest))
    schema = reader.header.schema
    digest = content_digest(schema, [reader.column] * SHARDS)
    Manifest(schema, digest, tuple(entries)).write(folder)
    return folder


@pytest.fixture
def few_files() -> Iterator[None]:
    """Let this process open few files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize(("method", "workers"), [("thread", 0), ("thread", 2), ("process", 2)])
def test_an_epoch_of_more_shards_than_open_files(many: Path, method: str, workers: int) -> None:
    first = fastdata.open(min(many.glob("shard-*")))
    with fastdata.loader(
        many, batch_size=100, shuffle=True, num_workers=workers, worker_method=method
    ) as loader:
        images = torch.cat([batch.image for batch in loader])
    assert len(images) == 2 * SHARDS
    for image, _ in first:
        assert int((images == image).flatten(1).all(1).sum()) == SHARDS


@pytest.mark.usefixtures("few_files")
def test_a_cache_that_takes_a_file_a_shard_says_so(many: Path) -> None:
    with pytest.raises(ResourceLimitError, match="Too many open files"):
        fastdata.loader(many, cache="ram", num_workers=0)


@pytest.mark.usefixtures("few_files")
def test_verify_reads_more_shards_than_open_files(many: Path) -> None:
    report = verify(many, progress=False)
    assert report.damage == ()
    assert report.num_shards == SHARDS


@pytest.fixture
def no_more_files(few_files: None) -> Iterator[None]:
    """Have this process out of descriptors."""
    taken = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    yield
    for descriptor in taken:
        os.close(descriptor)


@pytest.fixture
def both(many: Path) -> list[Path]:
    """Return a shard, and the directory of all."""
    return [min(many.glob("shard-*")), many]


def test_want_of_descriptors_is_no_damage(both: list[Path], no_more_files: None) -> None:
    for call in (fastdata.open, verify, fastdata.loader):
        for path in both:
            with pytest.raises(ResourceLimitError, match=r"Too many open files.*ulimit -n"):
                call(path)  # type: ignore[operator]


def test_want_of_descriptors_in_the_middle_of_verifying_is_no_damage(
    many: Path, monkeypatch: pytest.MonkeyPatch, few_files: None
) -> None:
    taken: list[int] = []
    read = ShardReader.__init__

    def after(self: ShardReader, *args: object, **options: object) -> None:
        read(self, *args, **options)  # type: ignore[arg-type]
        while not taken or taken[-1] < OPEN_FILES - 1:
            taken.append(os.open("/dev/null", os.O_RDONLY))

    monkeypatch.setattr(ShardReader, "__init__", after)
    try:
        with pytest.raises(ResourceLimitError, match="Nothing is wrong with the file"):
            verify(many, progress=False)
    finally:
        for descriptor in taken:
            os.close(descriptor)
