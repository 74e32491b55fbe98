"""What every source format promises, held against each of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Case, Picture, all_cases, make_pictures
from pack_helpers import digest_of, quick_commits, run_child

import fastdata
from fastdata.converters import finding
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.converters.packing import packer
from fastdata.errors import FastdataError, JobChangedError, OptionError

COUNT = 12
CASES = all_cases()
MUTATIONS = int(os.environ.get("FASTDATA_CONVERTER_MUTATIONS", "8"))
MEMORY_BYTES = 300 << 20
"""How much damaged input may make a pack take, beyond what the process has."""


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(COUNT)


def _params() -> Iterator[Any]:
    """Mark every case after the first of a format: only `scripts/test --all` runs it."""
    seen: set[str] = set()
    for case in CASES:
        marks = [pytest.mark.formats] if case.format in seen else []
        yield pytest.param(case, marks=marks, id=case.name)
        seen.add(case.format)


@pytest.fixture(scope="module", params=list(_params()))
def written(
    request: pytest.FixtureRequest,
    pictures: list[Picture],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Case, Path, Any]:
    """A case, the folder with its files, and the location to pack; not to be changed."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    return case, folder, case.write(folder, pictures)


@pytest.fixture(scope="module")
def packed(
    written: tuple[Case, Path, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """All of it in one shard, as nothing but `pack` alone has made it; and the report."""
    case, _, location = written
    path = tmp_path_factory.mktemp("packed") / "a.lmdb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer, "CHUNK_SAMPLES", 4)
        return path, pack(case, location, path)


@pytest.fixture(autouse=True, scope="module")
def _entry_points_looked_up_once() -> Iterator[None]:
    """Python reads them from the files of all that is installed, for each pack anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "entry_points", functools.cache(finding.entry_points))
        yield


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)


def pack(case: Case, location: Any, path: Path, **options: Any) -> Any:
    """Pack so that images can be compared: files as they are, pixels without loss."""
    return fastdata.pack(
        location,
        path,
        source_options=case.options,
        progress=False,
        **{
            "num_workers": 0,
            "codec": "keep" if case.holds == "files" else "raw",
            "resize": "none",
            **options,
        },
    )


def content(case: Case, path: Path) -> list[tuple[bytes, int]]:
    """Return image (the file, or its pixels) and label of each sample."""
    dataset = fastdata.open(path)
    found = []
    for shard in dataset.shards:
        for index in range(len(shard)):
            label = int(shard.value("label", index)) if "label" in dataset.schema else -1
            found.append((bytes(shard.blob(case.image, index)), label))
    return found


def expected(case: Case, pictures: list[Picture]) -> list[tuple[bytes, int]]:
    return [
        (p.data if case.holds == "files" else p.pixels.tobytes(), p.label if case.labels else -1)
        for p in pictures
    ]


@pytest.mark.smoke
def test_it_is_recognised_and_the_choice_is_said(written: tuple[Case, Path, Any]) -> None:
    case, _, location = written
    source = find_source(location, options=case.options)
    assert source.name == case.format
    assert source.description.startswith(f"read as {case.format}: ")
    assert source.summary


@pytest.mark.smoke
def test_every_sample_arrives(
    written: tuple[Case, Path, Any], pictures: list[Picture], packed: tuple[Path, Any]
) -> None:
    case, *_ = written
    path, report = packed
    assert (report.num_samples, report.num_rejected) == (COUNT, 0)
    found, wanted = content(case, path), expected(case, pictures)
    assert (found if case.keeps_order else sorted(found)) == (
        wanted if case.keeps_order else sorted(wanted)
    )
    keys = fastdata.open(path).keys
    assert len(set(keys)) == COUNT


def test_workers_shards_and_a_limit_change_nothing(
    written: tuple[Case, Path, Any], packed: tuple[Path, Any], tmp_path: Path
) -> None:
    case, _, location = written
    path, alone = packed
    assert pack(case, location, tmp_path / "b.h5", num_workers=2).digest == alone.digest
    cut = pack(case, location, tmp_path / "c", shards=3, limit=8)
    assert (cut.num_shards, cut.num_samples) == (3, 8)
    assert content(case, tmp_path / "c") == content(case, path)[:8]


@pytest.mark.formats
def test_shuffled_it_has_the_same_samples(
    written: tuple[Case, Path, Any], packed: tuple[Path, Any], tmp_path: Path
) -> None:
    case, _, location = written
    if not case.shuffles:
        with pytest.raises(OptionError, match="shuffle needs"):
            pack(case, location, tmp_path / "b.lmdb", shuffle=True)
        return
    pack(case, location, tmp_path / "b.lmdb", shuffle=True, seed=3)
    before, after = content(case, packed[0]), content(case, tmp_path / "b.lmdb")
    assert after != before
    assert sorted(after) == sorted(before)


def run_apart(action: Callable[..., None], case: Case, *args: Any) -> int:
    """Run `action(case, ...)` in another process; return its exit code."""
    if case.forks:
        return run_child(action, case, *args)
    # The session's fork server has used no format.  What it imports is not for a test to change.
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=action, args=(case, *args))
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    assert isinstance(code, int)
    return code


def _killed_at(case: Case, step: int, location: Any, path: Path) -> None:
    """Pack, and die without a word after so many chunks have been taken."""
    quick_commits()
    packer.CHUNK_SAMPLES = 4
    take = packer.Packer._take

    def take_or_die(self: Any, result: Any) -> None:
        take(self, result)
        if self.state.position >= step:
            os._exit(9)

    packer.Packer._take = take_or_die  # type: ignore[method-assign]
    pack(case, location, path)


def test_killed_twice_it_goes_on_with_the_same_result(
    written: tuple[Case, Path, Any], packed: tuple[Path, Any], tmp_path: Path
) -> None:
    case, _, location = written
    for step in (4, 8):
        assert run_apart(_killed_at, case, step, location, tmp_path / "a.lmdb") == 9
    report = pack(case, location, tmp_path / "a.lmdb")
    assert report.resumed_at >= 4
    assert digest_of(tmp_path / "a.lmdb") == packed[1].digest


def test_a_source_that_changed_is_not_gone_on_with(
    written: tuple[Case, Path, Any], pictures: list[Picture], tmp_path: Path
) -> None:
    case, _, _ = written
    folder = tmp_path / "in"
    folder.mkdir()
    location = case.write(folder, pictures)
    assert run_apart(_killed_at, case, 4, location, tmp_path / "a.lmdb") == 9
    shutil.rmtree(folder)
    folder.mkdir()
    case.write(folder, [*pictures[::-1], *pictures[:2]])
    with pytest.raises(JobChangedError, match="unfinished pack of something else"):
        pack(case, location, tmp_path / "a.lmdb")


def test_what_is_cut_short_is_said(
    written: tuple[Case, Path, Any], pictures: list[Picture], tmp_path: Path
) -> None:
    case, _, _ = written
    random = np.random.default_rng(5)
    folder = tmp_path / "in"
    folder.mkdir()
    location = case.write(folder, pictures)
    files = case.damaged_files(folder)
    for number in range(6):
        victim = files[int(random.integers(len(files)))]
        whole = victim.read_bytes()
        os.truncate(victim, int(len(whole) * (0.15 + 0.14 * number)))
        try:
            report = pack(case, location, tmp_path / f"{number}.lmdb")
        except FastdataError:
            continue
        finally:
            victim.write_bytes(whole)
        said = f"{victim.name} of {len(whole)} bytes"
        assert report.num_rejected or report.num_samples == COUNT, said
        assert all(reject.reason for reject in report.rejects)


def _attacked(case: Case, location: Any, originals: dict[Path, bytes], path: Path) -> None:
    """Pack damaged files again and again; nothing but `FastdataError` may be raised."""
    random = np.random.default_rng(11)
    targets = [file for file, data in originals.items() if data]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(MUTATIONS):
        file = targets[int(random.integers(len(targets)))]
        data = bytearray(originals[file])
        # Most of what a reader believes is at the start or at the end.
        reach = min(len(data), (64, 512, len(data))[number % 3])
        for _ in range(int(random.integers(1, 5))):
            place = int(random.integers(reach))
            place = len(data) - 1 - place if number % 2 else place
            width = int(random.choice([1, 1, 4, 8]))
            value = random.choice([0, 0xFF, 0x7F, int(random.integers(256))])
            data[place : place + width] = bytes([int(value)]) * len(data[place : place + width])
        if number % 5 == 4:
            del data[int(random.integers(len(data))) :]
        file.write_bytes(data)
        with contextlib.suppress(FastdataError):
            pack(case, location, path / f"{number}.lmdb", overwrite=True)
        file.write_bytes(originals[file])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY_BYTES, f"damage made it take {grown >> 20} MiB"


@pytest.mark.timeout(180)
def test_damage_raises_nothing_but_fastdata_errors(
    written: tuple[Case, Path, Any], pictures: list[Picture], tmp_path: Path
) -> None:
    case, _, _ = written
    folder = tmp_path / "in"
    folder.mkdir()
    location = case.write(folder, pictures)
    originals = {file: file.read_bytes() for file in case.damaged_files(folder)}
    (tmp_path / "out").mkdir()
    assert run_apart(_attacked, case, location, originals, tmp_path / "out") == 0


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    written: tuple[Case, Path, Any], pictures: list[Picture], tmp_path: Path
) -> None:
    case, _, _ = written
    folder = tmp_path / "in"
    folder.mkdir()
    location = case.write(folder, pictures)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    one_of_each_kind = {(file.suffix, len(file.parts)): file for file in files}
    out, at = tmp_path / "out.h5", tmp_path / "at"
    code = run_apart(_packed_past_pipes, case, location, list(one_of_each_kind.values()), out, at)
    assert code == 0, at.read_text()


def _packed_past_pipes(case: Case, location: Any, files: list[Path], path: Path, at: Path) -> None:
    """Pack with one file after the other replaced, and say in `at` which it is."""
    for file in files:
        at.write_text(str(file))
        content = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        signal.alarm(20)  # whatever the waiting is done by
        with contextlib.suppress(FastdataError):
            report = pack(case, location, path)
            assert report.num_samples <= COUNT
        path.unlink(missing_ok=True)
        file.unlink()
        file.write_bytes(content)


@pytest.mark.formats
def test_memory_does_not_grow_with_the_source(
    written: tuple[Case, Path, Any], tmp_path: Path
) -> None:
    case, _, _ = written
    locations = {}
    for count in (200, 1000):
        folder = tmp_path / str(count)
        folder.mkdir()
        locations[count] = case.write(folder, make_pictures(count, 16, 16))
    # What is imported and cached at first would be taken for the smaller source's own.
    _run_through(find_source(locations[200], options=case.options))
    # The files have about 0.7 KB a picture; a listing of names, and places, takes up to 0.26 KB of
    # that in Python 3.11, and 0.46 KB in 3.13.
    limit = 550 * 800 * case.files_each
    for _ in range(3):
        few, many = (_peak_of_run(case, place, count) for count, place in locations.items())
        if many - few < limit:
            return
        # What Python itself caches now and then is not the source's: it does not come again.
    assert many - few < limit


def _peak_of_run(case: Case, location: Any, count: int) -> int:
    gc.collect()  # what others have left is not counted, and when it is next is the same
    tracemalloc.start()
    try:
        assert _run_through(find_source(location, options=case.options)) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _run_through(source: Any) -> int:
    samples: Iterator[Any] = iter(source)
    return sum(1 for sample in samples if not isinstance(sample, Reject))
