"""The DALI backend where something is wrong: with an image, with DALI, with the process."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dali_helpers import by_cpu, by_dali
from memory_data import digest
from samples import photo, pil_encode, put_blob, write_shard
from warm_python import WarmPython
from worker_helpers import PICTURES, damage_image, pictures

from fastdata import transforms as T  # noqa: N812
from fastdata.dali.backend import RUNS_AT_ONCE, Runs
from fastdata.dali.feeding import as_file
from fastdata.dali.graph import MAX_GRAPHS, FieldGraph, Graph, Graphs
from fastdata.errors import ShardCorruptError, WorkerError
from fastdata.opening import open as open_dataset

pytestmark = [pytest.mark.dali, pytest.mark.usefixtures("dali")]

SIZE = (120, 130)
TRANSFORM = [T.RandomCrop(64), T.RandomHorizontalFlip()]


def shard(folder: Path, count: int = 24, codec: str = "jpeg") -> Path:
    return write_shard(folder / "s.lmdb", pictures(count, codec, SIZE), PICTURES)


def without_tables() -> bytes:
    """Return a JPEG whose header says nothing wrong, and that cannot be decoded."""
    file = pil_encode(photo(*SIZE, seed=1), "JPEG", quality=90)
    return file[: file.find(b"\xff\xdb")] + file[file.find(b"\xff\xc0") :]


BROKEN = {
    "a bit": lambda path, *indices: damage_image(path, *indices),
    "no JPEG": lambda path, *indices: put(path, indices, b"\xff\xd8\xff\xd9" + bytes(50)),
    "no end": lambda path, *indices: put(path, indices, without_tables()[:-2]),
    "another size": lambda path, *indices: put(
        path, indices, pil_encode(photo(100, 100), "JPEG", quality=90)
    ),
    "no tables": lambda path, *indices: put(path, indices, without_tables()),
}
"""Ways to damage samples; the last one DALI finds itself."""


def put(path: Path, indices: tuple[int, ...], data: bytes) -> None:
    for index in indices:
        put_blob(path, index, data)


@pytest.mark.parametrize("how", list(BROKEN))
def test_a_bad_image_is_raised_in_its_place(tmp_path: Path, how: str) -> None:
    path = shard(tmp_path)
    BROKEN[how](path, 13)
    seen: list[int] = []
    with by_dali(path, batch_size=4, transform=TRANSFORM) as it:
        with pytest.raises(ShardCorruptError, match=r"s\.lmdb.*'image' of sample 13 .*picture/13"):
            seen.extend(label for batch in it for label in batch.label.tolist())
        assert seen == list(range(12))
        # The loader is as good as before.
        it.load_state_dict({**it.state_dict(), "epoch": 0, "batch": 4})
        assert [label for batch in it for label in batch.label.tolist()] == list(range(16, 24))


@pytest.mark.parametrize("how", list(BROKEN))
def test_skipping_takes_the_samples_that_the_cpu_takes(
    tmp_path: Path,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = shard(tmp_path)
    BROKEN[how](path, 3, 9, 10, 23)
    without_dali = []
    real = Runs._make_without_dali

    def made_here(self: Any, request: Any, error: Exception) -> Any:
        without_dali.append(request)
        return real(self, request, error)

    monkeypatch.setattr(Runs, "_make_without_dali", made_here)
    options: dict[str, Any] = {
        "batch_size": 4,
        "transform": TRANSFORM,
        "shuffle": True,
        "on_corrupt": "skip",
    }
    with by_cpu(path, **options) as cpu, by_dali(path, **options) as dali:
        for _ in range(2):
            assert digest(dali) == digest(cpu)
        assert dali.stats().skipped_samples == cpu.stats().skipped_samples == 8
        assert dali.stats().bytes_read == cpu.stats().bytes_read
    assert bool(without_dali) == (how == "no tables"), "else it is found before DALI is fed"
    skipped = [r for r in caplog.records if "skipped a corrupt sample" in r.getMessage()]
    assert len(skipped) == 2, "once a loader"
    assert not [r for r in caplog.records if "DALI failed" in r.getMessage()]


@pytest.mark.parametrize("codec", ["raw", "png"])
def test_skipping_what_dali_does_not_decode(tmp_path: Path, codec: str) -> None:
    path = shard(tmp_path, codec=codec)
    damage_image(path, 0, 5, 6)
    options: dict[str, Any] = {"batch_size": 6, "transform": TRANSFORM, "on_corrupt": "skip"}
    with by_cpu(path, **options) as cpu, by_dali(path, **options) as dali:
        assert digest(dali) == digest(cpu)
        assert dali.stats().skipped_samples == 3


def test_those_skipped_are_counted_when_they_are_handed_out(tmp_path: Path) -> None:
    path = shard(tmp_path)
    damage_image(path, 1, 6, 20)
    with by_dali(path, batch_size=4, on_corrupt="skip", transform=TRANSFORM) as it:
        counts = [it.stats().skipped_samples for _ in it]
    assert counts == [1, 2, 2, 2, 2, 3]


def test_without_a_sound_sample_it_is_an_error(tmp_path: Path) -> None:
    path = shard(tmp_path, 4)
    damage_image(path, *range(4))
    with (
        by_dali(path, batch_size=2, on_corrupt="skip", transform=TRANSFORM) as it,
        pytest.raises(ShardCorruptError, match="checksum of 'image' of sample 0 "),
    ):
        next(iter(it))


def test_without_checksums_a_header_is_looked_at(tmp_path: Path) -> None:
    path = shard(tmp_path)
    put_blob(path, 5, b"\xff\xd8\xff\xd9" + bytes(50))
    with by_dali(open_dataset(path, check=False), on_corrupt="skip", transform=TRANSFORM) as it:
        [first, _] = it
        assert it.stats().skipped_samples == 1
        assert first.label[5] != 5


# -- DALI itself -------------------------------------------------------------------------------


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, method: str, *calls: int) -> Iterator[None]:
    """Have a method of all graphs raise what DALI raises, at some of its calls."""
    real, number = getattr(Graph, method), iter(range(10**6))

    def fail(self: Graph, *arguments: Any) -> Any:
        if next(number) in calls:
            raise RuntimeError(
                "Critical error in pipeline:\nwith the following traceback:\n\nencountered:\n\n"
                "out of pencils\nCurrent pipeline object is no longer valid."
            )
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Graph, method, fail)
        yield


@pytest.mark.parametrize("method", ["outputs", "launch"])
@pytest.mark.parametrize("calls", [(0,), (2,), (1, 3), (2, 3)], ids=str)
def test_a_failure_of_dali_costs_a_message_and_no_batch(
    tmp_path: Path,
    method: str,
    calls: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = shard(tmp_path)
    options: dict[str, Any] = {"batch_size": 3, "transform": TRANSFORM, "shuffle": True}
    with by_cpu(path, **options) as cpu, by_dali(path, **options) as dali:
        with failing(monkeypatch, method, *calls):
            for _ in range(2):
                assert digest(dali) == digest(cpu)
        assert dali.stats().bytes_read == cpu.stats().bytes_read
    assert "DALI failed at batch" in caplog.text
    assert "made without DALI: out of pencils" in caplog.text


def test_a_dali_that_does_not_work_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with by_dali(shard(tmp_path), batch_size=2, transform=TRANSFORM) as it:
        epoch = iter(it)
        next(epoch)
        message = r"in a row.*out of pencils.*backend=\"cpu\""
        with (
            failing(monkeypatch, "outputs", *range(100)),
            pytest.raises(WorkerError, match=message),
        ):
            list(epoch)


def test_bytes_are_held_until_dali_has_read_them() -> None:
    """It is given views."""
    graph = Graph((FieldGraph(3, True),), batch_size=1, num_threads=1, device_id=None)
    pixels = photo(*SIZE)
    data = as_file(pixels)
    alive = weakref.ref(data)
    graph.launch({"f0.data": [data]})
    del data
    assert alive() is not None
    with graph.outputs() as [images]:
        np.testing.assert_array_equal(np.asarray(images)[0], pixels)
        assert alive() is not None
    gc.collect()
    assert alive() is None
    graph.close()
    graph.close()


def test_no_more_pipelines_are_kept_than_some(tmp_path: Path) -> None:
    sizes = range(64, 64 + 3 * MAX_GRAPHS)
    path = shard(tmp_path)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        real = Graphs.of

        def of(self: Graphs, *arguments: Any) -> Graph:
            graph = real(self, *arguments)
            made.append(len(self._graphs))
            return graph

        patch.setattr(Graphs, "of", of)
        # Batches of more samples each time: none fits the pipeline of the one before.
        batches = [list(range(n)) for n in range(1, len(sizes))]
        with by_dali(path, batch_size=1, batch_sampler=batches, transform=TRANSFORM) as it:
            assert [len(batch.label) for batch in it] == [len(batch) for batch in batches]
    assert max(made) <= MAX_GRAPHS + RUNS_AT_ONCE


# -- the process -------------------------------------------------------------------------------


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not tell")
def test_threads_of_dali_end_with_the_loader(tmp_path: Path) -> None:
    path = shard(tmp_path)

    def epoch() -> None:
        with by_dali(path, batch_size=4, transform=TRANSFORM, num_workers=4) as it:
            list(it)

    epoch()  # what lives as long as the process does
    before = native_threads(), threading.active_count()
    for _ in range(3):
        epoch()
    assert (native_threads(), threading.active_count()) <= before


def test_a_loader_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    """The fixture that looks for leaks sees to it."""
    from fastdata.loading import loader

    it = loader(shard(tmp_path), batch_size=4, backend="dali", num_workers=2, transform=TRANSFORM)
    next(iter(it))


PROGRAM = """
import sys, os, threading
from fastdata import transforms as T
from fastdata.loading import loader
it = loader(sys.argv[1], batch_size=4, backend="dali", num_workers=2, transform=T.RandomCrop(64))
epoch = iter(it)
next(epoch)
"""


@pytest.mark.parametrize("rest", ["", "list(epoch)\nlist(it)"])
def test_a_program_ends_whatever_is_open(
    tmp_path: Path, rest: str, warm_python: WarmPython
) -> None:
    done = warm_python.run(PROGRAM + rest + "\nprint('the end')", shard(tmp_path))
    assert done.returncode == 0
    assert done.stdout == "the end\n"
    assert "Error" not in done.stderr


def test_in_a_forked_process_it_is_an_error_and_the_parent_goes_on(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    done = warm_python.run(
        PROGRAM
        + """
child = os.fork()
if child == 0:
    try:
        list(epoch)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    it.close()
    os._exit(0)
os.waitpid(child, 0)
print(len(list(epoch)))
it.close()
""",
        shard(tmp_path),
    )
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("WorkerError")
    assert "forked" in first
    assert second == "5"
